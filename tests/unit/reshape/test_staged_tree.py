"""The tree before a reshape: new providers are empty, and what is to leave is reserved."""

from kits.reshape_trees import GPU, ROOT, flat, nested, to_gpus

from agent.driver import MoveInstruction
from agent.reshape.staged_tree import moving_slots, staged_tree, without_sources
from agent.reshape.types import Slot, resolve_instructions


def test_while_pending_the_sources_are_reserved() -> None:
    instructions = resolve_instructions(to_gpus(2, 2), flat(4), nested(2, 2))
    reserved = staged_tree(flat(4), nested(2, 2), instructions, reserve=True)
    assert reserved[ROOT].inventories["VGPU"].capacity == 0
    assert reserved[ROOT].inventories["VCPU"].capacity == 64


def test_the_staged_tree_has_the_new_providers_without_what_moves() -> None:
    instructions = resolve_instructions(to_gpus(2, 2), flat(4), nested(2, 2))
    staged = staged_tree(flat(4), nested(2, 2), instructions, reserve=False)
    assert staged[ROOT].inventories == flat(4)[ROOT].inventories
    assert [dict(staged[uuid].inventories) for uuid in GPU[:2]] == [{}, {}]
    assert moving_slots(instructions) == (
        {Slot(ROOT, "VGPU")},
        {Slot(GPU[0], "VGPU"), Slot(GPU[1], "VGPU")},
    )


def test_a_source_that_goes_stays_under_its_ancestors_until_then() -> None:
    """The units leave a child that the desired tree no longer has."""
    instructions = resolve_instructions([MoveInstruction("gpu0", {"VGPU": 4}, "host")], nested(1, 4), flat(4))
    staged = staged_tree(nested(1, 4), flat(4), instructions, reserve=False)
    assert staged[GPU[0]].parent == ROOT and staged[GPU[0]].inventories["VGPU"].total == 4
    assert "VGPU" not in staged[ROOT].inventories


def test_a_class_that_moved_away_is_not_kept_for_others() -> None:
    moves = to_gpus(1, 4)
    assert "VGPU" not in without_sources(flat(4), {"host": ["VCPU"]}, moves)[ROOT].inventories
    assert "VGPU" in without_sources(flat(4), {"host": ["VCPU", "VGPU"]}, moves)[ROOT].inventories
