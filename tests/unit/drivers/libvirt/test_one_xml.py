"""What a claim for a domain asks for is what the gate asks for, and what the driver sees used."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kits.examples import examples
from kits.fit import uuid_of
from kits.host_cells import host_cells, provider_tree, topology
from kits.libvirt_model import ANY_VF, FACTS, HOST
from kits.libvirt_model import DEVICES as DEVICES_OF_HOST
from kits.libvirt_model import model as recorded_model
from kits.paths import DATA

from agent.claims.attribution import Place
from agent.claims.book import Book
from agent.claims.claim import Claim, ClaimState, Restriction, claim_of_fit
from agent.claims.domain_demand import HostDevices, demand_of_domain, given_resources, request_for_domain
from agent.claims.fit import ProviderIndex
from agent.claims.host_cells import HostCells, HostLayout
from agent.claims.request import ClaimRequest, RequestGroup, TopologyRequest
from agent.claims.rows import Row
from agent.claims.use_difference import use_difference
from agent.driver import (
    Cell,
    DeviceKind,
    DomainNeeds,
    GivenDevice,
    GivenResources,
    Guest,
    GuestState,
    HostSettings,
    NeededDevice,
    Topology,
)
from agent.errors import UsageError
from agent.tree import Inventory, Provider, ProviderTree
from drivers.host.domain_writer import write_domain
from drivers.host.domain_xml import guest_of, parse_domain, read_needs
from drivers.host.providers import UnitLocation, locate_units
from drivers.host.sysfs import MemoryCell, PmemNamespace
from drivers.libvirt.describe.cards import parse_device_specs
from drivers.libvirt.describe.devices import vdpa_functions, with_functions
from drivers.libvirt.describe.host import (
    HostModel,
    ModelSettings,
    build_model,
    with_devices_of_domain,
    with_other_devices,
)
from drivers.libvirt.describe.memory import parse_pmem_namespaces
from drivers.libvirt.driver import LibvirtDriver

UUID = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
DEDICATED = frozenset({4, 5, 6, 7})
GPU = ProviderTree(
    [Provider("host", "host"), Provider("gpu", "gpu", "host", {"PGPU": Inventory(1)})],
)
DEVICES = HostDevices(ProviderIndex.of(GPU, "host"), {"gpu": {"PGPU": ("0000:43:00.0",)}})


class _NoDevices:
    cards = ()


class _Model:
    """A host that has contexts for encrypted memory, if `contexts`."""

    def __init__(self, contexts: bool) -> None:
        kinds = {"HW_CPU_X86_AMD_SEV", "HW_CPU_X86_AMD_SEV_SNP", "HW_CPU_X86_INTEL_TDX"}
        self.encryption = frozenset(kinds if contexts else ())
        self.pmem = ()
        self.devices = _NoDevices()
        self.topology = Topology((), frozenset())


class _Settings:
    pmem: dict[str, str] = {}  # noqa: RUF012


@settings(max_examples=examples(100))
@given(
    st.integers(1, 4),
    st.sets(st.sampled_from(sorted(DEDICATED))),
    st.sampled_from(["", "sev", "sev-snp", "tdx", "s390-pv"]),
    st.lists(st.tuples(st.sampled_from(["sgx-epc", "dimm", "nvdimm", "virtio-mem"]), st.integers(1, 300))),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from(["", " cpuset='0-3'", " cpuset='4-5'", " placement='auto'"]),
    st.sampled_from(["", "<hugepages/>", "<source type='file'/>", "<nosharepages/>"]),
    st.booleans(),
    st.sampled_from(["", "0", "4", "6", "7", "4-5"]),
)
def test_claim_and_gate_ask_for_the_same_amounts(
    vcpus: int,
    pins: set[int],
    security: str,
    memory: list[tuple[str, int]],
    contexts: bool,
    later: int,
    placement: str,
    backing: str,
    cells: bool,
    emulator: str,
) -> None:
    pinned = list(zip(range(vcpus), sorted(pins), strict=False))
    plugged_mb = sum(mb for _, mb in memory) if cells else 0  # libvirt adds it to that of the cells
    xml = (
        f"<domain type='kvm'><uuid>{UUID}</uuid><name>web</name>"
        f"<memory unit='MiB'>{4096 + plugged_mb}</memory>"
        f"<vcpu current='{vcpus}'{placement}>{vcpus + later}</vcpu><cputune>"
        + "".join(f"<vcpupin vcpu='{cpu}' cpuset='{pin}'/>" for cpu, pin in pinned)
        + "".join(f"<vcpupin vcpu='{cpu}' cpuset='0'/>" for cpu in range(vcpus, vcpus + later))
        + (f"<emulatorpin cpuset='{emulator}'/>" if emulator else "")
        + "<iothreadpin iothread='1' cpuset='4'/></cputune><iothreads>1</iothreads>"
        + f"<memoryBacking>{backing}</memoryBacking>"
        + (
            f"<cpu><numa><cell id='0' cpus='0-{vcpus + later - 1}' memory='4096' unit='MiB'/></numa></cpu>"
            if cells
            else ""
        )
        + (f"<launchSecurity type='{security}'/>" if security else "")
        + "<devices><tpm model='tpm-tis'><backend type='emulator' version='2.0'/></tpm>"
        + "".join(
            f"<memory model='{model}'><target><size unit='MiB'>{mb}</size></target></memory>"
            for model, mb in memory
        )
        + "</devices></domain>"
    )
    model, options = cast(HostModel, _Model(contexts)), cast(ModelSettings, _Settings())
    needs = with_other_devices(read_needs(xml, DEDICATED), xml, model, options)
    claimed = demand_of_domain(needs, ClaimRequest(UUID, ()), DEVICES).request.resources
    domain = parse_domain(xml)
    guest = guest_of(domain, GuestState.STARTING, 0, DEDICATED)
    asked = with_devices_of_domain(guest, domain, model.encryption, (), options).resources
    assert claimed == asked


@pytest.mark.parametrize("alias", ["", "fast"])
def test_a_disk_that_names_no_device_is_given_no_other_pci_device(alias: str) -> None:
    name = f"<alias name='ua-{alias}'/>" if alias else ""
    xml = (
        "<domain><memory unit='MiB'>64</memory><devices>"
        f"<disk type='nvme' device='disk'>{name}<source type='pci'/></disk></devices></domain>"
    )
    needs = read_needs(xml)
    assert needs.devices == (
        NeededDevice(DeviceKind.PCI, alias, "", needs.devices[0].text, by_name_only=True),
    )
    with pytest.raises(UsageError, match="has no address"):
        demand_of_domain(needs, ClaimRequest(UUID, ()), DEVICES)
    graphics = replace(needs, devices=(replace(needs.devices[0], alias="pgpu"),))
    assert demand_of_domain(graphics, ClaimRequest(UUID, ()), DEVICES).request.resources["PGPU"] == 1


def _emulator_pin(xml: str) -> str:
    """The host's CPUs for the emulator's threads, as the domain names them."""
    return "".join(re.findall("<emulatorpin cpuset='([^']*)'", xml.replace('"', "'")))


@dataclass(frozen=True)
class _Host:
    """A host as claim, gate and audit see it; `locations` and `of_device` are the driver's."""

    place: Place
    dedicated: frozenset[int]
    locations: Mapping[str, UnitLocation]
    of_device: Mapping[str, str]

    def needs_of(self, xml: str) -> DomainNeeds:
        return read_needs(xml, self.dedicated)

    def guest_of(self, xml: str) -> Guest:
        guest = guest_of(parse_domain(xml), GuestState.STARTING, 0, self.dedicated)
        return locate_units(guest, self.locations)

    def write(self, xml: str, given: GivenResources) -> str:
        return write_domain(xml, given)

    def check(self, xml: str, **beside: int) -> Claim:
        """Claim for the domain, and have the gate and the audit read the domain that it returned."""
        place = self.place
        devices = HostDevices(place.host, place.offered, cells=place.cells)
        groups = (RequestGroup("", beside),) if beside else ()
        demand = demand_of_domain(self.needs_of(xml), ClaimRequest(UUID, groups), devices)
        book = Book()
        book.refresh(place.host, {}, place.offered, place.cells)
        book.restrict(UUID, demand.restriction)
        fit = book.fit(demand.request)
        assert fit.fits, fit.shortfalls
        claim = replace(claim_of_fit(demand.request, fit), state=ClaimState.CLAIMED)

        given = given_resources(claim, place.host.tree, place.cells)
        written = self.write(xml, given)
        assert not _emulator_pin(xml) or _emulator_pin(written) == _emulator_pin(xml), written
        guest = self.guest_of(written)
        asked = request_for_domain(guest, place, self.of_device)
        assert asked.request.resources == claim.request.resources, written
        exact = {
            uuid: {name: set(units) for name, units in classes.items()}
            for uuid, classes in claim.units.items()
        }
        assert exact == {
            uuid: {name: set(units) for name, units in classes.items()}
            for uuid, classes in asked.named.items()
        }
        assert not asked.unmanaged
        assert not book.memory_shortfalls(UUID, guest.memory)
        unbound_mb = asked.request.resources.get("MEMORY_MB", 0) - sum(asked.memory.values())
        for uuid, memory_mb in asked.memory.items():
            assert memory_mb <= claim.allocations[uuid]["MEMORY_MB"] <= memory_mb + unbound_mb
        for suffix, uuids in asked.bound.items():
            (group,) = (group for group in asked.request.groups if group.suffix == suffix)
            for name, amount in group.resources.items():
                assert amount <= sum(claim.allocations.get(uuid, {}).get(name, 0) for uuid in uuids)
        if claim.cells and place.cells.providers:
            assert asked.memory, "the guest's memory is bound to the cells of its claim"

        row = Row(UUID, claimed={UUID: claim}, guest=replace(guest, state=GuestState.RUNNING))
        difference = use_difference(row, place)
        assert difference is not None and not difference.size, difference
        assert self.write(written, given) == written
        return claim


