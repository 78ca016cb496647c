"""The tree that a pass is to reach, and the move instructions that a reshape must carry out for it.

Two things change what the driver describes: the provider config files in force, which each pass adds to the
description and a reload replaces, and the reshapes that operators have undone, as the journal lists them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent import log
from agent.driver import Description, MoveInstruction
from agent.errors import SettingsError, UsageError
from agent.placement.client import PlacementClient
from agent.providers.limits import Caps
from agent.providers.provider_config import OverlayResult, ProviderConfig, overlay
from agent.providers.resolve import OwnedProviders, ResolvedDescription, uuids_of
from agent.reshape.claimed_units import (
    HostRecords,
    name_migrations,
    places_of_units,
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
from agent.reshape.receipt import Receipt, UndoneReceipts
from agent.reshape.relocate import places_of_claims, unheld_claims
from agent.shapes import Held, Holders, total, turned
from agent.state.journal import Journal
from agent.tree import ProviderTree

LOG = log.get(__name__)


class ActiveProviderConfig:
    """The provider config files in force on the host whose root provider is `root_uuid`."""

    def __init__(self, root_uuid: str, config: ProviderConfig | None = None) -> None:
        self._root_uuid = root_uuid
        self._config = config or ProviderConfig()
        self._logged: frozenset[str] = frozenset()

    def overlay(self, description: Description, current: ProviderTree) -> OverlayResult:
        """Return the driver's description with the configured entries added.

        An entry for a provider that this host does not have is logged once, and is no error: operators
        share one file among many hosts.
        """
        overlaid = self._overlay(self._config, description, current)
        for entry in overlaid.unmatched:
            if entry.where not in self._logged:
                LOG.info("%s: this host's driver describes no provider %s.", entry.where, entry.provider)
        self._logged = frozenset(entry.where for entry in overlaid.unmatched)
        return overlaid

    @property
    def caps(self) -> Caps:
        """The caps of the settings in force."""
        return self._config.caps

    def replace(
        self, config: ProviderConfig, description: Description | None, current: ProviderTree | None
    ) -> bool:
        """Use another configuration from now on. Returns whether it differs from the present one.

        `description` is the driver's latest, None if there is none to check against. Raises SettingsError,
        and changes nothing, where the configuration contradicts the description.
        """
        if config == self._config:
            return False
        if description is not None:
            conflicts = self._overlay(config, description, current or ProviderTree()).conflicts
            if conflicts:
                raise SettingsError(" ".join(conflicts))
        self._config = config
        return True

    def _overlay(
        self, config: ProviderConfig, description: Description, current: ProviderTree
    ) -> OverlayResult:
        if not config.entries:
            return OverlayResult(description)
        return overlay(config, description, uuids_of(description, current, self._root_uuid))


class UndoneReshapes:
    """The journal's list of undone reshapes. Each method raises StateError."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def ids(self) -> tuple[str, ...]:
        """The ids of the receipts that are undone."""
        return self._journal.undone_reshapes()

    def with_ids(self, ids: Sequence[str]) -> UndoneReceipts:
        """The receipts with these ids; one that the journal no longer has is left out."""
        if not ids:
            return UndoneReceipts()
        done = self._journal.reshapes(done=True)
        return UndoneReceipts(tuple(done[receipt_id] for receipt_id in ids if receipt_id in done))

    def set_ids(self, ids: Sequence[str]) -> None:
        """Have exactly these reshapes undone."""
        if tuple(ids) != self._journal.undone_reshapes():
            self._journal.remember_undone_reshapes(ids)

    def receipts(self) -> tuple[Receipt, ...]:
        """The receipts of all executed reshapes, the oldest first."""
        return tuple(self._journal.reshapes(done=True).values())

    def ids_after(self, undo: str | None) -> tuple[str, ...]:
        """The ids of the undone reshapes once the receipt `undo` is undone, too; None: once all are redone.

        To undo the undoing of a reshape is to redo it. Raises UsageError where the receipt cannot be undone.
        """
        if undo is None:
            return ()
        done, undone = self._journal.reshapes(done=True), self._journal.undone_reshapes()
        receipt = done.get(undo)
        if receipt is None:
            raise UsageError(
                f"There is no receipt {undo!r}: `plimsoll reshape --dry-run` lists the receipts."
            )
        if receipt.undoes is not None:
            if receipt.undoes not in undone:
                raise UsageError(
                    f"The reshape {undo} undid {receipt.undoes}, which has been done again since: there is "
                    "nothing to undo."
                )
            return tuple(receipt_id for receipt_id in undone if receipt_id != receipt.undoes)
        if undo in undone:
            raise UsageError(f"The reshape {undo} is already undone; `plimsoll reshape` does it again.")
        # A later reshape that moved the same inventory, and is in effect, has to be undone first.
        slots, reshapes = receipt.source_slots | receipt.target_slots, list(done.values())
        ineffective = {other.undoes for other in reshapes if other.undoes} | set(undone)
        for later in reshapes[reshapes.index(receipt) + 1 :]:
            in_effect = later.undoes is None and later.id not in ineffective
            if in_effect and slots & (later.source_slots | later.target_slots):
                raise UsageError(
                    f"The reshape {later.id} has moved what {receipt.id} had moved: undo {later.id} first.",
                    later=later.id,
                )
        return (*undone, undo)


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
    by_consumer = turned(held)
    returning = known_instructions(back, current, tree)
    unheld = unheld_claims(records, by_consumer, returning)
    together = {
        who: total((by_consumer.get(who, {}), unheld.get(who, {}))) for who in (*by_consumer, *unheld)
    }
    inverse = still_held(returning, together)
    known = known_instructions(moves, current, tree)
    located = {**places_of_claims(records, by_consumer, known), **places_of_units(records, known, inverse)}
    parking = park_units(with_missing(moves, located, current), described, current, tree, held)
    instructions = without_claimed(known_instructions(parking.moves, current, parking.tree), located)
    instructions = without_claimed_changes(instructions, records.claims, current, parking.tree)
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
