"""The libvirt driver with libvirt's test driver: the real library, without a daemon."""

import queue
import time
from collections.abc import Iterator
from pathlib import Path

import libvirt
import pytest
from kits.daemon_process import eventually
from kits.libvirt_node import domain, domain_uuid, recorded_domain, write_node

from agent.driver import DriverSettings, GuestState, HostSettings, UsedUnit
from agent.errors import DriverDataError, DriverUnavailable
from drivers.libvirt.driver import LibvirtDriver
from drivers.libvirt.io.connection import CallDeadline, Session
from drivers.libvirt.io.domain_reader import read_guest

RECORDED = ("vm-mdev", "vm-vf", "vm-gpu", "vm-both", "vm-off-inactive", "vm-vendor", "vm-migrated-in")
POOL = "<pool type='dir'><name>{0}</name><target><path>{1}/{0}</path></target></pool>"


class Drivers:
    """Makes drivers on node files, and closes them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made: list[LibvirtDriver] = []

    def __call__(
        self, uri: str, host_settings: HostSettings | None = None, **options: object
    ) -> LibvirtDriver:
        values = {"connection_uri": uri, "images_path": str(self.path), **options}
        driver = LibvirtDriver.create(
            DriverSettings("node1", host_settings or HostSettings(), {"libvirt": values})
        )
        self.made.append(driver)
        return driver


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    found = Drivers(tmp_path)
    yield found
    for driver in found.made:
        driver.close()


def test_the_default_host_of_the_library(drivers: Drivers) -> None:
    driver = drivers("test:///default")
    (root,) = driver.describe().providers
    assert root.name == "node1"
    assert set(root.inventories) == {"VCPU", "MEMORY_MB", "DISK_GB"}
    assert {"COMPUTE_NODE", "HW_ARCH_I686"} <= root.traits
    topology = driver.topology()
    assert [cell.id for cell in topology.cells] == [0, 1]
    assert root.inventories["VCPU"].total == len(topology.shared_cpus)
    assert root.inventories["MEMORY_MB"].total == sum(cell.memory_mb for cell in topology.cells)
    (guest,) = driver.guests()
    assert (guest.name, guest.state, guest.problem) == ("test", GuestState.RUNNING, None)
    assert guest.resources["VCPU"] == 2
    assert guest.resources["MEMORY_MB"] == 8192


def test_recorded_domains_are_read_as_they_were(drivers: Drivers, tmp_path: Path) -> None:
    uri = write_node(tmp_path / "node.xml", map(recorded_domain, RECORDED))
    guests = {guest.name: guest for guest in drivers(uri).guests()}
    assert {guest.problem for guest in guests.values()} == {None}
    assert guests["vm-both"].units == (
        UsedUnit("VGPU", "33333333-3333-4333-8333-333333333333", "mdev:33333333-3333-4333-8333-333333333333"),
        UsedUnit("PCI_DEVICE", "0000:41:10.2", "pci:0000:41:10.2"),
    )
    mac = "52:54:00:29:13:bc"
    assert guests["vm-vf"].units == (
        UsedUnit("SRIOV_NET_VF", "0000:41:10.0", "pci:0000:41:10.0", asked_port=mac),
    )
    assert {guest.state for name, guest in guests.items() if name != "vm-off"} == {GuestState.RUNNING}
    assert guests["vm-off"].state == GuestState.SHUTOFF
    assert guests["vm-off"].units, "it holds nothing, but names what it will need"
    assert list(guests.values()) == sorted(guests.values(), key=lambda guest: guest.uuid)


def test_pinned_domains_use_dedicated_cpus(drivers: Drivers, tmp_path: Path) -> None:
    pins = "<cputune><vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='4'/></cputune>"
    uri = write_node(tmp_path / "node.xml", [domain(1, vcpus=2, inside=pins), domain(2, vcpus=2)])
    settings = HostSettings(cpu_dedicated_set=frozenset({2, 4}), cpu_shared_set=frozenset({0}))
    driver = drivers(uri, settings)
    (root,) = driver.describe().providers
    assert (root.inventories["VCPU"].total, root.inventories["PCPU"].total) == (1, 2)
    assert root.units == {"PCPU": ("2", "4")}
    pinned, shared = driver.guests()
    assert pinned.resources == {"PCPU": 2, "MEMORY_MB": 512}
    assert pinned.units == (UsedUnit("PCPU", "2", "host"), UsedUnit("PCPU", "4", "host"))
    assert shared.resources == {"VCPU": 2, "MEMORY_MB": 512}


def test_a_cpu_that_the_host_does_not_have(drivers: Drivers) -> None:
    driver = drivers("test:///default", HostSettings(cpu_dedicated_set=frozenset({99})))
    assert "PCPU" not in driver.describe().providers[0].inventories
    assert any("cpu_dedicated_set names CPU 99" in sentence for sentence in driver.unmatched_options())


def test_why_no_group_of_gpus_is_known_is_said(
    drivers: Drivers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "seen.json"
    monkeypatch.setattr("drivers.libvirt.driver.ROOT_SIGHT", file)
    values = {"connection_uri": "test:///default", "images_path": str(tmp_path)}
    options = {"libvirt": values, "devices": {"report_pcie": "gpu_link"}}
    driver = LibvirtDriver.create(DriverSettings("node1", HostSettings(), options))
    drivers.made.append(driver)
    driver.describe()
    (none,) = driver.unmatched_options()
    file.write_text('{"problem": "nvidia-smi does not end within 30 s"}')
    (failed,) = driver.unmatched_options()
    assert "no group of GPUs is known" in none and "gpu_link: nvidia-smi does not end within 30 s." in failed
    file.write_text("half of a file")
    before, bad = driver.unmatched_options()
    assert before == failed and f"{file} cannot be used" in bad


def test_nothing_new_is_the_very_same_object(drivers: Drivers, tmp_path: Path) -> None:
    driver = drivers(write_node(tmp_path / "node.xml", (domain(number) for number in range(50))))
    description, guests, topology = driver.describe(), driver.guests(), driver.topology()
    assert len(guests) == 50
    assert driver.describe() is description
    assert driver.guests() is guests
    assert driver.topology() is topology


def test_without_storage_pools_the_disk_is_the_image_directorys(drivers: Drivers, tmp_path: Path) -> None:
    import os

    status = os.statvfs(tmp_path)
    (root,) = drivers("test:///default").describe().providers
    assert root.inventories["DISK_GB"].total == status.f_blocks * status.f_frsize // 2**30
    with pytest.raises(DriverUnavailable, match="images_path /nowhere/at/all: No such file"):
        drivers("test:///default", images_path="/nowhere/at/all").describe()


def test_the_disk_is_the_storage_pools(drivers: Drivers, tmp_path: Path) -> None:
    (root,) = drivers("test:///default", storage_pools=["default-pool"]).describe().providers
    assert root.inventories["DISK_GB"].total == 100
    pools = [POOL.format(name, tmp_path) for name in ("one", "two")]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    uri = write_node(tmp_path / "node.xml", pools="".join(pools))
    (root,) = drivers(uri, storage_pools=["one", "two"]).describe().providers
    assert root.inventories["DISK_GB"].total == 100, "two directories of one file system count once"
    with pytest.raises(DriverDataError, match="storage_pools names 'three', which libvirt does not have"):
        drivers(uri, storage_pools=["one", "three"]).describe()


def test_a_pool_that_is_not_active_wipes_nothing(drivers: Drivers) -> None:
    driver = drivers("test:///default", storage_pools=["default-pool"])
    description = driver.describe()
    writer = libvirt.open("test:///default")
    try:
        pool = writer.storagePoolLookupByName("default-pool")
        pool.destroy()
        try:
            with pytest.raises(
                DriverUnavailable, match="'default-pool' is not active, so its size is not known"
            ):
                driver.describe()
        finally:
            pool.create()
        assert driver.describe() is description
    finally:
        writer.close()


def test_a_domain_that_cannot_be_understood_hides_neither_itself_nor_others(
    drivers: Drivers, tmp_path: Path
) -> None:
    huge = f"<description>{'x' * 2**20}</description>"
    uri = write_node(tmp_path / "node.xml", [domain(1), domain(2, inside=huge), domain(3)])
    driver = drivers(uri)
    first, second, third = driver.guests()
    assert (first.problem, third.problem) == (None, None)
    assert second.problem == (f"domain guest-2 ({domain_uuid(2)}): its XML has more than 1048576 characters")
    assert (second.uuid, second.name, second.resources) == (domain_uuid(2), "guest-2", {})


def test_a_library_that_has_no_such_host(drivers: Drivers) -> None:
    with pytest.raises(DriverUnavailable, match=r"no connection to libvirt at test:///no/such/file\.xml: "):
        drivers("test:///no/such/file.xml").guests()


def test_500_guests_are_read_in_time(drivers: Drivers, tmp_path: Path) -> None:
    driver = drivers(write_node(tmp_path / "node.xml", (domain(number) for number in range(500))))
    assert len(driver.guests()) == 500
    started = time.process_time()
    driver.guests()
    assert time.process_time() - started < 0.2


def test_events_of_domains_reach_the_watcher(drivers: Drivers) -> None:
    """test:///default is one host for all connections of a process."""
    driver = drivers("test:///default")
    told: queue.Queue[str] = queue.Queue()
    driver.watch(told.put)
    guests = driver.guests()
    writer = libvirt.open("test:///default")
    try:
        defined = writer.defineXML(domain(7, running=False))
        assert "domain guest-7 changed its state or definition" in told.get(timeout=10)

        def state() -> GuestState | None:
            return {guest.name: guest.state for guest in driver.guests()}.get("guest-7")

        assert state() == GuestState.SHUTOFF
        defined.create()
        eventually("it runs", lambda: state() == GuestState.RUNNING)
        defined.suspend()
        eventually("it pauses", lambda: state() == GuestState.PAUSED)
        defined.destroy()
        eventually("it ends", lambda: state() == GuestState.SHUTOFF)
        defined.undefine()
        assert driver.guests() == guests
    finally:
        writer.close()