def _cells(count: int) -> _Host:
    """Cells with 4 shared and 4 dedicated CPUs each; the dedicated ones are 4 to 7, 12 to 15, 20 to 23."""
    layout = topology(count, shared=4)
    tree = provider_tree(layout)
    cells, stock = host_cells(layout, tree)
    locations = {
        str(cpu): UnitLocation("PCPU", f"numa:{cell.id}")
        for cell in layout.cells
        for cpu in cell.cpus & layout.dedicated_cpus
    }
    of_device = {f"numa:{cell.id}": uuid_of(f"cell{cell.id}") for cell in layout.cells}
    place = Place(ProviderIndex.of(tree, uuid_of("host")), stock.units, cells)
    return _Host(place, layout.dedicated_cpus, locations, of_device)


TWO_CELLS, THREE_CELLS = _cells(2), _cells(3)


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(64, 2048)), min_size=1, max_size=2),
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["dimm", "virtio-mem", "nvdimm"])), max_size=3),
    st.booleans(),
    st.sets(st.integers(0, 5)),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
)
def test_a_guest_with_cells_uses_what_was_claimed_for_it(
    cells: list[tuple[int, int]],
    plugged: list[tuple[int, str]],
    swapped: bool,
    pinned: set[int],
    isolated: bool,
    named: bool,
    later: int,
) -> None:
    vcpus = sum(count for count, _ in cells)
    numa, pins, memnodes, first = "", "", "", 0
    free = {0: [5, 6, 7], 1: [13, 14, 15]}
    for number, (count, memory_mb) in enumerate(cells):
        own = later if number == len(cells) - 1 else 0
        node = 1 - number if swapped else number
        numa += (
            f"<cell id='{number}' cpus='{first}-{first + count + own - 1}' memory='{memory_mb}' unit='MiB'/>"
        )
        memnodes += f"<memnode cellid='{number}' mode='strict' nodeset='{node}'/>"
        for cpu in range(first, first + count):
            if cpu in pinned:
                pins += f"<vcpupin vcpu='{cpu}'" + (f" cpuset='{free[node].pop()}'/>" if named else "/>")
        first += count
    node = int(swapped)
    emulator = f"<emulatorpin cpuset='{(4, 12)[node]}'/>" if isolated else ""
    devices = [(min(cell, len(cells) - 1), model) for cell, model in plugged]
    memory_mb = sum(size for _, size in cells) + 128 * len(devices)
    claim = TWO_CELLS.check(
        f"<domain type='kvm'><name>web</name><uuid>{UUID}</uuid><memory unit='MiB'>{memory_mb}</memory>"
        f"<maxMemory slots='8' unit='GiB'>16</maxMemory><vcpu current='{vcpus}'>{vcpus + later}</vcpu>"
        f"<cputune>{pins}{emulator}</cputune><numatune>{memnodes}</numatune><cpu><numa>{numa}</numa></cpu>"
        "<devices>"
        + "".join(
            f"<memory model='{model}'><source><path>/p</path></source>"
            f"<target><size unit='MiB'>128</size><node>{cell}</node></target></memory>"
            for cell, model in devices
        )
        + "</devices></domain>"
    )
    alone = sum(1 for cpu in pinned if cpu < vcpus) + isolated
    in_files = sum(128 for _, model in devices if model == "nvdimm")
    amounts = {"VCPU": vcpus + isolated - alone, "PCPU": alone, "MEMORY_MB": memory_mb - in_files}
    assert claim.request.resources == {name: amount for name, amount in amounts.items() if amount}


