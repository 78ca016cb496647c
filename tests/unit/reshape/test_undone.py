"""Undone reshapes: what they moved is where it was, and the driver's repeated instructions are ignored."""

from kits.reshape_trees import GPU, ROOT, flat, nested, plan_reshape, to_gpus

from agent.driver import DescribedProvider, Description, MoveInstruction
from agent.reshape.receipt import make_receipt
from agent.reshape.types import resolve_instructions
from agent.reshape.undone import UndoneReceipts

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
    assert [(move.from_resource_provider, move.to_resource_provider) for move in back] == [
        ("gpu0", "host"),
        ("gpu1", "host"),
    ]
    assert undone().receipt_of(back[1:]) == "r1"
    assert undone().receipt_of([OTHER]) is None


def test_the_operator_is_told_how_to_do_it_again() -> None:
    assert undone().notices() == ("The reshape r1 is undone until `plimsoll reshape` does it again.",)
