"""One pass, as a value that each of its steps returns anew.

    resolve -> settle -> find_desired -> reshape -> apply -> inform_tracker

`resolve` works out the tree that Placement is to hold, `settle` ends a reshape that an earlier pass left in
doubt, `find_desired` adds the moves that take a reshape, `reshape` carries those out, `apply` plans and
writes the rest, and `inform_tracker` hands the tree and its allocations on.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

from agent import errors, log
from agent.claims.attribution import Place, gone_units
from agent.claims.fit import ProviderIndex
from agent.claims.host_cells import HostCells, HostLayout
from agent.claims.refusal import label
from agent.claims.rows import Row
from agent.driver import Description, Guest, Topology
from agent.errors import by_force, counted
from agent.moves.circumstances import consumer_names
from agent.placement.apply import apply
from agent.placement.client import PlacementClient
from agent.providers.device_health import (
    cordoned_units,
    idle_pages,
    idle_withheld,
    reserve_cordoned,
    with_idle,
)
from agent.providers.divided_cards import reserve_places
from agent.providers.limits import odd_caps, with_caps
from agent.providers.owner import check_owner, with_owner
from agent.providers.plan import Operation, Plan, plan
from agent.providers.provider_config import with_status_disabled
from agent.providers.reservations import UnheldUse, reserve_used, without_reservations
from agent.providers.resolve import (
    OwnedProvider,
    OwnedProviders,
    ResolvedDescription,
    recognize_owned,
    resolve,
)
from agent.providers.retention import RetainedTree, count_gone, find_overuse, removed_classes, retain_held
from agent.reconcile.desired_state import ActiveProviderConfig, Desired, UndoneReshapes, desired_state
from agent.reconcile.one_writer import Writer
from agent.reconcile.pass_report import Preview, usages_after
from agent.reconcile.placement_memory import AllocationCache, SharingProvidersCache
from agent.reconcile.reshape_runner import ReshapeRunner
from agent.reshape.claimed_units import ExactUnits, HostRecords, name_claimed_cells
from agent.reshape.laws import Instruction, Relocation
from agent.reshape.plan import moving_slots, staged_tree
from agent.reshape.relocate import Passage, follow_inventory, follow_placement, leads_back, leads_of
from agent.shapes import Allocations, Held, Usages
from agent.state.journal import Journal
from agent.tracker.tracker import ResourceTracker
from agent.tree import ProviderTree

LOG = log.get(__name__)


@dataclass(frozen=True, slots=True)
class HostView:
    """What is known of the host when a pass begins.

    The driver reports `description`, `guests` and `topology`; the tracker knows what is `used`, and what is
    claimed or used and `unheld` in Placement. `doubted` are providers whose allocations may have changed
    although their generations have not. The instances of the guests `left_behind` have moved to other hosts;
    status says so.
    `claimed_at` {consumer: seconds since the epoch} are the claims before the driver was asked.
    """

    description: Description
    used: Usages
    guests: tuple[Guest, ...] = ()
    topology: Topology | None = None
    doubted: frozenset[str] = frozenset()
    unheld: Mapping[str, Usages] = field(default_factory=dict)
    left_behind: frozenset[str] = frozenset()
    claimed_at: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Pass:
    """A pass between two of its steps.

    `current` is Placement's tree after the steps so far. `description` is the driver's with the provider
    config files, `resolved` the tree that follows from it, `desired` that tree with the reshapes, and with
    what is `unheld` reserved. `pending` says why a reshape that is due is not done; then `unheld` is, at the
    end of the pass, that of the host as Placement has it. `retained` has a sentence for each inventory that
    stays because consumers hold some of it, `vanished` its (provider uuid, class); `overused` has the
    sentences on each provider that is over capacity. `offered_here` is the resolved tree as the tracker needs
    it: nothing is reserved in it for what excludes other classes of the same device. `left_on_cards` is what
    it offers of cards whose classes share their room.
    """

    seen: HostView
    current: ProviderTree
    description: Description
    resolved: ResolvedDescription
    desired: Desired
    offered_here: ProviderTree
    unheld: UnheldUse = field(default_factory=UnheldUse)
    pending: errors.ReshapeRefused | None = None
    written: tuple[Operation, ...] = ()
    retained: tuple[str, ...] = ()
    vanished: frozenset[tuple[str, str]] = frozenset()
    overused: dict[str, tuple[str, ...]] = field(default_factory=dict)
    left_on_cards: Usages = field(default_factory=dict)

    @property
    def exact_units(self) -> ExactUnits:
        """The exact units that the driver offers, and the guests that use some of them."""
        return ExactUnits(self.resolved.units, self.seen.guests)

    @property
    def leads(self) -> tuple[Instruction, ...]:
        """The driver's move instructions, also from providers that are gone."""
        root = self.resolved.tree.roots[0].uuid
        return leads_of(self.description.moves, root, self.current, self.resolved.tree)

    @property
    def complete(self) -> bool:
        """Whether Placement holds all that the driver describes, so that the next pass may have no work."""
        return self.pending is None and not self.retained

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each thing that the operator has to know or to mend."""
        # The agent reserves in its own inventories, and in those that a reshape which waits is to move.
        moving: dict[str, OwnedProvider] = {}
        for uuid, name in _moving(self.desired) if self.pending is not None else ():
            moving[uuid] = moving.get(uuid, OwnedProvider()) | OwnedProvider(frozenset({name}))
        return (
            *self.resolved.problems,
            *self.unheld.notices(
                self.desired.tree if self.pending is None else self.current,
                self.desired.owned | OwnedProviders(moving),
                self.seen.left_behind
                | {guest.uuid for guest in self.seen.guests if guest.problem is not None},
            ),
            *self.desired.undone_notices,
            *self.desired.parked_notices,
            *self.retained,
            *chain.from_iterable(self.overused.values()),
        )


@dataclass(eq=False)
class PassSteps:
    """The steps of every pass, and the caches that spare them requests. One thread at a time may call."""

    client: PlacementClient
    tracker: ResourceTracker
    journal: Journal
    root_uuid: str
    reshape_runner: ReshapeRunner
    undone_reshapes: UndoneReshapes
    provider_config: ActiveProviderConfig
    allocations: AllocationCache
    owner_trait: str | None = None
    writer: Writer | None = None

    def __post_init__(self) -> None:
        self._sharing = SharingProvidersCache(self.client, self.root_uuid)

    def resolve(self, seen: HostView, current: ProviderTree) -> Pass:
        """Work out the tree that Placement is to hold; no request is made and nothing is written.

        Raises DriverDataError where the description is wrong, ForeignOwner where another service owns the
        root, StateError.
        """
        overlaid = self.provider_config.overlay(seen.description, current)
        description = overlaid.description
        pause = self.tracker.admission.pause
        if pause is not None and pause.schedulers:
            description = with_status_disabled(description)
        if self.owner_trait is not None:
            check_owner(current.get(self.root_uuid), self.owner_trait)
            description = with_owner(description, self.owner_trait)
        resolved = resolve(description, current, self._owned(current), self.root_uuid)
        if self.writer is not None:
            resolved = self.writer.mark(resolved, current)
        gone = gone_units(Place(offered=resolved.units), self.tracker.view.rows().values())
        resolved = count_gone(resolved, gone, description.moves, self._names(seen), self.tracker.moves())
        used, unheld = self._survey(seen, resolved)
        cordons = self.tracker.cordons
        cordoned = cordoned_units(resolved.units, resolved.devices, cordons.addresses)
        units = {uuid: here for uuid, here in resolved.units.items() if uuid not in resolved.cards}
        idle = cordons.idle(units, cordoned)
        rows = self.tracker.view.rows()
        claiming = [guest for guest in seen.guests if guest.uuid in rows and rows[guest.uuid].has]
        pages = {
            **idle_pages(resolved.tree, resolved.devices, used, cordons.addresses),
            **idle_withheld(resolved, used, claiming),
        }
        caps = self.provider_config.caps
        # The tracker knows what excludes what on a device: it is told of the tree without these reservations.
        alone = reserve_used(resolved, current, with_idle(used, idle), description.moves, exclusive=False)
        offered_here = with_caps(reserve_cordoned(alone, cordoned, idle, pages).tree, caps)
        resolved = reserve_used(resolved, current, with_idle(used, idle), description.moves)
        left = self.tracker.view.left_on_cards(resolved.cards, resolved.units)
        resolved = replace(resolved, tree=reserve_places(resolved.tree, left, used))
        resolved = reserve_cordoned(resolved, cordoned, idle, pages)
        offered = [
            (name, inventory.allocation_ratio)
            for provider in resolved.tree
            for name, inventory in provider.inventories.items()
        ]
        resolved = replace(
            resolved,
            tree=with_caps(resolved.tree, caps),
            notices=(*resolved.notices, *odd_caps(caps, offered)),
            problems=(
                *resolved.problems,
                *overlaid.conflicts,
                *cordons.sentences,
                *((self.writer.problem,) if self.writer is not None and self.writer.problem else ()),
                *_units_of_two(self.tracker.view.rows().values()),
            ),
        )
        desired = Desired(resolved.tree, resolved.owned)
        return Pass(seen, current, description, resolved, desired, offered_here, unheld, left_on_cards=left)

    def read_held(self, seen: HostView, current: ProviderTree, *, reread: bool, in_full: bool) -> None:
        """Enter into the book what Placement holds on `current`, as far as that may have changed.

        An allocation that another client deletes raises no generation. So with `reread`, and at the start,
        providers on which another amount is in use than the book has are read even if their generations are
        the same, and with `in_full` all. `reread` reads the sharing providers again, too.

        Raises PlacementError.
        """
        whole = self._sharing.add_to(current, reread=reread)
        known = {provider.uuid for provider in whole if provider.inventories}
        with self.tracker.reading() as reading:
            suspects = seen.doubted | self.tracker.view.doubtful()
            if in_full:
                suspects |= known
            elif reread or self.allocations.is_saved:
                held = self.tracker.view.held()
                suspects |= self.allocations.used_otherwise(self.root_uuid, current, held)
            fresh = self.allocations.read(whole, suspects)
            holders = {uuid: fresh.held.get(uuid, {}) for uuid in known - fresh.kept}
            self.tracker.observe(holders, reading)
        self.tracker.departures.find()

    def _survey(self, seen: HostView, resolved: ResolvedDescription) -> tuple[Usages, UnheldUse]:
        """What all rows need, and what of it Placement does not hold, on the host as it is described."""
        survey = self.tracker.view.survey(self._place(seen, resolved))
        return survey.used, UnheldUse(*survey[1:])

    def _place(self, seen: HostView, resolved: ResolvedDescription) -> Place:
        """The host as it is described."""
        host = ProviderIndex.of(self._sharing.around(resolved.tree), self.root_uuid, resolved.ways)
        return Place(host, resolved.units, HostCells.of(_layout(seen, resolved), host))

    def find_departed(self, this: Pass) -> Pass:
        """Before the first inventory: who lives elsewhere, on the described host; the pass with that.

        Without it, the first pass reserves what a migration holds of which this host has yet to learn.
        Raises PlacementError, and as `resolve`.
        """
        if self.tracker.view.host.root is not None:
            return this  # `read_held` has found them
        self.tracker.departures.find(self._place(this.seen, this.resolved))
        return self.resolve(this.seen, this.current)

    def unheld_in_placement(self, this: Pass) -> UnheldUse:
        """What is claimed or used and not held, on the host as Placement has it while a reshape waits."""
        return self._unheld_on(this.current, this)

    def _unheld_on(self, tree: ProviderTree, this: Pass) -> UnheldUse:
        return self._survey(this.seen, replace(this.resolved, tree=tree))[1]

    def settle(self, this: Pass) -> Pass:
        """End a reshape whose outcome is unknown; resolve again if Placement turns out to have executed it,
        or one that the journal does not have.

        Raises PlacementError, StateError where the outcome is still unknown.
        """
        if self.reshape_runner.settle(this.exact_units):
            this = self.resolve(this.seen, self.client.read_tree(self.root_uuid, this.current))
        led = self._led(this)
        self.tracker.note_led(led)
        away = {instance: led[instance] for instance in self.tracker.view.departed() if instance in led}
        followed = self._follow_placement(this, this.leads, away)
        return self.resolve(this.seen, this.current) if followed else this

    def _follow_placement(
        self, this: Pass, leads: Sequence[Instruction], away: Mapping[str, Sequence[Passage]]
    ) -> bool:
        """Let the records of a journal from before a reshape follow it, and those that one left behind.

        `leads` are the ways from there to where Placement is. `away` has, for instances on other hosts, where
        those led what may be their migrations: such a claim goes there, and stays where that are several
        places, since on one of these by choice it would look like that of the migration there. Returns
        whether any did. Without such a record that costs nothing. Raises PlacementError, StateError.
        """
        known = dict(chain(*(row.held.items() for row in self.tracker.view.rows().values())))
        places = {instance: [way.after for way in ways] for instance, ways in away.items()}
        one = {
            instance: found[0] for instance, found in places.items() if found.count(found[0]) == len(found)
        }

        def relocations(held: Mapping[str, Allocations]) -> tuple[Relocation, ...]:
            if not leads:
                return ()
            records = self.tracker.records(this.exact_units)
            found = follow_placement(records, held, leads, this.current)
            decided = {each.consumer for each in found} | (away.keys() - one.keys())
            there = {instance: place for instance, place in one.items() if not held.get(instance)}
            left_behind = follow_inventory(records, {**known, **held, **there}, leads, this.current)
            return (*found, *(each for each in left_behind if each.consumer not in decided))

        consumers = {each.consumer for each in relocations(known)}
        if not consumers:
            return False
        here = self._sharing.around(this.current)
        try:
            with self.tracker.turns_on((), consumers):
                held = self.client.allocations_of_all(consumers)
                found = relocations(
                    {
                        consumer: {uuid: part for uuid, part in each.allocations.items() if uuid in here}
                        for consumer, each in held.items()
                    }
                )
                found = tuple(each for each in found if each.consumer in consumers)
                if found:
                    self.tracker.follow_placement(found, this.exact_units)
        except errors.ClaimConflict as conflict:
            LOG.debug("Records follow a reshape at the next pass: %s", conflict.message)
            return False
        followed = {each.consumer for each in found}
        if followed:
            LOG.warning(
                "The agent's records of %s and Placement were from the two sides of a reshape, as where one "
                "of them was restored from a copy; the records now follow Placement: %s.",
                counted(len(followed), "consumer"),
                ", ".join(sorted(followed)),
            )
        return bool(followed)

    def _led(self, this: Pass) -> Mapping[str, Sequence[Passage]]:
        """{consumer with a claim and nothing here: where a reshape may have led what another one holds}

        For a journal from before the reshape, and from before a move that gave the place to a migration.
        """
        if not this.leads:
            return {}
        rows = self.tracker.view.rows().values()
        pools = self._sharing.around(this.current)
        holds = {
            who: held for row in rows for who, held in row.held.items() if any(map(this.current.get, held))
        }
        strangers = [
            {uuid: amounts for uuid, amounts in holds[row.instance].items() if uuid in this.current}
            for row in rows
            if row.instance in holds and not row.claimed and row.guest is None
        ]
        if not strangers:
            return {}
        # Each stranger is tried as what holds the place, also for an instance that is away.
        records = HostRecords(self.tracker.claims(), self.tracker.moves(), this.exact_units)
        led: dict[str, list[Passage]] = {}
        for consumer, claim in records.claims.items():
            if consumer in holds:
                continue
            shared = {
                uuid: amounts
                for uuid, amounts in claim.allocations.items()
                if uuid in pools and uuid not in this.current
            }
            for stranger in strangers:
                place = {**stranger, **shared}
                found = follow_placement(records, {consumer: place}, this.leads, this.current)
                if found:
                    relocations = tuple(each._replace(consumer="") for each in found)
                    led.setdefault(consumer, []).append(Passage(relocations, place))
        return led

    def find_desired(self, this: Pass, undone: tuple[str, ...] | None = None) -> Pass:
        """Find the moves that are due, with the receipts `undone` left undone; None: those in the journal.

        Raises ReshapeRefused for an instruction that names an unknown provider, PlacementError, StateError.
        """
        description = name_claimed_cells(this.description, self.tracker.claims(), self.tracker.moves())
        receipts = self.undone_reshapes.with_ids(self.undone_reshapes.ids() if undone is None else undone)
        records = self.tracker.records(this.exact_units)
        desired = desired_state(self.client, description, this.current, this.resolved, receipts, records)
        if receipts.receipts:  # what is undone stays where it was before the driver described it elsewhere
            this = replace(this, unheld=self._unheld_on(desired.tree, this))
        # Allocations are about to come to the slots of a reshape: what is unheld there shows afterwards.
        unheld = this.unheld.part(_moving(desired), on=False)
        return replace(this, desired=_with_reserved(desired, unheld))

    def reshape(self, this: Pass) -> Pass:
        """Carry out the moves that are due, in one request; `pending` says why where that is not possible.

        Raises PlacementConflict where another writer changed the inventories to move, or what the pass would
        take away for want of knowing it; PlacementError, StateError.
        """
        desired = this.desired
        if not desired.due:
            return this
        still = _with_reserved(desired, this.unheld.part(_moving(desired), on=True))
        reached = this
        try:
            proved = self.reshape_runner.prepare(this.current, desired, this.exact_units)
            reached = self._write(this, self.reshape_runner.reserve_sources(this.current, still))
            _check_others(this, reached.current)
            self._refresh_tracker(reached, reached.current, _moving(desired))
            tree = self.reshape_runner.perform(
                this.current,
                reached.current,
                desired,
                proved,
                this.exact_units,
                lambda tree: self._refresh_tracker(reached, tree),
                claimed_at=this.seen.claimed_at,
            )
        except errors.ReshapeRefused as refusal:
            # Placement may be from before the reshape, and the records from after it: these go back to there.
            if self._follow_placement(reached, leads_back(this.leads), {}):
                again = replace(self.resolve(this.seen, reached.current), written=reached.written)
                return self.reshape(self.find_desired(again))
            return replace(reached, desired=still, pending=refusal)
        _check_others(this, tree)
        unheld = self._unheld_on(desired.tree if desired.undone_notices else this.resolved.tree, this)
        desired = _with_reserved(desired, unheld.part(_moving(desired), on=True))
        return replace(reached, current=tree, desired=desired, unheld=unheld)

    def apply(self, this: Pass) -> Pass:
        """Bring Placement's tree to the desired one; while a reshape is pending, what it moves is reserved.

        Raises PlacementError, ApplyError, StateError.
        """
        if this.pending is None:
            written = self._write(this, this.desired.tree)
            if not this.desired.due:
                self.reshape_runner.forget_sources()
            return written
        return self._write(this, self.reshape_runner.reserve_sources(this.current, this.desired))

    def reserve_more(self, this: Pass) -> Pass:
        """Reserve what is unheld beyond what Placement has reserved already; take no reservation back.

        For a host of which the driver says nothing now: what guests have left since is not known.
        Raises PlacementError, ApplyError.
        """
        reserved = this.unheld.reserve(this.resolved.tree, this.desired.owned)
        wanted = this.current
        for provider in this.current:
            now = reserved.get(provider.uuid)
            inventories = {
                name: replace(inventory, reserved=min(inventory.total, now.inventories[name].reserved))
                for name, inventory in provider.inventories.items()
                if now is not None
                and name in now.inventories
                and now.inventories[name].reserved > inventory.reserved
            }
            if inventories:
                wanted = wanted.with_provider(
                    replace(provider, inventories={**provider.inventories, **inventories})
                )
        operations, foreign = plan(this.current, wanted), set[str]()
        tree = apply(operations, self.client, this.current, read_again=foreign.add)
        self.allocations.follow_writes(this.current, tree, foreign)
        return replace(this, current=tree)

    def inform_tracker(self, this: Pass) -> tuple[Pass, Held]:
        """Hand Placement's tree and its allocations to the tracker; the host's allocations are returned, too.

        Raises PlacementError.
        """
        withheld = _moving(this.desired) if this.pending is not None else ()
        held = self._refresh_tracker(this, this.current, withheld)
        if this.pending is not None:
            this = replace(this, unheld=self.unheld_in_placement(this))
        offered = without_reservations(this.current, this.offered_here, withheld)
        caps, names = self.provider_config.caps, self._names(this.seen)
        overused = find_overuse(offered, held, caps, names, self.tracker.moves())
        return replace(this, overused=overused), held

    def next_plan(self, this: Pass) -> Plan:
        """The operations of the pass without its reshape, which `preview_reshape` shows.

        Raises ApplyError where allocated inventory seems to have moved without an instruction,
        PlacementError.
        """
        desired = this.desired
        wanted = desired.tree
        if desired.due:
            try:
                self.reshape_runner.prepare(this.current, desired, this.exact_units)
                refused = False
            except errors.ReshapeRefused:
                refused = True
                desired = _with_reserved(desired, this.unheld.part(_moving(desired), on=True))
            wanted = staged_tree(this.current, desired.tree, desired.due, reserve=refused)
        return self._plan(this, wanted)[1]

    def _plan(self, this: Pass, wanted: ProviderTree) -> tuple[RetainedTree, Plan]:
        """The operations that lead to `wanted`, without those that would take allocated inventory away.

        Raises ApplyError where allocated inventory seems to have moved without an instruction,
        PlacementError.
        """
        operations = plan(this.current, wanted)
        removed = removed_classes(operations)
        held = {provider: self.client.provider_allocations(provider).consumers for provider in removed}
        retained = retain_held(this.current, wanted, removed, held, self._names(this.seen))
        return retained, plan(this.current, retained.tree) if retained.sentences else operations

    def preview_reshape(self, this: Pass, undo: str | None) -> Preview:
        """What the reshapes that are due, or undoing the receipt `undo`, would do; nothing is written.

        Raises UsageError for a receipt that cannot be undone, PlacementError, StateError.
        """
        undone = self.undone_reshapes.ids_after(undo)
        refused: str | None = None
        relocations: tuple[Relocation, ...] = ()
        try:
            this = self.find_desired(this, undone)
            if this.desired.due:
                relocations = self.reshape_runner.prepare(
                    this.current, this.desired, this.exact_units
                ).reshape.relocations
        except errors.ReshapeRefused as refusal:
            refused = refusal.message
        used = {
            provider.uuid: self.client.provider_usages(provider.uuid)
            for provider in this.current
            if provider.inventories
        }
        return Preview(
            this.current,
            this.desired.tree,
            used,
            usages_after(used, relocations, this.desired.tree),
            tuple(instruction.move for instruction in this.desired.due),
            relocations,
            refused,
            self.undone_reshapes.receipts(),
            self.undone_reshapes.ids(),
            this.desired.parked_notices,
            self._names(this.seen),
        )

    def _names(self, seen: HostView) -> Mapping[str, str]:
        return consumer_names(seen.guests, self.tracker.claims().values(), self.tracker.moves().values())

    def _write(self, this: Pass, wanted: ProviderTree) -> Pass:
        retained, operations = self._plan(this, wanted)
        owned = self._owned(this.current)
        owned_meanwhile = owned | this.desired.owned
        tree = this.current
        if not operations.empty:
            if owned_meanwhile != owned:
                self.journal.remember_owned(owned_meanwhile)
            foreign: set[str] = set()
            try:
                tree = apply(operations, self.client, this.current, read_again=foreign.add)
            except errors.ApplyError as error:
                if isinstance(error.__cause__, errors.PlacementUnavailable):
                    raise error.__cause__ from error  # report an outage as an outage
                raise
            self.allocations.follow_writes(this.current, tree, foreign)
        owned_now = (
            this.desired.owned
            if retained.tree is this.desired.tree
            else owned_meanwhile.within(retained.tree)
        )
        if self.journal.owned() != owned_now:
            self.journal.remember_owned(owned_now)
        if self.journal.devices() != this.resolved.devices:
            self.journal.remember_devices(this.resolved.devices)
        written = (*this.written, *operations.operations)
        return replace(
            this, current=tree, written=written, retained=retained.sentences, vanished=retained.vanished
        )

    def _owned(self, current: ProviderTree) -> OwnedProviders:
        owned = self.journal.owned()
        return owned if owned.providers else recognize_owned(current, self.root_uuid)

    def _refresh_tracker(
        self, this: Pass, tree: ProviderTree, withheld: Collection[tuple[str, str]] = ()
    ) -> Held:
        """Returns the allocations on the host's own providers.

        The inventory of the slots `withheld` is as Placement has it: a reshape is to move it.
        """
        whole = self._sharing.add_to(tree, reread=False)
        layout = _layout(this.seen, this.resolved)
        with self.tracker.reading() as reading:
            fresh = self.allocations.read(whole, self.tracker.view.doubtful())
            offered = without_reservations(whole, this.offered_here, withheld)
            try:
                self.tracker.refresh(
                    offered,
                    fresh.held,
                    this.resolved.units,
                    layout,
                    kept=fresh.kept,
                    reading=reading,
                    caps=self.provider_config.caps,
                )
            except errors.StateError:
                self.allocations.forget()
                raise
        return {uuid: holders for uuid, holders in self.tracker.view.held().items() if uuid in tree}


def _check_others(this: Pass, now: ProviderTree) -> None:
    """Check that no other client put something into the tree after the pass had read it.

    The desired tree was worked out before that: writing it would take away their traits, aggregates (among
    them the mark of another agent of this host), classes and providers. Raises PlacementConflict.
    """
    for provider in now:
        before, wanted = this.current.get(provider.uuid), this.desired.tree.get(provider.uuid)
        known = wanted or before
        classes = chain.from_iterable(each.inventories for each in (before, wanted) if each is not None)
        if (
            known is None
            or (known.traits, known.aggregates) != (provider.traits, provider.aggregates)
            or not provider.inventories.keys() <= set(classes)
        ):
            raise errors.PlacementConflict(
                f"Another client of Placement changed provider {provider.name} ({provider.uuid}) while the "
                "agent carried out a reshape: it reads the tree and plans again."
            )


def _with_reserved(desired: Desired, unheld: UnheldUse) -> Desired:
    return replace(desired, tree=unheld.reserve(desired.tree, desired.owned))


def _units_of_two(rows: Collection[Row]) -> Iterator[str]:
    """A sentence for each exact unit that is claimed for one instance and used by the guest of another."""
    claimed = {
        (name, unit): (row.instance, claim.request)
        for row in rows
        for claim in row.claimed.values()
        for _, name, unit in claim.exact
    }
    for row in rows:
        if row.guest is None or row.guest.is_off:
            continue
        for used in row.guest.units:
            instance, request = claimed.get((used.resource_class, used.unit), (row.instance, None))
            if request is not None and instance != row.instance:
                yield (
                    f"{used.resource_class} {used.unit} is claimed for {label(request)}, and used by the "
                    f"guest {row.guest.name} ({row.instance}): the agent's records are older than its "
                    "guests, as in a state directory that was restored from a copy, or the guest got it past "
                    "the agent. `plimsoll audit` shows what differs, and with `--heal` old claims follow "
                    "their guests. Where that is refused, release the claim "
                    f"{by_force(instance)}, or take the unit from the guest."
                )


def _moving(desired: Desired) -> frozenset[tuple[str, str]]:
    leaving, coming = moving_slots(desired.due)
    return frozenset((slot.provider, slot.resource_class) for slot in leaving | coming)


def _layout(seen: HostView, resolved: ResolvedDescription) -> HostLayout | None:
    if seen.topology is None:
        return None
    return HostLayout(
        seen.topology,
        resolved.cells,
        resolved.ways,
        resolved.to_make,
        resolved.cards,
        resolved.withheld,
        resolved.unit_drivers,
    )
