"""What a domain uses, its memory among it, and what it asks for in XML that libvirt would not take yet."""

import re
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.libvirt_node import DATA, domain, domain_uuid

from agent.driver import (
    DeviceKind,
    DomainNeeds,
    Guest,
    GuestState,
    NeededCell,
    NeededDevice,
    UsedMemory,
    UsedUnit,
)
from agent.errors import DriverDataError
from drivers.host.domain_xml import Disk, Domain, device_kind, guest_of, parse_domain, read_needs

DEDICATED = frozenset({4, 5, 6, 7})


def recorded(name: str) -> Domain:
    return parse_domain((DATA / "domains" / f"{name}.xml").read_text(), name)


def guest(text: str, disk_bytes: int = 0) -> Guest:
    return guest_of(parse_domain(text), GuestState.RUNNING, disk_bytes, DEDICATED)


@pytest.mark.parametrize(
    ("name", "mdevs", "pci_devices", "interfaces"),
    [
        ("vm-mdev", ("11111111-1111-4111-8111-111111111111",), (), ()),
        ("vm-vf", (), (), ("0000:41:10.0",)),
        ("vm-vf-inactive", (), (), ("0000:41:10.0",)),
        ("vm-gpu", (), ("0000:43:00.0",), ()),
        ("vm-both", ("33333333-3333-4333-8333-333333333333",), ("0000:41:10.2",), ()),
        ("vm-vendor", (), ("0000:84:00.1",), ()),
    ],
)
def test_the_devices_of_recorded_domains_are_the_hosts_not_the_guests(
    name: str, mdevs: tuple[str, ...], pci_devices: tuple[str, ...], interfaces: tuple[str, ...]
) -> None:
    found = recorded(name)
    assert (found.mdevs, found.pci_devices, found.interfaces) == (mdevs, pci_devices, interfaces)
    assert (found.vcpus, found.memory_mb) == (1, 48)


@pytest.mark.parametrize(
    ("more", "port"),
    [
        ("", ""),
        ("<mac address='52:54:00:AA:00:01'/>", "52:54:00:aa:00:01"),
        ("<mac address='52:54:00:aa:00:01'/><vlan><tag id='100'/></vlan>", "52:54:00:aa:00:01 VLAN 100"),
    ],
)
def test_a_function_has_the_mac_address_and_the_vlan_of_its_interface(more: str, port: str) -> None:
    source = "<source><address type='pci' domain='0' bus='0x41' slot='0x10' function='2'/></source>"
    found = guest(domain(1, devices=f"<interface type='hostdev'>{source}{more}</interface>"))
    assert [(unit.unit, unit.asked_port, unit.port) for unit in found.units] == [("0000:41:10.2", port, "")]
    assert recorded("vm-vf").ports == {"0000:41:10.0": "52:54:00:29:13:bc"}
    with pytest.raises(DriverDataError, match="VLAN"):
        bad = "<mac address='52:54:00:aa:00:01'/><vlan><tag id='5000'/></vlan>"
        parse_domain(domain(1, devices=f"<interface type='hostdev'>{source}{bad}</interface>"))


def test_a_recorded_domain_as_a_guest() -> None:
    assert guest_of(recorded("vm-both"), GuestState.RUNNING, 0, frozenset()) == Guest(
        uuid="a0000000-0000-4000-8000-000000000004",
        name="vm-both",
        state=GuestState.RUNNING,
        resources={"VCPU": 1, "MEMORY_MB": 48},
        units=(
            UsedUnit(
                "VGPU", "33333333-3333-4333-8333-333333333333", "mdev:33333333-3333-4333-8333-333333333333"
            ),
            UsedUnit("PCI_DEVICE", "0000:41:10.2", "pci:0000:41:10.2"),
        ),
    )


def test_amounts_are_rounded_up() -> None:
    text = domain(1, vcpus=3).replace("<memory unit='MiB'>512</memory>", "<memory>524289</memory>")
    assert guest(text, disk_bytes=2**30 + 1).resources == {"VCPU": 3, "MEMORY_MB": 513, "DISK_GB": 2}


