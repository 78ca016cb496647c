"""Reconciles Placement with the host: runs the passes, one at a time, and keeps what lasts between them.

A pass that finds nothing new makes no Placement request. A pass that fails leaves Placement as it was, or
between two operations of its plan, and the next pass continues from there. An outage never removes anything.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from agent import errors, log
from agent.backoff import CONFLICTS_MAX, pause
from agent.driver import Driver, Guest
from agent.placement.client import PlacementClient
from agent.providers.owner import check_owner
from agent.providers.plan import Plan
from agent.providers.provider_config import CLOSED, STATUS_DISABLED, ProviderConfig, closed_traits
from agent.providers.reservations import ReservedUsages
from agent.reconcile.desired_state import ActiveProviderConfig, UndoneReshapes
from agent.reconcile.one_writer import Writer
from agent.reconcile.pass_report import PassReport, Preview, pass_sentence
from agent.reconcile.pass_steps import HostView, Pass, PassSteps
from agent.reconcile.placement_memory import AllocationCache, TreeCache
from agent.reconcile.reshape_runner import ReshapeRunner
from agent.reshape.laws import Instruction
from agent.reshape.receipt import Receipt
from agent.shapes import Usages
from agent.state.journal import Journal
from agent.tracker.tracker import ResourceTracker
from agent.tree import ProviderTree

LOG = log.get(__name__)

ATTEMPTS_MAX = 3


class Reconciler:
    """Brings Placement to what the driver describes. Any thread may call; one pass runs at a time.

    `check_home` is called before the first write; it raises PlimsollError where this Placement does not hold
    the host's claims, and returns whether the operator knows that it has lost them. `writer` notices other
    agents that write as this host; None where no other can. `tree_cache` spares the first pass after a
    restart most of its reads.
    """

    def __init__(
        self,
        driver: Driver,
        client: PlacementClient,
        tracker: ResourceTracker,
        journal: Journal,
        root_uuid: str,
        *,
        check_home: Callable[[], bool] = lambda: False,
        tree_cache: TreeCache | None = None,
        provider_config: ProviderConfig | None = None,
        owner_trait: str | None = None,
        writer: Writer | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._driver = driver
        self._client = client
        self._tracker = tracker
        self._root_uuid = root_uuid
        self._check_home = check_home
        self._writer = writer
        self._home_checked = False
        self._is_restored = False
        self._tree_cache = tree_cache
        self._owner_trait = owner_trait
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._guests_lock = threading.Lock()
        self._started: float | None = None
        tree, held = tree_cache.load() if tree_cache is not None else (None, {})
        self._tree = tree
        self._root_traits: frozenset[str] = frozenset()
        self._traits_doubted = False
        self._in_sync = False
        self._seen: HostView | None = None
        self._last: Pass | None = None
        self._use = ReservedUsages()
        self._unheld: tuple[Mapping[str, Usages], ...] = ({},)
        self._taken_back = 0
        self._guests: tuple[Guest, ...] | None = None
        self._unknown: errors.PlimsollError | None = errors.DriverUnavailable(
            "No pass has described this host yet."
        )
        self._provider_config = ActiveProviderConfig(root_uuid, provider_config)
        self._undone_reshapes = UndoneReshapes(journal)
        self._steps = PassSteps(
            client,
            tracker,
            journal,
            root_uuid,
            ReshapeRunner(client, tracker, journal, root_uuid, clock=clock, sleep=sleep),
            self._undone_reshapes,
            self._provider_config,
            AllocationCache(client, tree or ProviderTree(), held),
            owner_trait,
            writer,
        )

    # What the last pass knew

    @property
    def tree(self) -> ProviderTree | None:
        """Placement's tree as of the last pass, which may have run before the agent's last start."""
        return self._tree

    @property
    def leads(self) -> tuple[Instruction, ...]:
        """The move instructions of the last pass; see `agent.reshape.relocate`."""
        return self._last.leads if self._last is not None else ()

    @property
    def vanished(self) -> frozenset[tuple[str, str]]:
        """The (provider uuid, class) of which the host has no more, and of which something is allocated."""
        return self._last.vanished if self._last is not None else frozenset()

    @property
    def is_disabled(self) -> bool:
        """Whether Placement, as last read, tells schedulers to pass the host over; operators set it, too."""
        return STATUS_DISABLED in self._root_traits

    @property
    def is_disabled_by_others(self) -> bool:
        """Whether that is so, and neither the host's closing nor a pause is known to be why.

        Either another client did it, or one took away the agent's mark while the agent did not run.
        """
        if not self.is_disabled or CLOSED in self._root_traits or self._last is None:
            return False
        return STATUS_DISABLED not in self._last.resolved.owned.get(self._root_uuid).traits

    @property
    def guests(self) -> tuple[Guest, ...] | None:
        """The guests as they were last read; None before the driver has answered for the first time."""
        return self._guests

    @property
    def needs_pass(self) -> bool:
        """Whether the use of devices has changed since, or what Placement does not hold of it."""
        return (
            self._taken_back != self._tracker.placement.taken_back
            or self._tracker.view.unheld() not in self._unheld
            or (bool(self._use.classes) and self._use.differs(self._tracker.view.in_use()))
            or (self._seen is not None and self._seen.left_behind != self._tracker.left_behind())
            or self._cards_differ()
        )

    def _cards_differ(self) -> bool:
        """Whether cards can give something else than the last pass offers."""
        last = self._last
        return last is not None and last.left_on_cards != self._tracker.view.left_on_cards(
            last.resolved.cards, last.resolved.units
        )

    def holds_back(self, tree: ProviderTree | None = None, *, taking: bool = True) -> str | None:
        """Why nothing may be healed, or nothing taken away, for this host now; see `Writer.holds_back`."""
        return self._writer.holds_back(tree, taking=taking) if self._writer is not None else None

    def check_audited(self, tree: ProviderTree) -> None:
        """Check that this agent may judge what differs in Placement's tree. Raises AnotherWriter."""
        why = self.holds_back(tree, taking=False)
        if why is not None:
            raise errors.AnotherWriter(f"Nothing was compared. {why}", provider=self._root_uuid)

    @property
    def is_contested(self) -> bool:
        """Whether another agent writes as this host, or may do, so that this one writes nothing."""
        return self.holds_back(taking=False) is not None

    def waits_for_another(self) -> bool:
        """Whether another agent may write as this host; see `Writer.waits`."""
        return self._writer is not None and self._writer.waits()

    def running_s(self) -> float:
        """For how many seconds the present pass has been running; 0 if none is."""
        started = self._started
        return 0.0 if started is None else time.perf_counter() - started

    # What the next pass uses

    def invalidate(self) -> None:
        """Have the next pass read Placement again: what the agent knows of it may be wrong."""
        self._in_sync = False

    def replace_driver(self, driver: Driver) -> Driver:
        """Use another driver from the next pass on; returns the former one. Waits for a pass."""
        with self._lock:
            former, self._driver = self._driver, driver
            self._seen = None
            return former

    def replace_provider_config(self, config: ProviderConfig) -> None:
        """Use other provider config files from the next pass on. Waits for a pass.

        Raises SettingsError, and changes nothing, where they contradict what the driver describes.
        """
        with self._lock:
            description = self._seen.description if self._seen is not None else None
            if self._provider_config.replace(config, description, self._tree):
                self._in_sync = False

    def read_guests(self) -> tuple[Guest, ...]:
        """Ask the driver for the guests of this moment, and enter what they use into the book.

        No later claim is given any of that. Raises DriverError.
        """
        with self._guests_lock:
            guests = self._driver.guests()
            if guests != self._guests:
                self._tracker.see_guests(guests)
                self._guests = guests
            return guests

    def read_known_guests(self) -> tuple[Guest, ...]:
        """As `read_guests`, for who compares the guests and their claims with what this host has.

        Raises DriverError, too, where that is not known: no pass since the start was carried through, or the
        driver could not describe the host at the last one.
        """
        unknown = self._unknown
        if unknown is not None:
            raise errors.DriverUnavailable(
                f"What this host has is not known, so nothing was compared: {unknown.message}"
            )
        return self.read_guests()

    @property
    def driver(self) -> Driver:
        """The driver in use. A reload may replace it, so ask for it each time."""
        return self._driver

    def close(self) -> None:
        """Close the driver's connection to the hypervisor."""
        self._driver.close()

    # Passes

    def reconcile(self, why: str) -> PassReport:
        """Run a pass that asks Placement only if the driver reports something new. Does not raise."""
        return self._run_pass(why, reread=False)

    def verify(self, why: str, *, in_full: bool = False) -> PassReport:
        """Run a pass that also compares Placement with what the agent wrote there. Does not raise.

        It costs one request, one more for what is in use if anyone has resources here, and four for each
        provider that a client has written to since. `in_full`: who holds something is read on every provider.
        """
        return self._run_pass(why, reread=True, in_full=in_full)

    def next_plan(self) -> Plan:
        """What the next pass would write; reads the driver and Placement anew. Waits for a pass.

        Raises PlimsollError.
        """
        with self._lock:
            return self._steps.next_plan(self._steps.find_desired(self._resolve_now()))

    def preview_reshape(self, undo: str | None = None) -> Preview:
        """What `reshape` would do; nothing is written. Waits for a pass. Raises PlimsollError."""
        with self._lock:
            return self._steps.preview_reshape(self._resolve_now(), undo)

    def reshape(
        self, undo: str | None = None, passed: Callable[[PassReport], None] = lambda report: None
    ) -> tuple[Receipt, ...]:
        """Carry out the reshapes that are due, or undo the receipt `undo`; returns the new receipts.

        `passed` is called with the report of each pass. If the reshape is refused, a second pass restores the
        former state. In an outage the reshape stays requested, and the passes that follow carry it out.
        Raises UsageError for a receipt that cannot be undone, PlimsollError.
        """
        undone = self._undone_reshapes
        before, known = undone.ids(), {receipt.id for receipt in undone.receipts()}
        wanted = undone.ids_after(undo)
        undone.set_ids(wanted)
        report = self.verify("a reshape that was asked for")
        passed(report)
        problem = report.error or report.pending
        if problem is not None:
            if wanted != before and not isinstance(problem, errors.PlacementUnavailable | errors.StateError):
                undone.set_ids(before)
                passed(self.verify("a reshape that was refused"))
            raise problem
        return tuple(receipt for receipt in undone.receipts() if receipt.id not in known)

    def owes_schedulers(self, *, closed: bool) -> bool:
        """Whether the root's traits may not say yet that the host is closed for long, or open again."""
        known = self._root_traits
        return self._traits_doubted or closed_traits(known, closed=closed, paused=False) != known

    def doubt_traits(self) -> None:
        """Another client may have changed the root's traits: read them before relying on them."""
        self._traits_doubted = True

    def tell_schedulers(self, *, closed: bool) -> bool:
        """Have the traits of the root say so; returns whether Placement was told anything.

        Needs no description of the host, and touches traits alone. Waits for a pass. Raises ApplyError,
        ForeignOwner or AnotherWriter where the root may not be this agent's, StateError, PlacementError.
        """
        with self._lock:
            for attempt in range(CONFLICTS_MAX - 1):
                pause(attempt, self._sleep)
                try:
                    return self._put_root_traits(closed=closed)
                except errors.PlacementConflict:
                    continue
            return self._put_root_traits(closed=closed)

    def _put_root_traits(self, *, closed: bool) -> bool:
        root = self._client.find_provider(uuid=self._root_uuid)
        if root is None:
            self._root_traits, self._traits_doubted = frozenset(), False
            return False
        root = self._client.read_provider(root)
        traits, self._traits_doubted = root.traits, False
        if self._owner_trait is not None:
            check_owner(root, self._owner_trait)
        if not self._home_checked:
            self._is_restored = self._check_home()
            self._home_checked = True
        self._check_writer(ProviderTree([replace(root, parent=None)]))
        asked = self._tracker.admission.pause
        wanted = closed_traits(traits, closed=closed, paused=asked is not None and asked.schedulers)
        if wanted != traits:
            for name in sorted(wanted - traits - {STATUS_DISABLED}):
                self._client.ensure_trait(name)
            self._in_sync = False  # the root's generation is another one now
            self._client.put_traits(self._root_uuid, root.generation or 0, wanted)
        self._root_traits = wanted
        return wanted != traits

    def _resolve_now(self) -> Pass:
        """The beginning of a pass that writes nothing. Raises AnotherWriter, PlimsollError."""
        seen = self._describe()
        current = self._client.read_tree(self._root_uuid, self._tree)
        if self._writer is not None:
            self._writer.refuse_foreign(current)
        self._steps.read_held(seen, current, reread=True, in_full=False)
        return self._steps.resolve(seen, current)

    def _run_pass(self, why: str, *, reread: bool, in_full: bool = False) -> PassReport:
        with self._lock:
            at, self._started = self._clock(), time.perf_counter()
            written: Plan | None = None
            error: errors.PlimsollError | None = None
            try:
                written = self._attempt(reread, in_full)
                sentence = pass_sentence(why, written)
            except errors.PlimsollError as failure:
                error = failure
                if self._last is None or isinstance(failure, errors.DriverError):
                    self._unknown = failure
                sentence = f"After {why}: {failure.message}"
            finally:
                duration_ms = self.running_s() * 1000
                self._started = None
            operations = written.operations if written else ()
            return PassReport(
                sentence,
                at,
                round(duration_ms, 3),
                providers=len(self._tree or ()),
                changed=len(
                    {operation.provider for operation in operations if hasattr(operation, "provider")}
                ),
                operations=len(operations),
                problems=self._last.problems if self._last else (),
                notices=self._last.resolved.notices + self._driver.unmatched_options() if self._last else (),
                error=error,
                pending=self._last.pending if self._last else None,
            )

    def _attempt(self, reread: bool, in_full: bool) -> Plan | None:
        """Returns what was written, None if Placement was not asked.

        Another writer may come between a read and a write; then the pass reads again and plans anew.
        """
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return self._run_steps(reread, in_full)
            except errors.PlacementConflict:
                reread = True
        return self._run_steps(reread, in_full)

    def _run_steps(self, reread: bool, in_full: bool) -> Plan | None:
        taken_back = self._tracker.placement.taken_back
        reread = reread or taken_back != self._taken_back
        try:
            seen = self._describe()
        except errors.DriverError:
            if reread:
                self._reserve_undescribed()
            raise
        if self._in_sync and not reread and self._is_known(seen):
            self._unknown = None
            return None
        current = self._read_current(reread)
        self._keep_tree(current)
        self._in_sync = False
        self._steps.read_held(seen, current, reread=reread, in_full=in_full or self._is_restored)
        if self._is_restored:
            self._tracker.note_lost(restored=True)
            self._is_restored = False
        seen = replace(seen, unheld=self._tracker.view.unheld())
        this = self._steps.find_departed(self._steps.resolve(seen, current))
        this = self._steps.settle(this)
        this = self._steps.find_desired(this)
        this = self._steps.reshape(this)
        this = self._steps.apply(this)
        self._check_writer(this.current)  # a conflict on the root may have shown another agent's mark
        this, held = self._steps.inform_tracker(this)
        self._keep_tree(this.current)
        self._seen, self._last, self._unknown = seen, this, None
        self._use, self._in_sync = ReservedUsages.of(this.resolved, seen.used), this.complete
        self._taken_back = taken_back
        # The pass reserved what was unheld on the host as it is described; the book may see it otherwise.
        self._unheld = (seen.unheld, this.unheld.by_instance)
        if self._tree_cache is not None:
            self._tree_cache.save(this.current, held)
        return Plan(this.written)

    def _reserve_undescribed(self) -> None:
        """Reserve what others have taken from the host's claims and guests while the driver is away.

        The host counts as the last pass described it. Raises PlacementConflict, AnotherWriter.
        """
        if self._seen is None or self._last is None:
            return
        try:
            current = self._read_current(reread=True)
            self._keep_tree(current)
            self._in_sync = False
            self._steps.read_held(self._seen, current, reread=True, in_full=False)
            unheld = self._tracker.view.unheld()
            this = self._steps.resolve(replace(self._seen, unheld=unheld), current)
            self._keep_tree(self._steps.reserve_more(this).current)
            told = this.unheld if self._last.pending is None else self._steps.unheld_in_placement(this)
            self._last = replace(self._last, unheld=told)
            self._unheld = (unheld, this.unheld.by_instance)
        except (errors.PlacementConflict, errors.AnotherWriter):
            raise
        except (errors.PlacementError, errors.ApplyError) as error:
            LOG.warning("What other clients took from claims is not reserved: %s", error.message)

    def _keep_tree(self, tree: ProviderTree) -> None:
        self._tree, self._traits_doubted = tree, False
        self._root_traits = tree[self._root_uuid].traits if self._root_uuid in tree else frozenset()

    def _describe(self) -> HostView:
        claimed_at = {consumer: claim.since for consumer, claim in self._tracker.claims().items()}
        description, guests, topology = (
            self._driver.describe(),
            self.read_guests(),
            self._driver.topology(),
        )
        doubted = frozenset(self._last.overused if self._last else ())
        unheld, left = self._tracker.view.unheld(), self._tracker.left_behind()
        in_use = self._tracker.view.in_use()
        return HostView(description, in_use, guests, topology, doubted, unheld, left, claimed_at)

    def _is_known(self, seen: HostView) -> bool:
        """Whether the last pass already saw the host like this."""
        return (
            self._seen is not None
            and (seen.description, seen.topology) == (self._seen.description, self._seen.topology)
            and not self._use.differs(seen.used)
            and seen.unheld in self._unheld
            and seen.left_behind == self._seen.left_behind
            and not self._cards_differ()
        )

    def _read_current(self, reread: bool) -> ProviderTree:
        """Placement's tree; from memory if the last pass left it in sync.

        Where another writer has changed Placement since, the first write of the pass meets a conflict.
        """
        first = not self._home_checked
        if first:
            self._is_restored = self._check_home()
            self._home_checked = True
        if self._in_sync and not reread and self._tree is not None:
            return self._tree
        current = self._client.read_tree(self._root_uuid, self._tree)
        if self._tree and not current and not first:
            self._check_home()  # Placement lost the whole database, and the host's allocations with it
        if self._tree and went_back(self._tree, current):
            LOG.warning(
                "Placement has an older state of this host's providers than before: its database was "
                "restored from a copy. The agent reads and writes it anew, and gives no claim up for what "
                "is missing there."
            )
            current, self._is_restored = self._client.read_tree(self._root_uuid), True
        self._check_writer(current)
        return current

    def _check_writer(self, tree: ProviderTree) -> None:
        """Raises AnotherWriter, PlacementError, StateError."""
        if self._writer is not None:
            self._writer.check(tree)


def went_back(before: ProviderTree, now: ProviderTree) -> bool:
    """Whether a provider has a lower generation than before: Placement itself only raises them."""
    return any(
        (before[provider.uuid].generation or 0) > (provider.generation or 0)
        for provider in now
        if provider.uuid in before
    )
