"""How long the drivers take, in ms: `PYTHONPATH=.:tests python benchmarks/virt_drivers.py [guests]`.

The libvirt driver reads a host that libvirt's own test driver serves in this process, so what is measured is
the driver and libvirt's Python binding; a daemon adds one trip to its socket for each call.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from libvirt_node import domain, write_node

from agent.driver import DriverSettings, Guest, GuestState
from drivers.fake import FakeDriver, Gpu, Host, Nic, default_host
from drivers.libvirt import LibvirtDriver
from drivers.libvirt.domains import guest_of, parse_domain

ROUNDS = 11
DEVICES = """
<disk type='file'><source file='/images/{0}.qcow2'/><target dev='vda' bus='virtio'/></disk>
<interface type='hostdev' managed='yes'><source>
  <address type='pci' domain='0x0000' bus='0x{1:02x}' slot='0x{2:02x}' function='0x{3}'/></source></interface>
<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source>
  <address uuid='c0000000-0000-4000-8000-{0:012}'/></source></hostdev>
"""


def median_ms(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return 1000 * statistics.median(times)


def tell(what: str, milliseconds: float) -> None:
    print(f"{what:<60} {milliseconds:9.3f} ms")


def guests_xml(count: int) -> list[str]:
    pins = "<cputune><vcpupin vcpu='0' cpuset='4'/><vcpupin vcpu='1' cpuset='5'/></cputune>"
    return [
        domain(n, vcpus=2, inside=pins, devices=DEVICES.format(n, n // 256 % 256, n // 8 % 32, n % 8))
        for n in range(count)
    ]


def measure_libvirt(count: int) -> None:
    texts = guests_xml(count)
    dedicated = frozenset({4, 5})
    tell(
        f"libvirt: {count} guests from their XML",
        median_ms(lambda: [guest_of(parse_domain(each), GuestState.RUNNING, 0, dedicated) for each in texts]),
    )
    with tempfile.TemporaryDirectory() as folder:
        uri = write_node(Path(folder) / "node.xml", texts)
        options = {"libvirt": {"connection_uri": uri, "images_path": folder}}
        driver = LibvirtDriver.create(DriverSettings("node1", options=options))
        try:
            begin = time.perf_counter()
            driver.describe()
            tell("libvirt: connect and describe the host", 1000 * (time.perf_counter() - begin))
            begin = time.perf_counter()
            driver.guests()
            tell(f"libvirt: read {count} guests for the first time", 1000 * (time.perf_counter() - begin))
            tell("libvirt: describe, nothing new", median_ms(driver.describe))
            tell(f"libvirt: {count} guests, nothing new", median_ms(driver.guests))
        finally:
            driver.close()


def measure_fake(count: int) -> None:
    gpus = tuple(Gpu(f"0000:{bus:02x}:00.0", total=16) for bus in range(128))
    nics = tuple(
        Nic(f"eth{bus}", f"0001:{bus:02x}:00.0", tuple(f"0001:{bus:02x}:01.{vf}" for vf in range(8)))
        for bus in range(127)
    )
    guests = tuple(
        Guest(f"a0000000-0000-4000-8000-{n:012}", f"guest-{n}", GuestState.RUNNING, {"VCPU": 1})
        for n in range(count)
    )
    driver = FakeDriver(Host(default_host().cells, gpus=gpus, nics=nics, guests=guests))

    def change() -> None:
        driver.change(disk_gb=driver.host.disk_gb + 1)
        driver.describe()

    tell("fake: describe 256 providers after a change", median_ms(change))
    tell("fake: describe 256 providers, nothing new", median_ms(driver.describe))
    tell(f"fake: {count} guests, nothing new", median_ms(driver.guests))


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    measure_libvirt(number)
    measure_fake(number)