def pinned(*pins: tuple[int, str], more: str = "") -> str:
    return "<cputune>" + "".join(f"<vcpupin vcpu='{v}' cpuset='{c}'/>" for v, c in pins) + more + "</cputune>"


@pytest.mark.parametrize(
    ("inside", "vcpu", "pcpu"),
    [
        (pinned((0, "4"), (1, "5")), 0, ["4", "5"]),
        (pinned((0, "4"), (1, "0-3")), 1, ["4"]),
        (pinned((0, "0"), (1, "1")), 2, []),
        (pinned((0, "4-5"), (1, "4-5")), 2, []),
        (pinned((0, "4"), (1, "5"), (9, "6")), 0, ["4", "5"]),
        (pinned((0, "4"), (1, "5"), more="<emulatorpin cpuset='6'/>"), 0, ["4", "5", "6"]),
        (pinned((0, "4"), (1, "5"), more="<emulatorpin cpuset='4-5'/>"), 0, ["4", "5"]),
        ("", 2, []),
    ],
)
def test_a_vcpu_on_one_dedicated_cpu_holds_it(inside: str, vcpu: int, pcpu: list[str]) -> None:
    found = guest(domain(1, vcpus=2, inside=inside))
    assert (found.resources.get("VCPU", 0), found.resources.get("PCPU", 0)) == (vcpu, len(pcpu))
    assert found.units == tuple(UsedUnit("PCPU", cpu, "host") for cpu in pcpu)


def test_the_vcpus_that_are_there_count_not_those_that_could_be() -> None:
    current = domain(1, vcpus=8).replace("<vcpu>", "<vcpu current='2' cpuset='5'>")
    assert guest(current).resources["PCPU"] == 1
    assert guest(current.replace(" cpuset='5'", "")).resources["VCPU"] == 2
    listed = domain(1, vcpus=4, inside="<vcpus><vcpu id='0' enabled='yes'/><vcpu id='1' enabled='no'/>"
                    "<vcpu id='3' enabled='yes'/></vcpus>" + pinned((3, "7")))  # fmt: skip
    assert guest(listed).resources == {"VCPU": 1, "PCPU": 1, "MEMORY_MB": 512}


DISKS = """
<disk type='file' device='disk'><source file='/images/a.qcow2'/><target dev='vda'/></disk>
<disk type='volume' device='disk'><source pool='default' volume='b'/><target dev='vdb'/></disk>
<disk type='file' device='cdrom'><source file='/iso'/><target dev='sda'/><readonly/></disk>
<disk type='file' device='disk'><source file='/base'/><target dev='vdc'/><readonly/></disk>
<disk type='network' device='disk'><source protocol='rbd' name='x'/><target dev='vdd'/></disk>
<disk type='block' device='disk'><source dev='/dev/sdb'/><target dev='vde'/></disk>
<disk type='file' device='disk'><target dev='vdf'/></disk>
"""


@pytest.mark.parametrize(
    ("inside", "may_change"),
    [
        ("<vcpu>4</vcpu>", False),
        ("<vcpu current='4'>4</vcpu>", False),
        ("<vcpu current='2'>4</vcpu>", True),
        ("<vcpu>2</vcpu><vcpus><vcpu id='0' enabled='yes' hotpluggable='no'/>"
         "<vcpu id='1' enabled='yes' hotpluggable='yes'/></vcpus>", True),
        ("", False),
    ],
)  # fmt: skip
def test_the_vcpus_of_most_domains_cannot_change(inside: str, may_change: bool) -> None:
    text = re.sub(r"<vcpu[ >].*</vcpu>", inside, domain(1))
    assert (inside in text) and parse_domain(text).vcpus_may_change is may_change


def test_only_files_and_volumes_that_are_written_count_as_disk() -> None:
    assert parse_domain(domain(1, devices=DISKS)).disks == (
        Disk("vda", path="/images/a.qcow2"),
        Disk("vdb", pool="default", volume="b"),
    )


