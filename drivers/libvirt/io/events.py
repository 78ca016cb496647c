"""libvirt's events: the thread of the event loop, and the subscriptions of a connection.

The callbacks run in the thread of the event loop, so they must not call libvirt: the call would wait for the
thread that it runs in. They only record what must be read again.
Source: https://libvirt.org/html/libvirt-libvirt-event.html
"""

import logging
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import libvirt

from drivers.libvirt.io.pending_reads import PendingReads

LOG = logging.getLogger(__name__)
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
    libvirt.registerErrorHandler(_ignore_error, None)
    libvirt.virEventRegisterDefaultImpl()
    threading.Thread(target=_run_event_loop, name="plimsoll-libvirt-events", daemon=True).start()


def _run_event_loop() -> None:
    while True:
        try:
            libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError as error:
            LOG.error("libvirt's event loop ended, so the agent sees changes only when it polls: %s", error)
            return


def _ignore_error(_context: object, _error: object) -> None:
    """Keep libvirt from writing each error to stderr; the binding raises them as exceptions."""


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
        self.has_domain_events = self._subscribe()

    def _subscribe(self) -> bool:
        connection = self._connection
        has_domain_events = self._register(
            partial(
                connection.domainEventRegisterAny,
                None,
                libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE,
                self._on_domain_lifecycle,
                None,
            ),
            connection.domainEventDeregisterAny,
        )
        for name in _CHANGES:
            event = getattr(libvirt, name, None)
            if event is None:
                continue
            self._register(
                partial(connection.domainEventRegisterAny, None, event, self._on_domain_change, None),
                connection.domainEventDeregisterAny,
            )
        self.has_device_events = True
        for event in (libvirt.VIR_NODE_DEVICE_EVENT_ID_LIFECYCLE, libvirt.VIR_NODE_DEVICE_EVENT_ID_UPDATE):
            self.has_device_events &= self._register(
                partial(connection.nodeDeviceEventRegisterAny, None, event, self._on_device_change, None),
                connection.nodeDeviceEventDeregisterAny,
            )
        for event in (libvirt.VIR_STORAGE_POOL_EVENT_ID_LIFECYCLE, libvirt.VIR_STORAGE_POOL_EVENT_ID_REFRESH):
            self._register(
                partial(connection.storagePoolEventRegisterAny, None, event, self._on_pool_change, None),
                connection.storagePoolEventDeregisterAny,
            )
        self._register(
            partial(connection.registerCloseCallback, self._on_close, None),
            lambda _: connection.unregisterCloseCallback(),
        )
        return has_domain_events

    def _register(self, register: Callable[[], Any], undo: Callable[[Any], Any]) -> bool:
        """Register a callback; False where libvirt does not offer the events to this user."""
        try:
            callback_id = register()
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

    def _on_domain_lifecycle(self, _connection: Any, domain: Any, *_details: Any) -> None:
        self._report_domain(domain, "changed its state or definition")

    def _on_domain_change(self, _connection: Any, domain: Any, *_details: Any) -> None:
        self._report_domain(domain, "changed")

    def _report_domain(self, domain: Any, what: str) -> None:
        self._pending_reads.add_domain(domain.UUIDString())
        self._changed(f"domain {domain.name()} {what}")

    def _on_device_change(self, _connection: Any, device: Any, *_details: Any) -> None:
        self._pending_reads.add_device(device.name())
        self._changed(f"device {device.name()} changed")

    def _on_pool_change(self, _connection: Any, pool: Any, *_details: Any) -> None:
        self._changed(f"storage pool {pool.name()} changed")

    def _on_close(self, _connection: Any, _reason: int, _opaque: Any) -> None:
        self._disconnected("the connection to libvirt was lost")
