"""The sentence of a pass: what it did and why, in one short line."""

from agent.providers.plan import Plan, PutTraits
from agent.reconcile.pass_report import LINE_CHARS_MAX, LINES_MAX, pass_sentence


def traits(number: int, names: int = 1) -> PutTraits:
    added = frozenset(f"CUSTOM_{number}_{name:04d}" for name in range(names))
    return PutTraits(f"uuid{number}", f"gpu{number}", frozenset(), added)


def test_a_pass_without_a_request_and_one_without_a_write() -> None:
    assert pass_sentence("its interval", None) == "After its interval: nothing changed."
    assert pass_sentence("the start", Plan()).endswith("Placement already holds what the driver describes.")


def test_long_plans_and_long_lines_are_cut() -> None:
    plan = Plan(tuple(traits(number, names=100) for number in range(LINES_MAX + 2)))
    sentence = pass_sentence("an event", plan)
    assert sentence.startswith("After an event: ") and sentence.endswith(" And 2 more operations.")
    assert "gpu0" in sentence and f"gpu{LINES_MAX}" not in sentence
    assert len(sentence) < LINES_MAX * LINE_CHARS_MAX + 60
