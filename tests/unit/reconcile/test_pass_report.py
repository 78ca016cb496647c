"""The sentence of a pass: what it did and why, in one short line. What would be in use after a reshape."""

from dataclasses import replace

from kits.reshape_trees import GPU, ROOT, consumer, nested

from agent.providers.plan import Plan, PutTraits
from agent.reconcile.pass_report import pass_sentence, usages_after
from agent.reshape.laws import Relocation


def traits(number: int, names: int = 1) -> PutTraits:
    added = frozenset(f"CUSTOM_{number}_{name:04d}" for name in range(names))
    return PutTraits(f"uuid{number}", f"gpu{number}", frozenset(), added)


def test_a_pass_without_a_request_and_one_without_a_write() -> None:
    assert pass_sentence("its interval", None) == "After its interval: nothing changed."
    assert pass_sentence("the start", Plan()).endswith("Placement already holds what the driver describes.")


def test_long_plans_and_long_lines_are_cut() -> None:
    """Three lines of at most 160 characters each."""
    plan = Plan(tuple(traits(number, names=100) for number in range(5)))
    sentence = pass_sentence("an event", plan)
    assert sentence.startswith("After an event: ") and sentence.endswith(" And 2 more operations.")
    assert "gpu2" in sentence and "gpu3" not in sentence
    assert not pass_sentence("it", Plan(tuple(map(traits, range(3))))).endswith("operations.")
    least = len(Plan((replace(traits(0), name=""),)).lines()[0])
    for chars in (160, 161):
        long = Plan((replace(traits(0), name="g" * (chars - least)),))
        assert pass_sentence("it", long).endswith(" ...") is (chars > 160)


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
