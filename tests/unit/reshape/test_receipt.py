"""The receipt: it undoes what was done, restores what was there, and survives the journal."""

import json
from dataclasses import replace

import pytest
from kits.reshape_trees import GPU, ROOT, consumer, flat, nested, plan_reshape, to_gpus

from agent.driver import DescribedProvider, Description, MoveInstruction
from agent.errors import PlimsollError
from agent.reshape.laws import Slot, resolve_instructions
from agent.reshape.receipt import (
    Receipt,
    UndoneReceipts,
    inverse_moves,
    make_receipt,
    read_receipt,
    read_slots,
    slots_to_json,
)
from agent.tree import Inventory, ProviderTree

HELD = {consumer(1): {ROOT: {"VGPU": 1}}, consumer(2): {ROOT: {"VCPU": 2, "VGPU": 3}}}


def with_generation(tree: ProviderTree) -> ProviderTree:
    return ProviderTree(replace(provider, generation=7) for provider in tree)


def receipt() -> Receipt:
    current, desired = with_generation(flat(8)), with_generation(nested(2, 4))
    reshape = plan_reshape(current, desired, to_gpus(2, 4), HELD)
    instructions = resolve_instructions(to_gpus(2, 4), current, desired)
    originals = {Slot(ROOT, "VGPU"): Inventory(8, reserved=1)}
    return make_receipt("r1", 12.5, (current, desired, desired), instructions, reshape, originals, "r0")


def test_a_receipt_names_the_slots_and_what_was_in_them() -> None:
    made = receipt()
    assert made.source_slots == {("host", "VGPU")}
    assert made.target_slots == {("gpu0", "VGPU"), ("gpu1", "VGPU")}
    assert made.before[Slot(ROOT, "VGPU")] == Inventory(8, reserved=1), "as it was before it was reserved"
    assert made.after[Slot(ROOT, "VGPU")] is None
    assert made.generations == {ROOT: 7, GPU[0]: 7, GPU[1]: 7}
    assert (made.undoes, made.allocations.keys()) == ("r0", HELD.keys())


def test_a_receipt_survives_its_json() -> None:
    told = MoveInstruction("host", {"VGPU": 0}, "gpu0", {consumer(3): {"VGPU": 0}}, {"VGPU": "PGPU"})
    made = replace(receipt(), back=(told,), records=receipt().relocations[:1])
    assert read_receipt(made.id, made.at, json.loads(json.dumps(made.to_json()))) == made
    slots = {Slot(ROOT, "VGPU"): None, Slot(GPU[0], "VGPU"): Inventory(4)}
    assert read_slots(json.loads(json.dumps(slots_to_json(slots)))) == slots


@pytest.mark.parametrize("broken", [{}, [], {"moves": 1}, {**receipt().to_json(), "moves": [{}]}])
def test_a_document_that_no_receipt_wrote_is_refused(broken: object) -> None:
    with pytest.raises((PlimsollError, LookupError, TypeError, ValueError)):
        read_receipt("r1", 0.0, broken)


def test_what_was_there_is_restored_with_its_ownership() -> None:
    made = receipt()
    restored = made.restore(nested(2, 4))
    assert restored[ROOT].inventories["VGPU"] == Inventory(8, reserved=1)
    assert all("VGPU" not in restored[uuid].inventories for uuid in GPU[:2])
    assert made.restored_ownership().get(ROOT).classes == {"VGPU"}


def test_a_source_that_went_is_created_again() -> None:
    """The undo of cards that became one count on the host."""
    moves = [MoveInstruction("gpu0", {"VGPU": 4}, "host")]
    current, desired = with_generation(nested(1, 4)), with_generation(flat(4))
    instructions = resolve_instructions(moves, current, desired)
    reshape = plan_reshape(current, desired, moves, {})
    stage = with_generation(ProviderTree([*desired, current[GPU[0]]]))
    made = make_receipt("r1", 0.0, (current, stage, desired), instructions, reshape, {}, None)
    assert [source.uuid for source in made.sources] == [GPU[0]]
    restored = made.restore(desired)
    assert restored[GPU[0]].parent == ROOT and restored[GPU[0]].inventories["VGPU"].total == 4


