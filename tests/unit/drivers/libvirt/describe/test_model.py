"""The whole model of a host from recorded XML: cells, devices under them, and what moved."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.libvirt_model import ANY_VF, DEVICES, FACTS, HOST, HOSTDEV, INTERFACE, interface, model
from kits.libvirt_node import domain

from agent.driver import GuestState, HostSettings
from drivers.host.domain_xml import guest_of, parse_domain
from drivers.libvirt.describe.cards import MdevSpec, UnitRecord
from drivers.libvirt.describe.devices import DeviceSettings, GuestDomain
from drivers.libvirt.describe.history import lost_mdevs, mdev_xml
from drivers.libvirt.describe.host import ModelSettings, build_model
from drivers.libvirt.xml import DomainCapabilities, MediatedDevice, Version, parse_node_device


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


def test_a_unit_is_remembered_while_a_domain_names_it() -> None:
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
    assert lost_mdevs(after.missing, after.devices, "boot-1") == [], "it was removed since this boot"
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
def test_each_unit_in_use_is_on_a_provider_that_has_it(
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


@pytest.mark.parametrize(
    ("libvirt", "driver", "migrates"),
    [
        ((9, 0, 0), "mlx5_vfio_pci", False),
        ((9, 10, 0), "igbvf", True),
        ((10, 0, 0), "mlx5_vfio_pci", True),
        ((0, 0, 0), "mlx5_vfio_pci", True),
    ],
)
def test_before_libvirt_10_only_the_bound_driver_migrates(
    libvirt: Version, driver: str, migrates: bool
) -> None:
    """An older libvirt binds vfio-pci, also where the kernel has another driver for the device."""
    devices = FACTS["vfs"]
    (card,) = (each for each in devices.cards if each.device.address == "0000:41:00.0")
    assert {vf.driver for vf in card.vfs} == {"igbvf"}
    known = dict.fromkeys((vf.address for vf in card.vfs), driver)
    host = replace(HOST, guests=DomainCapabilities("kvm", libvirt=libvirt))
    model = build_model(
        host,
        replace(devices, migration_drivers=known),
        (),
        {},
        "boot",
        ModelSettings("node1", HostSettings(), DEVICES),
    )
    (nic,) = (each for each in model.description.providers if each.device == card.key)
    assert ("HW_PCI_LIVE_MIGRATABLE" in nic.traits) is migrates


def test_a_function_that_a_guest_uses_has_what_the_kernel_says_of_it() -> None:
    used, told = "0000:41:10.0", "52:54:00:00:00:01 VLAN 7"
    of_domain = parse_domain(domain(1, devices=interface(used)))
    guests = [GuestDomain(guest_of(of_domain, GuestState.RUNNING, 0, frozenset()), of_domain)]
    devices = replace(FACTS["vfs"], ports={used: told, "0000:41:10.2": "52:54:00:00:00:02"})
    settings = ModelSettings("node1", HostSettings(), DEVICES)
    (guest,) = build_model(HOST, devices, guests, {}, "boot", settings).guests
    assert [(unit.device, unit.port) for unit in guest.units] == [("pci:0000:41:00.0", told)]
