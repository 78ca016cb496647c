"""Builds one host's agent from its parts; `agent.daemon.service` runs it as a process.

Among the parts are the files of what the agent needs from processes of root, which systemd starts at each
replacement. The plan file says what a boot must make again for claims and domains, see `agent.carving`; the
file of dedicated CPUs says which instance has which, see `agent.carving.cpus`.
"""

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from agent import log
from agent.api.operations import Operations
from agent.audit.auditor import Auditor
from agent.backoff import Backoff
from agent.carving.carving import NeededUnit, needed_units
from agent.carving.cpu_power import CpuKernel
from agent.carving.cpus import CpuHold, CpuHolds, awaited_cpus, cpu_holds, managed_cpus, state_of_up
from agent.carving.files import read_cpu_file, read_plan_file, write_cpu_file, write_plan_file
from agent.claims.claim import Claim
from agent.claims.rows import Row
from agent.clock import HostClock
from agent.config.check import check_running_state_path
from agent.config.settings import Settings
from agent.daemon.host_agent import HostAgent
from agent.driver import CarvedUnit, Driver, Guest, HostSettings
from agent.errors import DriverError, StateError
from agent.gate.effect import GateEffect, GatePaths, is_enabled, read_effect
from agent.gate.gate import Gate
from agent.moves.states import MoveKind
from agent.placement.client import PlacementClient
from agent.placement.transport import Transport
from agent.reconcile.one_writer import writer_of
from agent.reconcile.placement_memory import TreeCache, check_home, home_name
from agent.reconcile.reconciler import Reconciler
from agent.state.identity import Identity
from agent.state.journal import Journal
from agent.status.host_status import AgentStatus
from agent.status.metrics import MeteredTransport
from agent.status.overview import Condition, HostState
from agent.status.recorder import Recorder
from agent.tracker.tracker import ResourceTracker

LOG = log.get(__name__)

T = TypeVar("T")


class KeptNeeds(Generic[T]):
    """Replaces the file where other things are needed than it says. Any thread may call.

    While what it asks for is not there, the same file is written again, less and less often. `read` and
    `write` are those of the file.
    """

    def __init__(
        self, read: Callable[[], T | None], write: Callable[[T], None], backoff: Backoff | None = None
    ) -> None:
        self._read = read
        self._write = write
        self._backoff = backoff or Backoff()
        self._lock = threading.Lock()
        self._written: T | None = None
        self._warned = ""

    def keep(self, look: Callable[[T | None], tuple[T, Callable[[], bool]] | None]) -> None:
        """Write what `look` finds, if it is known and differs from what was written last.

        `look` is called with that, None where the file is missing or cannot be read; it returns what is
        needed now, and what tells whether that is there already; None where it is not known. A file that
        cannot be written is told in the log once, and tried again at the next call.
        """
        with self._lock:
            former = self._former()
            found = look(former)
            if found is None:
                return
            needs, is_there = found
            if needs == former and not self._is_to_ask_again(is_there):
                return
            try:
                self._write(needs)
            except StateError as error:
                self._warn(error.message)
            else:
                self._written, self._warned = needs, ""

    def _former(self) -> T | None:
        if self._written is None:
            try:
                self._written = self._read()
            except StateError as error:
                self._warn(error.message)
        return self._written

    def _is_to_ask_again(self, is_there: Callable[[], bool]) -> bool:
        if is_there():
            self._backoff.succeeded()
            return False
        if self._backoff.left_s():
            return False
        self._backoff.failed(busy=True)
        return True

    def _warn(self, problem: str) -> None:
        if problem != self._warned:
            self._warned = problem
            LOG.warning("%s", problem)


class BootNeeds:
    """Writes the file in `folder` where it does not say what is needed now. Any thread may call.

    The file's replacement starts what makes vGPUs at places of their cards. `guests` are None while they are
    not known; `carved` is `Driver.carved_units`.
    """

    def __init__(
        self,
        folder: Path,
        claims: Callable[[], Iterable[Claim]],
        guests: Callable[[], Iterable[Guest] | None],
        carved: Callable[[], Iterable[CarvedUnit]],
        backoff: Backoff | None = None,
    ) -> None:
        self._claims = claims
        self._guests = guests
        self._carved = carved
        self._file = KeptNeeds(partial(read_plan_file, folder), partial(write_plan_file, folder), backoff)

    def write(self) -> None:
        """Write what is needed now, see `KeptNeeds.keep`: the guests that run need nothing of it."""
        self._file.keep(self._look)

    def _look(
        self, former: tuple[NeededUnit, ...] | None
    ) -> tuple[tuple[NeededUnit, ...], Callable[[], bool]] | None:
        guests = self._guests()
        if guests is None:
            return None
        try:
            carved = tuple(self._carved())
        except DriverError as error:  # the passes report a driver that does not answer
            LOG.debug("What a boot needs is not known: %s", error.message)
            return None
        needs = needed_units(self._claims(), guests, carved, former or ())
        return needs, lambda: {need.unit for need in needs if need.unit.placement is not None} <= {*carved}


