"""A simulated host: its hardware, its guests, its disk, and the agent's process on it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from kits.gate import domain, pci, vf

from agent.claims.book import Book
from agent.claims.claim import Claim
from agent.claims.request import ClaimRequest, RequestGroup
from agent.config.settings import Settings, load
from agent.daemon.host_agent import Assembled, Surroundings, assemble
from agent.driver import DescribedProvider, Description, Guest, GuestState, UsedUnit
from agent.errors import AnotherWriter, PlimsollError
from agent.reconcile.pass_report import PassReport
from agent.shapes import Allocations
from agent.state.identity import Identity
from agent.state.journal import Journal
from agent.status.metrics import Metrics
from agent.status.recorder import Recorder
from agent.tracker.register import Register
from drivers.fake.driver import FakeDriver, describe_host
from drivers.fake.host import FakeHost, Gpu, Nic, cell
from simulation.disk import Disk, SimulatedFile
from simulation.network import Network
from simulation.tasks import Process, Scheduler, Task, wall_clock

NAMES = UUID("5f4dcc3b-0000-4000-8000-000000000000")
LOOK_S, VERIFY_S, AUDIT_S, DELIVER_S, RESTART_S = 60.0, 120.0, 240.0, 10.0, 2.0
TICK_S = 1e-6
DEDICATED = frozenset({4, 5, 12, 13})
EXACT = ("SRIOV_NET_VF", "PGPU", "PCPU")
RACK, POOL = str(uuid5(NAMES, "rack")), str(uuid5(NAMES, "pool"))
"""The aggregate of all hosts, and the provider that shares its disk space with them, in some histories."""
STOPPED = frozenset({GuestState.SHUTOFF, GuestState.CRASHED})


def uuid_of(name: str) -> str:
    """The uuid of whatever the story calls by this name."""
    return str(uuid5(NAMES, name))


def hardware(number: int, *, disk_gb: int) -> FakeHost:
    """Two cells, two network cards of two virtual functions each, one graphics card; one for each host."""
    bus = f"0000:{number:x}"
    return FakeHost(
        cells=(
            cell(0, frozenset(range(8)), 16384),
            cell(1, frozenset(range(8, 16)), 16384),
        ),
        disk_gb=disk_gb,
        gpus=(Gpu(f"{bus}3:00.0", "PGPU", 1, (f"{bus}3:00.0",), numa=0),),
        nics=(
            Nic("eth0", f"{bus}1:00.0", (f"{bus}1:02.0", f"{bus}1:02.1"), numa=0),
            Nic("eth1", f"{bus}2:00.0", (f"{bus}2:02.0", f"{bus}2:02.1"), numa=1),
        ),
    )


@cache
def _settings() -> Settings:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "plimsoll.conf"
        file.touch(mode=0o600)
        file.write_text(
            "[DEFAULT]\ncompute_driver = fake\nhost = a\n"
            f"state_path = {directory}\nupdate_resources_interval = {int(LOOK_S)}\n"
            "[placement]\nkind = remote\nauth_type = admin_token\ntoken = t\n"
            "endpoint_override = http://placement\n"
            "[compute]\ncpu_dedicated_set = 4,5,12,13\ncpu_shared_set = 0-3,6-11,14,15\n"
        )
        return load([file])


class _Counter:
    """A metric that counts nothing."""

    def labels(self, *_: object) -> _Counter:
        return self

    def inc(self, *_: object) -> None:
        """Counted."""

    def observe(self, *_: object) -> None:
        """Observed."""


class _NoMetrics(Metrics):
    """Metrics that cost nothing."""

    def __init__(self) -> None:
        counter = _Counter()
        for name in _metric_names():
            setattr(self, name, counter)

    def collect_at_scrape(self, collect: Callable[[], Any]) -> None:
        """Nobody scrapes."""


@cache
def _metric_names() -> tuple[str, ...]:
    return tuple(name for name, value in vars(Metrics()).items() if name != "registry")


@dataclass(frozen=True)
class SimGuest:
    """A guest as the hypervisor has it; `units` are (class, unit). `since` is when it came or changed."""

    name: str
    resources: Mapping[str, int]
    units: tuple[tuple[str, str], ...] = ()
    state: GuestState = GuestState.RUNNING
    since: float = 0.0

    @property
    def runs(self) -> bool:
        return self.state not in STOPPED


@dataclass
class AgentProcess:
    """One life of the agent."""

    process: Process
    assembled: Assembled
    driver: FakeDriver
    jobs: Jobs


@dataclass
class Answer:
    """What a caller of the local API got; neither where the agent died or has not answered."""

    operation: str
    task: Task | None = None
    begun_at: float = 0.0
    ended: bool = False
    value: Any = None
    error: PlimsollError | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def granted(self) -> bool:
        return self.ended and self.error is None


class _PooledDriver(FakeDriver):
    """A driver that puts its host into the rack, whose pool has the disk space."""

    _seen: tuple[Description, Description] | None = None

    def describe(self) -> Description:
        """See `Driver`."""
        alone = super().describe()
        if self._seen is None or self._seen[0] is not alone:
            root, *others = alone.providers
            in_rack = replace(root, aggregates=frozenset({RACK}))
            self._seen = (alone, replace(alone, providers=(in_rack, *others)))
        return self._seen[1]


class Jobs:
    """As agent.daemon.service.Jobs: each job at intervals, at most once at a time, or earlier on request."""

    def __init__(self, scheduler: Scheduler, process: Process, broken: Callable[[str, BaseException], None]):
        self._scheduler = scheduler
        self._process = process
        self._broken = broken
        self._due: dict[str, float] = {}
        self._waiting: dict[str, Task] = {}

    def every(self, name: str, function: Callable[[], object], interval_s: float) -> None:
        self._due[name] = self._scheduler.now + self._scheduler.dice.uniform(0.1, 1) * interval_s
        self._scheduler.spawn(name, self._process, lambda: self._work(name, function, interval_s))

    def wake(self, name: str, delay_s: float) -> None:
        if 0.0 < delay_s < TICK_S:
            delay_s = TICK_S  # the sum of two clocks is not exact, and time has to pass
        due = self._scheduler.now + delay_s
        if due < self._due.get(name, due + 1):
            self._due[name] = due
            if name in self._waiting:
                self._scheduler.wake(self._waiting[name])

    def resume(self) -> None:
        """The host was suspended: what was due meanwhile runs now, and a look."""
        for task in self._waiting.values():
            self._scheduler.wake(task)
        self.wake("look", 0.0)

    def _work(self, name: str, function: Callable[[], object], interval_s: float) -> None:
        scheduler = self._scheduler
        while True:
            while scheduler.now < self._due[name]:
                assert scheduler.current is not None
                self._waiting[name] = scheduler.current
                scheduler.wait(self._due[name] - scheduler.now)
                del self._waiting[name]
            self._due[name] = scheduler.now + interval_s
            try:
                function()
            except Exception as error:  # noqa: BLE001 - as the scheduler's listener does
                self._broken(name, error)


class Host:
    """A hypervisor. `agent` is None while the agent does not run."""

    def __init__(
        self,
        name: str,
        number: int,
        scheduler: Scheduler,
        network: Network,
        directory: Path,
        trace: Callable[[str], None],
        *,
        pooled: bool = False,
        clone_of: Host | None = None,
    ) -> None:
        """`clone_of`: this machine has a copy of that one's disk, and hardware and guests of its own."""
        self.name = name
        self._pooled = pooled
        self.place = f"the machine of {name}"
        self.uuid = uuid_of(f"host {clone_of.name if clone_of else name}")
        self.scheduler = scheduler
        self.network = network
        self.trace = trace
        self.disk = Disk()
        self.guests: dict[str, SimGuest] = {}
        self.agent: AgentProcess | None = None
        self.lives = 0
        self.wanted = True
        self.seen_at = -1.0
        self.disk.seen_at = lambda: self.seen_at
        self.listed_at = -1.0
        """When the agent asked for its guests last, also in an audit; `seen_at`: when its last pass began."""
        self.verified_at = -1.0
        self.answered_at = -1.0
        """When its agent read the marks of the host's agents last, also where another one's was there."""
        self.emptied_at = -1.0
        self.changed_at = -1.0
        self.gone_at: dict[str, float] = {}
        """{consumer: when its guest stopped, left, or lost a device}"""
        self.before: dict[str, SimGuest] = {}
        """{consumer: its guest as it was before that}"""
        self.reserved: dict[str, Allocations] = {}
        """{consumer: what the agent has chosen to extend its claim to, and has not yet journaled}"""
        self.on_reserved: Callable[[Host], None] = lambda host: None
        self.broken: list[str] = []
        self._hardware = hardware(number, disk_gb=0 if pooled else 100)
        self._described: tuple[DescribedProvider, ...] | None = None
        self.devices = {
            unit: f"pci:{device.address}"
            for devices in self._hardware.devices.values()
            for device in devices
            for units in device.exact_units().values()
            for unit in units
        }
        directory.mkdir(exist_ok=True)
        told = _settings()
        self.settings = replace(
            told,
            host=clone_of.name if clone_of else name,
            state_path=directory,
            driver=replace(told.driver, host=clone_of.name if clone_of else name, state_path=directory),
        )
        if clone_of is not None:
            self.disk.copy(clone_of.disk)
        self.start()

    # The agent

    def start(self) -> None:
        """Start the agent's process, which takes its first look."""
        assert self.agent is None
        self.wanted = True
        self.lives += 1
        self.reserved.clear()
        process = Process(self.name)
        driver = (_PooledDriver if self._pooled else FakeDriver)(self._shown(), self.settings.driver)
        self._watch_lists(driver)
        jobs = Jobs(self.scheduler, process, self._job_broke)
        self.scheduler.spawn(f"{self.name} starts", process, lambda: self._live(process, driver, jobs))
        self._starting = (process, driver, jobs)

    def _live(self, process: Process, driver: FakeDriver, jobs: Jobs) -> None:
        try:
            journal = Journal(SimulatedFile(self.disk, self.scheduler, process), wall_clock)
            if journal.host_uuid() is None:
                journal.remember_host(self.uuid)
            recorder = Recorder(_NoMetrics(), journal.record_event)
            assembled = assemble(
                self.settings,
                Identity(self.uuid, self.settings.host),
                journal,
                driver,
                self.network.transport(self.name),
                recorder,
                Surroundings(
                    on_change=recorder.record_event,
                    wake=lambda delay_s: jobs.wake("look", delay_s),
                    place=self.place,
                ),
            )
        except PlimsollError as error:
            self.trace(f"{self.name}: the agent cannot start: {error.message}")
            self._die(process)
            return
        self._watch_passes(assembled)
        self._watch_reserved(assembled.agent._tracker._register)
        self.agent = AgentProcess(process, assembled, driver, jobs)
        agent = assembled.agent
        driver.watch(lambda why: jobs.wake("look", 0.3))
        agent.reconcile("the start")
        jobs.every("look", lambda: agent.reconcile("its interval"), LOOK_S)
        jobs.every("deliver", agent.deliver, DELIVER_S)
        jobs.every("verify", agent.verify, VERIFY_S)
        jobs.every("audit", agent.run_audit, AUDIT_S)

    def _watch_lists(self, driver: FakeDriver) -> None:
        inner = driver.guests

        def guests() -> tuple[Guest, ...]:
            self.listed_at = self.scheduler.now
            return inner()

        driver.guests = guests  # type: ignore[method-assign]

    def _watch_passes(self, assembled: Assembled) -> None:
        reconciler = assembled.reconciler
        inner = reconciler._run_pass

        def run_pass(why: str, *, reread: bool, in_full: bool = False) -> PassReport:
            report = inner(why, reread=reread, in_full=in_full)
            if reread and (report.error is None or isinstance(report.error, AnotherWriter)):
                self.answered_at = self.scheduler.now
            if report.error is None:
                began_at = self.scheduler.stamped_at[report.at]
                self.seen_at = max(self.seen_at, began_at)
                if reread:
                    self.verified_at = max(self.verified_at, began_at)
            else:
                self.trace(f"{self.name}: {report.sentence}")
            return report

        reconciler._run_pass = run_pass  # type: ignore[method-assign]

    def _watch_reserved(self, register: Register) -> None:
        inner = register.reserved

        @contextmanager
        def reserved(choose: Callable[[Book], Claim]) -> Iterator[Claim]:
            with inner(choose) as chosen:
                self.reserved[chosen.consumer] = chosen.allocations
                self.on_reserved(self)
                try:
                    yield chosen
                finally:
                    self.reserved.pop(chosen.consumer, None)

        register.reserved = reserved  # type: ignore[method-assign]

    def _job_broke(self, job: str, error: BaseException) -> None:
        self.broken.append(f"{self.name}'s job {job}: {error!r}")

    def _die(self, process: Process) -> None:
        """The process ended by itself; systemd starts it again."""
        self.agent = None
        self.scheduler.spawn("systemd", Process("systemd"), lambda: self._start_again(process))

    def _start_again(self, process: Process) -> None:
        self.scheduler.sleep(RESTART_S)
        process.dead = True
        if self.wanted and self.agent is None:
            self.start()

    def died(self, process: Process) -> None:
        """The scheduler killed the process."""
        if process is self._starting[0]:
            self.agent = None
            self.wanted = False
            self.trace(f"{self.name}: the agent is killed")

    @property
    def process(self) -> Process:
        """The agent's process, also while it starts."""
        return self._starting[0]

    def suspend(self, seconds: float) -> None:
        """For so long the agent stands still, with its monotonic clock, and the wall clock goes on."""
        process, _, jobs = self._starting

        def wake_up() -> None:
            self.scheduler.sleep(seconds)
            self._resume(process, jobs)

        if not process.dead and process.asleep_since is None:
            self.scheduler.suspend(process)
            self.scheduler.spawn(f"{self.name} sleeps", Process("the firmware"), wake_up)

    def resume(self) -> None:
        """Before the time, if the host is suspended."""
        process, _, jobs = self._starting
        self._resume(process, jobs)

    def _resume(self, process: Process, jobs: Jobs) -> None:
        if process.asleep_since is not None and not process.dead:
            self.trace(f"{self.name}: the host is resumed")
            self.scheduler.resume(process)
            jobs.resume()

    def lose_disk(self) -> None:
        """An empty state directory takes the place of the one that was there."""
        self.disk.empty()
        self.emptied_at = self.scheduler.now
        for file in sorted(self.settings.state_path.iterdir()):
            file.unlink()

    # What callers ask

    def ask(self, operation: str, function: Callable[[Any], Any], **notes: Any) -> Answer:
        """A call of the local API."""
        answer = Answer(operation, begun_at=self.scheduler.now, notes=notes)
        if self.agent is None:
            answer.ended, answer.error = True, PlimsollError("no agent answers")
            return answer
        operations = self.agent.assembled.operations

        def call() -> None:
            self.scheduler.place()
            try:
                answer.value = function(operations)
            except PlimsollError as error:
                answer.error = error
                self.trace(f"{self.name}: {operation} is answered: {type(error).__name__}: {error.message}")
            else:
                self.trace(f"{self.name}: {operation} is answered: {_shown(answer.value)}")
            answer.ended = True

        answer.task = self.scheduler.spawn(f"call {operation}", self.process, call)
        return answer

    # The hypervisor

    def described(self) -> tuple[DescribedProvider, ...]:
        """What the hardware offers now."""
        if self._described is None:
            self._described = describe_host(
                self._hardware, self.settings.driver.host_settings, self.settings.host
            ).providers
        return self._described

    def put_guest(self, consumer: str, guest: SimGuest) -> None:
        """With as many devices as units.

        No driver reports others (`locate_units`), also where a claim of a scheduler's allocation has fewer
        units than that, since a card has lost some.
        """
        counted = Counter(name for name, _ in guest.units)
        others = {name: amount for name, amount in guest.resources.items() if name not in EXACT}
        before = self.guests.get(consumer)
        self.guests[consumer] = replace(guest, resources=others | counted, since=self.scheduler.now)
        if before is not None:
            self.before[consumer] = before
        if not guest.runs or (before is not None and not set(before.units) <= set(guest.units)):
            self.gone_at[consumer] = self.scheduler.now
        self._show()

    def drop_guest(self, consumer: str) -> None:
        if consumer in self.guests:
            self.before[consumer] = self.guests.pop(consumer)
        self.gone_at[consumer] = self.scheduler.now
        self._show()

    def reshape(self, **fields: Any) -> None:
        """The driver counts its inventory in another place from now on."""
        self._hardware, self._described = replace(self._hardware, **fields), None
        self.changed_at = self.scheduler.now
        self._show()

    @property
    def flat(self) -> bool:
        return self._hardware.flat_devices

    def lose_units(self, units: frozenset[str]) -> None:
        """These virtual functions are not there any more."""
        nics = tuple(
            replace(nic, vfs=tuple(vf for vf in nic.vfs if vf not in units)) for nic in self._hardware.nics
        )
        self.reshape(nics=nics)

    def regain_units(self) -> None:
        """All virtual functions are there again."""
        nics = tuple(
            replace(nic, vfs=(f"{nic.address[:-4]}02.0", f"{nic.address[:-4]}02.1"))
            for nic in self._hardware.nics
        )
        self.reshape(nics=nics)

    def _shown(self) -> FakeHost:
        guests = tuple(
            Guest(
                uuid,
                guest.name,
                guest.state,
                guest.resources,
                tuple(UsedUnit(name, unit, self._device_of(name, unit)) for name, unit in guest.units),
            )
            for uuid, guest in sorted(self.guests.items())
        )
        return replace(self._hardware, guests=guests)

    def _device_of(self, name: str, unit: str) -> str:
        """As libvirt's driver says it of a CPU: on its cell, where the cells have providers."""
        cells = self._hardware.cells if self._hardware.report_numa and name == "PCPU" else ()
        on = next((each.id for each in cells if int(unit) in each.cpus), None)
        return f"numa:{on}" if on is not None else self.devices.get(unit, "host")

    def _show(self) -> None:
        driver, shown, task = self._starting[1], None, self.scheduler.current
        if task is not None:
            task.prompt = True  # a stall of the agent does not keep the hypervisor from showing it
        # Another task may show something newer while this one waits for the driver's lock.
        while not self.process.dead and shown != self._shown():
            shown = self._shown()
            driver.change(
                guests=shown.guests,
                nics=shown.nics,
                flat_devices=shown.flat_devices,
                report_numa=shown.report_numa,
            )
        if task is not None:
            task.prompt = False