@settings(max_examples=examples(150))
@given(
    st.lists(st.sampled_from([None, 5, 6, 13, 14]), min_size=1, max_size=4),
    st.sets(st.integers(1, 3)),
    st.sampled_from([None, 4, 5, 12, 13]),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([None, 0, 1])), max_size=2),
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from([None, 0, 1])), max_size=2),
    st.sampled_from([None, 0, 1]),
)
def test_a_domain_that_names_its_places_is_claimed_there(
    pins: list[int | None],
    absent: set[int],
    emulator: int | None,
    cells: list[tuple[int, int | None]],
    plugged: list[tuple[int, int | None]],
    node: int | None,
) -> None:
    """libvirt starts it as it is, whatever cells a claim would have chosen for it."""
    absent &= set(range(len(pins)))
    vcpus = "".join(
        f"<vcpu id='{cpu}' enabled='{'no' if cpu in absent else 'yes'}'/>" for cpu in range(len(pins))
    )
    numa, memnodes, first = "", "", 0
    for number, (count, host_cell) in enumerate(cells):
        last = len(pins) if number == len(cells) - 1 else min(first + count, len(pins))
        cpus = f" cpus='{first}-{last - 1}'" if last > first else ""
        numa, first = f"{numa}<cell id='{number}'{cpus} memory='512' unit='MiB'/>", last
        if host_cell is not None:
            memnodes += f"<memnode cellid='{number}' mode='strict' nodeset='{host_cell}'/>"
    devices = [(cell, own) for cell, own in plugged if cell < len(cells)]
    memory_mb = 512 * len(cells or [0]) + 128 * len(devices)
    claim = TWO_CELLS.check(
        f"<domain type='kvm'><name>web</name><uuid>{UUID}</uuid><memory unit='MiB'>{memory_mb}</memory>"
        f"<maxMemory slots='8' unit='GiB'>16</maxMemory>"
        f"<vcpu current='{len(pins) - len(absent)}'>{len(pins)}</vcpu><vcpus>{vcpus}</vcpus><cputune>"
        + "".join(f"<vcpupin vcpu='{cpu}' cpuset='{pin}'/>" for cpu, pin in enumerate(pins) if pin)
        + (f"<emulatorpin cpuset='{emulator}'/>" if emulator else "")
        + "</cputune><numatune>"
        + (f"<memory mode='strict' nodeset='{node}'/>" if node is not None else "")
        + f"{memnodes}</numatune><cpu><numa>{numa}</numa></cpu><devices>"
        + "".join(
            "<memory model='dimm'>"
            + (f"<source><nodemask>{own}</nodemask></source>" if own is not None else "")
            + f"<target><size unit='MiB'>128</size><node>{cell}</node></target></memory>"
            for cell, own in devices
        )
        + "</devices></domain>"
    )
    named = {pin for cpu, pin in enumerate(pins) if pin and cpu not in absent}
    alone = len(named | ({emulator} if emulator else set()))
    floating = sum(1 for cpu, pin in enumerate(pins) if pin is None and cpu not in absent)
    amounts = {"VCPU": floating, "PCPU": alone, "MEMORY_MB": memory_mb}
    assert claim.request.resources == {name: amount for name, amount in amounts.items() if amount}