def test_a_device_that_is_named_twice_is_one() -> None:
    hostdev = f"<hostdev type='mdev'><source><address uuid='{domain_uuid(9)}'/></source></hostdev>"
    assert parse_domain(domain(1, devices=hostdev * 2)).mdevs == (domain_uuid(9),)


def test_a_disk_that_is_a_device_whole_is_held() -> None:
    """Each namespace is a disk of its own, of one device."""
    disk = (
        "<disk type='nvme' device='disk'><source type='pci' managed='yes' namespace='{}'>"
        "<address domain='0' bus='0x43' slot='0' function='0'/></source><target dev='vd{}'/></disk>"
    )
    found = parse_domain(domain(1, devices=disk.format(1, "b") + disk.format(2, "c")))
    assert (found.pci_devices, found.disks) == (("0000:43:00.0",), ())


def test_a_pool_of_virtual_functions_has_an_address_in_the_live_xml_only() -> None:
    network = "<interface type='network'><source network='vfs'/></interface>"
    assert parse_domain(domain(1, devices=network)).interfaces == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<domain/>", "vm1: <memory> is missing"),
        ("<domain><memory>1</memory></domain>", "vm1: <uuid>: '' is not a uuid"),
        (
            f"<domain><memory>1</memory><uuid>{domain_uuid(1)}</uuid></domain>",
            "vm1: <name> is missing or empty",
        ),
        (domain(1).replace(">512<", ">lots<"), "vm1: <memory>: 'lots' is not a number"),
        (domain(1).replace("'MiB'", "'furlong'"), "vm1: <memory>: 'furlong' is not a unit"),
        (domain(1, vcpus=99999999), "vm1: <vcpu>: 99999999 is more than 65536"),
        (domain(1, inside=pinned((0, "x"))), "vm1: <vcpupin>: 'x' is neither"),
        (
            domain(1, devices="<hostdev type='mdev'><source><address uuid='x'/></source></hostdev>"),
            "vm1: mediated device: 'x' is not a uuid",
        ),
        (
            domain(1, devices="<hostdev type='pci'><source><address bus='1'/></source></hostdev>"),
            "vm1: PCI slot: '' is not a number",
        ),
    ],
)
def test_what_makes_no_sense_is_named(text: str, message: str) -> None:
    with pytest.raises(DriverDataError, match=message):
        parse_domain(text, "vm1")


# Hostile domains: every document is either a guest or a DriverDataError

_TAGS = st.sampled_from(
    [
        "name",
        "uuid",
        "memory",
        "vcpu",
        "vcpus",
        "cputune",
        "vcpupin",
        "emulatorpin",
        "devices",
        "disk",
        "source",
        "target",
        "readonly",
        "hostdev",
        "interface",
        "address",
        "os",
        "x",
    ]
)
_VALUES = st.sampled_from(
    ["0", "1", "4", "-1", "4-5", "^4", "0x41", "99999999999", "yes", "no", "mdev", "pci", "hostdev", "file",
    "volume",
     "KiB", "x", "", "a0000000-0000-4000-8000-000000000001", "ٱ", "\n"]
)  # fmt: skip
_ATTRIBUTES = st.dictionaries(
    st.sampled_from(
        [
            "type",
            "device",
            "unit",
            "current",
            "cpuset",
            "vcpu",
            "id",
            "enabled",
            "uuid",
            "domain",
            "bus",
            "slot",
            "function",
            "dev",
            "file",
        ]
    ),
    _VALUES,
    max_size=3,
)


def _element(parts: tuple[str, dict[str, str], str | None, list[Element]]) -> Element:
    tag, attributes, text, children = parts
    element = Element(tag, attributes)
    element.text = text
    element.extend(children)
    return element


_LEAVES = st.tuples(_TAGS, _ATTRIBUTES, st.none() | _VALUES, st.just([])).map(_element)
_ELEMENTS = st.recursive(
    _LEAVES,
    lambda inner: st.tuples(_TAGS, _ATTRIBUTES, st.none() | _VALUES, st.lists(inner, max_size=4)).map(
        _element
    ),
    max_leaves=12,
)


