"""Read the node devices over a connection, remember them over a reboot, and create again what it removed.

A device is read again when an event named it, when it depends on others, or when all devices are due. One
that cannot be read or understood stays as it was known, with a warning in the log, and hides no other.
"""

import json
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import libvirt

from agent.driver import RootSight
from agent.durable.files import write_atomically
from agent.errors import DriverDataError
from drivers.host.sysfs import Sysfs
from drivers.libvirt.describe.cards import NO_TYPE, DeviceHistory, UnitRecord, cards_of
from drivers.libvirt.describe.devices import DeviceFacts
from drivers.libvirt.describe.history import LostMdev, mdev_xml
from drivers.libvirt.io.connection import PendingReads, Session
from drivers.libvirt.xml import NodeDevice, PciDevice, parse_node_device

LOG = logging.getLogger(__name__)

# Reading

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
_NETWORK, _DISPLAY, _BRIDGE, _ACCELERATOR = 0x02, 0x03, 0x06, 0x12

DeviceKey = tuple[str, bool]
"""(name, is active): a defined device and an active one may have the same name."""


@dataclass(frozen=True, slots=True)
class _KnownDevice:
    """A device as it was last read; `device` is None for kinds that the driver does not use.

    `mdev_limits` {mediated type: how many the card can have} and `mdev_count` are those of one PCI function;
    `migration_driver` is the driver of VFIO that can migrate it, `rebound` the one by which libvirt replaces
    the bound one, see `Sysfs.replacement`. `plain`: libvirt binds the plain one, also instead of another.
    """

    device: NodeDevice | None
    mdev_limits: Mapping[str, int] = field(default_factory=dict)
    mdev_count: int | None = None
    migration_driver: str | None = None
    rebound: str | None = None
    plain: bool = False