class CpuNeeds:
    """Writes the file in `folder` where it does not say who has which CPU now. Any thread may call.

    The file's replacement starts what brings the awaited CPUs up. `guests` are None while they are not
    known. Nothing is written while [compute] cpu_power_management is off.
    """

    def __init__(
        self,
        folder: Path,
        settings: Callable[[], HostSettings],
        rows: Callable[[], Iterable[Row]],
        guests: Callable[[], Iterable[Guest] | None],
        kernel: CpuKernel | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._settings = settings
        self._rows = rows
        self._guests = guests
        self._kernel = kernel or CpuKernel()
        self._file = KeptNeeds(partial(read_cpu_file, folder), partial(write_cpu_file, folder), backoff)

    def write(self) -> None:
        """Write what is so now, see `KeptNeeds.keep`."""
        settings = self._settings()
        if managed_cpus(settings):
            self._file.keep(partial(self._look, settings))

    def _look(
        self, settings: HostSettings, former: CpuHolds | None
    ) -> tuple[dict[str, CpuHold], Callable[[], bool]] | None:
        if self._guests() is None:
            return None
        holds = cpu_holds(self._rows(), former or {})
        return holds, partial(self._are_up, settings, holds)

    def _are_up(self, settings: HostSettings, holds: CpuHolds) -> bool:
        awaited = awaited_cpus(holds) & managed_cpus(settings)
        governors = settings.cpu_power_management_strategy == "governor"
        states = self._kernel.states(awaited, governors=governors).values()
        return all(state == state_of_up(settings) for state in states)


class Assembled(NamedTuple):
    """One host's agent. `agent` runs the jobs, `operations` answer the local API; close `reconciler` at the
    end, which closes the driver. `boot_needs` keeps the plan file, `cpu_needs` that of dedicated CPUs."""

    agent: HostAgent
    operations: Operations
    reconciler: Reconciler
    boot_needs: BootNeeds
    cpu_needs: CpuNeeds


def assemble(
    settings: Settings,
    identity: Identity,
    journal: Journal,
    driver: Driver,
    transport: Transport,
    recorder: Recorder,
    *,
    on_change: Callable[[HostState, str], None],
    wake: Callable[[float], None],
    wake_audit: Callable[[], None] = lambda: None,
    wake_carving: Callable[[], None] = lambda: None,
    gate_paths: GatePaths | None = None,
    place: str | None = None,
    backoff: Backoff | None = None,
    clock: HostClock | None = None,
    steady: Callable[[], float] = time.monotonic,
) -> Assembled:
    """Build the parts; make no request to the driver or to Placement yet, and write nothing.

    `on_change(state, sentence)` is called after each change of the agent's state; `wake(delay_s)` schedules a
    pass in so many seconds, `wake_audit` the first audit, and `wake_carving` a look at what a boot needs.
    `gate_paths`: where to look for the gate's hook. `clock` tells how old claims, moves and doubts are, and
    `steady` for how long the host has been closed. `place`: where this agent runs, if not in the state
    directory of this machine. Raises StateError.
    """
    clock = clock or HostClock()
    client = PlacementClient(MeteredTransport(transport, recorder.metrics))

    def on_step(step: str, kind: MoveKind | None) -> None:
        recorder.metrics.count_step(step, kind)
        wake_carving()

    tracker = ResourceTracker(journal, client, on_step=on_step, clock=clock.now, age_s=clock.age_s)
    tracker.choose_by(settings.claims_strategy)
    home = home_name(settings.placement)
    reconciler = Reconciler(
        driver,
        client,
        tracker,
        journal,
        identity.uuid,
        check_home=lambda: check_home(
            settings.state_path, client, home, identity.uuid, tracker.claims().values()
        ),
        tree_cache=TreeCache(settings.state_path, home),
        provider_config=settings.provider_config,
        owner_trait=settings.placement.shared_owner_trait,
        writer=writer_of(settings, journal, client, identity.uuid, place),
        clock=clock.now,
    )
    auditor = Auditor(
        tracker,
        client,
        identity.uuid,
        reconciler.read_known_guests,
        journal.devices,
        lambda: reconciler.tree,
        lambda: reconciler.leads,
        check_writer=reconciler.check_audited,
        may_not_heal=lambda tree, taking: reconciler.holds_back(tree, taking=taking),
    )
    gate = Gate(
        tracker,
        client,
        reconciler.guest_of,
        journal.devices,
        reconciler.passed_devices,
        clock=clock.now,
    )
    condition = Condition(on_change)
    host_status = AgentStatus(
        settings,
        identity,
        tracker,
        journal,
        reconciler,
        condition,
        auditor,
        recorder.metrics,
        ages_s=clock.ages_s,
        gate_effect=lambda undecided: (
            GateEffect() if gate_paths is None else read_effect(gate_paths, undecided, settings.api.socket)
        ),
    )
    agent = HostAgent(
        settings,
        identity,
        reconciler,
        tracker,
        condition,
        host_status,
        auditor,
        recorder,
        gate,
        wake=wake,
        wake_audit=wake_audit,
        is_gate_enabled=lambda: gate_paths is not None and is_enabled(gate_paths),
        check_directory=lambda: check_running_state_path(settings.state_path),
        check_state=lambda: journal.remember_host(identity.uuid),
        ask_placement=lambda: client.generations(identity.uuid),
        backoff=backoff,
        steady=steady,
    )
    operations = Operations(
        agent,
        identity,
        tracker,
        reconciler,
        client,
        auditor,
        gate,
        recorder,
        condition,
        host_status,
    )
    boot_needs = BootNeeds(
        settings.state_path,
        lambda: tracker.claims().values(),
        lambda: reconciler.guests,
        reconciler.carved_units,
    )
    cpu_needs = CpuNeeds(
        settings.state_path,
        lambda: agent.settings.driver.host_settings,
        lambda: tracker.rows().values(),
        lambda: reconciler.guests,
    )
    return Assembled(agent, operations, reconciler, boot_needs, cpu_needs)