@pytest.mark.parametrize(
    ("pins", "emulator"), [((13, 5), None), ((5, 13), None), ((None, 5), 13), ((13, 5), 5)]
)
def test_a_guest_cell_is_on_the_cell_of_the_cpus_that_it_names(
    pins: tuple[int | None, int], emulator: int | None
) -> None:
    """No <memnode> says it; each cell needs as many CPUs as the other."""
    claim = TWO_CELLS.check(
        f"<domain type='kvm'><name>web</name><uuid>{UUID}</uuid><memory unit='MiB'>1024</memory>"
        "<vcpu>2</vcpu><cputune>"
        + "".join(f"<vcpupin vcpu='{cpu}' cpuset='{pin}'/>" for cpu, pin in enumerate(pins) if pin)
        + (f"<emulatorpin cpuset='{emulator}'/>" if emulator else "")
        + "</cputune><cpu><numa><cell id='0' cpus='0' memory='512' unit='MiB'/>"
        "<cell id='1' cpus='1' memory='512' unit='MiB'/></numa></cpu></domain>"
    )
    first = pins[0] or emulator
    assert [cell.host_cell for cell in claim.cells] == ([1, 0] if first == 13 else [0, 1])


DEDICATED_OF_TWO = frozenset((*range(4, 8), *range(12, 16)))
WIDE = ("0", "8", "0-3", "0-3,8-11", "5,13", "4-7,12-15", "0-15")
WHOLE = ("mode='strict' nodeset='{}'", "mode='preferred' nodeset='1'", "mode='interleave' nodeset='0-1'")


def _alone(cpus: str | None) -> set[str]:
    return {cpus} if cpus is not None and cpus.isdecimal() and int(cpus) in DEDICATED_OF_TWO else set()