@dataclass(slots=True)
class DeviceReading:
    """One reading of the devices; `changed` is False where all are as they were, and no event named one.

    `vgpus` are facts that no event tells: of functions under a vendor's own VFIO driver, the ports of network
    cards, and the cells without CPUs. `sight` is what root saw by then; where it says another thing of
    migration than before, everything is read.
    """

    known: dict[DeviceKey, _KnownDevice] = field(default_factory=dict)
    vgpus: DeviceFacts = field(default_factory=DeviceFacts)
    sight: RootSight = field(default_factory=RootSight)
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
        self._facts = self._vgpus = DeviceFacts()
        self._sight = RootSight()
        self._all_read_at = -float("inf")

    def read(self, session: Session) -> DeviceReading:
        """Read what changed. Raises libvirtError where the connection broke."""
        sight = self._sysfs.root_sight()[0]
        named = self._pending_reads.take_devices()
        is_old = time.monotonic() - self._all_read_at > self._full_read_interval_s
        is_old |= sight.migrates != self._sight.migrates
        reading = DeviceReading(
            sight=sight, everything=is_old or named is None or not session.has_device_events
        )
        # A device that went and came again may be the same but for the bridges above it.
        reading.changed = reading.everything or bool(named)
        try:
            listed = {
                (device.name(), active): device
                for active in (True, False)
                for device in _list_devices(session, active)
            }
            any_outdated = bool(named) or reading.everything or listed.keys() != self._known.keys()
            for key, device in listed.items():
                known = self._known.get(key)
                is_outdated = known is None or reading.everything or key[0] in (named or ())
                if is_outdated or (any_outdated and _depends_on_others(known)):
                    before, known = known, self._read_one(session, device, key, known)
                    reading.changed |= known != before
                if known is not None:
                    reading.known[key] = known
            reading.changed |= reading.known.keys() != self._known.keys()
            # Read each time, because no event tells when a function gets its type.
            known_devices = reading.known.values()
            types: dict[str, str] = {}
            places: dict[str, int] = {}
            names: dict[str, dict[str, str]] = {}
            vram: dict[str, tuple[int | None, bool]] = {}
            for device in (known.device for known in known_devices):
                if not isinstance(device, PciDevice) or device.physical_function is None or device.mdev_types:
                    continue
                if device.class_id >> 16 not in (_DISPLAY, _ACCELERATOR):
                    continue
                session.deadline.extend()
                vgpu_type = self._sysfs.vgpu_type(device.address)
                quota = self._sysfs.vram(device.address) if vgpu_type is None else None
                if quota is not None:
                    vram[device.address] = quota
                if vgpu_type is None:
                    continue
                types[device.address] = vgpu_type
                place = self._sysfs.vgpu_place(device.address)
                if vgpu_type != NO_TYPE and place is not None:
                    places[device.address] = place
                creatable = self._sysfs.vgpu_names(device.address)
                if creatable:
                    names[device.address] = creatable
            has_ports = any(
                isinstance(known.device, PciDevice)
                and known.device.physical_function is not None
                and known.device.class_id >> 16 == _NETWORK
                for known in known_devices
            )
            ports = self._sysfs.ports() if has_ports else {}
            reading.vgpus = DeviceFacts(
                vgpu_types=types,
                vgpu_places=places,
                vgpu_names=names,
                vram=vram,
                ports=ports,
                memory_cells=self._sysfs.memory_cells(),
                groups=sight.groups,
                cc_modes=sight.cc_modes,
            )
        except BaseException:
            self._pending_reads.add_all_devices()  # those that were taken are not read yet
            raise
        return reading

    def keep(self, reading: DeviceReading) -> DeviceFacts:
        """Take over a reading; the devices now, the same object as before if none changed."""
        if reading.everything:
            self._all_read_at = time.monotonic()
        self._sight = reading.sight
        if not reading.changed and reading.vgpus == self._vgpus:
            return self._facts
        self._vgpus, self._known = reading.vgpus, reading.known
        devices = [known.device for known in reading.known.values() if known.device is not None]
        mdev_limits: dict[str, dict[str, int]] = {}
        mdev_counts: dict[str, int] = {}
        for known in reading.known.values():
            if isinstance(known.device, PciDevice) and known.device.mdev_types:
                card = known.device.physical_function or known.device.address
                mdev_limits.setdefault(card, {}).update(known.mdev_limits)
                if known.mdev_count is not None:
                    mdev_counts[card] = mdev_counts.get(card, 0) + known.mdev_count
        functions = [
            (known.device.address, known)
            for known in reading.known.values()
            if isinstance(known.device, PciDevice)
        ]
        cards = cards_of(devices)
        facts = replace(
            reading.vgpus,
            migration_drivers={
                address: known.migration_driver
                for address, known in functions
                if known.migration_driver is not None
            },
            rebound={address: known.rebound for address, known in functions if known.rebound is not None},
            plain=frozenset(address for address, known in functions if known.plain),
            vgpu_branch=self._sysfs.vgpu_driver_branch(),
            cards=cards,
            bridges={card.device.address: self._sysfs.bridges(card.device.address) for card in cards},
            mdev_limits=mdev_limits,
            mdev_counts=mdev_counts,
        )
        if facts != self._facts:
            self._facts = facts
        return self._facts

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
        if isinstance(parsed, PciDevice) and parsed.class_id >> 16 != _BRIDGE and not parsed.mdev_types:
            return _KnownDevice(
                parsed,
                migration_driver=self._sysfs.migration_driver(parsed.address),
                rebound=self._sysfs.replacement(parsed.address, parsed.driver),
                plain=self._sysfs.variant(parsed.address) == "",
            )
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


def _depends_on_others(known: _KnownDevice | None) -> bool:
    """No event tells when a card can have fewer mediated devices, or has other virtual functions."""
    device = known.device if known is not None else None
    return isinstance(device, PciDevice) and (bool(device.mdev_types) or device.vfs_max is not None)


# Memory over a reboot

FILE = "libvirt-devices.json"
SIZE_MAX = 16 * 2**20
_NAMES = frozenset(key.name for key in fields(UnitRecord))


@dataclass(frozen=True, slots=True)
class _Content:
    units: Mapping[str, UnitRecord] = field(default_factory=dict)
    history: DeviceHistory = field(default_factory=dict)


