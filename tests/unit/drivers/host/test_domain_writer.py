"""What a claim gave stands in the domain; what the domain has besides stays; a contradiction is told."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.paths import DATA

from agent.driver import DeviceKind, GivenCell, GivenDevice, GivenResources
from agent.errors import DriverDataError, UsageError
from drivers.host.domain_writer import (
    DomainDocument,
    add_child,
    child,
    kind_of,
    remove,
    set_text,
    write_domain,
)
from drivers.host.domain_xml import parse_domain, passed_addresses

UUID = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
MDEV = "4b20d080-1b54-4048-85b3-a6a62d165c01"
DOMAIN = f"""<domain type='kvm'>
  <name>web1</name>
  <uuid>{UUID}</uuid>
  <memory unit='GiB'>4</memory>
  <vcpu>4</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
  </os>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <interface type='hostdev' managed='yes'>
      <mac address='52:54:00:00:00:01'/>
      <alias name='ua-red'/>
    </interface>
    <interface type='hostdev' managed='yes'>
      <mac address='52:54:00:00:00:02'/>
      <alias name='ua-blue'/>
    </interface>
  </devices>
</domain>
"""
RED = GivenDevice("_RED", "SRIOV_NET_VF", "0000:81:10.0", 1)
BLUE = GivenDevice("_BLUE", "SRIOV_NET_VF", "0000:41:10.2", 0)
GUEST = GivenResources(UUID, "web1", 4, 4096, (BLUE, RED))
CELLS = (
    GivenCell(0, 0, 2048, {0: 2, 1: 3}, page_kib=2048),
    GivenCell(1, 1, 2048, {}, frozenset({2, 3}), frozenset({8, 9})),
)


def ports_by_mac(text: str) -> dict[str, str]:
    """{MAC address: PCI address of the host's function}, read without the code under test."""
    found = {}
    for interface in ElementTree.fromstring(text).findall("devices/interface"):
        address = interface.find("source/address")
        assert address is not None
        bus, slot, function = (int(address.get(part, ""), 16) for part in ("bus", "slot", "function"))
        mac = interface.find("mac")
        assert mac is not None
        found[mac.get("address", "")] = f"0000:{bus:02x}:{slot:02x}.{function}"
    return found


def test_each_port_gets_the_function_of_its_name() -> None:
    ports = ports_by_mac(write_domain(DOMAIN, GUEST))
    assert ports == {"52:54:00:00:00:01": RED.unit, "52:54:00:00:00:02": BLUE.unit}


def test_a_second_time_changes_nothing() -> None:
    whole = replace(GUEST, cells=CELLS, devices=(BLUE, RED, GivenDevice("", "VGPU", MDEV, 1)))
    once = write_domain(DOMAIN, whole)
    assert write_domain(once, whole) == once


def test_all_lines_of_the_domain_stay() -> None:
    written = write_domain(DOMAIN, replace(GUEST, cells=CELLS)).splitlines()
    assert [line for line in DOMAIN.splitlines() if line not in written] == []


def test_cells_pins_memory_and_pages() -> None:
    domain = parse_domain(write_domain(DOMAIN, replace(GUEST, cells=CELLS)))
    shared = frozenset({8, 9})
    assert domain.pins == {0: frozenset({2}), 1: frozenset({3}), 2: shared, 3: shared}
    assert domain.memory_nodes == {0, 1}
    assert [(part.cell, part.memory_mb, part.page_kib) for part in domain.memory] == [
        (0, 2048, 2048),
        (1, 2048, None),
    ]


def test_cpus_that_are_plugged_in_later_are_not_claimed_yet() -> None:
    text = DOMAIN.replace("<vcpu>4", "<vcpu current='4'>8")
    assert "<vcpu current='4'>8</vcpu>" in write_domain(text, GUEST)


def test_pins_without_cells() -> None:
    domain = parse_domain(write_domain(DOMAIN, replace(GUEST, pinned={0: 6, 1: 7, 2: 8, 3: 9})))
    assert domain.pins == {cpu: frozenset({cpu + 6}) for cpu in range(4)}
    assert not domain.memory_nodes


@pytest.mark.parametrize("own", ["", "<cputune><emulatorpin cpuset='2-3'/></cputune>"])
def test_the_emulators_threads_run_on_the_cpu_that_they_were_given(own: str) -> None:
    cells = (replace(CELLS[0], emulator=frozenset({11})), CELLS[1])
    text = write_domain(DOMAIN.replace("</domain>", f"{own}</domain>"), replace(GUEST, cells=cells))
    assert parse_domain(text).emulator_pin == {11}


@pytest.mark.parametrize("cells", [(), CELLS])
@pytest.mark.parametrize("named", ["0", "0-1", "2,14"])
def test_the_emulators_threads_stay_where_the_domain_has_them_beside_pinned_cpus(
    cells: tuple[GivenCell, ...], named: str
) -> None:
    """The claim has no CPU for them alone; at the destination of a move these CPUs are none of the guest."""
    given = replace(GUEST, cells=cells) if cells else replace(GUEST, pinned={0: 2, 1: 3})
    own = f"<cputune><emulatorpin cpuset='{named}'/></cputune>"
    text = DOMAIN.replace("</domain>", f"{own}</domain>")
    assert f"<emulatorpin cpuset='{named}'/>" in write_domain(text, given)
    moved = parse_domain(write_domain(text, given, replace=True))
    assert moved.emulator_pin == ({2, 3, 8, 9} if cells else {2, 3})


def test_an_emulator_on_another_cpu_than_the_claims_is_a_contradiction() -> None:
    cells = (replace(CELLS[0], emulator=frozenset({11})), CELLS[1])
    text = DOMAIN.replace("</domain>", "<cputune><emulatorpin cpuset='12'/></cputune></domain>")
    with pytest.raises(UsageError, match="<emulatorpin> is 12, and the claim has 11"):
        write_domain(text, replace(GUEST, cells=cells))
    moved = write_domain(text, replace(GUEST, cells=cells), replace=True)
    assert parse_domain(moved).emulator_pin == {11}


def test_devices_that_the_domain_does_not_mention_are_added() -> None:
    devices = (GivenDevice("gpu", "PGPU", "0000:83:00.0", 1), GivenDevice("", "VGPU", MDEV))
    domain = parse_domain(write_domain("<domain/>", replace(GUEST, devices=devices)))
    assert (domain.uuid, domain.name, domain.vcpus, domain.memory_mb) == (UUID, "web1", 4, 4096)
    assert (domain.pci_devices, domain.mdevs) == (("0000:83:00.0",), (MDEV,))


def test_memory_that_is_a_file_is_no_memory_of_the_claim() -> None:
    """libvirt's definition of a guest with persistent memory has its size in <memory>."""
    device = (
        "<memory model='nvdimm'><source><path>/x</path></source><target><size unit='GiB'>8</size></target>"
    )
    text = DOMAIN.replace("<memory unit='GiB'>4", "<memory unit='GiB'>12")
    text = text.replace("</domain>", f"<devices>{device}</memory></devices></domain>", 1)
    assert parse_domain(write_domain(text, GUEST)).memory_mb == 4096
    with pytest.raises(UsageError, match="<memory> is 8388608 KiB, and the claim has 4096 MiB"):
        write_domain(text.replace("<memory unit='GiB'>12", "<memory unit='GiB'>16"), GUEST)


PLUGGED = """<domain><memory unit='MiB'>4096</memory><vcpu>4</vcpu>
<maxMemory slots='4' unit='GiB'>16</maxMemory><cpu><numa>
<cell id='0' cpus='0-1' memory='2' unit='GiB'/>
<cell id='1' cpus='2-3' memory='1' unit='GiB'/></numa></cpu>
<devices><memory model='dimm'><source><nodemask>0</nodemask></source>
<target><size unit='MiB'>1024</size><node>1</node></target></memory></devices></domain>"""


def test_a_cell_and_its_memory_devices_have_together_what_was_claimed() -> None:
    text = write_domain(PLUGGED, replace(GUEST, devices=(), cells=CELLS), replace=True)
    sizes = [each.get("memory") for each in ElementTree.fromstring(text).iter("cell")]
    assert sizes == ["2097152", "1048576"]
    domain = parse_domain(text)
    assert domain.memory_mb == 4096 and sorted(
        (part.cell, part.guest_cell, part.memory_mb) for part in domain.memory
    ) == [(0, 0, 2048), (1, 1, 1024), (1, 1, 1024)]
    with pytest.raises(UsageError, match="<cell id='1'> has 1048576 KiB and 2048 MiB in memory devices"):
        write_domain(PLUGGED.replace(">1024<", ">2048<"), replace(GUEST, devices=(), cells=CELLS))
    bare = PLUGGED.replace("<cell id='1' cpus='2-3' memory='1' unit='GiB'/>", "").replace(">1024<", ">2048<")
    bare = bare.replace("<cell id='0' cpus='0-1' memory='2' unit='GiB'/>", "")
    with pytest.raises(UsageError, match="the memory devices of cell 1 have 2048 MiB"):
        write_domain(bare, replace(GUEST, devices=(), cells=CELLS))


def test_the_guest_sees_its_devices_on_their_cells() -> None:
    root = ElementTree.fromstring(write_domain(DOMAIN, replace(GUEST, cells=CELLS)))
    controllers = {each.get("index"): each for each in root.findall("devices/controller")}
    for interface, cell in zip(root.findall("devices/interface"), ("1", "0"), strict=True):
        address = interface.find("address")
        assert address is not None
        port = controllers[str(int(address.get("bus", ""), 16))]
        upstream = port.find("address")
        assert port.get("model") == "pcie-root-port" and upstream is not None
        expander = controllers[str(int(upstream.get("bus", ""), 16))]
        assert expander.get("model") == "pcie-expander-bus"
        assert expander.findtext("target/node") == cell


def test_a_machine_without_pci_express_is_left_as_it_is() -> None:
    text = DOMAIN.replace("machine='q35'", "machine='pc'")
    assert "expander" not in write_domain(text, replace(GUEST, cells=CELLS))


CONTRADICTIONS = [
    ("<vcpu>4</vcpu>", "<vcpu>8</vcpu>", "<vcpu> is 8, and the claim has 4 CPUs"),
    ("<memory unit='GiB'>4", "<memory unit='GiB'>8", "<memory> is 8388608 KiB, and the claim has 4096 MiB"),
    (UUID, UUID[:-1] + "0", f"and the claim is of {UUID}"),
    (
        "<alias name='ua-red'/>",
        "<alias name='ua-red'/><source><address type='pci' bus='0x41' slot='0x10' function='4'/></source>",
        "<interface> ua-red is 0000:41:10.4, and the claim has 0000:81:10.0 there",
    ),
    (
        "</devices>",
        f"<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='{MDEV}'/></source>"
        "</hostdev></devices>",
        f"<hostdev> is {MDEV}, which the claim does not have",
    ),
    (
        "<os>",
        "<cputune><vcpupin vcpu='0' cpuset='7'/></cputune><os>",
        "<vcpupin vcpu='0'> is 7, and the claim has 2",
    ),
    ("<os>", "<cpu><numa><cell id='0' cpus='0-3' memory='4194304'/></numa></cpu><os>", "<numa> has 1 cell"),
]


@pytest.mark.parametrize(("old", "new", "said"), CONTRADICTIONS)
def test_a_contradiction_is_told_and_nothing_is_written(old: str, new: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        write_domain(DOMAIN.replace(old, new), replace(GUEST, cells=CELLS))
    (contradiction,) = refused.value.details["contradictions"]
    assert said in contradiction


def test_every_contradiction_is_told_at_once() -> None:
    text = DOMAIN.replace("<vcpu>4", "<vcpu>2").replace("'GiB'>4", "'GiB'>2")
    with pytest.raises(UsageError) as refused:
        write_domain(text, GUEST)
    assert len(refused.value.details["contradictions"]) == 2


def test_at_the_destination_of_a_move_the_former_place_is_written_over() -> None:
    there = replace(
        GUEST,
        devices=(replace(BLUE, unit="0000:c1:02.0"), replace(RED, unit="0000:c1:02.1")),
        cells=(replace(CELLS[0], host_cell=1, pinned={0: 12, 1: 13}), replace(CELLS[1], host_cell=0)),
    )
    written = write_domain(write_domain(DOMAIN, replace(GUEST, cells=CELLS)), there, replace=True)
    assert ports_by_mac(written) == {"52:54:00:00:00:01": "0000:c1:02.1", "52:54:00:00:00:02": "0000:c1:02.0"}
    domain = parse_domain(written)
    assert (domain.pins[0], domain.pins[1]) == (frozenset({12}), frozenset({13}))
    assert [part.cell for part in domain.memory] == [1, 0]


def test_several_devices_of_one_group_are_numbered() -> None:
    devices = tuple(GivenDevice("gpu", "PGPU", f"0000:8{n}:00.0") for n in range(3))
    once = write_domain("<domain/>", replace(GUEST, devices=devices))
    assert [alias.get("name") for alias in ElementTree.fromstring(once).iter("alias")] == [
        "ua-gpu",
        "ua-gpu-2",
        "ua-gpu-3",
    ]
    assert write_domain(once, replace(GUEST, devices=devices)) == once


def test_a_device_over_iommufd_is_read_and_written_as_any_other() -> None:
    """The domain of a guest that moves: the driver stays as it is, the device becomes another."""
    device = (
        "<hostdev mode='subsystem' type='pci' managed='yes'><driver iommufd='yes'/>{}"
        "<alias name='ua-gpu'/></hostdev>"
    )
    place = "<source><address domain='0x0000' bus='0x83' slot='0x00' function='0x0'/></source>"
    before = "<domain type='kvm'><vcpu>4</vcpu><devices>{}</devices></domain>"
    guest = replace(GUEST, devices=(GivenDevice("gpu", "PGPU", "0000:83:00.0"),))
    written = write_domain(before.format(device.format("")), guest)
    assert parse_domain(written).pci_devices == ("0000:83:00.0",)
    assert passed_addresses(written) == {"0000:83:00.0": True}
    there = replace(guest, devices=(GivenDevice("gpu", "PGPU", "0000:c1:00.0"),))
    moved = write_domain(before.format(device.format(place)), there, replace=True)
    (driver,) = ElementTree.fromstring(moved).iter("driver")
    assert driver.attrib == {"iommufd": "yes"} and parse_domain(moved).pci_devices == ("0000:c1:00.0",)


def test_how_a_domain_names_a_device() -> None:
    assert kind_of(RED) is DeviceKind.INTERFACE
    assert kind_of(GivenDevice("", "PGPU", "0000:83:00.0")) is DeviceKind.PCI
    assert kind_of(GivenDevice("", "VGPU", MDEV)) is DeviceKind.MEDIATED
    with pytest.raises(UsageError, match="no domain can name it"):
        kind_of(GivenDevice("", "VGPU", "1"))


def test_what_is_no_domain_is_refused() -> None:
    with pytest.raises(DriverDataError, match="the domain of web1"):
        write_domain("<domain", GUEST)


ADDRESSES = st.builds(
    "{:04x}:{:02x}:{:02x}.{:x}".format,
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFF),
    st.integers(0, 0x1F),
    st.integers(0, 7),
)


@settings(max_examples=60)
@given(st.lists(ADDRESSES, unique=True, max_size=5), st.lists(st.uuids(), unique=True, max_size=3))
def test_what_was_written_is_what_the_driver_reads(addresses: list[str], uuids: list[object]) -> None:
    devices = (
        *(GivenDevice(f"g{n}", "PGPU", address, 0) for n, address in enumerate(addresses)),
        *(GivenDevice("", "VGPU", str(uuid), 1) for uuid in uuids),
    )
    domain = parse_domain(write_domain("<domain type='kvm'/>", replace(GUEST, devices=devices)))
    assert domain.pci_devices == tuple(addresses)
    assert domain.mdevs == tuple(map(str, uuids))


DOCUMENT = """<?xml version="1.0"?>
<domain type='kvm' id="7">
  <!-- ports: 'red' < "blue" -->
  <name>web1</name>
  <description><![CDATA[a <b attr="c"> & d]]></description>
  <os><type arch='x86_64' machine="pc">hvm</type></os>
</domain>
"""


def test_the_quotes_of_libvirt_stay() -> None:
    text = DOCUMENT.replace('id="7"', "id='7'").replace('machine="pc"', "machine='pc'")
    assert DomainDocument(text).text == text


@pytest.mark.parametrize("name", sorted(path.name for path in (DATA / "libvirt/domains").glob("*.xml")))
def test_recorded_domains_stay_byte_for_byte(name: str) -> None:
    text = (DATA / "libvirt/domains" / name).read_text("utf-8")
    assert DomainDocument(text).text == text


def test_a_document_in_double_quotes_stays_in_double_quotes() -> None:
    text = '<domain type="kvm">\n  <name note="it\'s">a</name>\n</domain>'
    assert DomainDocument(text).text == text


def test_new_elements_are_indented_like_their_siblings() -> None:
    document = DomainDocument("<domain type='kvm'>\n  <name>a</name>\n  <vcpu>1</vcpu>\n</domain>\n")
    add_child(document.root, "uuid", {}, after=("name",)).text = "u"
    add_child(child(document.root, "devices"), "hostdev", {"type": "pci"})
    set_text(child(document.root, "vcpu"), "1")
    assert document.text == (
        "<domain type='kvm'>\n  <name>a</name>\n  <uuid>u</uuid>\n  <vcpu>1</vcpu>\n"
        "  <devices>\n    <hostdev type='pci'/>\n  </devices>\n</domain>\n"
    )
    remove(document.root.findall("devices")[0])
    assert document.text == (
        "<domain type='kvm'>\n  <name>a</name>\n  <uuid>u</uuid>\n  <vcpu>1</vcpu>\n</domain>\n"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<domain", "this is not XML"),
        ("", "this is not XML"),
        ("<guest/>", "<domain> was expected, not <guest>"),
        ("<!DOCTYPE domain [<!ENTITY a 'b'>]><domain>&a;</domain>", "a document type is not allowed"),
        ("<domain>" + " " * 2**20 + "</domain>", "more than 1048576 characters"),
        ("<domain>\x00</domain>", "this is not XML"),
    ],
)
def test_a_document_that_is_no_domain_is_refused(text: str, said: str) -> None:
    with pytest.raises(DriverDataError, match=said):
        DomainDocument(text)