def request_for(name: str, resources: Mapping[str, int], *, groups: int = 1) -> ClaimRequest:
    """What a caller asks for a guest of this name."""
    return ClaimRequest(uuid_of(name), (RequestGroup("", dict(resources)),), name=name)


def domain_of(uuid: str, guest: SimGuest) -> str:
    """libvirt's XML of the guest."""
    pins = [int(unit) for name, unit in guest.units if name == "PCPU"]
    vcpus = guest.resources.get("VCPU", 0) or len(pins) or 1
    pinned = "".join(f"<vcpupin vcpu='{vcpu}' cpuset='{cpu}'/>" for vcpu, cpu in enumerate(pins))
    tune = f"<cputune>{pinned}</cputune>" if pins else ""
    devices = "".join(
        vf(unit) if name == "SRIOV_NET_VF" else pci(unit) for name, unit in guest.units if name != "PCPU"
    )
    memory_mb = guest.resources.get("MEMORY_MB", 256)
    return domain(uuid, vcpus=vcpus, memory_mb=memory_mb, devices=devices, inside=tune)


def _shown(value: Any) -> str:
    units = getattr(value, "units", None)
    if units is not None:
        exact = sorted(unit for classes in units.values() for each in classes.values() for unit in each)
        return f"{value.state}, {' '.join(exact) or 'no exact units'}"
    state = getattr(value, "state", None)
    return str(state if state is not None else value)
