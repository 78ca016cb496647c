"""The tree that a pass is to reach, and the move instructions that a reshape must carry out for it."""

from collections.abc import Iterable
from dataclasses import dataclass

from agent.driver import Description, MoveInstruction
from agent.placement.client import PlacementClient
from agent.providers.resolve import OwnedProviders, ResolvedDescription
from agent.reshape.claimed_units import (
    HostRecords,
    locate_units,
    name_migrations,
    with_missing,
    without_claimed,
)
from agent.reshape.due_instructions import (
    due_instructions,
    known_instructions,
    park_units,
    still_held,
    without_claimed_changes,
)
from agent.reshape.laws import Instruction
from agent.reshape.plan import without_sources
from agent.reshape.receipt import UndoneReceipts
from agent.reshape.relocate import places_of_claims
from agent.shapes import Amounts, Held, Holders
from agent.tree import ProviderTree


@dataclass(frozen=True, slots=True)
class Desired:
    """What Placement is to hold after the pass, and what of it takes a reshape.

    `tree` has the units of undone reshapes where they were before; `owned` is what the agent owns in it.
    `moves` are due because the driver describes them, `back` because the operator undid the receipt `undoes`.
    `undone_notices` has a sentence for each undone reshape, `parked_notices` one for each parked consumer.
    """

    tree: ProviderTree
    owned: OwnedProviders
    moves: tuple[Instruction, ...] = ()
    back: tuple[Instruction, ...] = ()
    undoes: str | None = None
    undone_notices: tuple[str, ...] = ()
    parked_notices: tuple[str, ...] = ()

    @property
    def due(self) -> tuple[Instruction, ...]:
        """All instructions that a reshape must carry out; if there are none, no reshape is due."""
        return (*self.moves, *self.back)


def desired_state(
    client: PlacementClient,
    description: Description,
    current: ProviderTree,
    resolved: ResolvedDescription,
    undone: UndoneReceipts,
    records: HostRecords,
) -> Desired:
    """Return the state to reach from `current`, Placement's tree, with the reshapes in `undone` left undone.

    `records` has the claims, whose exact units say where their amounts go. A description without moves, and
    without undone reshapes, costs no request. Raises ReshapeRefused for an instruction that names an unknown
    provider, PlacementError.
    """
    if not description.moves and not undone.receipts:
        return Desired(resolved.tree, resolved.owned)
    described = {provider.name: provider.inventories for provider in description.providers}
    tree = without_sources(resolved.tree, described, description.moves)
    tree = undone.restore(tree, current, description)
    moves, back = undone.remaining_moves(description), undone.inverse_moves()
    moves = name_migrations(moves, records.moves, records.exact.guests)
    held = _held_at_ends(client, (*moves, *back), current, tree)
    inverse = still_held(known_instructions(back, current, tree), held)
    known = known_instructions(moves, current, tree)
    by_consumer: dict[str, dict[str, Amounts]] = {}
    for uuid, holders in held.items():
        for consumer, amounts in holders.items():
            by_consumer.setdefault(consumer, {})[uuid] = amounts
    located = {**places_of_claims(records, by_consumer, known), **locate_units(records, known, inverse)}
    parking = park_units(with_missing(moves, located, current), described, current, tree, held)
    instructions = without_claimed(known_instructions(parking.moves, current, parking.tree), located)
    instructions = without_claimed_changes(instructions, records.claims.keys(), current, parking.tree)
    due_back = due_instructions(inverse, current, parking.tree, held)
    return Desired(
        parking.tree,
        (resolved.owned | undone.restored_ownership() | parking.owned).within(parking.tree),
        due_instructions(instructions, current, parking.tree, held, located),
        due_back,
        undone.receipt_of(instruction.move for instruction in due_back),
        undone.notices(),
        parking.notices,
    )


def _held_at_ends(
    client: PlacementClient,
    moves: Iterable[MoveInstruction],
    current: ProviderTree,
    desired: ProviderTree,
) -> Held:
    """The allocations at both ends of each move whose source still has some of the inventory to move."""
    ends: set[str] = set()
    for move in moves:
        source = current.by_name(move.from_resource_provider)
        if source is None or not source.inventories.keys() & move.moved_resources.keys():
            continue
        ends.add(source.uuid)
        target = desired.by_name(move.to_resource_provider)
        if target is not None and target.uuid in current:
            ends.add(target.uuid)
    held: dict[str, Holders] = {uuid: client.provider_allocations(uuid).consumers for uuid in sorted(ends)}
    return held
