"""The read-only connection to libvirt: opened when needed, replaced when it hangs or breaks, with its
events.

libvirt's events are hints, not a log: they may repeat, come out of order or be missing. So an event only
names a domain or a device, and the next reading asks libvirt for its state.

The callbacks of events run in the thread of the event loop, so they must not call libvirt: the call would
wait for the thread that it runs in. They only record what must be read again.

A call to libvirt may block as long as its daemon does, and Python cannot interrupt it. So each piece of
work runs in a thread of its own, with deadlines. When a deadline passes, the caller stops waiting and the
thread goes on alone until its call returns. The number of such abandoned threads is bounded.

Python's libvirt objects close their connection when they are collected, and that call can block like any
other. So the thread that still uses an abandoned connection closes it.

Source: https://libvirt.org/html/libvirt-libvirt-event.html
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Generic, TypeVar

import libvirt

from agent.errors import DriverError, DriverSlow, DriverUnavailable, counted, first_few

LOG = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")


# What must be read again


class PendingReads:
    """What is known to be out of date. The `take_` methods return it and forget it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._domains: set[str] = set()
        self._devices: set[str] = set()
        self._all_domains = self._all_devices = True

    def add_domain(self, uuid: str) -> None:
        """Read the domain with this uuid again."""
        with self._lock:
            self._domains.add(uuid)

    def add_device(self, name: str) -> None:
        """Read the node device with this name again."""
        with self._lock:
            self._devices.add(name)

    def add_all_domains(self) -> None:
        """Read all domains again."""
        with self._lock:
            self._all_domains = True

    def add_all_devices(self) -> None:
        """Read all node devices again."""
        with self._lock:
            self._all_devices = True

    def add_everything(self) -> None:
        """Read all domains and devices again, as a new connection must."""
        with self._lock:
            self._all_domains = self._all_devices = True

    def take_domains(self) -> frozenset[str] | None:
        """The uuids of the domains to read again; None for all."""
        with self._lock:
            uuids = None if self._all_domains else frozenset(self._domains)
            self._domains, self._all_domains = set(), False
            return uuids

    def take_devices(self) -> frozenset[str] | None:
        """The names of the node devices to read again; None for all."""
        with self._lock:
            names = None if self._all_devices else frozenset(self._devices)
            self._devices, self._all_devices = set(), False
            return names


# Events of a connection

KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_COUNT = 3

_CHANGES = (
    "VIR_DOMAIN_EVENT_ID_DEVICE_ADDED",
    "VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED",
    "VIR_DOMAIN_EVENT_ID_MEMORY_DEVICE_SIZE_CHANGE",
    "VIR_DOMAIN_EVENT_ID_TUNABLE",
    "VIR_DOMAIN_EVENT_ID_VCPU_REMOVED",  # since libvirt 12.4
)
"""The events of what a guest uses. A balloon's are not among them: a guest counts with all its memory."""

_loop_lock = threading.Lock()


def start_event_loop() -> None:
    """Start the event loop of the process, if it does not run; call this before opening a connection."""
    with _loop_lock:
        _start_event_loop()


@cache
def _start_event_loop() -> None:
    # Keep libvirt from writing each error to stderr; the binding raises them as exceptions.
    libvirt.registerErrorHandler(lambda _context, _error: None, None)
    libvirt.virEventRegisterDefaultImpl()
    threading.Thread(target=_run_event_loop, name="plimsoll-libvirt-events", daemon=True).start()


def _run_event_loop() -> None:
    while True:
        try:
            libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError as error:
            LOG.error("libvirt's event loop ended, so the agent sees changes only when it polls: %s", error)
            return


