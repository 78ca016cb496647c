"""The sentence of a pass: what it did and why, in one short line. What would be in use after a reshape."""

from kits.reshape_trees import GPU, ROOT, consumer, nested

from agent.providers.plan import Plan, PutTraits
from agent.reconcile.pass_report import LINE_CHARS_MAX, LINES_MAX, pass_sentence, usages_after
from agent.reshape.laws import Relocation


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


def test_usages_move_with_the_relocations_and_removed_providers_are_left_out() -> None:
    usages = {ROOT: {"VCPU": 4, "VGPU": 3}, GPU[0]: {"VGPU": 1}, GPU[7]: {"VGPU": 2}}
    relocations = [
        Relocation(consumer(1), "VGPU", 3, ROOT, GPU[1], "VGPU"),
        Relocation(consumer(2), "VGPU", 2, GPU[7], GPU[1], "VGPU"),
    ]
    assert usages_after(usages, relocations, nested(2, 8)) == {
        ROOT: {"VCPU": 4},
        GPU[0]: {"VGPU": 1},
        GPU[1]: {"VGPU": 5},
    }
