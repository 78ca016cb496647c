"""The libvirt driver with a real libvirtd and emulated guests: events, deadlines, reconnection."""

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import libvirt
import pytest
from kits.daemon_process import eventually
from kits.libvirt_daemon import PrivateLibvirtd, file_disk, small_domain
from kits.libvirt_node import connection_to
from kits.threads import at_once

from agent.driver import DriverSettings, Guest, GuestState
from agent.errors import DriverUnavailable
from drivers.libvirt.describe.options import LibvirtOptions
from drivers.libvirt.driver import LibvirtDriver
from drivers.libvirt.io.connection import STUCK_MAX
from drivers.libvirt.io.host_reader import HostReader

pytestmark = pytest.mark.libvirtd
UUID = "b0000000-0000-4000-8000-000000000001"
MakeDriver = Callable[..., LibvirtDriver]


@pytest.fixture
def make_driver(libvirtd: PrivateLibvirtd) -> Iterator[MakeDriver]:
    made: list[LibvirtDriver] = []

    def make(**options: object) -> LibvirtDriver:
        values = {"connection_uri": libvirtd.uri, "images_path": str(libvirtd.images), **options}
        made.append(LibvirtDriver.create(DriverSettings("node1", options={"libvirt": values})))
        return made[-1]

    yield make
    for driver in made:
        driver.close()


@pytest.fixture
def writer(libvirtd: PrivateLibvirtd) -> Iterator[Any]:
    with closing(libvirt.open(libvirtd.uri)) as connection:
        yield connection
        for domain in connection.listAllDomains():
            defined = domain.isPersistent()
            if domain.isActive():
                domain.destroy()
            if defined:
                domain.undefine()


def only(driver: LibvirtDriver) -> Guest:
    (guest,) = driver.guests()
    return guest


def told_of(told: "queue.Queue[str]", text: str) -> None:
    """Wait until the driver reports the change; it may report others before."""
    end = time.monotonic() + 30
    while text not in (why := told.get(timeout=max(0.1, end - time.monotonic()))):
        assert time.monotonic() < end, why


def test_a_read_only_connection_is_enough_but_for_what_guests_can_have(make_driver: MakeDriver) -> None:
    (full,) = make_driver().describe().providers
    (read_only,) = make_driver(full_connection=False).describe().providers
    assert full.inventories.keys() == read_only.inventories.keys() == {"VCPU", "MEMORY_MB", "DISK_GB"}
    assert {"COMPUTE_STORAGE_BUS_VIRTIO", "COMPUTE_GRAPHICS_MODEL_VGA"} <= full.traits
    assert {"COMPUTE_NODE", "HW_ARCH_X86_64", "COMPUTE_ARCH_X86_64", "HW_CPU_X86_SSE2"} <= read_only.traits
    assert not any(trait.startswith("COMPUTE_STORAGE_BUS") for trait in read_only.traits)


def test_the_version_of_libvirt_is_known_over_a_read_only_connection(libvirtd: PrivateLibvirtd) -> None:
    """It says which driver of VFIO a guest's function gets; the program itself prints it."""
    printed = subprocess.run(["/usr/sbin/libvirtd", "--version"], capture_output=True, text=True, check=True)
    options = LibvirtOptions(images_path=str(libvirtd.images), full_connection=False)
    with closing(connection_to(libvirtd.uri)) as connection:
        facts = HostReader(connection, options).read()
    assert facts.guests is None and ".".join(map(str, facts.libvirt)) == printed.stdout.split()[-1]


def test_nothing_new_is_the_very_same_object(make_driver: MakeDriver) -> None:
    driver = make_driver()
    topology = driver.topology()
    assert topology.shared_cpus == frozenset().union(*(cell.cpus for cell in topology.cells))
    assert driver.describe() is driver.describe()
    assert driver.guests() is driver.guests()
    assert driver.topology() is topology


def test_a_guests_life_is_followed_by_events(
    make_driver: MakeDriver, writer: Any, libvirtd: PrivateLibvirtd
) -> None:
    driver = make_driver()
    told: queue.Queue[str] = queue.Queue()
    driver.watch(told.put)
    assert driver.guests() == ()
    disk = libvirtd.image("life.raw", 3)
    domain = writer.defineXML(small_domain("life", UUID, vcpus=2, devices=file_disk(disk)))
    told_of(told, "domain life")
    assert only(driver) == Guest(UUID, "life", GuestState.SHUTOFF, {"VCPU": 2, "MEMORY_MB": 32, "DISK_GB": 3})
    domain.create()
    eventually("it runs", lambda: only(driver).state == GuestState.RUNNING)
    assert only(driver).resources == {"VCPU": 2, "MEMORY_MB": 32, "DISK_GB": 3}
    domain.suspend()
    eventually("it pauses", lambda: only(driver).state == GuestState.PAUSED)
    domain.attachDevice(file_disk(libvirtd.image("more.raw", 2), "vdb"))
    told_of(told, "domain life changed")
    assert only(driver).resources["DISK_GB"] == 5
    domain.destroy()
    domain.undefine()
    eventually("it is gone", lambda: driver.guests() == ())


