"""Which instructions are due: what Placement already shows as moved is not moved again."""

from collections.abc import Sequence

from kits.reshape_trees import GPU, ROOT, consumer, flat, nested, to_gpus

from agent.driver import MoveInstruction
from agent.reshape.due_instructions import (
    due_instructions,
    known_instructions,
    with_stand_ins,
    without_claimed_changes,
)
from agent.reshape.types import resolve_instructions
from agent.shapes import Held
from agent.tree import Inventory, ProviderTree


def due_moves(
    moves: Sequence[MoveInstruction], current: ProviderTree, desired: ProviderTree, held: Held
) -> tuple[MoveInstruction, ...]:
    instructions = known_instructions(moves, current, desired)
    return tuple(due.move for due in due_instructions(instructions, current, desired, held))


def test_instructions_that_are_done_are_not_due() -> None:
    done = nested(2, 4)
    assert due_moves(to_gpus(2, 4), done, done, {}) == ()
    assert len(due_moves(to_gpus(2, 4), flat(8), done, {})) == 2
    assert due_moves([MoveInstruction("gone", {"VGPU": 4}, "gpu0")], done, done, {}) == ()
    told = [MoveInstruction("gpu0", {"VGPU": 4}, "gpu1", {consumer(1): {"VGPU": 1}})]
    assert due_moves(told, done, done, {GPU[0]: {}, GPU[1]: {consumer(1): {"VGPU": 1}}}) == ()
    assert due_moves(told, done, done, {GPU[0]: {consumer(1): {"VGPU": 1}}, GPU[1]: {}}) == tuple(told)


def test_a_migration_stands_in_for_its_guest_where_they_hold_the_same() -> None:
    moves = [
        MoveInstruction("host", {"VGPU": 4}, "gpu0", {consumer(1): {"VGPU": 2}, consumer(2): {"VGPU": 1}})
    ]
    told = resolve_instructions(moves, flat(8), nested(1, 4))
    held = {
        consumer(2): {ROOT: {"VGPU": 1}},
        consumer(8): {ROOT: {"VGPU": 1}},
        consumer(9): {ROOT: {"VGPU": 2}},
    }
    (instruction,) = with_stand_ins(told, held, {consumer(8), consumer(9)})
    assert instruction.move.consumers == {consumer(9): {"VGPU": 2}, consumer(2): {"VGPU": 1}}


def test_a_claim_changes_its_class_only_with_the_inventory() -> None:
    none, four, six = flat(1), flat(1, PCPU=Inventory(4)), flat(1, PCPU=Inventory(6))
    uses = {consumer(1): {"VCPU": 2}, consumer(2): {"VCPU": 1}}
    told = [MoveInstruction("host", {"VCPU": 4}, "host", uses, {"VCPU": "PCPU"})]
    for current, desired, named in (
        (none, four, uses),
        (four, six, uses),
        (four, four, {consumer(2): {"VCPU": 1}}),
    ):
        instructions = resolve_instructions(told, current, desired)
        (instruction,) = without_claimed_changes(instructions, {consumer(1)}, current, desired)
        assert instruction.move.consumers == named
