"""Which NUMA cells guests are on, told by their claims where a reshape takes CPUs and memory to cells. Pure.

A driver knows what it sees of a guest; a claim says what was chosen, for every cell of the guest. So that
placement and the claim agree afterwards too, the claim's word goes before the driver's.
"""

from collections.abc import Mapping
from dataclasses import replace

from agent.claims.claim import Claim
from agent.claims.numa.cell_fit import PlacedCell
from agent.driver import Description, MoveInstruction
from agent.moves.states import Move

CELL_CLASSES = frozenset({"VCPU", "PCPU", "MEMORY_MB"})


def located(description: Description, claims: Mapping[str, Claim], moving: Mapping[str, Move]) -> Description:
    """The description with moves to cells that say what each claim with cells has there.

    `moving` {migration: its move}: where the migration holds what the instance's guest uses, the guest is not
    told besides.
    """
    chosen = {who: claim.cells for who, claim in claims.items() if claim.cells}
    cells = {each.name: each.cell for each in description.providers if each.cell is not None}
    if not chosen or not cells:
        return description
    guests = {moving[who].instance for who in chosen if who in moving} - claims.keys()
    moves = tuple(
        _with_claims(move, chosen, cells[move.to_resource_provider], guests)
        if move.to_resource_provider in cells and move.moved_resources.keys() <= CELL_CLASSES
        else move
        for move in description.moves
    )
    return replace(description, moves=moves)


def _with_claims(
    move: MoveInstruction, chosen: Mapping[str, tuple[PlacedCell, ...]], cell: int, guests: set[str]
) -> MoveInstruction:
    if move.becomes:
        return move
    told = {
        who: shares
        for who, shares in (move.consumers or {}).items()
        if who not in chosen and who not in guests
    }
    for who, cells in chosen.items():
        amounts = _on(cells, cell)
        mine = {name: amount for name, amount in amounts.items() if amount and name in move.moved_resources}
        if mine:
            told[who] = mine
    return replace(move, consumers=told)


def _on(cells: tuple[PlacedCell, ...], number: int) -> dict[str, int]:
    found = dict.fromkeys(sorted(CELL_CLASSES), 0)
    for cell in cells:
        if cell.host_cell == number:
            found["VCPU"] += len(cell.floating)
            found["PCPU"] += len(cell.cpus)
            found["MEMORY_MB"] += cell.memory_mb
    return found
