"""The values of a reshape: slots, instructions by uuid, and what they are made from."""

import pytest
from kits.reshape_trees import GPU, ROOT, consumer, flat, nested

from agent.driver import MoveInstruction
from agent.errors import ReshapeRefused
from agent.reshape.types import (
    Relocation,
    Slot,
    allocations_of,
    inventory_at,
    name_of,
    new_custom_classes,
    resolve_instructions,
    slots_of,
    total_at,
)


def test_an_instruction_pairs_the_slots_that_exchange_units() -> None:
    move = MoveInstruction("host", {"VGPU": 4, "VCPU": 2}, "gpu0", becomes={"VCPU": "PCPU"})
    (instruction,) = resolve_instructions([move], flat(4), nested(1, 4))
    assert list(instruction.slot_pairs()) == [
        (Slot(ROOT, "VGPU"), Slot(GPU[0], "VGPU"), 4),
        (Slot(ROOT, "VCPU"), Slot(GPU[0], "PCPU"), 2),
    ]


def test_a_source_may_be_in_the_current_tree_alone_and_a_target_may_not() -> None:
    (instruction,) = resolve_instructions(
        [MoveInstruction("gpu0", {"VGPU": 4}, "host")], nested(1, 4), flat(4)
    )
    assert (instruction.source, instruction.target) == (GPU[0], ROOT)
    with pytest.raises(ReshapeRefused, match="names provider gpu0, which does not exist") as refusal:
        resolve_instructions([MoveInstruction("host", {"VGPU": 4}, "gpu0")], nested(1, 4), flat(4))
    assert refusal.value.details["reasons"] == ["unknown provider gpu0"]


def test_allocations_and_slots_are_the_same_thing() -> None:
    allocations = {ROOT: {"VCPU": 2, "VGPU": 1}, GPU[0]: {"VGPU": 3}}
    assert allocations_of(slots_of(allocations)) == allocations
    relocation = Relocation(consumer(1), "VCPU", 2, ROOT, GPU[0], "PCPU")
    assert relocation.slots == (Slot(ROOT, "VCPU"), Slot(GPU[0], "PCPU"))


def test_what_a_tree_has_in_a_slot() -> None:
    tree = nested(1, 4)
    assert total_at(tree, Slot(GPU[0], "VGPU")) == 4
    assert inventory_at(tree, Slot(ROOT, "VGPU")) is None and total_at(tree, Slot(ROOT, "VGPU")) == 0
    assert total_at(tree, Slot(GPU[1], "VGPU")) == 0
    assert name_of(GPU[0], flat(4), tree) == "gpu0" and name_of(GPU[1], tree) == GPU[1]


def test_only_custom_classes_that_the_tree_lacks_may_be_unknown() -> None:
    slots = [Slot(ROOT, "CUSTOM_B"), Slot(ROOT, "CUSTOM_A"), Slot(ROOT, "VGPU")]
    assert new_custom_classes(slots, flat(4)) == ["CUSTOM_A", "CUSTOM_B"]