@pytest.mark.parametrize(
    ("total", "move", "back"),
    [
        (4, MoveInstruction("host", {"VGPU": 4}, "gpu0"), {"VGPU": 4}),
        (7, MoveInstruction("host", {"VGPU": 4}, "gpu0"), {"VGPU": 7}),
        (4, MoveInstruction("host", {"VGPU": 4, "PGPU": 2}, "gpu0"), {"VGPU": 4, "PGPU": 2}),
        (4, MoveInstruction("gone", {"VGPU": 4}, "gpu0"), {"VGPU": 4}),
    ],
    ids=["as many", "the host counted more", "a class that the source lacks", "a source that is not there"],
)
def test_an_undo_brings_back_what_the_source_lost_or_what_the_move_says(
    total: int, move: MoveInstruction, back: dict[str, int]
) -> None:
    reshape = plan_reshape(flat(total), nested(1, 4), to_gpus(1, 4), {})
    (undo,) = inverse_moves([move], reshape, flat(total), nested(1, 4))
    source = move.from_resource_provider
    assert undo == MoveInstruction("gpu0", back, source, {}, {})


def test_an_undo_names_what_a_consumer_got_and_what_only_its_claim_did_together() -> None:
    held = {consumer(1): {ROOT: {"VGPU": 1}}}
    reshape = plan_reshape(
        flat(4), nested(1, 4), to_gpus(1, 4), held, unheld={consumer(1): {ROOT: {"VGPU": 2}}}
    )
    assert reshape.relocations and reshape.records
    (undo,) = inverse_moves(to_gpus(1, 4), reshape, flat(4), nested(1, 4))
    assert undo.consumers == {consumer(1): {"VGPU": 3}}


FURTHER = MoveInstruction("gpu0", {"VGPU": 4}, "gpu7")
"""What the driver says next of the same units."""
OTHER = MoveInstruction("host", {"VCPU": 1}, "gpu0")
DESCRIPTION = Description((DescribedProvider("host", None, {}),), (*to_gpus(2, 4), FURTHER, OTHER))


def undone() -> UndoneReceipts:
    instructions = resolve_instructions(to_gpus(2, 4), flat(8), nested(2, 4))
    reshape = plan_reshape(flat(8), nested(2, 4), to_gpus(2, 4), {})
    trees = (flat(8), nested(2, 4), nested(2, 4))
    return UndoneReceipts((make_receipt("r1", 0.0, trees, instructions, reshape, {}, None),))


def test_only_the_moves_of_other_units_remain() -> None:
    assert undone().remaining_moves(DESCRIPTION) == (OTHER,)
    assert UndoneReceipts().remaining_moves(DESCRIPTION) == DESCRIPTION.moves


def test_the_units_are_where_they_were_and_nowhere_else() -> None:
    restored = undone().restore(nested(8, 4), flat(8), DESCRIPTION)
    assert restored[ROOT].inventories["VGPU"].total == 8
    assert [uuid for uuid in GPU if "VGPU" in restored[uuid].inventories] == GPU[2:7]
    assert undone().restored_ownership().get(ROOT).classes == {"VGPU"}


def test_the_inverse_moves_lead_to_their_receipt() -> None:
    back = undone().inverse_moves()
    assert [
        (move.from_resource_provider, move.moved_resources, move.to_resource_provider) for move in back
    ] == [
        ("gpu0", {"VGPU": 4}, "host"),
        ("gpu1", {"VGPU": 4}, "host"),
    ]
    assert undone().receipt_of(back[1:]) == "r1"
    assert undone().receipt_of([OTHER]) is None
    two = UndoneReceipts((replace(*undone().receipts, id="r0", back=(FURTHER,)), *undone().receipts))
    assert (two.receipt_of(back[1:]), two.receipt_of([FURTHER])) == ("r1", "r0")


def test_the_operator_is_told_how_to_do_it_again() -> None:
    assert undone().notices() == ("The reshape r1 is undone until `plimsoll reshape` does it again.",)
