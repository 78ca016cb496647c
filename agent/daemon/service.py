"""The daemon's process: it starts the agent's parts in order, serves, runs jobs, reloads, and stops the
parts in order.

The order of the start: settings, state, the API socket's place, identity, driver, Placement, first pass
with recovery, API socket, READY=1. The agent also starts while the hypervisor or Placement is away: then it
is degraded, claims are closed, and its loop tries again.

One job per concern runs at intervals, at most once at a time, or earlier on request (`Jobs`). APScheduler
plans by the wall clock, which may be set to any time. So its scheduler looks at least once a second whether
that happened, and then moves its plan along: all intervals are of the monotonic clock, and the time for
which the host was suspended is a part of them. What was due meanwhile runs at the resume.

Source: https://apscheduler.readthedocs.io/en/3.x/userguide.html
"""

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import SystemRandom
from types import FrameType

from apscheduler.events import EVENT_JOB_ERROR
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

from agent import log
from agent.api.server import ApiServer, prepare_place
from agent.clock import STEP_S, HostClock, suspended_s
from agent.config import settings
from agent.config.check import check_state_path, unusable_state_path
from agent.config.options import driver_class
from agent.config.settings import Settings
from agent.daemon.host_agent import Surroundings, assemble
from agent.driver import Driver
from agent.durable.files import is_there
from agent.errors import DriverError, ExitCode, PlimsollError
from agent.gate.effect import GatePaths
from agent.http.process import long_computation, take_all_descriptors
from agent.placement.connect import open_transport
from agent.state.identity import NAME_FILE, Identity, establish_identity
from agent.state.journal import Journal
from agent.status.metrics import Metrics
from agent.status.overview import HostState
from agent.status.recorder import Recorder
from agent.status.web import HttpListener
from agent.systemd import journald
from agent.systemd.notify import Notifier

LOG = log.get(__name__)
_DICE = SystemRandom()

DEBOUNCE_S = 0.3
SIGNAL_POLL_S = 1.0
AUDIT = "audit"
ENDED = "ended"
DELIVER_INTERVAL_S = 10.0
ENDED_INTERVAL_S = 2.0
HEARTBEAT_INTERVAL_S = 10.0
DEVICES_INTERVAL_S = 10.0
CARVING_INTERVAL_S = 30.0
SCHEDULERS_INTERVAL_S = 5.0
NOTE_INTERVAL_S = 50.0
HEARTBEATS_PER_WATCHDOG = 3
START_EXTENSION_S = 300.0
STATE_MODE = 0o700

FIRST_AUDIT_S = (5.0, 40.0)
"""The first audit comes so long after the first good pass; hosts that start together do not stay in step."""


LOOK, VERIFY, DELIVER, HEARTBEAT, DEVICES = "look", "verify", "deliver", "heartbeat", "devices"
CARVING, SCHEDULERS, NOTE = "carving", "schedulers", "note"


def first_audit_s(interval_s: float) -> float:
    """Seconds from the first good pass to the first audit: not longer than the interval of audits."""
    return min(_DICE.uniform(*FIRST_AUDIT_S), interval_s)


def run(
    config_files: Sequence[Path] = (),
    config_dirs: Sequence[Path] = (),
    environment: Mapping[str, str] = os.environ,
) -> int:
    """Run the daemon until a signal ends it. Returns one of `agent.errors.ExitCode`; logs errors."""
    journald.configure("info", "auto")
    try:
        take_all_descriptors()
        loaded = settings.load(config_files, config_dirs)
        journald.configure(loaded.log.level, loaded.log.format, loaded.secrets)
        with Service(loaded, config_files, config_dirs, Notifier(environment)) as service:
            service.serve()
    except PlimsollError as error:
        LOG.error("The agent cannot run: %s", error.message, fields={"code": error.code})
        return error.exit_code
    return ExitCode.DONE


