"""Instructions that move CPUs and memory to NUMA cells, completed with the cells of the claims. Pure.

A driver knows which cells it sees a guest on; a claim has the cells that the agent chose for the guest. Where
they differ the claim is right, so that Placement and the claim still agree after the reshape.
"""

from collections.abc import Mapping
from dataclasses import replace

from agent.claims.claim import Claim
from agent.claims.guest_cells import PlacedCell
from agent.driver import Description, MoveInstruction
from agent.moves.states import Move

CELL_CLASSES = frozenset({"VCPU", "PCPU", "MEMORY_MB"})


def name_claimed_cells(
    description: Description, claims: Mapping[str, Claim], migrations: Mapping[str, Move]
) -> Description:
    """The description, with moves to cells that name what each claim has on the cell.

    `claims` by consumer, `migrations` {migration: its move}. Where a migration holds what an instance's guest
    uses, the migration is named in place of the guest.
    """
    chosen = {consumer: claim.cells for consumer, claim in claims.items() if claim.cells}
    cells = {provider.name: provider.cell for provider in description.providers if provider.cell is not None}
    if not chosen or not cells:
        return description
    guests = {migrations[consumer].instance for consumer in chosen if consumer in migrations} - claims.keys()
    moves = tuple(
        _name_claims(move, chosen, cells[move.to_resource_provider], guests)
        if move.to_resource_provider in cells and move.moved_resources.keys() <= CELL_CLASSES
        else move
        for move in description.moves
    )
    return replace(description, moves=moves)


def _name_claims(
    move: MoveInstruction, chosen: Mapping[str, tuple[PlacedCell, ...]], cell: int, guests: set[str]
) -> MoveInstruction:
    if move.becomes:
        return move
    consumers = {
        consumer: shares
        for consumer, shares in (move.consumers or {}).items()
        if consumer not in chosen and consumer not in guests
    }
    for consumer, cells in chosen.items():
        amounts = _amounts_on(cells, cell)
        shares = {name: amount for name, amount in amounts.items() if amount and name in move.moved_resources}
        if shares:
            consumers[consumer] = shares
    return replace(move, consumers=consumers)


def _amounts_on(cells: tuple[PlacedCell, ...], number: int) -> dict[str, int]:
    amounts = dict.fromkeys(sorted(CELL_CLASSES), 0)
    for cell in cells:
        if cell.host_cell == number:
            amounts["VCPU"] += len(cell.floating)
            amounts["PCPU"] += len(cell.cpus)
            amounts["MEMORY_MB"] += cell.memory_mb
    return amounts
