"""Node devices, what is remembered of them, and mediated devices over a reboot, by how they were made.

Stand-ins for libvirt, whose test driver defines and makes no mediated devices. The real one: tests/lab.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import libvirt
import pytest
from kits.pci_tree import PciTree

from drivers.host.sysfs import MemoryCell, Sysfs
from drivers.libvirt.describe.cards import UnitRecord
from drivers.libvirt.describe.history import LostMdev, mdev_xml
from drivers.libvirt.io.connection import CallDeadline, PendingReads, Session
from drivers.libvirt.io.devices import FILE, DeviceReader, DeviceState, MdevRestorer
from drivers.libvirt.xml import MediatedDevice

ACTIVE = libvirt.VIR_CONNECT_LIST_NODE_DEVICES_ACTIVE
INACTIVE = libvirt.VIR_CONNECT_LIST_NODE_DEVICES_INACTIVE
RUNNING = "11111111-1111-4111-8111-111111111111"
DEFINED = "22222222-2222-4222-8222-222222222222"


@dataclass
class Device:
    uuid: str

    def name(self) -> str:
        return f"mdev_{self.uuid.replace('-', '_')}"

    def XMLDesc(self) -> str:
        return (
            f"<device><name>{self.name()}</name><parent>pci_0000_42_00_0</parent>"
            f"<capability type='mdev'><type id='nvidia-11'/><uuid>{self.uuid}</uuid></capability></device>"
        )


class Libvirt:
    """Lists as libvirt does: both kinds where the flags name neither."""

    def __init__(self, known: int) -> None:
        self._known = known

    def listAllDevices(self, flags: int) -> list[Device]:
        chosen = flags & (ACTIVE | INACTIVE)
        if chosen & ~self._known:
            error = libvirt.libvirtError("unsupported flags")
            error.err = (libvirt.VIR_ERR_INVALID_ARG, 0, "unsupported flags", 2, "", "", "", 0, 0)
            raise error
        inactive = [Device(DEFINED)] if self._known else []  # an old libvirt has none
        return [
            *([Device(RUNNING)] if chosen != INACTIVE else []),
            *(inactive if chosen != ACTIVE else []),
        ]


@pytest.mark.parametrize(
    ("known", "found"),
    [
        (ACTIVE | INACTIVE, {(RUNNING, True), (DEFINED, False)}),
        (0, {(RUNNING, True)}),
    ],
    ids=["libvirt", "an old libvirt"],
)
def test_what_is_only_defined_is_not_taken_for_active(
    tmp_path: Path, known: int, found: set[tuple[str, bool]]
) -> None:
    session = Session(CallDeadline(10))
    session.libvirt = Libvirt(known)
    reader = DeviceReader(PendingReads(), Sysfs(tmp_path, tmp_path), 60.0)
    for _ in range(2):
        reading: Any = reader.read(session)
        devices = [each.device for each in reading.known.values()]
        assert {(each.uuid, each.active) for each in devices if isinstance(each, MediatedDevice)} == found
        assert len(devices) == len(found)


class PciLibvirt:
    """Has one function, a virtual one where it has a physical function."""

    def __init__(self, physical_function: str = "", driver: str = "") -> None:
        self._physical_function = physical_function
        self._driver = f"<driver><name>{driver}</name></driver>" if driver else ""

    def name(self) -> str:
        return "pci_0000_41_00_1"

    def XMLDesc(self) -> str:
        return (
            f"<device><name>{self.name()}</name><capability type='pci'><class>0x020000</class>"
            "<domain>0</domain><bus>65</bus><slot>0</slot><function>1</function>"
            f"<product id='0x101e'/><vendor id='0x15b3'/>{self._physical_function}</capability>"
            f"{self._driver}</device>"
        )

    def listAllDevices(self, flags: int) -> list[Any]:
        return [self] if flags & ACTIVE else []


def test_what_sysfs_alone_tells_of_a_function_is_a_fact_of_it(tmp_path: Path) -> None:
    """The driver that migrates it, and the bridges above it; and which cells have memory alone."""
    tree = PciTree(tmp_path)
    modalias = "pci:v000015B3d0000101Esv0sd0bc02sc00i00"
    tree.add("0000:41:00.0")
    tree.add("0000:41:00.1", below="pci0000:40/0000:40:01.0", pf="0000:41:00.0", modalias=modalias)
    tree.cells(node0="0-3", node1="")
    (tree.modules / "modules.alias").write_text("alias vfio_pci:v000015B3d*sv*sd*bc*sc*i* mlx5_vfio_pci\n")
    session: Any = Session(CallDeadline(10))
    session.libvirt = PciLibvirt()
    seen = tmp_path / "seen.json"
    reader = DeviceReader(PendingReads(), Sysfs(tree.sys, tree.proc, tree.modules, seen), 60.0)
    facts = reader.keep(reader.read(session))
    assert facts.migration_drivers == {"0000:41:00.1": "mlx5_vfio_pci"}
    assert facts.bridges == {"0000:41:00.1": ("pci0000:40", "0000:40:01.0")}
    assert facts.memory_cells == {1: MemoryCell()}
    assert reader.keep(reader.read(session)) is facts
    session.has_device_events = True
    tree.cells(node2="")
    assert reader.keep(reader.read(session)).memory_cells == {1: MemoryCell(), 2: MemoryCell()}
    pair = dict.fromkeys(("0000:18:00.0", "0000:3b:00.0"), "0000:18:00.0")
    seen.write_text(json.dumps({"groups": pair}))
    assert reader.keep(reader.read(session)).groups == pair, "root looked again"
    (tree.devices / "0000:41:00.1" / "vfio-dev" / "vfio0").mkdir(parents=True)
    tree.bind("0000:41:00.1", "new_vfio_pci")
    seen.write_text(json.dumps({"migrates": {"0000:41:00.1": {"new_vfio_pci": True}}, "problem": "again"}))
    facts = reader.keep(reader.read(session))
    assert facts.migration_drivers == {"0000:41:00.1": "new_vfio_pci"}, "no event tells of what root saw"
    assert reader.keep(reader.read(session)) is facts


VARIANT = "alias vfio_pci:v000015B3d*sv*sd*bc*sc*i* mlx5_vfio_pci\n"
FUNCTION = "0000:41:00.1"
OTHERS = "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n"


@pytest.mark.parametrize(
    ("driver", "alias", "rebound", "plain"),
    [
        ("vfio-pci", VARIANT, {FUNCTION: "mlx5_vfio_pci"}, False),
        ("vfio-pci", OTHERS, {}, True),
        ("vfio-pci", None, {FUNCTION: ""}, False),
        ("mlx5_core", VARIANT, {}, False),
        ("mlx5_core", OTHERS, {}, True),
        ("mlx5_core", None, {}, False),
        ("mlx5_vfio_pci", VARIANT, {}, False),
        ("mlx5_vfio_pci", OTHERS, {}, True),
        ("mlx5_vfio_pci", None, {}, False),
        ("xe-vfio-pci", VARIANT, {FUNCTION: "mlx5_vfio_pci"}, False),
        ("mlx5_vfio_pci", VARIANT.replace("mlx5", "acme"), {FUNCTION: ""}, False),
        ("", OTHERS, {}, True),
    ],
)
def test_the_functions_to_which_libvirt_binds_another_driver_of_vfio_or_the_plain_one(
    driver: str, alias: str | None, rebound: Mapping[str, str], plain: bool, tmp_path: Path
) -> None:
    """One of which the kernel's drivers cannot be read may be rebound, and may get a driver that migrates."""
    tree = PciTree(tmp_path)
    tree.add("0000:41:00.0")
    modalias = "pci:v000015B3d0000101Esv0sd0bc02sc00i00"
    tree.add("0000:41:00.1", driver, 1, pf="0000:41:00.0", modalias=modalias)
    if alias is not None:
        (tree.modules / "modules.alias").write_text(alias)
    session: Any = Session(CallDeadline(10))
    session.libvirt = PciLibvirt(driver=driver)
    reader = DeviceReader(PendingReads(), Sysfs(tree.sys, tree.proc, tree.modules), 60.0)
    facts = reader.keep(reader.read(session))
    assert facts.rebound == rebound
    assert facts.plain == ({FUNCTION} if plain else set())