@settings(max_examples=examples(200))
@given(
    st.sampled_from([(TWO_CELLS, "0-1"), *((THREE_CELLS, nodes) for nodes in ("0-1", "1-2", "0-2"))]),
    st.lists(st.sampled_from([None, "5", "13", "14", *WIDE]), min_size=1, max_size=3),
    st.sampled_from([None, "6", "14", "8", "5,13"]),
    st.lists(
        st.sampled_from(
            ["", *(f"mode='strict' nodeset='{nodes}'" for nodes in ("0", "1", "0-1"))]
            + [f"mode='{mode}' nodeset='1'" for mode in ("preferred", "restrictive", "interleave")]
        ),
        max_size=2,
    ),
    st.lists(
        st.tuples(st.sampled_from(["dimm", "virtio-mem"]), st.sampled_from(["", "1", "0-1"])), max_size=2
    ),
    st.sampled_from(["", *(WHOLE[0].format(nodes) for nodes in ("0", "1", "0-1")), *WHOLE[1:]]),
)
@example((THREE_CELLS, "1-2"), [None], None, ["mode='strict' nodeset='0'"], [], WHOLE[0].format("0-1"))
def test_a_domain_that_names_several_places_for_one_thing_is_claimed_as_it_is(
    host: tuple[_Host, str],
    pins: list[str | None],
    emulator: str | None,
    cells: list[str],
    plugged: list[tuple[str, str]],
    whole: str,
) -> None:
    """A vCPU that floats over some CPUs, and memory that may be on several cells of the host."""
    cells = cells[: len(pins)]
    plugged = plugged if cells else []
    memory_mb = 512 * len(cells or [""]) + 128 * len(plugged)
    xml = (
        f"<domain type='kvm'><name>web</name><uuid>{UUID}</uuid><memory unit='MiB'>{memory_mb}</memory>"
        f"<maxMemory slots='8' unit='GiB'>16</maxMemory><vcpu>{len(pins)}</vcpu><cputune>"
        + "".join(f"<vcpupin vcpu='{cpu}' cpuset='{pin}'/>" for cpu, pin in enumerate(pins) if pin)
        + (f"<emulatorpin cpuset='{emulator}'/>" if emulator else "")
        + "</cputune><numatune>"
        + (f"<memory {whole}/>" if whole else "")
        + "".join(f"<memnode cellid='{cell}' {bound}/>" for cell, bound in enumerate(cells) if bound)
        + "</numatune><cpu><numa>"
        + "".join(
            f"<cell id='{cell}' cpus='{cell}{f'-{len(pins) - 1}' if cell == len(cells) - 1 else ''}' "
            "memory='512' unit='MiB'/>"
            for cell in range(len(cells))
        )
        + "</numa></cpu><devices>"
        + "".join(
            f"<memory model='{model}'>"
            + (f"<source><nodemask>{own}</nodemask></source>" if own else "")
            + "<target><size unit='MiB'>128</size><node>0</node></target></memory>"
            for model, own in plugged
        )
        + "</devices></domain>"
    )
    on_host, several = host
    claim = on_host.check(re.sub("(nodeset='|<nodemask>)0-1", rf"\g<1>{several}", xml))
    alone = set().union(_alone(emulator), *map(_alone, pins))
    amounts = {"VCPU": sum(not _alone(pin) for pin in pins), "PCPU": len(alone), "MEMORY_MB": memory_mb}
    assert claim.request.resources == {name: amount for name, amount in amounts.items() if amount}


RECORDED = ["vm-mdev", "vm-vf", "vm-gpu", "vm-both", "vm-vf-inactive", "vm-off", "vm-vendor"]


@pytest.mark.parametrize(
    ("name", "moment"), [*((name, "domains") for name in RECORDED), ("vm-migrated-in", "migrated-in")]
)
@pytest.mark.parametrize("numa", [False, True])
def test_a_recorded_domain_uses_what_is_claimed_for_it(name: str, moment: str, numa: bool) -> None:
    xml = (DATA / "libvirt" / "domains" / f"{name}.xml").read_text()
    xml = re.sub("<uuid>.*</uuid>", f"<uuid>{UUID}</uuid>", xml)
    _recorded_host(moment, xml, numa=numa).check(xml)


def _recorded_host(moment: str, *xml: str, numa: bool) -> _Host:
    gpu = parse_device_specs(('{"vendor_id": "10de", "product_id": "1eb8"}',))
    devices = replace(DEVICES_OF_HOST, specs=(*ANY_VF, *gpu))
    return _host_of(recorded_model(moment, *xml, numa=numa, devices=devices), _Host)


def _host_of(model: HostModel, kind: type[_Host]) -> Any:
    tree = ProviderTree(
        Provider(
            each.name,
            each.name,
            each.parent,
            {key: Inventory(inventory.total) for key, inventory in each.inventories.items()},
            each.traits,
        )
        for each in model.description.providers
    )
    offered = {each.name: each.units for each in model.description.providers if each.units}
    host = ProviderIndex.of(tree, "node1")
    of_device = {each.device: each.name for each in model.description.providers}
    of_cell = {each.name: each.cell for each in model.description.providers if each.cell is not None}
    cells = HostCells.of(HostLayout(model.topology, of_cell), host) if model.topology.near else HostCells()
    return kind(Place(host, offered, cells), frozenset(), model.locations, of_device)


