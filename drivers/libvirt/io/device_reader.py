"""Read the node devices over a connection.

A device is read again when an event named it, when it depends on others, or when all devices are due. One
that cannot be read or understood stays as it was known, with a warning in the log, and hides no other.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import libvirt

from agent.errors import DriverDataError
from drivers.host.sysfs import Sysfs
from drivers.libvirt.describe.cards import NO_TYPE, cards_of
from drivers.libvirt.describe.devices import DeviceFacts
from drivers.libvirt.io.connection import Session
from drivers.libvirt.io.pending_reads import PendingReads
from drivers.libvirt.xml import NodeDevice, PciDevice, parse_node_device

LOG = logging.getLogger(__name__)
_KINDS = (
    libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV
    | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_NET
    | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV
    | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_VDPA
)
_ACTIVE = getattr(libvirt, "VIR_CONNECT_LIST_NODE_DEVICES_ACTIVE", 0)
_INACTIVE = getattr(libvirt, "VIR_CONNECT_LIST_NODE_DEVICES_INACTIVE", 0)
"""Without either flag libvirt lists active and inactive devices. Bindings before 7.3 have neither flag."""
_NOT_SUPPORTED = (
    libvirt.VIR_ERR_NO_SUPPORT,
    libvirt.VIR_ERR_INVALID_ARG,
    libvirt.VIR_ERR_OPERATION_UNSUPPORTED,
)
_DISPLAY, _ACCELERATOR = 0x03, 0x12

DeviceKey = tuple[str, bool]
"""(name, is active): a defined device and an active one may have the same name."""


@dataclass(frozen=True, slots=True)
class _KnownDevice:
    """A device as it was last read; `device` is None for kinds that the driver does not use.

    `mdev_limits` {mediated type: how many the card can have} and `mdev_count` are those of one PCI function.
    """

    device: NodeDevice | None
    mdev_limits: Mapping[str, int] = field(default_factory=dict)
    mdev_count: int | None = None


@dataclass(slots=True)
class _Vgpus:
    """Of functions under a vendor's own VFIO driver; see `DeviceFacts`."""

    types: dict[str, str] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    names: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class DeviceReading:
    """One reading of the devices; `changed` is False where all devices are as they were."""

    known: dict[DeviceKey, _KnownDevice] = field(default_factory=dict)
    vgpus: _Vgpus = field(default_factory=_Vgpus)
    everything: bool = False
    changed: bool = False


