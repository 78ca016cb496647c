"""Reading the node devices over a connection; what was read is kept, as the domains are.

A device that is gone between the listing and the question is gone. One that makes no sense is left out with a
warning, and hides no other.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import libvirt

from agent.errors import DriverDataError
from drivers.libvirt.describe.cards import cards_of
from drivers.libvirt.describe.devices import DeviceFacts
from drivers.libvirt.io.connection import Session
from drivers.libvirt.io.hints import Hints
from drivers.libvirt.io.sysfs import Sysfs
from drivers.libvirt.xml.nodedevs import NodeDevice, PciDevice, parse_node_device

LOG = logging.getLogger(__name__)
_KINDS = (
    libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV
    | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_NET
    | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV
)
_ACTIVE = getattr(libvirt, "VIR_CONNECT_LIST_NODE_DEVICES_ACTIVE", 0)
_INACTIVE = getattr(libvirt, "VIR_CONNECT_LIST_NODE_DEVICES_INACTIVE", 0)
"""Without either of them libvirt lists both kinds. Old bindings have neither (before 7.3)."""
_NOT_SUPPORTED = (
    libvirt.VIR_ERR_NO_SUPPORT,
    libvirt.VIR_ERR_INVALID_ARG,
    libvirt.VIR_ERR_OPERATION_UNSUPPORTED,
)
_DISPLAY, _ACCELERATOR = 0x03, 0x12

Key = tuple[str, bool]
"""A node device's name, and whether it is active: a defined one and a running one may share the name."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A device as it was last read, None if it is of no interest; `most` and `made` see DeviceFacts."""

    device: NodeDevice | None
    most: Mapping[str, int] = field(default_factory=dict)
    made: int | None = None


@dataclass(slots=True)
class Reading:
    """One reading of the devices; `changed` is False where everything is as it was."""

    known: dict[Key, _Known] = field(default_factory=dict)
    vgpu_types: dict[str, str] = field(default_factory=dict)
    everything: bool = False
    changed: bool = False


class DeviceReader:
    """`read` runs where it may be left behind and changes nothing; `keep` takes over what it found."""

    def __init__(self, hints: Hints, sysfs: Sysfs, full_read_interval_s: float) -> None:
        self._hints = hints
        self._sysfs = sysfs
        self._full_read_interval_s = full_read_interval_s
        self._known: dict[Key, _Known] = {}
        self._facts = DeviceFacts()
        self._all_read_at = -float("inf")

    def read(self, session: Session) -> Reading:
        """Raises libvirtError where the connection broke."""
        named = self._hints.take_devices()
        old = time.monotonic() - self._all_read_at > self._full_read_interval_s
        reading = Reading(everything=old or named is None or not session.has_device_events)
        try:
            self._read(session, reading, named or frozenset())
        except BaseException:
            self._hints.all_devices()  # what was taken has not been read
            raise
        return reading

    def keep(self, reading: Reading) -> DeviceFacts:
        """The devices as they are now; the same object as before if none changed."""
        if reading.everything:
            self._all_read_at = time.monotonic()
        if not reading.changed and reading.vgpu_types == self._facts.vgpu_types:
            return self._facts
        self._known = reading.known
        devices = [known.device for known in reading.known.values() if known.device is not None]
        most: dict[str, dict[str, int]] = {}
        made: dict[str, int] = {}
        for known in reading.known.values():
            if isinstance(known.device, PciDevice) and known.device.mdev_types:
                card = known.device.physical_function or known.device.address
                most.setdefault(card, {}).update(known.most)
                if known.made is not None:
                    made[card] = made.get(card, 0) + known.made
        facts = DeviceFacts(cards_of(devices), most, reading.vgpu_types, made)
        if facts != self._facts:
            self._facts = facts
        return self._facts

    def _read(self, session: Session, reading: Reading, named: frozenset[str]) -> None:
        listed = {
            (device.name(), active): device for active in (True, False) for device in _list(session, active)
        }
        stale = bool(named) or reading.everything or listed.keys() != self._known.keys()
        for key, device in listed.items():
            known = self._known.get(key)
            if (
                known is None
                or reading.everything
                or key[0] in named
                or (stale and _depends_on_others(known.device))
            ):
                before, known = known, self._read_one(session, device, key, known)
                reading.changed |= known != before
            if known is not None:
                reading.known[key] = known
        reading.changed |= reading.known.keys() != self._known.keys()
        reading.vgpu_types = self._vgpu_types(session, reading.known.values())

    def _read_one(self, session: Session, device: Any, key: Key, known: _Known | None) -> _Known | None:
        """None if it is gone meanwhile."""
        session.beat()
        try:
            found = parse_node_device(device.XMLDesc(), f"node device {key[0]}", active=key[1])
        except libvirt.libvirtError as error:
            if not session.alive():
                raise
            if error.get_error_code() != libvirt.VIR_ERR_NO_NODE_DEVICE:
                LOG.warning("node device %s cannot be read, it is taken as it was: %s", key[0], error)
                return known
            return None
        except DriverDataError as error:
            LOG.warning("%s; it is taken as it was", error.message)
            return known
        if not isinstance(found, PciDevice) or not found.mdev_types:
            return _Known(found)
        session.beat()
        made = self._sysfs.made(found.address)
        try:
            return _Known(found, self._sysfs.most(found.address, sorted(found.mdev_types)), made)
        except DriverDataError as error:
            LOG.warning("node device %s: %s", key[0], error.message)
            return _Known(found, {}, made)

    def _vgpu_types(self, session: Session, known: Iterable[_Known]) -> dict[str, str]:
        """There is no event when a virtual function is given its type, so each look asks."""
        found = {}
        for each in known:
            device = each.device
            if isinstance(device, PciDevice) and _may_be_vgpu(device):
                session.beat()
                vgpu_type = self._sysfs.vgpu_type(device.address)
                if vgpu_type is not None:
                    found[device.address] = vgpu_type
        return found


def _list(session: Session, active: bool) -> list[Any]:
    """Devices of the kinds that matter; an old libvirt knows no inactive ones."""
    chosen = (_ACTIVE if active else _INACTIVE) if session.lists_inactive_devices else 0
    if not active and not chosen:
        return []
    session.beat()
    try:
        return list(session.libvirt.listAllDevices(_KINDS | chosen))
    except libvirt.libvirtError as error:
        if error.get_error_code() not in _NOT_SUPPORTED:
            raise
        if not chosen:
            return []
        session.lists_inactive_devices = False
        return _list(session, active)


def _depends_on_others(device: NodeDevice | None) -> bool:
    """No event tells that a parent has fewer mediated devices to give, or how many functions a card has."""
    return isinstance(device, PciDevice) and (bool(device.mdev_types) or device.vfs_max is not None)


def _may_be_vgpu(device: PciDevice) -> bool:
    kind = device.class_id >> 16
    return device.physical_function is not None and not device.mdev_types and kind in (_DISPLAY, _ACCELERATOR)
