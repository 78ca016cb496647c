"""libvirt's events: the event loop's thread, and what is subscribed to on a connection.

The callbacks run in the event loop's thread. They only leave a hint: a call to libvirt from there would wait
for the very thread that it runs in.
"""

import logging
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import libvirt

from drivers.libvirt.io.hints import Hints

LOG = logging.getLogger(__name__)
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_COUNT = 3

_loop_lock = threading.Lock()


def start_event_loop() -> None:
    """Before the first connection is opened; libvirt has one event loop a process, so it is started once."""
    with _loop_lock:
        _start_event_loop()


@cache
def _start_event_loop() -> None:
    libvirt.registerErrorHandler(_say_nothing, None)
    libvirt.virEventRegisterDefaultImpl()
    threading.Thread(target=_run_event_loop, name="plimsoll-libvirt-events", daemon=True).start()


def _run_event_loop() -> None:
    while True:
        try:
            libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError as error:
            LOG.error("libvirt's event loop ended, changes are seen by polling from now on: %s", error)
            return


def _say_nothing(_context: object, _error: object) -> None:
    """libvirt writes every error to stderr by itself; ours come as exceptions."""


class Subscriptions:
    """The event callbacks of one connection.

    `complete` is False where it has no domain events at all, `devices` where it has none of node devices.
    """

    def __init__(
        self, connection: Any, hints: Hints, why: Callable[[str], None], lost: Callable[[str], None]
    ) -> None:
        self._connection = connection
        self._hints = hints
        self._why = why
        self._lost = lost
        self._undo: list[Callable[[], Any]] = []
        self.complete = self._subscribe()

    def _subscribe(self) -> bool:
        connection = self._connection
        found = self._try(
            partial(
                connection.domainEventRegisterAny,
                None,
                libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE,
                self._domain_lifecycle,
                None,
            ),
            connection.domainEventDeregisterAny,
        )
        for event in (
            libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED,
            libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED,
            libvirt.VIR_DOMAIN_EVENT_ID_MEMORY_DEVICE_SIZE_CHANGE,
            libvirt.VIR_DOMAIN_EVENT_ID_TUNABLE,
        ):
            self._try(
                partial(connection.domainEventRegisterAny, None, event, self._domain_changed, None),
                connection.domainEventDeregisterAny,
            )
        self.devices = True
        for event in (libvirt.VIR_NODE_DEVICE_EVENT_ID_LIFECYCLE, libvirt.VIR_NODE_DEVICE_EVENT_ID_UPDATE):
            self.devices &= self._try(
                partial(connection.nodeDeviceEventRegisterAny, None, event, self._device_changed, None),
                connection.nodeDeviceEventDeregisterAny,
            )
        for event in (libvirt.VIR_STORAGE_POOL_EVENT_ID_LIFECYCLE, libvirt.VIR_STORAGE_POOL_EVENT_ID_REFRESH):
            self._try(
                partial(connection.storagePoolEventRegisterAny, None, event, self._pool_changed, None),
                connection.storagePoolEventDeregisterAny,
            )
        self._try(
            partial(connection.registerCloseCallback, self._closed, None),
            lambda _: connection.unregisterCloseCallback(),
        )
        return found

    def _try(self, register: Callable[[], Any], undo: Callable[[Any], Any]) -> bool:
        """False where there are no such events, or not for this user: then polling has to do."""
        try:
            number = register()
        except libvirt.libvirtError as error:
            if not self._connection.isAlive():
                raise
            if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                LOG.warning("some of libvirt's events are refused, changes are seen by polling: %s", error)
            return False
        self._undo.append(partial(undo, number))
        return True

    def cancel(self) -> None:
        """Take the callbacks back, so that nothing holds on to the connection. The connection may be dead."""
        for undo in self._undo:
            try:
                undo()
            except libvirt.libvirtError as error:
                LOG.debug("taking back an event callback: %s", error)
        self._undo.clear()

    # The callbacks; their arguments are libvirt's

    def _domain_lifecycle(self, _connection: Any, domain: Any, *_details: Any) -> None:
        self._domain(domain, "changed its state or definition")

    def _domain_changed(self, _connection: Any, domain: Any, *_details: Any) -> None:
        self._domain(domain, "changed")

    def _domain(self, domain: Any, what: str) -> None:
        self._hints.domain(domain.UUIDString())
        self._why(f"domain {domain.name()} {what}")

    def _device_changed(self, _connection: Any, device: Any, *_details: Any) -> None:
        self._hints.device(device.name())
        self._why(f"device {device.name()} changed")

    def _pool_changed(self, _connection: Any, pool: Any, *_details: Any) -> None:
        self._why(f"storage pool {pool.name()} changed")

    def _closed(self, _connection: Any, _reason: int, _opaque: Any) -> None:
        self._lost("the connection to libvirt was lost")