class DeviceState:
    """What the driver remembers over a reboot of the host, in a file in `folder`: unit records and history.

    A domain's XML has the uuid of a mediated device but not its parent, and the address of a virtual function
    but not its card. While such a device is gone, neither libvirt nor the kernel can tell them.

    The file is read at its first use; one that is missing or malformed counts as empty, and stays until the
    next write. With a folder of None nothing is kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE
        self._warned = ""
        self._content: _Content | None = None if folder is not None else _Content()

    @property
    def units(self) -> Mapping[str, UnitRecord]:
        """{unit: its record}"""
        return self._read().units

    @property
    def history(self) -> DeviceHistory:
        """What devices were before, see `DeviceHistory`."""
        return self._read().history

    def _read(self) -> _Content:
        if self._content is not None or self._path is None:
            return self._content or _Content()
        self._content = _Content()
        try:
            with self._path.open(encoding="utf-8") as file:
                # The content of the file; a list is the format of an earlier version, which had units only.
                data = json.loads(file.read(SIZE_MAX))
                content = data if isinstance(data, dict) else {"units": data}
                history = content.get("classes", {})
                if not isinstance(history, dict) or not all(
                    isinstance(names, list) and all(isinstance(name, str) for name in names)
                    for names in history.values()
                ):
                    raise DriverDataError("`classes` must be an object of lists of text")
                entries, units = content.get("units"), {}
                for entry in entries if isinstance(entries, list) else [None]:
                    if (
                        not isinstance(entry, dict)
                        or not entry.keys() <= _NAMES
                        or not {"unit", "card"} <= entry.keys()
                    ):
                        raise DriverDataError("`units` must be a list of objects with `unit` and `card`")
                    if not all(isinstance(value, str) for value in entry.values()):
                        raise DriverDataError("each value in `units` must be text")
                    units[entry["unit"]] = UnitRecord(**{"resource_class": "VGPU", **entry})
                self._content = _Content(units, {device: tuple(names) for device, names in history.items()})
        except FileNotFoundError:
            pass
        except (OSError, ValueError, DriverDataError) as error:
            self._warn(f"{self._path} cannot be read, so the driver has forgotten earlier devices: {error}")
        return self._content

    def save(self, units: Mapping[str, UnitRecord], history: DeviceHistory) -> None:
        """Replace the content. A failure to write it is logged once."""
        content = _Content(units, history)
        if content == self._read():
            return
        self._content = content
        if self._path is None:
            return
        data = {
            "units": [asdict(units[unit]) for unit in sorted(units)],
            "classes": {device: list(history[device]) for device in sorted(history)},
        }
        text = json.dumps(data, indent=1) + "\n"
        try:
            write_atomically(self._path, text)
        except OSError as error:
            self._warn(
                f"{self._path} cannot be written: {error.strerror}; after a reboot of the host the mediated "
                "devices of its domains cannot be created again"
            )
        else:
            self._warned = ""

    def _warn(self, problem: str) -> None:
        if problem != self._warned:
            self._warned = problem
            LOG.warning("%s", problem)


# Mediated devices that a reboot removed


class MdevRestorer:
    """Creates mediated devices again, over a connection of its own: the driver's connection is read-only.

    A warning in the log names each device that cannot be created, once.
    Source: https://libvirt.org/html/libvirt-libvirt-nodedev.html#virNodeDeviceCreateXML
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._logged_errors: dict[str, str] = {}

    def restore(self, session: Session, lost: Iterable[LostMdev]) -> list[str]:
        """Create the devices, and return the uuids of those that exist again.

        Raises libvirtError where the connection broke.
        """
        session.deadline.extend()
        created = []
        try:
            with closing(libvirt.open(self._uri)) as connection:
                for mdev in lost:
                    unit, type_id = mdev.record.unit, mdev.record.type_id
                    session.deadline.extend()
                    try:
                        if mdev.defined_name is not None:
                            connection.nodeDeviceLookupByName(mdev.defined_name).create()
                        else:
                            connection.nodeDeviceCreateXML(mdev_xml(mdev))
                    except libvirt.libvirtError as error:
                        if not connection.isAlive():
                            raise
                        self._log_failure(mdev, error)
                        continue
                    LOG.info("created mediated device %s again, as %s on %s", unit, type_id, mdev.parent)
                    created.append(unit)
                return created
        except libvirt.libvirtError as error:
            if not session.alive():
                raise
            for mdev in lost:
                self._log_failure(mdev, error)
            return []

    def _log_failure(self, mdev: LostMdev, error: libvirt.libvirtError) -> None:
        record = mdev.record
        if self._logged_errors.get(record.unit) != str(error):
            self._logged_errors[record.unit] = str(error)
            LOG.warning(
                "mediated device %s (%s on %s), which a domain names, was lost in a reboot and cannot be "
                "created again: %s; create it by hand, or let this user manage libvirt",
                record.unit,
                record.type_id,
                record.parent,
                error,
            )
