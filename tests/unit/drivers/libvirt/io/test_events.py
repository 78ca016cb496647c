"""Subscriptions to libvirt's events, on a connection that offers all, some or none."""

from collections.abc import Callable
from typing import Any

import libvirt
import pytest

from drivers.libvirt.io.events import Subscriptions
from drivers.libvirt.io.pending_reads import PendingReads


class Named:
    def name(self) -> str:
        return "thing"

    def UUIDString(self) -> str:
        return "uuid-1"


class Connection:
    """Keeps the callbacks; refuses the kinds of events that are named."""

    def __init__(self, *refused: str) -> None:
        self.callbacks: dict[int, tuple[str, Callable[..., None]]] = {}
        self._refused = refused

    def _register(self, kind: str, callback: Callable[..., None]) -> int:
        if kind in self._refused:
            error = libvirt.libvirtError("not supported")
            error.err = (libvirt.VIR_ERR_NO_SUPPORT, 0, "not supported", 2, "", "", "", 0, 0)
            raise error
        self.callbacks[len(self.callbacks)] = (kind, callback)
        return len(self.callbacks) - 1

    def domainEventRegisterAny(self, _: Any, event: int, callback: Callable[..., None], opaque: Any) -> int:
        return self._register("domain", callback)

    def nodeDeviceEventRegisterAny(
        self, _: Any, event: int, callback: Callable[..., None], opaque: Any
    ) -> int:
        return self._register("device", callback)

    def storagePoolEventRegisterAny(
        self, _: Any, event: int, callback: Callable[..., None], opaque: Any
    ) -> int:
        return self._register("pool", callback)

    def registerCloseCallback(self, callback: Callable[..., None], opaque: Any) -> int:
        return self._register("close", callback)

    def _deregister(self, number: int) -> None:
        del self.callbacks[number]

    domainEventDeregisterAny = nodeDeviceEventDeregisterAny = storagePoolEventDeregisterAny = _deregister

    def unregisterCloseCallback(self) -> None:
        for number in [number for number, (kind, _) in self.callbacks.items() if kind == "close"]:
            del self.callbacks[number]

    def isAlive(self) -> bool:
        return True

    def fire(self, kind: str) -> None:
        callback = next(callback for name, callback in self.callbacks.values() if name == kind)
        callback(self, 0 if kind == "close" else Named(), None)


def subscribe(connection: Connection) -> tuple[Subscriptions, PendingReads, list[str]]:
    pending_reads, reasons = PendingReads(), list[str]()
    pending_reads.take_domains()
    pending_reads.take_devices()
    return Subscriptions(connection, pending_reads, reasons.append, reasons.append), pending_reads, reasons


def test_an_event_names_what_must_be_read_again() -> None:
    connection = Connection()
    subscriptions, pending_reads, reasons = subscribe(connection)
    assert subscriptions.has_domain_events and subscriptions.has_device_events
    for kind in ("domain", "device", "pool", "close"):
        connection.fire(kind)
    assert reasons == [
        "domain thing changed its state or definition",
        "device thing changed",
        "storage pool thing changed",
        "the connection to libvirt was lost",
    ]
    assert (pending_reads.take_domains(), pending_reads.take_devices()) == ({"uuid-1"}, {"thing"})


@pytest.mark.parametrize("kind", ["domain", "device"])
def test_events_that_libvirt_does_not_offer_are_known_to_be_missing(kind: str) -> None:
    subscriptions, _, _ = subscribe(Connection(kind))
    assert subscriptions.has_domain_events == (kind != "domain")
    assert subscriptions.has_device_events == (kind != "device")


def test_cancelling_deregisters_every_callback() -> None:
    connection = Connection()
    subscriptions, _, _ = subscribe(connection)
    assert connection.callbacks
    subscriptions.cancel()
    assert not connection.callbacks