def read(text: str) -> None:
    try:
        found = guest(text)
    except DriverDataError as error:
        assert error.message.startswith("a domain: ")
    else:
        assert all(amount > 0 for amount in found.resources.values())
        assert len({(unit.resource_class, unit.unit) for unit in found.units}) == len(found.units)


@given(st.lists(_ELEMENTS, max_size=6), st.data())
def test_hostile_elements_in_a_good_domain(hostile: list[Element], data: Any) -> None:
    root = ElementTree.fromstring(domain(1, vcpus=2, inside=pinned((0, "4")), devices=DISKS))
    places = list(root.iter())
    for element in hostile:
        place = data.draw(st.sampled_from(places))
        place.insert(data.draw(st.integers(0, len(place))), element)
    read(ElementTree.tostring(root, encoding="unicode"))


@given(st.data())
def test_a_recorded_domain_with_bytes_damaged(data: Any) -> None:
    text = (DATA / "domains" / "vm-both.xml").read_text()
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text)))
        text = text[:place] + data.draw(st.text(max_size=3)) + text[place + data.draw(st.integers(0, 9)) :]
    read(text)


def with_memory(*elements: str, memory_mb: int = 512) -> tuple[UsedMemory, ...]:
    text = domain(1).replace("<memory unit='MiB'>512</memory>", f"<memory unit='MiB'>{memory_mb}</memory>")
    return parse_domain(text.replace("</domain>", "".join(elements) + "</domain>")).memory


STRICT = "<numatune><memory mode='strict' nodeset='{}'/></numatune>"


HUGE = "<memoryBacking><hugepages>{}</hugepages></memoryBacking>"


TWO_CELLS = (
    "<cpu><numa><cell id='0' cpus='0' memory='1' unit='GiB'/>"
    "<cell id='1' cpus='1' memory='2097152' unit='KiB'/></numa></cpu>"
)


def test_memory_that_may_be_anywhere_is_on_no_node() -> None:
    wish = "<numatune><memory mode='preferred' nodeset='1'/></numatune>"
    for elements in ("", wish):
        assert with_memory(elements) == ()


def test_large_pages_are_of_some_node_wherever_they_may_be() -> None:
    pages = HUGE.format("<page size='1' unit='GiB'/>")
    assert with_memory(pages) == (UsedMemory(None, 512, 1048576),)
    assert with_memory(HUGE.format("")) == (UsedMemory(None, 512, 2048),)
    usual = domain(1).replace("</domain>", HUGE.format("") + "</domain>")
    assert parse_domain(usual, huge_page_kib=65536).memory == (UsedMemory(None, 512, 65536),)
    assert with_memory(STRICT.format(1), HUGE.format("")) == (UsedMemory(1, 512, 2048, 0),)
    second = HUGE.format("<page size='2' unit='MiB' nodeset='1'/>")
    assert with_memory(TWO_CELLS, second) == (UsedMemory(None, 2048, 2048),)


def test_memory_is_on_the_nodes_that_it_must_be_on_in_pages_of_its_size() -> None:
    assert with_memory(STRICT.format(1)) == (UsedMemory(1, 512, guest_cell=0),)
    assert with_memory(STRICT.format("0-1"), memory_mb=513) == (UsedMemory(0, 257), UsedMemory(1, 256))
    page = HUGE.format("<page size='2' unit='MiB'/>")
    assert with_memory(STRICT.format(1), page) == (UsedMemory(1, 512, 2048, 0),)


def test_the_memory_of_each_guest_cell() -> None:
    tune = (
        "<numatune><memory mode='strict' nodeset='0-3'/>"
        "<memnode cellid='0' mode='strict' nodeset='3'/><memnode cellid='1' mode='strict' nodeset='2'/>"
        "</numatune>"
    )
    pages = HUGE.format("<page size='1048576' unit='KiB' nodeset='1'/>")
    assert with_memory(TWO_CELLS, tune, pages) == (
        UsedMemory(3, 1024, guest_cell=0),
        UsedMemory(2, 2048, 1048576, 1),
    )
    both = HUGE.format("<page size='2048' unit='KiB' nodeset='0-1'/>")
    assert {each.page_kib for each in with_memory(TWO_CELLS, tune, both)} == {2048}