PLUGGABLE = """<domain type='qemu'><name>pluggable</name><uuid>{uuid}</uuid>
<maxMemory slots='2' unit='MiB'>512</maxMemory><memory unit='MiB'>64</memory><vcpu current='1'>4</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features>
<cpu><numa><cell id='0' cpus='0-3' memory='64' unit='MiB'/></numa></cpu>
<devices><memballoon model='virtio'/></devices></domain>"""
DIMM = "<memory model='dimm'><target><size unit='MiB'>128</size><node>0</node></target></memory>"
SEEN_S = 1.0


def test_what_is_plugged_into_a_guest_is_seen_within_a_second(make_driver: MakeDriver, writer: Any) -> None:
    driver = make_driver()
    told: queue.Queue[str] = queue.Queue()
    driver.watch(told.put)
    assert driver.guests() == ()
    domain = writer.createXML(PLUGGABLE.format(uuid=UUID))
    told_of(told, "domain pluggable")
    eventually("it runs", lambda: only(driver).state == GuestState.RUNNING)
    time.sleep(SEEN_S)
    while not told.empty():
        told.get()

    def seen(plug: Callable[[], object], why: str) -> Guest:
        began = time.monotonic()
        plug()
        told_of(told, why)
        guest = only(driver)
        assert time.monotonic() - began < SEEN_S
        return guest

    more = seen(lambda: domain.setVcpusFlags(3, libvirt.VIR_DOMAIN_AFFECT_LIVE), "another number of vCPUs")
    assert more.resources == {"VCPU": 3, "MEMORY_MB": 64}
    more = seen(lambda: domain.attachDeviceFlags(DIMM, libvirt.VIR_DOMAIN_AFFECT_LIVE), "changed")
    assert more.resources == {"VCPU": 3, "MEMORY_MB": 192}
    domain.setMemoryFlags(48 * 1024, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    time.sleep(SEEN_S)
    assert only(driver) == more, "a balloon may be let go at any time"


VOLUME = "<volume><name>v.raw</name><capacity unit='GiB'>2</capacity><allocation>0</allocation></volume>"


def test_the_disks_of_a_pool(make_driver: MakeDriver, writer: Any, libvirtd: PrivateLibvirtd) -> None:
    pool = writer.storagePoolCreateXML(
        f"<pool type='dir'><name>images</name><target><path>{libvirtd.images}</path></target></pool>"
    )
    try:
        pool.createXML(VOLUME)
        source = "<source pool='images' volume='v.raw'/>"
        disk = f"<disk type='volume'>{source}<target dev='vda' bus='virtio'/></disk>"
        writer.defineXML(small_domain("pooled", UUID, devices=disk))
        driver = make_driver(storage_pools=["images"], full_connection=False)
        (root,) = driver.describe().providers
        assert root.inventories["DISK_GB"].total == pool.info()[1] // 2**30
        assert only(driver).resources["DISK_GB"] == 2
    finally:
        pool.destroy()


def test_a_disk_that_cannot_be_read_is_a_problem_of_its_guest(
    make_driver: MakeDriver, writer: Any, libvirtd: PrivateLibvirtd
) -> None:
    disk = libvirtd.image("gone.raw", 4)
    writer.defineXML(small_domain("damaged", UUID, devices=file_disk(disk)))
    other = UUID.replace("1", "2")
    writer.defineXML(small_domain("well", other))
    driver = make_driver(full_read_interval=0.001)
    assert [guest.problem for guest in driver.guests()] == [None, None]
    disk.unlink()
    time.sleep(0.01)
    damaged, well = driver.guests()
    assert damaged.problem is not None
    assert f"its disk vda ({disk}) could not be read" in damaged.problem
    assert damaged.resources["DISK_GB"] == 4, "what was last known"
    assert well.problem is None
    libvirtd.image("gone.raw", 4)
    assert [guest.problem for guest in driver.guests()] == [None, None]


def test_after_a_crash_of_libvirtd_the_driver_connects_again_and_hears_events(
    make_driver: MakeDriver, libvirtd: PrivateLibvirtd
) -> None:
    driver = make_driver(full_connection=False)
    told: queue.Queue[str] = queue.Queue()
    driver.watch(told.put)
    with closing(libvirt.open(libvirtd.uri)) as writer:
        writer.createXML(small_domain("survivor", UUID))
        assert only(driver).state == GuestState.RUNNING
        description = driver.describe()
        libvirtd.kill()
    told_of(told, "lost")
    started = time.monotonic()
    with pytest.raises(DriverUnavailable, match=r"no connection to libvirt at .*is libvirtd running"):
        driver.guests()
    assert time.monotonic() - started < 5
    libvirtd.start()
    told_of(told, "connected to libvirt again")
    assert only(driver).name == "survivor"
    assert driver.describe() == description
    with closing(libvirt.open(libvirtd.uri)) as writer:
        writer.lookupByName("survivor").destroy()
    told_of(told, "domain survivor")
    assert driver.guests() == ()


def test_a_libvirtd_that_starts_after_the_driver_is_told_of(
    make_driver: MakeDriver, libvirtd: PrivateLibvirtd
) -> None:
    libvirtd.kill()
    driver = make_driver(full_connection=False)
    told: queue.Queue[str] = queue.Queue()
    driver.watch(told.put)
    with pytest.raises(DriverUnavailable, match="no connection"):
        driver.guests()
    libvirtd.start()
    told_of(told, "connected to libvirt again")
    assert driver.guests() == ()


def test_a_libvirtd_that_hangs_costs_one_deadline_and_no_more(
    make_driver: MakeDriver, libvirtd: PrivateLibvirtd
) -> None:
    driver = make_driver(full_connection=False, call_timeout=0.5)
    driver.describe()
    threads = threading.active_count()
    libvirtd.send(signal.SIGSTOP)
    try:
        for _ in range(3):
            started = time.monotonic()
            with pytest.raises(
                DriverUnavailable, match=r"did not answer within 0\.\d s \(read the domains\)"
            ):
                driver.guests()
            assert time.monotonic() - started < 2
        for _ in range(STUCK_MAX - 3):
            with pytest.raises(DriverUnavailable):
                driver.describe()
        with pytest.raises(DriverUnavailable, match=f"{STUCK_MAX} calls to libvirt are stuck"):
            driver.describe()
        assert threading.active_count() <= threads + STUCK_MAX
    finally:
        libvirtd.send(signal.SIGCONT)
    eventually("the hanging calls come back", lambda: threading.active_count() <= threads)
    assert driver.guests() == ()


def test_one_guest_whose_qemu_hangs_hides_no_other(
    make_driver: MakeDriver, writer: Any, libvirtd: PrivateLibvirtd
) -> None:
    disk = libvirtd.image("hung.raw", 2)
    writer.createXML(small_domain("hung", UUID, devices=file_disk(disk)))
    writer.createXML(small_domain("well", UUID.replace("1", "2")))
    driver = make_driver(full_connection=False, call_timeout=0.5)
    qemu = libvirtd.qemu("hung")
    os.kill(qemu, signal.SIGSTOP)
    try:
        hung, well = driver.guests()
        assert (
            hung.problem
            == f"libvirt does not answer for domain hung ({UUID}), on which it blocks: its QEMU may hang"
        )
        assert (well.name, well.problem) == ("well", None)
        assert driver.guests() == (hung, well)
    finally:
        os.kill(qemu, signal.SIGCONT)
    eventually("it is read again", lambda: [guest.problem for guest in driver.guests()] == [None, None])
    assert driver.guests()[0].resources["DISK_GB"] == 2


def test_closing_while_libvirtd_hangs_does_not_hang(
    make_driver: MakeDriver, libvirtd: PrivateLibvirtd
) -> None:
    driver = make_driver(full_connection=False, call_timeout=0.5)
    driver.watch(lambda why: None)
    driver.guests()
    libvirtd.send(signal.SIGSTOP)
    try:
        started = time.monotonic()
        driver.close()
        assert time.monotonic() - started < 5
    finally:
        libvirtd.send(signal.SIGCONT)


def test_several_threads_may_ask_at_once(make_driver: MakeDriver) -> None:
    driver = make_driver(full_connection=False)
    description = driver.describe()

    def ask() -> bool:
        return all(driver.describe() is description and driver.guests() == () for _ in range(10))

    assert at_once(*[ask] * 8) == [True] * 8


@pytest.mark.slow
def test_the_systems_libvirtd(system_libvirtd: str) -> None:
    driver = LibvirtDriver.create(
        DriverSettings(
            "node1",
            options={
                "libvirt": {"connection_uri": system_libvirtd, "images_path": "/", "full_connection": False}
            },
        )
    )
    try:
        (root,) = driver.describe().providers
        assert {"VCPU", "MEMORY_MB"} <= root.inventories.keys()
        assert all(guest.uuid for guest in driver.guests())
    finally:
        driver.close()