RECORDED_HOST = _recorded_host("vfs", numa=False)
ELEMENTS = {
    "VGPU": "<hostdev mode='subsystem' type='mdev' model='vfio-pci'>{}</hostdev>",
    "hostdev": "<hostdev mode='subsystem' type='pci' managed='yes'>{}</hostdev>",
    "SRIOV_NET_VF": "<interface type='hostdev'>{}</interface>",
}


@settings(max_examples=examples(100))
@given(
    st.lists(
        st.tuples(st.sampled_from(["VGPU", "SRIOV_NET_VF", "hostdev"]), st.integers(0, 40), st.booleans()),
        max_size=4,
    )
)
def test_a_guest_with_devices_uses_what_was_claimed_for_it(wanted: list[tuple[str, int, bool]]) -> None:
    """A virtual function is an <interface> or a <hostdev>; each device is named, or left to the claim."""
    elements, taken, amounts = "", set(), {"VCPU": 1, "MEMORY_MB": 64}
    for kind, number, is_named in wanted:
        name = "SRIOV_NET_VF" if kind == "hostdev" else kind
        units = sorted(
            unit
            for of in RECORDED_HOST.place.offered.values()
            for unit in of.get(name, ())
            if unit not in taken
        )
        unit = units[number % len(units)]
        amounts[name] = amounts.get(name, 0) + 1
        source = ""
        if kind == "hostdev" or (is_named and name == "SRIOV_NET_VF"):
            domain, bus, slot, function = re.split("[:.]", unit)
            source = (
                f"<source><address type='pci' domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' "
                f"function='0x{function}'/></source>"
            )
        elif is_named:
            source = f"<source><address uuid='{unit}'/></source>"
        else:
            source = f"<alias name='ua-{'nvidia-11' if name == 'VGPU' else 'sriov_net_vf'}'/>"
        if "source" in source:
            taken.add(unit)
        elements += ELEMENTS[kind].format(source)
    claim = RECORDED_HOST.check(
        f"<domain type='kvm'><name>web</name><uuid>{UUID}</uuid><memory unit='MiB'>64</memory><vcpu>1</vcpu>"
        f"<devices>{elements}</devices></domain>"
    )
    assert claim.request.resources == amounts


NIC = next(card for card in FACTS["vfs"].cards if len(card.vfs) > 2)
VDPA = {card.address: f"/dev/vhost-vdpa-{number}" for number, card in enumerate(NIC.vfs[:3])}
NAMESPACES = tuple(PmemNamespace(f"ns{n}", f"/dev/dax{n}.0", 2**30, 2**21) for n in range(3))
MORE = ModelSettings(
    "node1", HostSettings(), DEVICES_OF_HOST, pmem=parse_pmem_namespaces(["6GB:ns0|ns1", "BIG:ns2"])
)
CARDS = tuple(replace(card, vdpa=VDPA) if card is NIC else card for card in FACTS["vfs"].cards)
MODEL = build_model(
    replace(HOST, pmem=NAMESPACES), replace(FACTS["vfs"], cards=CARDS), (), {}, "boot-1", MORE
)


class _HostWithMore(_Host):
    """A host with functions over vDPA and namespaces of memory, which only the libvirt driver knows."""

    def needs_of(self, xml: str) -> DomainNeeds:
        return with_other_devices(super().needs_of(xml), xml, MODEL, MORE)

    def guest_of(self, xml: str) -> Guest:
        domain = parse_domain(xml)
        functions = vdpa_functions(MODEL.devices.cards)
        guest = guest_of(with_functions(domain, functions), GuestState.STARTING, 0, self.dedicated)
        return with_devices_of_domain(
            locate_units(guest, self.locations), domain, frozenset(), MODEL.pmem, MORE
        )

    def write(self, xml: str, given: GivenResources) -> str:
        driver = SimpleNamespace(_model=MODEL, _model_settings=MORE)
        return LibvirtDriver.write_domain(cast(LibvirtDriver, driver), xml, given)