@pytest.mark.parametrize(
    "element",
    [
        STRICT.format("x"),
        "<numatune><memnode cellid='-1' mode='strict' nodeset='0'/></numatune>",
        STRICT.format(0) + HUGE.format("<page size='many' unit='KiB'/>"),
        STRICT.format(0) + HUGE.format("<page size='0' unit='KiB'/>"),
        HUGE.format("<page size='512' unit='bytes'/>"),
        STRICT.format(0) + "<cpu><numa><cell id='0' memory='x'/></numa></cpu>",
    ],
)
def test_memory_that_makes_no_sense_is_told(element: str) -> None:
    with pytest.raises(DriverDataError):
        with_memory(element)


def test_a_plugged_memory_device_is_on_the_nodes_of_its_cell_or_on_its_own() -> None:
    dimm = "<memory model='dimm'>{}<target><size unit='MiB'>256</size><node>1</node></target></memory>"
    tune = "<numatune><memory mode='strict' nodeset='3'/></numatune>"
    cells = (UsedMemory(3, 1024, guest_cell=0), UsedMemory(3, 2048, guest_cell=1))
    devices = f"<devices>{dimm.format('')}</devices>"
    assert with_memory(TWO_CELLS, tune, devices) == (*cells, UsedMemory(3, 256, guest_cell=1))
    own = "<source><pagesize unit='KiB'>2048</pagesize><nodemask>2</nodemask></source>"
    assert with_memory(TWO_CELLS, tune, f"<devices>{dimm.format(own)}</devices>") == (
        *cells,
        UsedMemory(2, 256, 2048, 1),
    )
    assert with_memory(TWO_CELLS, f"<devices>{dimm.format('')}</devices>") == ()


def test_memory_devices_that_are_files_take_no_memory() -> None:
    nvdimm = "<memory model='nvdimm'><target><size unit='MiB'>256</size><node>0</node></target></memory>"
    with_cells = (TWO_CELLS, "<numatune><memory mode='strict' nodeset='3'/></numatune>")
    assert with_memory(*with_cells, f"<devices>{nvdimm}</devices>") == with_memory(*with_cells)


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


@pytest.mark.parametrize(("pin", "own"), [("6", 6), ("5", None), ("0", None), ("6-7", None), ("", None)])
def test_an_emulator_on_one_dedicated_cpu_that_no_vcpu_has_needs_it(pin: str, own: int | None) -> None:
    read = needs(f"<cputune><vcpupin vcpu='0' cpuset='5'/><emulatorpin cpuset='{pin}'/></cputune>")
    assert (read.isolate_emulator, read.emulator) == (own is not None, own)
    assert read.without_places().isolate_emulator is (own is not None)
    assert read.without_places().emulator is None


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


def test_a_cell_needs_the_memory_that_is_plugged_into_it() -> None:
    """libvirt adds it to <memory> when it defines the domain, whatever the operator wrote there."""
    cells = (
        "<cpu><numa><cell id='0' cpus='0' memory='1' unit='GiB'/>"
        "<cell id='1' cpus='1' memory='2' unit='GiB'/></numa></cpu>"
    )
    dimm = "<memory model='dimm'>{}<target><size unit='MiB'>256</size><node>1</node></target></memory>"
    later = "<memory model='virtio-mem'><target><size unit='MiB'>512</size><node>0</node></target></memory>"
    for written_mb in (3072, 3840):
        read = needs(
            f"<memory unit='MiB'>{written_mb}</memory>", cells, f"<devices>{dimm.format('')}{later}</devices>"
        )
        assert (read.memory_mb, [cell.memory_mb for cell in read.cells]) == (3840, [1536, 2304])
    own = dimm.format("<source><pagesize unit='MiB'>2</pagesize></source>")
    apart = needs("<memory unit='MiB'>3328</memory>", cells, f"<devices>{own}</devices>")
    assert (apart.memory_mb, apart.cells[1].memory_mb) == (3328, 2048), "a claim has one page size a cell"


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
