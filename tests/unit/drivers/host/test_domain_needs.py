"""What a domain asks for is read from XML that libvirt would not take yet."""

import pytest

from agent.driver import DeviceKind, DomainNeeds, NeededCell, NeededDevice
from agent.errors import DriverDataError
from drivers.host.domain_needs import device_kind, read_needs

UUID = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
MDEV = "4b20d080-1b54-4048-85b3-a6a62d165c01"


def needs(*elements: str, dedicated: frozenset[int] = frozenset({4, 5, 6, 7})) -> DomainNeeds:
    return read_needs(f"<domain type='kvm'>{''.join(elements)}</domain>", dedicated)


def test_a_domain_that_says_nothing_needs_nothing() -> None:
    assert needs() == DomainNeeds()


def test_what_the_guest_is() -> None:
    read = needs(
        f"<name>web</name><uuid>{UUID.upper()}</uuid><memory unit='GiB'>2</memory><vcpu current='2'>4</vcpu>"
    )
    assert (read.uuid, read.name, read.memory_mb, read.vcpus) == (UUID, "web", 2048, 2)


def test_devices_with_and_without_an_address() -> None:
    read = needs(
        "<devices>"
        "<interface type='hostdev'><alias name='ua-red'/></interface>"
        "<interface type='network'><source network='default'/></interface>"
        "<hostdev type='pci'><source><address bus='0x83' slot='0' function='0'/></source></hostdev>"
        "<hostdev type='mdev'><source/><alias name='hostdev1'/></hostdev>"
        f"<hostdev type='mdev'><source><address uuid='{MDEV}'/></source></hostdev>"
        "<hostdev type='usb'><source/></hostdev>"
        "</devices>"
    )
    assert read.devices == (
        NeededDevice(DeviceKind.INTERFACE, "red", "", "<interface> ua-red"),
        NeededDevice(DeviceKind.PCI, "", "0000:83:00.0", "<hostdev>"),
        NeededDevice(DeviceKind.MEDIATED, "", "", "<hostdev>"),
        NeededDevice(DeviceKind.MEDIATED, "", MDEV, "<hostdev>"),
    )
    assert all(not device.unit for device in read.without_places().devices)


def test_a_pin_to_one_dedicated_cpu_or_to_none_yet_is_a_cpu_of_its_own() -> None:
    read = needs(
        "<cputune><vcpupin vcpu='0' cpuset='5'/><vcpupin vcpu='1'/><vcpupin vcpu='2' cpuset='4-5'/>"
        "<vcpupin vcpu='3' cpuset='0'/></cputune>"
    )
    assert read.dedicated == {0: 5, 1: None}
    assert read.without_places().dedicated == {0: None, 1: None, 3: None}, "on another host, CPU 0 may be one"


def test_cells_with_their_memory_pages_and_places() -> None:
    read = needs(
        "<memoryBacking><hugepages><page size='2' unit='MiB' nodeset='1'/></hugepages></memoryBacking>",
        "<numatune><memory mode='strict' nodeset='0-1'/><memnode cellid='1' nodeset='0'/></numatune>",
        "<cpu><numa><cell id='1' cpus='2-3' memory='512' unit='MiB'/>"
        "<cell id='0' cpus='0-1' memory='262144'/></numa></cpu>",
    )
    assert read.cells == (
        NeededCell(frozenset({0, 1}), 256),
        NeededCell(frozenset({2, 3}), 512, 0, 2048),
    )
    assert read.without_places().cells[1] == NeededCell(frozenset({2, 3}), 512, None, 2048)


def test_memory_of_a_guest_without_cells() -> None:
    read = needs(
        "<memoryBacking><hugepages/></memoryBacking><numatune><memory nodeset='1'/></numatune>",
        "<memory>524288</memory>",
    )
    assert (read.host_cell, read.page_kib, read.memory_mb) == (1, 2048, 512)
    assert needs("<numatune><memory nodeset='0-1'/></numatune>").host_cell is None


@pytest.mark.parametrize(
    "element",
    [
        "<cpu><numa><cell id='1' memory='1'/></numa></cpu>",
        "<uuid>web</uuid>",
        "<vcpu>many</vcpu>",
        "<cputune><vcpupin cpuset='1'/></cputune>",
        "<devices><hostdev type='mdev'><source><address uuid='1'/></source></hostdev></devices>",
    ],
)
def test_what_makes_no_sense_is_refused(element: str) -> None:
    with pytest.raises(DriverDataError, match="the domain: "):
        needs(element)


def test_how_elements_name_devices() -> None:
    assert device_kind("disk", "nvme") is DeviceKind.PCI
    assert device_kind("disk", "file") is None
