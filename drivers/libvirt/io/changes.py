"""How the driver learns of changes, and who is told: events, what must be read again, and the threads.

libvirt's events are hints, not a log: they may repeat, come out of order or be missing. So an event only
names a domain or a device, and the next reading asks libvirt for its state.

The callbacks of events run in the thread of the event loop, so they must not call libvirt: the call would
wait for the thread that it runs in. They only record what must be read again.
Source: https://libvirt.org/html/libvirt-libvirt-event.html
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import libvirt

from agent.errors import DriverError

LOG = logging.getLogger(__name__)


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
                more = len(reasons) - REASONS_MAX
                shown = "; ".join(reasons[:REASONS_MAX])
                self._changed(shown + (f"; and {more} more" if more > 0 else ""))
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