@pytest.mark.parametrize("is_named", [True, False])
def test_a_device_that_came_again_below_another_bridge_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    """libvirt tells the same of the device as before; its event, or the next full reading, has it read."""
    session: Any = Session(CallDeadline(10))
    session.libvirt, session.has_device_events = PciLibvirt(), True
    above, pending = ["pci0000:40", "0000:40:01.0", "0000:41:00.0"], PendingReads()
    monkeypatch.setattr(Sysfs, "bridges", lambda *_: tuple(above))
    reader = DeviceReader(pending, Sysfs(tmp_path, tmp_path), 60.0)
    before = reader.keep(reader.read(session))
    assert len(before.bridges["0000:41:00.1"]) == 3 and reader.keep(reader.read(session)) is before
    above.pop()
    if is_named:
        pending.add_device("pci_0000_41_00_1")
    else:
        pending.add_all_devices()
    assert reader.keep(reader.read(session)).bridges == {"0000:41:00.1": ("pci0000:40", "0000:40:01.0")}


def test_the_ports_of_functions_are_read_each_time_because_no_event_tells_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = Session(CallDeadline(10))
    session.libvirt = PciLibvirt(
        "<capability type='phys_function'><address domain='0' bus='0x41' slot='0' function='0'/></capability>"
    )
    sysfs = Sysfs(tmp_path, tmp_path)
    told = {"0000:41:00.1": "52:54:00:00:00:01"}
    monkeypatch.setattr(Sysfs, "ports", lambda _: dict(told))
    reader = DeviceReader(PendingReads(), sysfs, 60.0)
    before = reader.keep(reader.read(session))
    assert before.ports == told and reader.keep(reader.read(session)) is before
    told["0000:41:00.1"] = "52:54:00:00:00:01 VLAN 100"
    assert reader.keep(reader.read(session)).ports == told


