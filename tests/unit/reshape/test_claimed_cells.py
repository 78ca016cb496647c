"""Moves to NUMA cells say what each claim has on the cell, where the driver sees less."""

from kits.reshape_trees import ROOT, consumer

from agent.claims.claim import Claim, ClaimState
from agent.claims.guest_cells import PlacedCell
from agent.claims.request import ClaimRequest
from agent.driver import DescribedProvider, Description, MoveInstruction
from agent.reshape.claimed_cells import name_claimed_cells

PLACED = PlacedCell(0, 1, {0: 4, 1: 5}, frozenset({6}), 4, 2048, frozenset({2}))
PROVIDERS = (
    DescribedProvider("host", None, {}),
    DescribedProvider("cell0", "host", {}, cell=0),
    DescribedProvider("cell1", "host", {}, cell=1),
    DescribedProvider("gpu0", "host", {}),
)


def claim(*cells: PlacedCell) -> Claim:
    request = ClaimRequest(consumer(1), ())
    return Claim(consumer(1), ClaimState.CLAIMED, request, {ROOT: {"PCPU": 3}}, cells=cells)


def description(*moves: MoveInstruction) -> Description:
    return Description(PROVIDERS, moves)


def test_the_claim_is_named_on_its_cell_and_on_no_other() -> None:
    """The driver saw the guest on the other cell."""
    mistaken = {consumer(1): {"PCPU": 3}, consumer(2): {"PCPU": 1}}
    moves = (
        MoveInstruction("host", {"PCPU": 8, "MEMORY_MB": 4096}, "cell0", mistaken),
        MoveInstruction("host", {"PCPU": 8, "MEMORY_MB": 4096}, "cell1"),
    )
    to_cell0, to_cell1 = name_claimed_cells(description(*moves), {consumer(1): claim(PLACED)}, {}).moves
    assert to_cell0.consumers == {consumer(2): {"PCPU": 1}}
    assert to_cell1.consumers == {consumer(1): {"PCPU": 3, "MEMORY_MB": 2048}}


def test_other_moves_and_claims_without_cells_change_nothing() -> None:
    moves = description(
        MoveInstruction("host", {"VGPU": 1}, "gpu0"),
        MoveInstruction("cell0", {"VCPU": 2}, "cell1", becomes={"VCPU": "PCPU"}),
    )
    assert name_claimed_cells(moves, {consumer(1): claim(PLACED)}, {}).moves == moves.moves
    to_cell = description(MoveInstruction("host", {"PCPU": 8}, "cell0"))
    assert name_claimed_cells(to_cell, {consumer(1): claim()}, {}) == to_cell
