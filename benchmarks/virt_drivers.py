"""How long the drivers take, in ms: `PYTHONPATH=.:tests python benchmarks/virt_drivers.py [guests]`.

The libvirt driver reads a host that libvirt's own test driver serves in this process, so what is measured is
the driver and libvirt's Python binding; a daemon adds one trip to its socket for each call.
"""

import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kits.libvirt_node import domain, recorded_devices, write_node

from agent.driver import DriverSettings, Guest, GuestState
from drivers.fake.driver import FakeDriver, default_host
from drivers.fake.host import FakeHost, Gpu, Nic
from drivers.host.domain_xml import guest_of, parse_domain
from drivers.libvirt.driver import LibvirtDriver

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
            tell(f"libvirt: connect, read the host and {count} guests", 1000 * (time.perf_counter() - begin))
            tell("libvirt: describe, nothing new", median_ms(driver.describe))
            tell(f"libvirt: {count} guests, nothing new", median_ms(driver.guests))
        finally:
            driver.close()


def big_host(gpus: int, cards: int, functions: int) -> list[str]:
    """Recorded devices, repeated: GPUs with their types, network cards with their virtual functions."""
    recorded = {
        name: text for text in recorded_devices("vfs") for name in [text.split("<name>")[1].split("<")[0]]
    }
    found = [recorded["computer"]] if "computer" in recorded else []
    gpu, card = recorded["pci_0000_42_00_0"], recorded["pci_0000_41_00_0"]
    function, interface = (
        recorded["pci_0000_41_10_0"],
        next(text for name, text in recorded.items() if name.startswith("net_enp65s0v0")),
    )
    for number in range(gpus):
        found.append(moved(gpu, (0x42, 0, 0), (0x20 + number, 0, 0)))
    for number in range(cards):
        places = [(vf // 8 + 0x10, vf % 8) for vf in range(functions)]
        addresses = "".join(
            f"<address domain='0x0000' bus='0x{0x60 + number:02x}' slot='0x{slot:02x}' function='0x{part}'/>"
            for slot, part in places
        )
        whole = moved(card, (0x41, 0, 0), (0x60 + number, 0, 0))
        begin = whole.index('<capability type="virt_functions"')
        end = whole.index("</capability>", begin)
        found.append(
            whole[:begin] + f"<capability type='virt_functions' maxCount='64'>{addresses}" + whole[end:]
        )
        for slot, part in places:
            text = moved(function, (0x41, 0x10, 0), (0x60 + number, slot, part))
            found.append(text.replace('bus="0x41" slot="0x00"', f'bus="0x{0x60 + number:02x}" slot="0x00"'))
            name = f"{number}_{slot}_{part}"
            found.append(
                interface.replace("net_enp65s0v0", f"net_vf_{name}").replace(
                    "pci_0000_41_10_0", f"pci_0000_{0x60 + number:02x}_{slot:02x}_{part}"
                )
            )
    return found


def moved(text: str, before: tuple[int, int, int], after: tuple[int, int, int]) -> str:
    """The device at another address."""
    for form in ("pci_0000_{:02x}_{:02x}_{:x}", 'bus="0x{:02x}" slot="0x{:02x}" function="0x{:x}"'):
        text = text.replace(form.format(*before), form.format(*after))
    for part, value in zip(("bus", "slot", "function"), after, strict=True):
        text = re.sub(f"<{part}>[0-9]+</{part}>", f"<{part}>{value}</{part}>", text)
    return text


def holders(count: int) -> list[str]:
    """Guests with a virtual function each, as far as there are."""
    return [
        domain(n, vcpus=2, devices=DEVICES.format(n, 0x60 + n // 64, n % 64 // 8 + 0x10, n % 8))
        if n < 256
        else domain(n, vcpus=2)
        for n in range(count)
    ]


def measure_devices(count: int) -> None:
    """A host of 8 GPUs and 4 network cards of 64 virtual functions each."""
    devices = big_host(8, 4, 64)
    with tempfile.TemporaryDirectory() as folder:
        uri = write_node(Path(folder) / "node.xml", holders(count), devices)
        options = {
            "libvirt": {"connection_uri": uri, "images_path": folder, "sysfs_path": folder},
            "devices": {"enabled_mdev_types": ("nvidia-11",)},
            "pci": {"device_spec": ('{"vendor_id": "8086", "physical_network": "physnet0"}',)},
        }
        driver = LibvirtDriver.create(DriverSettings("node1", options=options))
        try:
            driver.topology()
            assert driver._readers is not None
            times = []
            for _ in range(ROUNDS):
                driver._readers.pending_reads.add_everything()
                driver._model_inputs = (None, None, None)
                driver._readers.domains._known, driver._readers.devices._known = {}, {}
                begin = time.perf_counter()
                driver.describe()
                times.append(1000 * (time.perf_counter() - begin))
            held = sum(unit.device.startswith("pci:") for guest in driver.guests() for unit in guest.units)
            what = f"{len(devices)} devices, {held} in use, {count} guests"
            tell(f"libvirt: describe {what}", statistics.median(times))
            tell("libvirt: the same when events say that nothing changed", median_ms(driver.describe))
            driver._readers.pending_reads.add_device("pci_0000_60_10_0")
            begin = time.perf_counter()
            driver.describe()
            tell("libvirt: the same after an event of one device", 1000 * (time.perf_counter() - begin))
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
    driver = FakeDriver(FakeHost(default_host().cells, gpus=gpus, nics=nics, guests=guests))

    def change() -> None:
        driver.change(disk_gb=driver.host.disk_gb + 1)
        driver.describe()

    tell("fake: describe 256 providers after a change", median_ms(change))
    tell("fake: describe 256 providers, nothing new", median_ms(driver.describe))
    tell(f"fake: {count} guests, nothing new", median_ms(driver.guests))


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    measure_libvirt(number)
    measure_devices(number)
    measure_fake(number)
