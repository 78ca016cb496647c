"""The pass: what the driver describes is brought into placement, and the tracker learns what placement holds.

    describe -> resolve -> (stage -> reshape) -> plan -> apply -> journal -> tracker.refresh

A pass that finds nothing new makes no placement request. One that fails leaves everything as it was, or where
a plan may stop, and the next one goes on from there; nothing is wiped because something did not answer.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import chain
from typing import Protocol

from agent.claims.ledger import DepartedConsumers
from agent.claims.numa.host_cells import HostLayout
from agent.driver import Description, Driver, Guest, Topology
from agent.errors import (
    ApplyError,
    PlacementConflict,
    PlacementUnavailable,
    PlimsollError,
    ReshapeRefused,
    UsageError,
)
from agent.placement.apply import apply
from agent.placement.client import PlacementClient
from agent.providers.overuse import find_overuse
from agent.providers.plan import Operation, Plan, plan
from agent.providers.provider_config import ProviderConfig
from agent.providers.reserved import ReservedUsages, reserve_used
from agent.providers.resolve import OwnedProviders, ResolvedDescription, recognize_owned, resolve
from agent.providers.retained import RetainedTree, removed_classes, retain_held
from agent.reconcile.allocation_cache import AllocationCache, SharingProviders
from agent.reconcile.pass_report import PassReport, sentence_of
from agent.reconcile.provider_config import Laying
from agent.reconcile.reshape_request import Preview, preview
from agent.reconcile.reshape_runner import Exact, Goal, ReshapeRunner
from agent.reconcile.tree_cache import TreeCache
from agent.reshape.stage import staged
from agent.shapes import Held, Units, Usages
from agent.tree import ProviderTree

ATTEMPTS_MAX = 3


class ReconcilerStore(Protocol):
    """Where the agent durably keeps what it has written to placement; each method raises StateError."""

    def owned(self) -> OwnedProviders: ...

    def remember_owned(self, owned: OwnedProviders) -> None: ...

    def devices(self) -> Mapping[str, str]: ...

    def remember_devices(self, devices: Mapping[str, str]) -> None: ...


class Tracker(Protocol):
    """The one that must know what placement holds, and what guests use."""

    def saw(self, guests: Collection[Guest]) -> None: ...

    def refresh(
        self,
        tree: ProviderTree,
        held: Held,
        units: Units,
        layout: HostLayout | None = None,
        departed: DepartedConsumers | None = None,
    ) -> None: ...

    def departed(self) -> DepartedConsumers: ...

    def in_use(self) -> Usages: ...


class Reconciler:
    """Runs passes, one at a time, from whichever thread; keeps what the last good one saw.

    `reshape_runner` performs reshapes that a driver or an operator requests; without it nothing moves.
    `arrive` is called before the first write; it raises PlimsollError where nothing is to be written here.
    `seen` keeps what placement holds for the next start. `provider_config` is laid over what a driver says.
    """

    def __init__(
        self,
        driver: Driver,
        client: PlacementClient,
        tracker: Tracker,
        memory: ReconcilerStore,
        root_uuid: str,
        *,
        reshape_runner: ReshapeRunner | None = None,
        arrive: Callable[[], None] = lambda: None,
        seen: TreeCache | None = None,
        provider_config: ProviderConfig | None = None,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._driver = driver
        self._client = client
        self._tracker = tracker
        self._memory = memory
        self._root = root_uuid
        self.reshape_runner = reshape_runner
        self._pending: ReshapeRefused | None = None
        self._arrive = arrive
        self._arrived = False
        self._seen = seen
        self._clock = clock
        self._timer = timer
        self._lock = threading.Lock()
        self._started: float | None = None
        self._description: Description | None = None
        self._topology: Topology | None = None
        self._in_step = False
        self._use = ReservedUsages()
        self._problems: tuple[str, ...] = ()
        self._kept: tuple[str, ...] = ()
        self._overused: Mapping[str, tuple[str, ...]] = {}
        self.guests: tuple[Guest, ...] | None = None  # before the driver has answered
        before, held = seen.load() if seen is not None else (None, {})
        self._tree = before
        self._laying = Laying(root_uuid, provider_config)
        self._sharing = SharingProviders(client)
        self._holdings = AllocationCache(client, before or ProviderTree(), held)

    def running_s(self) -> float:
        """For how long the pass under way has been running, 0 if there is none."""
        started = self._started
        return 0.0 if started is None else self._timer() - started

    def invalidate(self) -> None:
        """What is known of placement may be wrong: the next pass reads it again."""
        self._in_step = False

    def replace_driver(self, driver: Driver) -> Driver:
        """Describe by another driver from the next pass on; returns the one before. Waits for a pass."""
        with self._lock:
            before, self._driver = self._driver, driver
            self._description = None
            return before

    def replace_provider_config(self, config: ProviderConfig) -> None:
        """Lay these provider config files over the driver's word from the next pass on. Waits for a pass.

        Raises SettingsError, changing nothing, where they contradict what the driver describes.
        """
        with self._lock:
            if self._laying.use(config, self._description, self._tree):
                self._in_step = False

    @property
    def needs_pass(self) -> bool:
        """Whether what placement offers must follow what has come into use, or was freed, since."""
        return bool(self._use.classes) and self._use.differs(self._tracker.in_use())

    @property
    def tree(self) -> ProviderTree | None:
        """Placement's tree as the last pass knew it, which may have been one before the start."""
        return self._tree

    def read_guests(self) -> tuple[Guest, ...]:
        """What the driver sees at this moment. Raises DriverError."""
        return self._driver.guests()

    def guest_of(self, xml: str) -> Guest:
        """The guest of a domain's XML, by the driver in use; see `Driver.guest_of`."""
        return self._driver.guest_of(xml)

    def close(self) -> None:
        """Let go of the hypervisor."""
        self._driver.close()

    def reconcile(self, why: str) -> PassReport:
        """One pass; placement is only spoken to if the driver says something new. Does not raise."""
        return self._pass(why, reread=False)

    def verify(self, why: str) -> PassReport:
        """One pass that also compares placement with what was written there. Does not raise.

        One request, and four for each provider that was written to since, by whomever.
        """
        return self._pass(why, reread=True)

    def next_plan(self) -> Plan:
        """What the next pass would write, from a fresh look at both sides. Raises PlimsollError."""
        current = self._client.read_tree(self._root, self._tree)
        description, resolved = self._understood(self._driver.describe(), current, self._tracker.in_use())
        goal = self._goal(description, current, resolved)
        return self._keeping(current, goal.tree)[1]

    def preview_reshape(self, undo: str | None = None) -> Preview:
        """What asking for a reshape, or for undoing one, would do; writes nothing. Raises PlimsollError."""
        if self.reshape_runner is None:
            raise UsageError("This agent was put together without the means to reshape.")
        current = self._client.read_tree(self._root, self._tree)
        description, resolved = self._understood(self._driver.describe(), current, self._tracker.in_use())
        return preview(self.reshape_runner, self._client, (description, current, resolved), undo)

    def _pass(self, why: str, reread: bool) -> PassReport:
        with self._lock:
            at, self._started = self._clock(), self._timer()
            error: PlimsollError | None = None
            try:
                written = self._attempts(reread)
                sentence = sentence_of(why, written)
            except PlimsollError as failure:
                written, error = None, failure
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
                changed=len({each.provider for each in operations if hasattr(each, "provider")}),
                operations=len(operations),
                problems=self._problems,
                error=error,
                pending=self._pending,
            )

    def _attempts(self, reread: bool) -> Plan | None:
        """What was written; None where nothing but the driver was asked.

        Somebody else's write in between is no fault: look again and plan anew, a few times.
        """
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return self._run(reread)
            except PlacementConflict:
                reread = True
        return self._run(reread)

    def _run(self, reread: bool) -> Plan | None:
        said, guests = self._driver.describe(), self._driver.guests()
        topology = self._driver.topology()
        if guests != self.guests:
            self._tracker.saw(guests)
            self.guests = guests
        used = self._tracker.in_use()
        nothing_new = (said, topology) == (self._description, self._topology) and not self._use.differs(used)
        if nothing_new and self._in_step and not reread:
            return None
        self._topology = topology
        current = self._current(reread)
        self._tree, self._in_step = current, False
        description, resolved = self._understood(said, current, used)
        exact = Exact(resolved.units, guests)
        if self.reshape_runner is not None and self.reshape_runner.settle(exact):
            current = self._client.read_tree(self._root, current)
            description, resolved = self._understood(said, current, used)
        goal = self._goal(description, current, resolved)
        written: list[Operation] = []
        tree, wanted, self._pending = current, goal.tree, None
        if goal.due and self.reshape_runner is not None:
            tree, self._pending = self._reshaped(self.reshape_runner, current, goal, resolved, exact, written)
            if self._pending is not None:
                wanted = self.reshape_runner.reserved(tree, goal)
        tree = self._written(tree, wanted, goal, resolved, written)
        held = self._tell_tracker(tree, resolved, reread=reread)
        self._tree, self._description, self._use = tree, said, ReservedUsages.of(resolved, used)
        self._in_step = self._pending is None and not self._kept
        if self._seen is not None:
            self._seen.save(tree, held)
        self._overused = find_overuse(tree, held)
        self._problems = (
            *resolved.problems,
            *goal.told,
            *goal.parked,
            *self._kept,
            *chain.from_iterable(self._overused.values()),
        )
        return Plan(tuple(written))

    def _current(self, reread: bool) -> ProviderTree:
        """Placement's tree to plan from: read, unless it is known and nobody seems to have written since."""
        if not self._arrived:
            self._arrive()
            self._arrived = True
        if self._in_step and not reread and self._tree is not None:
            return self._tree  # if somebody wrote since, the write meets a conflict
        current = self._client.read_tree(self._root, self._tree)
        if self._tree and not current:
            self._arrive()  # it went with placement's whole database, and who held what with it
        return current

    def _understood(
        self, said: Description, current: ProviderTree, used: Usages
    ) -> tuple[Description, ResolvedDescription]:
        """What the driver says, with what the operator adds; and what follows from it."""
        laid = self._laying.over(said, current)
        resolved = resolve(laid.description, current, self._ours(current), self._root)
        resolved = reserve_used(resolved, current, used, laid.description.moves)
        return laid.description, replace(resolved, problems=(*resolved.problems, *laid.conflicts))

    def _tell_tracker(
        self, tree: ProviderTree, resolved: ResolvedDescription, *, reread: bool = False
    ) -> Held:
        """Let the tracker know all that it may claim from; who holds what of the host's own."""
        whole = self._sharing.beside(tree, reread=reread)
        departed = self._tracker.departed()
        held = self._holdings.on(whole, {*self._overused, *departed})
        self._tracker.refresh(whole, held, resolved.units, self._layout(resolved), departed)
        return {uuid: holders for uuid, holders in held.items() if uuid in tree}

    def _layout(self, resolved: ResolvedDescription) -> HostLayout | None:
        if self._topology is None:
            return None
        return HostLayout(self._topology, resolved.cells, resolved.ways, resolved.to_make)

    def _goal(self, description: Description, current: ProviderTree, resolved: ResolvedDescription) -> Goal:
        if self.reshape_runner is None:
            return Goal(resolved.tree, resolved.owned)
        return self.reshape_runner.goal(description, current, resolved)

    def _reshaped(
        self,
        reshape_runner: ReshapeRunner,
        current: ProviderTree,
        goal: Goal,
        resolved: ResolvedDescription,
        exact: Exact,
        written: list[Operation],
    ) -> tuple[ProviderTree, ReshapeRefused | None]:
        """The tree with what is due done; or staged, or as it was, and why."""
        tree = current
        try:
            step = reshape_runner.prepare(current, goal)
            stage = staged(current, goal.tree, goal.due, reserve=False)
            tree = self._written(current, stage, goal, resolved, written)
            closed = staged(tree, goal.tree, goal.due, reserve=True)
            self._tell_tracker(closed, resolved)
            return reshape_runner.perform(current, tree, goal, step, exact), None
        except ReshapeRefused as refusal:
            return tree, refusal

    def _ours(self, current: ProviderTree) -> OwnedProviders:
        owned = self._memory.owned()
        return owned if owned.providers else recognize_owned(current, self._root)

    def _written(
        self,
        current: ProviderTree,
        wanted: ProviderTree,
        goal: Goal,
        resolved: ResolvedDescription,
        written: list[Operation],
    ) -> ProviderTree:
        """Bring placement's tree to `wanted`; what was done is added to `written`."""
        kept, operations = self._keeping(current, wanted)
        tree, wanted = current, kept.tree
        self._kept = kept.sentences
        owned = self._ours(current)
        if not operations.empty:
            if owned | goal.owned != owned:
                self._memory.remember_owned(owned | goal.owned)
            foreign: set[str] = set()
            try:
                tree = apply(operations, self._client, current, read_again=foreign.add)
            except ApplyError as error:
                if isinstance(error.__cause__, PlacementUnavailable):
                    raise error.__cause__ from error  # a state that passes, whichever operation met it
                raise
            self._holdings.keep(current, tree, foreign)
            written.extend(operations.operations)
        ours = goal.owned if wanted is goal.tree else (owned | goal.owned).within(wanted)
        if self._memory.owned() != ours:
            self._memory.remember_owned(ours)
        if self._memory.devices() != resolved.devices:
            self._memory.remember_devices(resolved.devices)
        return tree

    def _keeping(self, current: ProviderTree, wanted: ProviderTree) -> tuple[RetainedTree, Plan]:
        """What is to be written, without taking from anybody what he holds."""
        operations = plan(current, wanted)
        gone = removed_classes(operations)
        held = {provider: self._client.provider_allocations(provider).consumers for provider in gone}
        kept = retain_held(current, wanted, gone, held)
        return kept, plan(current, kept.tree) if kept.sentences else operations
