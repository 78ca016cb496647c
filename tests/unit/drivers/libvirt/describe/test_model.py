"""The whole model of a host from recorded XML: cells, devices under them, and what moved."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from kits.libvirt_model import FACTS, HOST, HOSTDEV, INTERFACE
from kits.libvirt_node import domain, domain_uuid

from agent.driver import DescribedProvider, GuestState, HostSettings, MoveInstruction
from drivers.host.domain_xml import guest_of, parse_domain
from drivers.libvirt.describe.cards import UnitRecord
from drivers.libvirt.describe.device_spec import MdevSpec, parse_device_specs
from drivers.libvirt.describe.devices import DeviceSettings
from drivers.libvirt.describe.history import DeviceHistory, former_cells, record_cells, removed_cells
from drivers.libvirt.describe.lost_mdevs import lost_mdevs, mdev_xml
from drivers.libvirt.describe.model import HostModel, ModelSettings, build_model
from drivers.libvirt.describe.moves import GuestDomain
from drivers.libvirt.xml.nodedevs import MediatedDevice, parse_node_device

ANY_VF = parse_device_specs(('{"vendor_id": "8086", "product_id": "10ca"}',))
DEVICES = DeviceSettings(ANY_VF, (MdevSpec("nvidia-11"), MdevSpec("nvidia-471")))
ON_CELL_1 = "<cputune><vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='3'/></cputune>"
MEMORY_ON_1 = "<numatune><memory mode='strict' nodeset='1'/></numatune>"


def model(
    moment: str,
    *xml: str,
    numa: bool = False,
    host: HostSettings | None = None,
    known: Mapping[str, UnitRecord] | None = None,
    devices: DeviceSettings = DEVICES,
) -> HostModel:
    host = host or HostSettings()
    parsed = [parse_domain(text) for text in xml]
    tenants = [
        GuestDomain(guest_of(each, GuestState.RUNNING, 0, host.cpu_dedicated_set or frozenset()), each)
        for each in parsed
    ]
    settings = ModelSettings("node1", host, devices, numa)
    return build_model(HOST, FACTS[moment], tenants, known or {}, "boot-1", settings)


def moves(found: HostModel, source: str, target: str) -> list[MoveInstruction]:
    return [
        move
        for move in found.description.moves
        if (move.from_resource_provider, move.to_resource_provider) == (source, target)
    ]


def test_devices_hang_under_their_cell() -> None:
    flat, nested = model("vfs"), model("vfs", numa=True)
    assert {provider.parent for provider in flat.description.providers} == {None, "node1"}
    cells = {provider.device: provider for provider in nested.description.providers}
    assert cells["numa:1"].traits == {"HW_NUMA_ROOT", "CUSTOM_HUGEPAGES_2048KIB"}
    pages = cells["pages:1:2048"]
    assert (pages.parent, pages.cell) == (cells["numa:1"].name, 1)
    assert {name: each.total for name, each in pages.inventories.items()} == {"CUSTOM_HUGEPAGES_2048KIB": 32}
    first = {"pci:0000:41:00.0", "pci:0000:42:00.0"}
    for provider in nested.description.providers:
        if provider.device.startswith("pci:"):
            assert provider.parent == ("node1_numa0" if provider.device in first else "node1_numa1")


def test_moves_between_the_host_and_its_cells() -> None:
    guests = (domain(1, vcpus=2, inside=ON_CELL_1), domain(2, inside=MEMORY_ON_1), domain(3))
    nested, flat = model("boot", *guests, numa=True), model("boot", *guests)
    for cell in nested.topology.cells:
        (there,) = moves(nested, "node1", f"node1_numa{cell.id}")
        (back,) = moves(flat, f"node1_numa{cell.id}", "node1")
        assert there.moved_resources == {"VCPU": len(cell.cpus), "MEMORY_MB": cell.memory_mb}
        assert (back.moved_resources, back.consumers) == (there.moved_resources, None)
        assert there.consumers == (
            {
                domain_uuid(1): {"VCPU": 2, "MEMORY_MB": 512},
                domain_uuid(2): {"VCPU": 1, "MEMORY_MB": 512},
            }
            if cell.id == 1
            else {}
        ), "what floats is not said to be anywhere"


def test_cells_are_remembered_once_there_are_others() -> None:
    """So that what was counted in those that are gone, or in larger ones, comes to those that there are."""

    def seen(known: DeviceHistory, *cells: int) -> DeviceHistory:
        described = [DescribedProvider(f"x{cell}", "node1", device=f"numa:{cell}") for cell in cells]
        return record_cells(known, [DescribedProvider("node1"), *described])

    two = seen({"pci:x": ("VGPU",)}, 0, 1)
    assert [former_cells(cell, two) for cell in (0, 1)] == [(), ()]
    assert seen(two, 0, 1) is seen(two) is two, "the same, or not reported: nothing new"
    one = seen(two, 0)
    assert (former_cells(0, one), removed_cells(one, {0})) == ((1,), (1,))
    assert seen(one, 0) == one
    many = seen(one, *range(12))
    assert former_cells(0, many) == tuple(range(1, 12)), "in the order of their numbers"
    assert (many["pci:x"], removed_cells(many, range(12))) == (("VGPU",), ())


def test_a_guest_of_both_cells_has_its_dedicated_cpus_where_they_are() -> None:
    pins = "<cputune><vcpupin vcpu='0' cpuset='1'/><vcpupin vcpu='1' cpuset='3'/></cputune>"
    host = HostSettings(cpu_shared_set=frozenset({0}), cpu_dedicated_set=frozenset({1, 3}))
    found = model("boot", domain(1, vcpus=2, inside=pins), numa=True, host=host)
    assert [unit.device for unit in found.guests[0].units] == ["numa:0", "numa:1"]
    for cell in (0, 1):
        plain, renamed = sorted(
            moves(found, "node1", f"node1_numa{cell}"), key=lambda move: len(move.becomes)
        )
        assert plain.consumers == {domain_uuid(1): {"PCPU": 1}}
        assert (renamed.becomes, renamed.consumers) == (
            {"VCPU": "PCPU"},
            {domain_uuid(1): {"VCPU": 1}},
        )


def test_moves_of_pinned_guests_to_dedicated_cpus_and_back() -> None:
    dedicated = HostSettings(cpu_shared_set=frozenset({0}), cpu_dedicated_set=frozenset({2, 3}))
    guest = domain(1, vcpus=2, inside=ON_CELL_1)
    (move,) = moves(model("boot", guest, host=dedicated), "node1", "node1")
    assert (move.moved_resources, move.becomes) == ({"VCPU": 2}, {"VCPU": "PCPU"})
    assert move.consumers == {domain_uuid(1): {"VCPU": 2}}
    (back,) = moves(model("boot", guest), "node1", "node1")
    assert (back.becomes, back.consumers) == ({"PCPU": "VCPU"}, None)


def test_a_unit_that_was_there_before_is_remembered_until_nobody_names_it() -> None:
    uuid = "33333333-3333-4333-8333-333333333333"
    guest = domain(1, devices=HOSTDEV.format(uuid))
    seen = model("mdevs", guest)
    assert seen.units == {
        uuid: UnitRecord(uuid, "0000:84:00.0", "VGPU", "0000:84:00.1", "nvidia-471", "boot-1")
    }
    assert seen.missing == ()
    gone = model("boot", guest, known=seen.units)
    assert gone.missing == (seen.units[uuid],)
    assert gone.guests[0].units == seen.guests[0].units
    assert gone.units == seen.units
    assert model("boot", known=seen.units).units == {}


def test_what_a_reboot_took_is_made_again_where_it_was() -> None:
    """Scenario 97: the same uuid and type on the same parent, as soon as that is there."""
    uuids = ("33333333-3333-4333-8333-333333333333", "11111111-1111-4111-8111-111111111111")
    guest = domain(1, devices="".join(map(HOSTDEV.format, uuids)))
    seen = model("mdevs", guest)
    after = model("boot", guest, known=seen.units)
    assert lost_mdevs(after.missing, after.devices, "boot-1") == [], "somebody removed it in this boot"
    (first,) = lost_mdevs(after.missing, after.devices, "boot-2")
    assert (first.record.unit, first.parent, first.defined_name) == (uuids[1], "pci_0000_42_00_0", None)
    parsed = parse_node_device(mdev_xml(first).replace("<device>", "<device><name>new</name>"))
    assert parsed == MediatedDevice("new", uuids[1], "pci_0000_42_00_0", "nvidia-11")
    with_vfs = model("vfs", guest, known=seen.units)
    assert [lost.parent for lost in lost_mdevs(with_vfs.missing, with_vfs.devices, "boot-2")] == [
        "pci_0000_42_00_0",
        "pci_0000_84_00_1",
    ], "once its virtual functions are there"
    assert lost_mdevs(seen.missing, seen.devices, "boot-2") == []


MDEVS = [mdev.uuid for card in FACTS["domains"].cards for mdev in card.mdevs]
VFS = [vf.address for card in FACTS["domains"].cards for vf in card.vfs]


@given(
    mdevs=st.lists(st.sampled_from(MDEVS), unique=True),
    vfs=st.lists(st.sampled_from(VFS), unique=True),
    devices=st.builds(
        DeviceSettings,
        st.sampled_from([(), ANY_VF]),
        st.lists(
            st.builds(
                MdevSpec,
                st.sampled_from(["nvidia-11", "nvidia-14", "nvidia-471", "nvidia-9"]),
                st.just(frozenset()),
                st.sampled_from(["VGPU", "CUSTOM_X"]),
                st.none() | st.integers(1, 3),
            ),
            max_size=3,
        ).map(tuple),
    ),
    numa=st.booleans(),
    then=st.sampled_from(["boot", "vfs", "domains"]),
)
def test_whatever_is_held_is_on_a_provider_that_has_it(
    mdevs: list[str], vfs: list[str], devices: DeviceSettings, numa: bool, then: str
) -> None:
    """Whatever the settings say, and though a reboot took the units away meanwhile."""
    parts = [INTERFACE.format(vf.replace(".", ":").split(":")) for vf in vfs]
    guest = domain(1, devices="".join([*map(HOSTDEV.format, mdevs), *parts]))
    seen = model("domains", guest, numa=numa, devices=devices)
    later = model(then, guest, numa=numa, devices=devices, known=seen.units)
    for found in (seen, later):
        providers = {provider.device: provider for provider in found.description.providers}
        amounts: dict[tuple[str, str], int] = {}
        for unit in found.guests[0].units:
            if unit.device.startswith("mdev:"):
                assert unit.unit == "55555555-5555-4555-8555-555555555555", "defined, was never there"
                continue
            place = (unit.device, unit.resource_class)
            amounts[place] = amounts.get(place, 0) + 1
        for (device, resource_class), amount in amounts.items():
            assert amount <= providers[device].inventories[resource_class].total
        for move in found.description.moves:
            for shares in (move.consumers or {}).values():
                assert shares.keys() <= move.moved_resources.keys()