@settings(max_examples=examples(60))
@given(
    st.sets(st.sampled_from(sorted(VDPA.values()))),
    st.sets(st.sampled_from([0, 1, 2])),
    st.sampled_from(["nvdimm", "virtio-pmem"]),
)
def test_a_guest_with_vdpa_and_namespaces_uses_what_was_claimed_for_it(
    functions: set[str], namespaces: set[int], model: str
) -> None:
    claim = _host_of(MODEL, _HostWithMore).check(
        f"<domain type='kvm'><name>web</name><uuid>{UUID}</uuid><vcpu>1</vcpu>"
        f"<memory unit='MiB'>{64 + 1024 * len(namespaces)}</memory><devices>"
        + "".join(f"<interface type='vdpa'><source dev='{path}'/></interface>" for path in sorted(functions))
        + "".join(
            f"<memory model='{model}'><source><path>/dev/dax{number}.0</path></source>"
            "<target><size unit='GiB'>1</size></target></memory>"
            for number in sorted(namespaces)
        )
        + "</devices></domain>"
    )
    amounts = {
        "VCPU": 1,
        "MEMORY_MB": 64,
        "CUSTOM_VDPA": len(functions),
        "CUSTOM_PMEM_NAMESPACE_6GB": len(namespaces & {0, 1}),
        "CUSTOM_PMEM_NAMESPACE_BIG": len(namespaces & {2}),
    }
    assert claim.request.resources == {name: amount for name, amount in amounts.items() if amount}


CXL_CELLS = tuple(Cell(cell, frozenset(), 4096) for cell in (2, 3))
WITH_CXL = HOST.with_cells((*HOST.capabilities.cells, *CXL_CELLS))
CPULESS = "CUSTOM_CPULESS_MEMORY_MB"


class _HostWithCxl(_Host):
    """A host with two cells without CPUs; guests may have the memory of both."""

    def needs_of(self, xml: str) -> DomainNeeds:
        return with_other_devices(super().needs_of(xml), xml, _cxl_model(), MORE)

    def guest_of(self, xml: str) -> Guest:
        return with_devices_of_domain(super().guest_of(xml), parse_domain(xml), frozenset(), (), MORE, (2, 3))


def _cxl_model(numa: bool = True) -> HostModel:
    memory_cells = {2: MemoryCell("cxl", 0, 14), 3: MemoryCell("cxl", 1, 14)}
    facts = replace(FACTS["boot"], memory_cells=memory_cells)
    settings = replace(MORE, cpuless=("cxl",), report_numa=numa)
    return build_model(WITH_CXL, facts, (), {}, "boot-1", settings)


NUMA = "<cpu><numa><cell id='0' cpus='0-1' memory='512' unit='MiB'/>{}</numa></cpu>"
ALONE = "<cell id='{}' memory='256' unit='MiB'/>"
TUNE = "<numatune>{}</numatune>"
BOUND = "<memnode cellid='{}' mode='strict' nodeset='{}'/>"
OF_ALL = "<memory mode='strict' nodeset='{}'/>"


@pytest.mark.parametrize("numa", [False, True])
@pytest.mark.parametrize(
    ("inside", "on", "cells"),
    [
        (NUMA.format(ALONE.format(1)) + TUNE.format(BOUND.format(1, 3)), {3: 256}, 0),
        (NUMA.format(ALONE.format(1)) + TUNE.format(BOUND.format(0, 1) + BOUND.format(1, 3)), {3: 256}, 1),
        (
            NUMA.format(ALONE.format(1) + ALONE.format(2))
            + TUNE.format(BOUND.format(1, 3) + BOUND.format(2, 2)),
            {3: 256, 2: 256},
            0,
        ),
        (TUNE.format(OF_ALL.format("2")), {2: 512}, 0),
        (TUNE.format(OF_ALL.format("0,3")), {3: 256}, 0),
        (TUNE.format(OF_ALL.format("0-3")), {2: 128, 3: 128}, 0),
        (NUMA.format("") + TUNE.format(BOUND.format(0, 2)), {2: 512}, 0),
    ],
)
def test_memory_of_cells_without_cpus_is_claimed_where_the_domain_names_it(
    inside: str, on: dict[int, int], cells: int, numa: bool
) -> None:
    memory_mb = 512 + 256 * inside.count("<cell id='1'") + 256 * inside.count("<cell id='2'")
    host = _host_of(_cxl_model(numa), _HostWithCxl)
    claim = host.check(
        f"<domain type='kvm'><name>web</name><uuid>{UUID}</uuid><memory unit='MiB'>{memory_mb}</memory>"
        f"<vcpu>2</vcpu>{inside}</domain>"
    )
    apart = {uuid: amounts[CPULESS] for uuid, amounts in claim.allocations.items() if CPULESS in amounts}
    assert apart == {f"node1_numa{cell}_memory": amount for cell, amount in on.items()}
    assert claim.request.resources.get("MEMORY_MB", 0) == memory_mb - sum(on.values())
    assert len(claim.cells) == cells


