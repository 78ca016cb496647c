"""The tree that a pass is to reach, and the move instructions that a reshape must carry out for it."""

from collections.abc import Iterable
from dataclasses import dataclass

from agent.driver import Description, MoveInstruction
from agent.placement.client import PlacementClient
from agent.providers.resolve import OwnedProviders, ResolvedDescription
from agent.reshape.parking import parked
from agent.reshape.stage import due_moves, still_held, without_sources
from agent.reshape.withheld import Withheld
from agent.shapes import Held, Holders
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
    moves: tuple[MoveInstruction, ...] = ()
    back: tuple[MoveInstruction, ...] = ()
    undoes: str | None = None
    undone_notices: tuple[str, ...] = ()
    parked_notices: tuple[str, ...] = ()

    @property
    def due(self) -> tuple[MoveInstruction, ...]:
        """All moves that a reshape must carry out; if there are none, no reshape is due."""
        return (*self.moves, *self.back)


def desired_state(
    client: PlacementClient,
    description: Description,
    current: ProviderTree,
    resolved: ResolvedDescription,
    undone: Withheld,
) -> Desired:
    """Return the state to reach from `current`, Placement's tree, with the reshapes in `undone` left undone.

    A description without moves, and without undone reshapes, costs no request. Raises ReshapeRefused for an
    instruction that names an unknown provider, PlacementError.
    """
    if not description.moves and not undone.receipts:
        return Desired(resolved.tree, resolved.owned)
    described = {provider.name: provider.inventories for provider in description.providers}
    tree = without_sources(resolved.tree, described, description.moves)
    tree = undone.restored(tree, current, description)
    owned = resolved.owned | undone.owned()
    moves, back = undone.moves(description), undone.back()
    held = _held_at_ends(client, (*moves, *back), current, tree)
    parking = parked(moves, described, current, tree, held)
    back = due_moves(still_held(back, held, current), current, parking.tree, held)
    return Desired(
        parking.tree,
        (owned | parking.owned).within(parking.tree),
        due_moves(parking.moves, current, parking.tree, held),
        back,
        undone.undone_by(back),
        undone.told(),
        parking.told,
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