class Service:
    """The parts that live as long as the process; leaving the context stops them in order."""

    def __init__(
        self,
        loaded: Settings,
        config_files: Sequence[Path],
        config_dirs: Sequence[Path],
        notifier: Notifier,
    ) -> None:
        self._settings = loaded
        self._config = (tuple(config_files), tuple(config_dirs))
        self._notifier = notifier
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stop = False
        self._reload = False
        self._stack = ExitStack()
        self._clock = HostClock()
        self._jobs = Jobs(self._broken, self._report_step, self._clock, self._go_on)
        self._why = "its interval"

    def __enter__(self) -> "Service":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._signalled)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # `agent.cli.main` held it back
        with self._stack:
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the interpreter's end would give it its default back
        self._notifier.stopping()
        LOG.info("Stopping.")
        self._agent.stop()
        self._stack.close()
        LOG.info("Stopped.")

    def serve(self) -> None:
        """Wait for signals and act on them, until one ends the daemon."""
        if not self._stop:
            self._notifier.ready(self._status())
        while not self._stop:
            with suppress(queue.Empty):
                self._signals.get(timeout=SIGNAL_POLL_S)  # bounded: a signal just before it does not end it
            if self._reload and not self._stop:
                self._reload = False
                self._reload_settings()

    # Start

    def _start(self) -> None:
        current = self._settings
        fields = {"host": current.host, "driver": current.compute_driver, "pid": os.getpid()}
        LOG.info("Starting.", fields=fields)
        self._notifier.status("starting")
        check_state_path(current.state_path)
        try:  # its parent exists
            current.state_path.mkdir(mode=STATE_MODE, exist_ok=True)
        except OSError as error:
            raise unusable_state_path(current.state_path, error) from error
        journal = Journal.open(current.state_path)
        self._stack.callback(journal.close)
        prepare_place(current.api.socket)
        # The journal records the host's identity as well.
        is_known = is_there(current.state_path / NAME_FILE)
        directories = dict.fromkeys(file.parent for file in current.files)
        identity = establish_identity(current.state_path, current.host, journal.host_uuid(), directories)
        if journal.host_uuid() is None:
            if is_known:
                LOG.warning(
                    "This host has an identity, but the agent's journal is new: earlier claims count as "
                    "another client's allocations. `plimsoll audit` lists them; a backup of agent.db has "
                    "them."
                )
            journal.remember_host(identity.uuid)
        self._build_agent(journal, identity)
        self._plan_jobs()
        self._notifier.extend_timeout(START_EXTENSION_S)
        self._notifier.status("running the first pass")
        self._agent.reconcile("the start")
        self._agent.look_at_devices()
        self._agent.write_needs()
        self._agent.is_alive()  # the first heartbeat
        # Serve the API and the status, and run the jobs.
        server = ApiServer(self._operations, self._settings.api.access, self._settings.api.socket)
        listener = HttpListener(self._agent.host_status, self._settings.http_listen)
        listener.start()
        self._stack.callback(listener.stop)
        server.start()
        self._jobs.start()
        # The stack runs backwards: first stop new claims, then passes, then the parts that both use.
        self._stack.callback(self._jobs.stop)
        self._stack.callback(server.stop)

    def _build_agent(self, journal: Journal, identity: Identity) -> None:
        current = self._settings
        driver = driver_class(current.compute_driver).create(current.driver)
        metrics = Metrics()
        journal.observe_commits(metrics.commit_seconds.observe)
        transport = open_transport(
            current.placement.kind, state_dir=current.state_path, options=current.placement.options
        )
        self._stack.callback(transport.close)
        self._recorder = Recorder(metrics, journal.record_event)
        self._agent, self._operations, reconciler = assemble(
            current,
            identity,
            journal,
            driver,
            transport,
            self._recorder,
            Surroundings(
                on_change=self._report_state,
                wake=lambda delay_s: self._jobs.wake(LOOK, delay_s),
                wake_audit=lambda: self._jobs.wake(AUDIT, first_audit_s(self._settings.audit_interval_s)),
                wake_carving=lambda: self._jobs.wake(CARVING, DEBOUNCE_S),
                wake_note=lambda: self._jobs.wake(NOTE, DEBOUNCE_S),
                gate_paths=GatePaths(),
                clock=self._clock,
            ),
        )
        self._stack.callback(reconciler.close)
        self._watch(driver)

    def _plan_jobs(self) -> None:
        current = self._settings
        watchdog_s = self._notifier.watchdog_interval_s
        heartbeat_s = watchdog_s / HEARTBEATS_PER_WATCHDOG if watchdog_s else HEARTBEAT_INTERVAL_S
        self._jobs.every(LOOK, self._look, current.update_resources_interval_s)
        self._jobs.every(DELIVER, self._agent.deliver, DELIVER_INTERVAL_S)
        self._jobs.every(ENDED, self._agent.release_ended, ENDED_INTERVAL_S)
        self._jobs.every(HEARTBEAT, self._heartbeat, heartbeat_s)
        self._jobs.every(DEVICES, self._agent.look_at_devices, DEVICES_INTERVAL_S)
        self._jobs.every(CARVING, self._agent.write_needs, CARVING_INTERVAL_S)
        self._jobs.every(SCHEDULERS, self._agent.tell_schedulers, SCHEDULERS_INTERVAL_S)
        self._jobs.every(NOTE, self._agent.leave_note, NOTE_INTERVAL_S, jitter=True)
        if current.audit_interval_s:
            self._jobs.every(AUDIT, self._agent.run_audit, current.audit_interval_s, jitter=True)
        else:
            self._jobs.remove(AUDIT)
        if current.association_refresh_s:
            self._jobs.every(VERIFY, self._agent.verify, current.association_refresh_s, jitter=True)
        else:
            self._jobs.remove(VERIFY)

    # What wakes the jobs

    def _look(self) -> None:
        why, self._why = self._why, "its interval"
        self._agent.reconcile(why)

    def _watch(self, driver: Driver) -> None:
        try:
            driver.watch(self._event)
        except DriverError as error:
            LOG.warning(
                "The agent does not get the hypervisor's events, and reads it at each interval only: %s",
                error.message,
            )

    def _event(self, why: str) -> None:
        self._why = why
        self._jobs.wake(LOOK, DEBOUNCE_S)

    def _heartbeat(self) -> None:
        if self._agent.is_alive():
            self._notifier.watchdog()
        else:
            LOG.error("A pass has been running for too long; the service manager gets no watchdog ping.")

    def _broken(self, job: str, error: BaseException) -> None:
        self._agent.report_job_failure(job, error)

    def _report_step(self, step_s: float) -> None:
        way = "forward" if step_s > 0 else "back"
        sentence = (
            f"The clock of this host was set {way} by {abs(step_s):.1f} s; the agent's intervals go on."
        )
        LOG.warning("%s", sentence, fields={"event": "clock_set"})
        self._recorder.record_event("clock_set", sentence)

    def _go_on(self, slept_s: float) -> None:
        """After a suspension: what the agent knows of guests and Placement may have changed meanwhile."""
        sentence = f"This host was suspended for {slept_s:.1f} s; the agent looks at it anew."
        LOG.warning("%s", sentence, fields={"event": "resumed"})
        self._recorder.record_event("resumed", sentence)
        self._agent.request_pass()

    def _report_state(self, state: HostState, sentence: str) -> None:
        self._notifier.status(f"{state}: {sentence}")
        self._recorder.record_event(state, sentence)
        self._jobs.wake(NOTE, DEBOUNCE_S)

    def _status(self) -> str:
        condition = self._agent.condition
        return f"{condition.state}: {condition.fault.sentence}" if condition.fault else str(condition.state)

    # Signals

    def _signalled(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._reload = True
        else:
            self._stop = True
        # A handler may interrupt another one, which would deadlock with an Event's lock.
        self._signals.put(None)

    def _reload_settings(self) -> None:
        """Use the new settings as a whole, or keep the running ones after any error."""
        self._notifier.reloading()
        driver: Driver | None = None
        refused = ""
        try:
            reloaded = settings.reload(self._settings, *self._config)
            if reloaded.settings.driver != self._settings.driver:
                driver = driver_class(reloaded.settings.compute_driver).create(reloaded.settings.driver)
            former = self._agent.apply_settings(reloaded.settings, driver)
        except Exception as error:  # a mistake in the reload must not end the agent
            if driver is not None:
                driver.close()
            why = error.message if isinstance(error, PlimsollError) else f"the reload broke ({error!r})."
            refused = f"The settings were not reloaded, the running ones stay in force: {why}"
            LOG.error("%s", refused, exc_info=not isinstance(error, PlimsollError))
        else:
            self._settings = reloaded.settings
            journald.configure(
                reloaded.settings.log.level, reloaded.settings.log.format, reloaded.settings.secrets
            )
            if driver is not None:
                self._watch(driver)
            if former is not None:
                former.close()
            self._plan_jobs()
            self._event("the reload")
            LOG.info("Reloaded: %s.", ", ".join(reloaded.changed) or "nothing changed")
            if reloaded.restart:
                LOG.warning("A restart is necessary to change %s.", ", ".join(reloaded.restart))
        self._notifier.ready(f"{self._status()}. {refused}" if refused else self._status())


THREADS = 6
JITTER_PART = 10

CLOCK_LOOK_S = 1.0


class _Interval(IntervalTrigger):  # type: ignore[misc]
    """The next run is after now: the runs that the clock has left out are not counted one by one."""

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        due: datetime = super().get_next_fire_time(previous_fire_time, now)
        return due if previous_fire_time is None or due > now else now + self.interval


class _Scheduler(BackgroundScheduler):  # type: ignore[misc]
    """Moves its plan along where the wall clock was set; `on_step` gets by how many seconds.

    `on_resume` gets for how many seconds the host was suspended.
    """

    def __init__(
        self,
        clock: HostClock,
        on_step: Callable[[float], None],
        on_resume: Callable[[float], None],
        suspended: Callable[[], float],
    ) -> None:
        super().__init__(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(THREADS)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._clock = clock
        self._on_step = on_step
        self._on_resume = on_resume
        self._suspended = suspended
        self._suspended_s = suspended()
        self._ahead_s = clock.ahead_s()
        self.plan_lock = threading.RLock()
        """Who holds it changes the plan while it is not moved along."""

    def in_s(self, delay_s: float) -> datetime:
        """The time so many seconds from now, by the wall clock as the plan knows it."""
        return datetime.fromtimestamp(time.monotonic() + self._ahead_s + delay_s, UTC)

    def end(self) -> None:
        """Start no more runs, and wait for those under way.

        APScheduler itself waits with its locks held, which a run that plans another at its end needs.
        """
        executors = [*self._executors.values()]
        self.shutdown(wait=False)
        for executor in executors:
            executor.shutdown(wait=True)

    def _process_jobs(self) -> float:
        with self.plan_lock:
            slept_s = self._suspended() - self._suspended_s
            if slept_s < STEP_S:  # two clocks are read one after the other
                slept_s = 0.0
            self._suspended_s += slept_s
            lead_s = self._clock.ahead_s() - self._ahead_s
            self._ahead_s += lead_s
            step_s = lead_s - slept_s
            if abs(step_s) < STEP_S:
                step_s = 0.0
            for job in self.get_jobs() if step_s else ():
                job.modify(next_run_time=job.next_run_time + timedelta(seconds=step_s))
            due_s = super()._process_jobs()
        if slept_s:
            self._on_resume(slept_s)
        if step_s:
            self._on_step(step_s)
        return CLOCK_LOOK_S if due_s is None else min(due_s, CLOCK_LOOK_S)


class Jobs:
    """The agent's jobs.

    `on_error(job's name, exception)` is called after an exception in a job, `on_step(seconds)` after the wall
    clock was set forward or (negative) back, `on_resume(seconds)` after the host was suspended.
    """

    def __init__(
        self,
        on_error: Callable[[str, BaseException], None],
        on_step: Callable[[float], None] = lambda step_s: None,
        clock: HostClock | None = None,
        on_resume: Callable[[float], None] = lambda slept_s: None,
        suspended: Callable[[], float] = suspended_s,
    ) -> None:
        self._scheduler = _Scheduler(clock or HostClock(), on_step, on_resume, suspended)
        self._scheduler.add_listener(lambda event: on_error(event.job_id, event.exception), EVENT_JOB_ERROR)
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._requested: dict[str, float] = {}

    def every(
        self, name: str, function: Callable[[], None], interval_s: float, *, jitter: bool = False
    ) -> None:
        """Run `function` at intervals, first after one interval. A known name replaces its job.

        With jitter, the first run comes after a random part of the interval, so that hosts that start at the
        same time do not stay in step. A run that is late still takes place; several missed runs become one.
        """
        first_s = _DICE.uniform(0, interval_s) if jitter else interval_s
        interval = _Interval(
            seconds=interval_s, jitter=interval_s / JITTER_PART if jitter else None, timezone=UTC
        )
        with self._scheduler.plan_lock:
            self._scheduler.add_job(
                partial(self._run, name, function),
                interval,
                id=name,
                name=name,
                replace_existing=True,
                next_run_time=self._scheduler.in_s(first_s),
            )

    def remove(self, name: str) -> None:
        """Remove a job; a run under way goes on to its end."""
        with self._scheduler.plan_lock:
            if self._scheduler.get_job(name) is not None:
                self._scheduler.remove_job(name)

    def wake(self, name: str, delay_s: float = 0.0) -> None:
        """Run the job in `delay_s` seconds at the latest; if it is running now, so long after its end."""
        with self._lock:
            if name in self._running:
                self._requested[name] = min(delay_s, self._requested.get(name, delay_s))
                return
            with self._scheduler.plan_lock:
                job, due = self._scheduler.get_job(name), self._scheduler.in_s(delay_s)
                if job is not None and job.next_run_time > due:
                    with suppress(JobLookupError):  # the scheduler has been stopped since
                        job.modify(next_run_time=due)

    def start(self) -> None:
        """Start the intervals."""
        self._scheduler.start()

    def stop(self) -> None:
        """Start no more runs, and wait for those under way, which all have deadlines."""
        if self._scheduler.running:
            self._scheduler.end()

    def _run(self, name: str, function: Callable[[], None]) -> None:
        with self._lock:
            self._running.add(name)
        try:
            with long_computation():
                function()
        finally:
            with self._lock:
                self._running.discard(name)
                delay_s = self._requested.pop(name, None)
            if delay_s is not None and self._scheduler.running:
                self.wake(name, delay_s)