class DeviceReader:
    """Reads the node devices and keeps them.

    `read` changes nothing, since its thread may be abandoned; `keep` takes over its result.
    """

    def __init__(self, pending_reads: PendingReads, sysfs: Sysfs, full_read_interval_s: float) -> None:
        self._pending_reads = pending_reads
        self._sysfs = sysfs
        self._full_read_interval_s = full_read_interval_s
        self._known: dict[DeviceKey, _KnownDevice] = {}
        self._facts = DeviceFacts()
        self._vgpus = _Vgpus()
        self._all_read_at = -float("inf")

    def read(self, session: Session) -> DeviceReading:
        """Read what changed. Raises libvirtError where the connection broke."""
        named = self._pending_reads.take_devices()
        is_old = time.monotonic() - self._all_read_at > self._full_read_interval_s
        reading = DeviceReading(everything=is_old or named is None or not session.has_device_events)
        try:
            self._read(session, reading, named or frozenset())
        except BaseException:
            self._pending_reads.add_all_devices()  # those that were taken are not read yet
            raise
        return reading

    def keep(self, reading: DeviceReading) -> DeviceFacts:
        """Take over a reading; the devices now, the same object as before if none changed."""
        if reading.everything:
            self._all_read_at = time.monotonic()
        vgpus = reading.vgpus
        if not reading.changed and vgpus == self._vgpus:
            return self._facts
        self._vgpus = vgpus
        self._known = reading.known
        devices = [known.device for known in reading.known.values() if known.device is not None]
        mdev_limits: dict[str, dict[str, int]] = {}
        mdev_counts: dict[str, int] = {}
        for known in reading.known.values():
            if isinstance(known.device, PciDevice) and known.device.mdev_types:
                card = known.device.physical_function or known.device.address
                mdev_limits.setdefault(card, {}).update(known.mdev_limits)
                if known.mdev_count is not None:
                    mdev_counts[card] = mdev_counts.get(card, 0) + known.mdev_count
        facts = DeviceFacts(
            cards_of(devices),
            mdev_limits,
            vgpus.types,
            mdev_counts,
            self._sysfs.near_cells(),
            vgpus.places,
            vgpus.names,
        )
        if facts != self._facts:
            self._facts = facts
        return self._facts

    def _read(self, session: Session, reading: DeviceReading, named: frozenset[str]) -> None:
        listed = {
            (device.name(), active): device
            for active in (True, False)
            for device in _list_devices(session, active)
        }
        any_outdated = bool(named) or reading.everything or listed.keys() != self._known.keys()
        for key, device in listed.items():
            known = self._known.get(key)
            if (
                known is None
                or reading.everything
                or key[0] in named
                or (any_outdated and _depends_on_others(known.device))
            ):
                before, known = known, self._read_one(session, device, key, known)
                reading.changed |= known != before
            if known is not None:
                reading.known[key] = known
        reading.changed |= reading.known.keys() != self._known.keys()
        reading.vgpus = self._read_vgpus(session, reading.known.values())

    def _read_one(
        self, session: Session, device: Any, key: DeviceKey, known: _KnownDevice | None
    ) -> _KnownDevice | None:
        """None if the device is gone meanwhile."""
        session.deadline.extend()
        try:
            parsed = parse_node_device(device.XMLDesc(), f"node device {key[0]}", active=key[1])
        except libvirt.libvirtError as error:
            if not session.alive():
                raise
            if error.get_error_code() != libvirt.VIR_ERR_NO_NODE_DEVICE:
                LOG.warning("node device %s cannot be read, so it stays as it was known: %s", key[0], error)
                return known
            return None
        except DriverDataError as error:
            LOG.warning("%s; it stays as it was known", error.message)
            return known
        if not isinstance(parsed, PciDevice) or not parsed.mdev_types:
            return _KnownDevice(parsed)
        session.deadline.extend()
        mdev_count = self._sysfs.mdev_count(parsed.address)
        try:
            limits = self._sysfs.mdev_limits(parsed.address, sorted(parsed.mdev_types))
        except DriverDataError as error:
            LOG.warning("node device %s: %s", key[0], error.message)
            limits = {}
        return _KnownDevice(parsed, limits, mdev_count)

    def _read_vgpus(self, session: Session, known_devices: Iterable[_KnownDevice]) -> _Vgpus:
        """Read each time, because no event tells when a function gets its type."""
        vgpus = _Vgpus()
        for known in known_devices:
            device = known.device
            if isinstance(device, PciDevice) and _may_be_vgpu(device):
                session.deadline.extend()
                vgpu_type = self._sysfs.vgpu_type(device.address)
                if vgpu_type is not None:
                    self._read_vgpu(vgpus, device.address, vgpu_type)
        return vgpus

    def _read_vgpu(self, vgpus: _Vgpus, address: str, vgpu_type: str) -> None:
        vgpus.types[address] = vgpu_type
        place = self._sysfs.vgpu_place(address)
        if vgpu_type != NO_TYPE and place is not None:
            vgpus.places[address] = place
        names = self._sysfs.vgpu_names(address)
        if names:
            vgpus.names[address] = names


def _list_devices(session: Session, active: bool) -> list[Any]:
    """The devices of the kinds that the driver uses. An old libvirt has no inactive ones."""
    flag = (_ACTIVE if active else _INACTIVE) if session.lists_inactive_devices else 0
    if not active and not flag:
        return []
    session.deadline.extend()
    try:
        return list(session.libvirt.listAllDevices(_KINDS | flag))
    except libvirt.libvirtError as error:
        if error.get_error_code() not in _NOT_SUPPORTED:
            raise
        if not flag:
            return []
        session.lists_inactive_devices = False
        return _list_devices(session, active)


def _depends_on_others(device: NodeDevice | None) -> bool:
    """No event tells when a card can have fewer mediated devices, or has other virtual functions."""
    return isinstance(device, PciDevice) and (bool(device.mdev_types) or device.vfs_max is not None)


def _may_be_vgpu(device: PciDevice) -> bool:
    pci_class = device.class_id >> 16
    is_vf = device.physical_function is not None
    return is_vf and not device.mdev_types and pci_class in (_DISPLAY, _ACCELERATOR)