def test_a_domain_that_goes_while_it_is_read_is_gone(tmp_path: Path) -> None:
    session = Session(CallDeadline(10))
    session.libvirt = libvirt.open(write_node(tmp_path / "node.xml", [domain(1, running=False), domain(2)]))
    try:
        first, second = sorted(session.libvirt.listAllDomains(), key=lambda each: each.name())
        session.libvirt.lookupByName("guest-1").undefine()
        assert read_guest(session, first, ("guest-1", -1), None, frozenset()) is None
        known = read_guest(session, second, ("guest-2", second.ID()), None, frozenset())
        assert known is not None
        assert not known.is_outdated(("guest-2", second.ID()))
        assert known.is_outdated(("guest-2", 99)), "restarted"
        assert known.is_outdated(("other", second.ID())), "renamed"
    finally:
        session.close()


def test_a_domain_that_cannot_be_read_any_more_keeps_what_was_known(tmp_path: Path) -> None:
    session = Session(CallDeadline(10))
    uri = write_node(tmp_path / "node.xml", [domain(1, vcpus=3, inside="<description>short</description>")])
    session.libvirt = libvirt.open(uri)
    try:
        (found,) = session.libvirt.listAllDomains()
        known = read_guest(session, found, ("guest-1", 1), None, frozenset())
        found.setMetadata(libvirt.VIR_DOMAIN_METADATA_DESCRIPTION, "x" * 2**20, None, None, 0)
        again = read_guest(session, found, ("guest-1", 1), known, frozenset())
        assert known is not None
        assert again is not None
        assert again.guest.problem is not None
        assert again.guest.resources == known.guest.resources == {"VCPU": 3, "MEMORY_MB": 512}
        assert again.is_outdated(("guest-1", 1)), "it is tried again each time"
        found.setMetadata(libvirt.VIR_DOMAIN_METADATA_DESCRIPTION, "short", None, None, 0)
        assert read_guest(session, found, ("guest-1", 1), again, frozenset()) == known
    finally:
        session.close()


def test_a_domain_is_read_from_its_xml_before_it_starts(drivers: Drivers, tmp_path: Path) -> None:
    uri = write_node(tmp_path / "node.xml", map(recorded_domain, RECORDED))
    driver = drivers(uri)
    with pytest.raises(DriverUnavailable, match="were not read yet"):
        driver.guest_of(recorded_domain("vm-both"))
    driver.describe()
    guests = {guest.name: guest for guest in driver.guests()}
    for name in ("vm-both", "vm-vf", "vm-gpu"):
        guest = driver.guest_of(recorded_domain(name))
        assert (guest.uuid, guest.units) == (guests[name].uuid, guests[name].units)
        assert guest.resources == guests[name].resources
        assert guest.state is GuestState.STARTING
    unknown = recorded_domain("vm-both").replace(guests["vm-both"].uuid, domain_uuid(9))
    assert driver.guest_of(unknown).units == guests["vm-both"].units
    with pytest.raises(DriverDataError, match="not allowed"):
        driver.guest_of("<!DOCTYPE domain [<!ENTITY a 'b'>]><domain/>")