def test_a_claim_gives_a_domain_a_cell_for_its_memory_of_a_cell_without_cpus() -> None:
    """Its <memory> is that of both; asked for once more, the domain that was written is the claim's."""
    host = _host_of(_cxl_model(), _HostWithCxl)
    xml = f"<domain><uuid>{UUID}</uuid><memory unit='MiB'>512</memory><vcpu>2</vcpu>{{}}</domain>"
    for inside in ("", "<currentMemory unit='MiB'>512</currentMemory>", NUMA.format("")):
        claim = host.check(xml.format(inside), **{CPULESS: 256})
        assert claim.request.resources == {"VCPU": 2, "MEMORY_MB": 512, CPULESS: 256}
    given = given_resources(claim, host.place.host.tree, host.place.cells)
    written = host.write(xml.format(""), replace(given, cells=(), cpuless_mb={3: 256}))
    for beside in ({CPULESS: 256}, {}):
        again = host.check(written, **beside)
        assert again.request.resources == claim.request.resources
        assert again.allocations["node1_numa3_memory"] == {CPULESS: 256}, "on the cell that it names"
    devices = HostDevices(host.place.host, host.place.offered, cells=host.place.cells)
    demand = demand_of_domain(host.needs_of(written), ClaimRequest(UUID, ()), devices)
    flavor = RequestGroup("", {"VCPU": 2, "MEMORY_MB": 512, CPULESS: 256})
    assert demand.is_met_by(ClaimRequest(UUID, (flavor,))), "the claim by which it was written"
    assert not demand.is_met_by(ClaimRequest(UUID, (replace(flavor, resources={"VCPU": 2, CPULESS: 256}),)))
    assert list(given.cpuless_mb.values()) == [256]
    given = replace(given, cells=(), cpuless_mb={3: 256})
    written = host.write(xml.format("<currentMemory unit='MiB'>512</currentMemory>"), given)
    root = ElementTree.fromstring(written)
    assert [root.findtext(tag) for tag in ("memory", "currentMemory")] == ["768", "768"]
    assert [dict(cell.attrib) for cell in root.findall("cpu/numa/cell")] == [
        {"id": "0", "cpus": "0-1", "memory": f"{512 * 1024}", "unit": "KiB"},
        {"id": "1", "memory": f"{256 * 1024}", "unit": "KiB"},
    ]
    assert [dict(each.attrib) for each in root.findall("numatune/*")] == [
        {"cellid": "1", "mode": "strict", "nodeset": "3"}
    ]
    elsewhere = write_domain(written, replace(given, cpuless_mb={5: 256}), replace=True)
    assert elsewhere == written.replace('nodeset="3"', 'nodeset="5"').replace("nodeset='3'", "nodeset='5'")
    with pytest.raises(
        UsageError, match="<memnode cellid='1'> is on cell 3 of the host, and the claim is on 5"
    ):
        write_domain(written, replace(given, cpuless_mb={5: 256}))
    alike = xml.format(TUNE.format(OF_ALL.format("0")))
    with pytest.raises(UsageError, match="<numatune> binds all memory alike, and the claim has 256 MiB"):
        write_domain(alike, given, replace=True)
    only = ElementTree.fromstring(
        write_domain(xml.format("").replace("512", "256"), replace(given, memory_mb=0))
    )
    assert [each.get("nodeset") for each in only.findall("numatune/*")] == ["3", "3"], "all of its memory"


@pytest.mark.parametrize("numa", [False, True])
@pytest.mark.parametrize(("far", "near"), [(2, 0), (3, 1)])
def test_a_guest_is_on_the_cell_that_is_nearest_to_its_memory_of_a_cell_without_cpus(
    far: int, near: int, numa: bool
) -> None:
    place = _host_of(_cxl_model(numa), _HostWithCxl).place
    book = Book()
    book.refresh(place.host, {}, place.offered, place.cells)
    groups = (RequestGroup("", {"VCPU": 1, "MEMORY_MB": 64}), RequestGroup("_FAR", {CPULESS: 64}))
    asked = ClaimRequest(UUID, groups, topology=TopologyRequest(cells=1))
    book.restrict(UUID, Restriction(bound={"_FAR": frozenset({f"node1_numa{far}_memory"})}))
    fit = book.fit(asked)
    assert [cell.host_cell for cell in fit.cells] == [near]


def test_a_device_of_no_known_cell_is_not_put_on_the_guest_cell_whose_memory_is_bound_to_none() -> None:
    device = GivenDevice("", "PGPU", "0000:43:00.0")
    given = GivenResources(UUID, "web", 2, 512, (device,), cpuless_mb={2: 256})
    xml = "<domain><os><type machine='q35'>hvm</type></os></domain>"
    assert "pcie-expander-bus" not in write_domain(xml, given)
    assert "pcie-expander-bus" in write_domain(xml, replace(given, devices=(replace(device, cell=2),)))