UNITS = {
    each.unit: each
    for each in (
        UnitRecord("0000:41:10.0", "0000:41:00.0", "SRIOV_NET_VF"),
        UnitRecord(
            "11111111-1111-4111-8111-111111111111", "0000:42:00.0", "VGPU", "0000:42:00.0", "nvidia-11", "b"
        ),
    )
}


CLASSES = {"pci:0000:42:00.0": ("VGPU", "CUSTOM_X")}


def test_what_is_kept_is_there_after_a_restart(tmp_path: Path) -> None:
    DeviceState(tmp_path).save(UNITS, CLASSES)
    again = DeviceState(tmp_path)
    assert (again.units, again.history) == (UNITS, CLASSES)
    written = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(written["units"]))
    earlier = DeviceState(tmp_path)
    assert (earlier.units, earlier.history) == (UNITS, {}), "a version before this wrote the units only"
    DeviceState(tmp_path).save({}, {})
    assert DeviceState(tmp_path).units == {}
    assert DeviceState(None).units == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[3]",
        '{"units": [], "classes": {"a": 3}}',
        '[{"unit": 3, "card": "x"}]',
        '[{"unit": "x"}]',
        "\xff",
    ],
)
def test_a_file_that_makes_no_sense_is_told_and_left_alone(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_bytes(text.encode("latin-1"))
    assert DeviceState(tmp_path).units == {}
    assert "cannot be read, so the driver has forgotten earlier devices" in caplog.text
    assert (tmp_path / FILE).read_bytes() == text.encode("latin-1")


def test_a_disk_that_does_not_take_it_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = DeviceState(tmp_path / "nowhere")
    with caplog.at_level(logging.WARNING):
        memory.save(UNITS, {})
        memory.save({}, {})
    assert caplog.text.count("cannot be written: No such file") == 1
    assert memory.units == {}


def test_making_a_driver_touches_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    DeviceState(tmp_path / "file")  # what cannot be read is no error until it is asked for


M60 = "0000:42:00.0"
PARENT = "pci_0000_42_00_0"
UUID = "11111111-1111-4111-8111-111111111111"
NAME = f"mdev_{UUID.replace('-', '_')}_0000_42_00_0"
UNIT = UnitRecord(UUID, M60, "VGPU", M60, "nvidia-11", "boot-1")


class RestoringConnection:
    """Makes what it is told to, but for those in `refused`."""

    def __init__(self, *refused: str) -> None:
        self.made: list[str] = []
        self._refused = refused

    def nodeDeviceCreateXML(self, xml: str) -> None:
        self._make(xml)

    def nodeDeviceLookupByName(self, name: str) -> Defined:
        return Defined(self, name)

    def _make(self, what: str) -> None:
        if any(each in what for each in self._refused):
            raise libvirt.libvirtError("no room on the card")
        self.made.append(what)

    def isAlive(self) -> bool:
        return True

    def close(self) -> None: ...


class Defined:
    def __init__(self, connection: RestoringConnection, name: str) -> None:
        self._connection, self._name = connection, name

    def create(self) -> None:
        self._connection._make(self._name)


def opened(monkeypatch: pytest.MonkeyPatch, connection: Any) -> Session:
    monkeypatch.setattr(libvirt, "open", lambda _: connection)
    session = Session(CallDeadline(10))
    session.libvirt = connection
    return session


def test_each_kind_is_made_again_in_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = RestoringConnection()
    transient = LostMdev(replace(UNIT, unit=UUID.replace("1", "2")), PARENT)
    made = MdevRestorer("test:///").restore(
        opened(monkeypatch, connection), [LostMdev(UNIT, PARENT, NAME), transient]
    )
    assert made == [UUID, transient.record.unit]
    assert connection.made == [NAME, mdev_xml(transient)]


def test_one_that_cannot_be_made_is_told_once_and_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connection = RestoringConnection(NAME)
    other = LostMdev(replace(UNIT, unit=UUID.replace("1", "2")), PARENT)
    restorer = MdevRestorer("test:///")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            session = opened(monkeypatch, connection)
            assert restorer.restore(session, [LostMdev(UNIT, PARENT, NAME), other]) == [other.record.unit]
    (record,) = caplog.records
    assert UUID in record.message and "no room on the card; create it by hand" in record.message
