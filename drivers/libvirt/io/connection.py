"""The read-only connection to libvirt: opened when needed, replaced when it hangs or breaks.

A call to libvirt may block as long as its daemon does, and Python cannot interrupt it. So each piece of work
runs in a thread of its own, with deadlines. When a deadline passes, the caller stops waiting and the thread
goes on alone until its call returns. The number of such abandoned threads is bounded.

Python's libvirt objects close their connection when they are collected, and that call can block like any
other. So the thread that still uses an abandoned connection closes it.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import libvirt

from agent.errors import DriverSlow, DriverUnavailable, counted
from drivers.libvirt.io.changes import (
    KEEPALIVE_COUNT,
    KEEPALIVE_INTERVAL_S,
    PendingReads,
    Subscriptions,
    start_event_loop,
)

LOG = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")


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