class Subscriptions:
    """The event callbacks of one connection.

    `has_domain_events` and `has_device_events` are False where libvirt does not offer them to this user. An
    event calls `changed(why)`, the loss of the connection `disconnected(why)`.
    """

    def __init__(
        self,
        connection: Any,
        pending_reads: PendingReads,
        changed: Callable[[str], None],
        disconnected: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._pending_reads = pending_reads
        self._changed = changed
        self._disconnected = disconnected
        self._undo: list[Callable[[], Any]] = []
        domains = connection.domainEventRegisterAny, connection.domainEventDeregisterAny
        devices = connection.nodeDeviceEventRegisterAny, connection.nodeDeviceEventDeregisterAny
        pools = connection.storagePoolEventRegisterAny, connection.storagePoolEventDeregisterAny
        on_lifecycle = partial(self._on_domain, "changed its state or definition")
        lifecycle = libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE
        self.has_domain_events = self._register(*domains, None, lifecycle, on_lifecycle, None)
        for name in _CHANGES:
            if hasattr(libvirt, name):
                self._register(
                    *domains, None, getattr(libvirt, name), partial(self._on_domain, "changed"), None
                )
        self.has_device_events = True
        for event in (libvirt.VIR_NODE_DEVICE_EVENT_ID_LIFECYCLE, libvirt.VIR_NODE_DEVICE_EVENT_ID_UPDATE):
            self.has_device_events &= self._register(*devices, None, event, self._on_device_change, None)
        for event in (libvirt.VIR_STORAGE_POOL_EVENT_ID_LIFECYCLE, libvirt.VIR_STORAGE_POOL_EVENT_ID_REFRESH):
            self._register(*pools, None, event, self._on_pool_change, None)
        unregister = connection.unregisterCloseCallback
        self._register(connection.registerCloseCallback, lambda _: unregister(), self._on_close, None)

    def _register(self, register: Callable[..., Any], undo: Callable[[Any], Any], *arguments: Any) -> bool:
        """Register a callback; False where libvirt does not offer the events to this user."""
        try:
            callback_id = register(*arguments)
        except libvirt.libvirtError as error:
            if not self._connection.isAlive():
                raise
            if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                LOG.warning("libvirt refuses a kind of event, so the agent polls for such changes: %s", error)
            return False
        self._undo.append(partial(undo, callback_id))
        return True

    def cancel(self) -> None:
        """Deregister the callbacks, which hold references to the connection. The connection may be dead."""
        for undo in self._undo:
            try:
                undo()
            except libvirt.libvirtError as error:
                LOG.debug("deregistering an event callback: %s", error)
        self._undo.clear()

    # Callbacks, with libvirt's arguments

    def _on_domain(self, what: str, _connection: Any, domain: Any, *_details: Any) -> None:
        self._pending_reads.add_domain(domain.UUIDString())
        self._changed(f"domain {domain.name()} {what}")

    def _on_device_change(self, _connection: Any, device: Any, *_details: Any) -> None:
        self._pending_reads.add_device(device.name())
        self._changed(f"device {device.name()} changed")

    def _on_pool_change(self, _connection: Any, pool: Any, *_details: Any) -> None:
        self._changed(f"storage pool {pool.name()} changed")

    def _on_close(self, _connection: Any, _reason: int, _opaque: Any) -> None:
        self._disconnected("the connection to libvirt was lost")


# Deadlines, for calls that have none

STUCK_MAX = 8


class CallTimeout(DriverSlow):
    """A deadline passed and the thread was abandoned; `returned` is set when its call returns after all."""

    def __init__(self, message: str, returned: threading.Event) -> None:
        super().__init__(message)
        self.returned = returned


class WorkAbandoned(Exception):
    """Ends work, and its thread, after its caller has stopped waiting."""


class CallDeadline:
    """The deadline of the next call. Work extends it before each call that may block.

    `ends_at` is in seconds of the monotonic clock; `abandoned` is set by the caller.
    """

    def __init__(self, call_timeout_s: float) -> None:
        self._call_timeout_s = call_timeout_s
        self.ends_at = time.monotonic() + call_timeout_s
        self.abandoned = False

    def extend(self, within_s: float | None = None) -> None:
        """Give the next call `within_s` seconds, by default the call timeout.

        Raises WorkAbandoned where the caller has stopped waiting.
        """
        if self.abandoned:
            raise WorkAbandoned
        self.ends_at = time.monotonic() + (self._call_timeout_s if within_s is None else within_s)


class _Job(Generic[T]):
    """One piece of work, which is either finished or abandoned, never both."""

    def __init__(
        self, work: Callable[[CallDeadline], T], late: Callable[[], None], deadline: CallDeadline
    ) -> None:
        self.deadline = deadline
        self.finished = threading.Event()
        self.result: T
        self.error: BaseException | None = None
        self._work = work
        self._late = late
        self._lock = threading.Lock()

    def run(self) -> None:
        try:
            self.result = self._work(self.deadline)
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            self.error = error
        with self._lock:
            in_time = not self.deadline.abandoned
            self.finished.set()
        if not in_time:
            self._late()

    def abandon(self) -> bool:
        """False where the work finished meanwhile."""
        with self._lock:
            self.deadline.abandoned = not self.finished.is_set()
            return self.deadline.abandoned


class DeadlineRunner:
    """Runs work with a deadline for each of its calls (`call_timeout_s`) and one for all of it.

    In errors, `who` names what did not answer, and `advice` says what to do about it.
    """

    def __init__(
        self, who: str, advice: str, call_timeout_s: float, total_timeout_s: float, stuck_max: int = STUCK_MAX
    ) -> None:
        self.call_timeout_s = call_timeout_s
        self._who = who
        self._advice = advice
        self._total_timeout_s = total_timeout_s
        self._stuck_max = stuck_max
        self._stuck: list[threading.Thread] = []
        self._lock = threading.Lock()

    def run(self, what: str, work: Callable[[CallDeadline], T], late: Callable[[], None] = lambda: None) -> T:
        """The result of `work`. If the work ends after it was abandoned, its thread calls `late`.

        Raises CallTimeout where a deadline passes, DriverUnavailable where too many calls are stuck already,
        and the exceptions of `work`.
        """
        with self._lock:
            self._stuck = [thread for thread in self._stuck if thread.is_alive()]
            if len(self._stuck) >= self._stuck_max:
                who = self._who
                stuck = counted(len(self._stuck), f"call to {who} is", f"calls to {who} are")
                raise DriverUnavailable(f"{stuck} stuck, the agent starts no other ({what}): {self._advice}")
        started = time.monotonic()
        job = _Job(work, late, CallDeadline(self.call_timeout_s))
        thread = threading.Thread(target=job.run, name="plimsoll-libvirt-call", daemon=True)
        thread.start()
        while not job.finished.wait(max(0.0, self._ends_at(job.deadline, started) - time.monotonic())):
            if time.monotonic() >= self._ends_at(job.deadline, started) and job.abandon():
                with self._lock:
                    self._stuck.append(thread)
                raise CallTimeout(
                    f"{self._who} did not answer within {time.monotonic() - started:.1f} s ({what}): "
                    f"{self._advice}",
                    job.finished,
                )
        if job.error is not None:
            raise job.error
        return job.result

    def _ends_at(self, deadline: CallDeadline, started: float) -> float:
        return min(deadline.ends_at, started + self._total_timeout_s)


# The connection


class Session:
    """One connection. Work extends `deadline` before each call on `libvirt`, libvirt's own connection object.

    `slow_facts` belongs to `HostReader`: facts that hardly change during a connection and are slow to read.
    """

    def __init__(self, deadline: CallDeadline) -> None:
        self.deadline = deadline
        self.libvirt: Any = None
        self.slow_facts: Any = None
        self.has_events = False
        self.has_device_events = False
        self.lists_inactive_devices = True
        self.abandoned = False
        self._subscriptions: Subscriptions | None = None

    def open(
        self,
        uri: str,
        pending_reads: PendingReads,
        changed: Callable[[str], None],
        disconnected: Callable[[str], None],
    ) -> None:
        """Connect and subscribe to events. Raises libvirtError; `close` then closes what was opened."""
        start_event_loop()
        self.deadline.extend()
        self.libvirt = libvirt.openReadOnly(uri)
        self.deadline.extend()
        try:
            self.libvirt.setKeepAlive(KEEPALIVE_INTERVAL_S, KEEPALIVE_COUNT)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                raise
        self.deadline.extend()
        self._subscriptions = Subscriptions(
            self.libvirt,
            pending_reads,
            lambda text: None if self.abandoned else changed(text),
            lambda text: None if self.abandoned else disconnected(text),
        )
        self.has_events = self._subscriptions.has_domain_events
        self.has_device_events = self._subscriptions.has_device_events
        pending_reads.add_everything()
        LOG.info("connected to libvirt at %s", uri)

    @property
    def usable(self) -> bool:
        """Whether it was opened and not closed since."""
        return self.libvirt is not None

    def alive(self) -> bool:
        """False where the connection is known to be broken. Asks the library, not the daemon."""
        try:
            return bool(self.libvirt is not None and self.libvirt.isAlive())
        except libvirt.libvirtError:
            return False

    def close(self) -> None:
        """Cancel the subscriptions and close the connection. May block."""
        if self._subscriptions is not None:
            self._subscriptions.cancel()
        if self.libvirt is not None:
            try:
                self.libvirt.close()
            except libvirt.libvirtError as error:
                LOG.debug("closing a connection to libvirt: %s", error)
        self._subscriptions = self.libvirt = self.slow_facts = None


class Connection:
    """Runs pieces of work on a session, one at a time, each with a deadline.

    It calls `opened(again)` when a session was opened (`again` unless the first attempt succeeded),
    `disconnected(why)` when one is lost, and `changed(why)` for events. `turn_timeout_s` bounds how long a
    piece of work waits for its turn.
    """

    def __init__(
        self,
        uri: str,
        runner: DeadlineRunner,
        pending_reads: PendingReads,
        *,
        turn_timeout_s: float,
        changed: Callable[[str], None],
        opened: Callable[[bool], None],
        disconnected: Callable[[str], None],
    ) -> None:
        self._uri = uri
        self._runner = runner
        self._pending_reads = pending_reads
        self._turn_timeout_s = turn_timeout_s
        self._changed = changed
        self._opened = opened
        self._disconnected = disconnected
        self._session: Session | None = None
        self._turn = threading.Lock()
        self._attempts = 0
        self._broken = threading.Event()
        self._closed = False

    @property
    def is_open(self) -> bool:
        """Whether a session is open and not known to be broken."""
        return self._session is not None and not self._broken.is_set()

    def run(self, what: str, work: Callable[[Session], T], keep: Callable[[T], R]) -> R:
        """Run `work` and return `keep(result of work)`.

        `work` runs in a thread that may be abandoned, so it changes nothing but its session; `keep` runs in
        the caller's thread, before the next piece of work. Raises CallTimeout, DriverUnavailable (also in
        place of a libvirtError), and other exceptions of `work`.
        """
        if not self._turn.acquire(timeout=self._turn_timeout_s):
            raise DriverUnavailable(
                f"libvirt has not answered an earlier call yet, so the agent does not {what}"
            )
        try:
            if self._closed:
                raise DriverUnavailable("the libvirt driver was closed")
            return keep(self._run(what, work))
        finally:
            self._turn.release()

    def _run(self, what: str, work: Callable[[Session], T]) -> T:
        broken = self._session
        if broken is not None and self._broken.is_set():  # libvirt has reported it as closed
            self._session, broken.abandoned = None, True
            self._runner.run("close a broken connection", lambda deadline: broken.close())
        session = self._session or Session(CallDeadline(0))
        timed_out = False
        try:
            return self._runner.run(
                what, lambda deadline: self._run_on(session, deadline, work), session.close
            )
        except libvirt.libvirtError as error:
            if session.usable:
                raise DriverUnavailable(f"libvirt did not answer ({what}): {error}") from error
            raise DriverUnavailable(
                f"no connection to libvirt at {self._uri}: {error}; is libvirtd running, and may this user "
                "read its socket?"
            ) from error
        except CallTimeout:
            timed_out = True
            raise
        finally:
            # Keep a new session that works, drop one that does not.
            is_new = session is not self._session
            self._attempts += is_new
            if timed_out or not session.usable:
                session.abandoned = True
                self._session = None
                self._disconnected("the connection to libvirt was lost")
            elif is_new:
                self._session = session
                self._opened(self._attempts > 1)

    def _run_on(self, session: Session, deadline: CallDeadline, work: Callable[[Session], T]) -> T:
        """Run in the runner's thread; it changes nothing but the session, as its caller may be gone."""
        session.deadline = deadline
        try:
            if not session.usable:
                self._broken.clear()
                session.open(self._uri, self._pending_reads, self._changed, self._connection_lost)
            return work(session)
        except libvirt.libvirtError:
            if not session.alive():
                session.close()
            raise

    def _connection_lost(self, why: str) -> None:
        """Run in the event loop's thread: make the next piece of work open a new session."""
        self._broken.set()
        self._disconnected(why)

    def close(self) -> None:
        """Close the session; idempotent. If a call is still blocked, its thread closes it."""
        self._closed = True
        if not self._turn.acquire(timeout=self._runner.call_timeout_s):
            LOG.warning(
                "a call to libvirt is still blocked; its thread closes the connection when it returns"
            )
            return
        try:
            session, self._session = self._session, None
            if session is not None:
                session.abandoned = True
                self._runner.run("close the connection", lambda deadline: session.close())
        except DriverUnavailable as error:
            LOG.warning("%s", error)
        finally:
            self._turn.release()


# The thread that looks, and the one that tells

INTERVAL_S = 0.5


class VcpuWatch:
    """A thread that calls `look` each `interval_s` seconds, to find guests whose vCPUs changed.

    libvirt has no event for vCPUs that come; since version 12.4 it has one for those that went. So the agent
    counts the vCPUs of those guests that may get or lose some; most have all from the start, and cost
    nothing. Counting those of one guest takes one call, which does not ask QEMU: 0.12 ms where this was
    measured. `look` may raise DriverError, which the readings report.
    """

    def __init__(self, look: Callable[[], None], interval_s: float = INTERVAL_S) -> None:
        self._look = look
        self._interval_s = interval_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plimsoll-libvirt-vcpus", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float = 1.0) -> None:
        """End the thread; idempotent."""
        self._closed.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._closed.wait(self._interval_s):
            try:
                self._look()
            except DriverError as error:
                LOG.debug("the vCPUs of guests were not counted: %s", error)


QUIET_S = 0.3
LONGEST_S = 2.0
RECONNECT_FIRST_S = 1.0
RECONNECT_LONGEST_S = 30.0
REASONS_MAX = 5


class ChangeNotifier:
    """A thread that reports changes to the agent once they have settled, and reconnects to libvirt.

    It calls `changed(why)` when no change came for `quiet_s`, at the latest `longest_s` after the first one.
    While the connection is lost it calls `connect`, which raises DriverError where that fails, again and
    again, with a pause that grows up to RECONNECT_LONGEST_S.
    """

    def __init__(
        self,
        changed: Callable[[str], None],
        connect: Callable[[], None],
        quiet_s: float = QUIET_S,
        longest_s: float = LONGEST_S,
        reconnect_first_s: float = RECONNECT_FIRST_S,
    ) -> None:
        self._changed = changed
        self._connect = connect
        self._quiet_s = quiet_s
        self._longest_s = longest_s
        self._reconnect_first_s = reconnect_first_s
        self._condition = threading.Condition()
        self._reasons: dict[str, None] = {}
        self._first_at = self._last_at = 0.0
        self._disconnected = False
        self._pause_s = reconnect_first_s
        self._retry_at = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="plimsoll-libvirt-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def report_change(self, why: str) -> None:
        """Something may have changed; `why` is a clause for the log."""
        with self._condition:
            self._last_at = time.monotonic()
            if not self._reasons:
                self._first_at = self._last_at
            self._reasons[why] = None
            self._condition.notify()

    def report_disconnect(self, why: str) -> None:
        """The connection was lost: report that as a change, and reconnect."""
        if self.start_connecting():
            self.report_change(why)

    def start_connecting(self) -> bool:
        """Connect after the first pause, and again until it succeeds. False where that is under way."""
        with self._condition:
            if self._disconnected:
                return False
            self._disconnected = True
            self._pause_s = self._reconnect_first_s
            self._retry_at = time.monotonic() + self._pause_s
            self._condition.notify()
            return True

    def report_connect(self) -> None:
        """A connection was opened."""
        with self._condition:
            self._disconnected = False

    def close(self, timeout_s: float = 1.0) -> None:
        """End the thread; idempotent."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._condition:
                times = [self._settled_at()] if self._reasons else []
                times += [self._retry_at] if self._disconnected else []
                wait_s = max(0.0, min(times) - time.monotonic()) if times else None
                self._condition.wait(0.0 if self._closed else wait_s)
                if self._closed:
                    return
                reasons: list[str] = []
                if self._reasons and time.monotonic() >= self._settled_at():
                    reasons, self._reasons = list(self._reasons), {}
                retry = self._disconnected and time.monotonic() >= self._retry_at
            if reasons:
                self._changed(first_few(reasons, REASONS_MAX, "; "))
            if retry:
                try:
                    self._connect()
                except DriverError:  # the agent's own calls to the driver report the reason
                    with self._condition:
                        self._pause_s = min(2 * self._pause_s, RECONNECT_LONGEST_S)
                        self._retry_at = time.monotonic() + self._pause_s
                else:
                    self.report_connect()

    def _settled_at(self) -> float:
        return min(self._last_at + self._quiet_s, self._first_at + self._longest_s)
