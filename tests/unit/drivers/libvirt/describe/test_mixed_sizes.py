"""A card in mixed-size mode, as sysfs shows it: what it offers, and which unit each vGPU of a guest is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from kits.libvirt_model import HOST, facts

from agent.driver import (
    CarvedUnit,
    DescribedProvider,
    DeviceKind,
    GivenDevice,
    GivenResources,
    GuestState,
    HostSettings,
    NeededDevice,
)
from agent.providers.divided_cards import MIXED_SIZES, Card
from drivers.host.domain_xml import guest_of, parse_domain
from drivers.libvirt.describe.cards import DeviceHistory, MdevSpec, UnitRecord, parse_device_specs
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings, GuestDomain
from drivers.libvirt.describe.history import carved_units
from drivers.libvirt.describe.host import HostModel, ModelSettings, build_model
from drivers.libvirt.describe.mixed_sizes import (
    contradictions,
    given_functions,
    needs_with_units,
    unmanaged_functions,
    vgpu_units,
    with_vram,
    write_unmanaged,
)
from drivers.libvirt.describe.options import declared_carving, device_settings

A100 = "0000:84:00.0"
VFS = tuple(f"0000:84:00.{number}" for number in (1, 2, 3, 4))
NAMES = {
    "468": "NVIDIA A100-4C",
    "470": "NVIDIA A100-8C",
    "471": "NVIDIA A100-10C",
    "472": "NVIDIA A100-20C",
}
C4, C8, C20 = (f"CUSTOM_VGPU_{gib}" for gib in (4, 8, 20))
SETTINGS = DeviceSettings(
    mdevs=(
        MdevSpec("nvidia-468", frozenset(), C4),
        MdevSpec("nvidia-470", frozenset(), C8),
        MdevSpec("nvidia-472", frozenset({A100}), C20),
    ),
    mixed={A100: MIXED_SIZES["A100 40 GB"]},
)
HOSTDEV = (
    "<domain type='kvm'><name>{0}</name><uuid>a0000000-0000-4000-8000-00000000000{1}</uuid>"
    "<memory>4096</memory><vcpu>1</vcpu><os><type>hvm</type></os><devices>"
    "<hostdev mode='subsystem' type='pci' managed='yes'><source>"
    "<address domain='0x0000' bus='0x84' slot='0x00' function='0x{1}'/></source></hostdev></devices></domain>"
)


def card(vgpus: Mapping[str, tuple[str, int]], names: Mapping[str, str] = NAMES) -> DeviceFacts:
    """The recorded host, where these functions {address: (number of its type, place)} are vGPUs."""
    return replace(
        facts("vendor-vfio"),
        vgpu_types={vf: vgpus.get(vf, ("0", 0))[0] for vf in VFS},
        vgpu_places={vf: place for vf, (_, place) in vgpus.items() if place >= 0},
        vgpu_names={vf: names for vf in VFS if vf not in vgpus and names},
    )


def model(
    devices: DeviceFacts,
    *domains: str,
    settings: DeviceSettings = SETTINGS,
    known: Mapping[str, UnitRecord] | None = None,
    history: DeviceHistory | None = None,
) -> HostModel:
    parsed = [parse_domain(text) for text in domains]
    guests = [GuestDomain(guest_of(each, GuestState.RUNNING, 0, frozenset()), each) for each in parsed]
    all_settings = ModelSettings("node1", HostSettings(), settings)
    return build_model(HOST, devices, guests, known or {}, "boot-1", all_settings, history)


def provider(found: HostModel) -> DescribedProvider:
    (only,) = (each for each in found.description.providers if each.device == f"pci:{A100}")
    return only


def test_each_place_on_each_function_is_a_unit_with_how_to_make_it() -> None:
    found = provider(model(card({})))
    assert {name: each.total for name, each in found.inventories.items()} == {C4: 4, C8: 4, C20: 2}
    assert len(found.units[C4]) == 4 * 8, "eight published places for 4 GiB, on four functions"
    assert set(found.units[C20]) == {f"{vf}/nvidia-472@{start}" for vf in VFS for start in (0, 20)}
    assert found.to_make[C20][f"{VFS[1]}/nvidia-472@20"] == {
        "parent": VFS[1],
        "type": "nvidia-472",
        "placement": "20",
    }
    assert found.card is not None and found.card.shapes[C8].size == 8
    assert found.card.shapes[C8].functions[f"{VFS[2]}/nvidia-470@12"] == VFS[2]


def test_a_vgpu_that_exists_is_given_first_and_needs_no_making() -> None:
    found = provider(model(card({VFS[3]: ("472", 20)})))
    assert found.units[C20][0] == f"{VFS[3]}/nvidia-472@20"
    assert f"{VFS[3]}/nvidia-472@20" not in found.to_make[C20]


def test_a_guest_uses_the_unit_of_its_functions_type_and_place() -> None:
    found = model(card({VFS[0]: ("470", 12), VFS[1]: ("472", 20)}), HOSTDEV.format("vm", 1))
    (guest,) = found.guests
    assert [(each.resource_class, each.unit, each.device) for each in guest.units] == [
        (C8, f"{VFS[0]}/nvidia-470@12", f"pci:{A100}")
    ]
    assert guest.resources[C8] == 1
    record = found.units[f"{VFS[0]}/nvidia-470@12"]
    assert (record.card, record.parent, record.type_id, record.boot) == (A100, VFS[0], "nvidia-470", "boot-1")


def test_after_a_boot_a_guest_keeps_its_unit_while_its_function_has_no_type() -> None:
    before = model(card({VFS[0]: ("470", 12)}), HOSTDEV.format("vm", 1))
    after = model(card({}), HOSTDEV.format("vm", 1), known=before.units)
    assert [each.unit for each in after.guests[0].units] == [f"{VFS[0]}/nvidia-470@12"]
    assert f"{VFS[0]}/nvidia-470@12" in provider(after).units[C8]
    assert carved_units(after.devices, after.missing, SETTINGS)[-1:] != () and CarvedUnit(
        VFS[0], A100, VFS[0], "nvidia-470", 12
    ) in carved_units(after.devices, after.missing, SETTINGS)


def test_a_function_that_is_gone_keeps_its_guests_unit_in_the_inventory() -> None:
    before = model(card({VFS[0]: ("470", 12)}), HOSTDEV.format("vm", 1))
    gone = replace(facts("boot"), vgpu_gib={})
    after = model(gone, HOSTDEV.format("vm", 1), known=before.units, history=before.history)
    found = provider(after)
    assert f"{VFS[0]}/nvidia-470@12" in found.units[C8] and found.inventories[C8].total == 1
    assert [each.unit for each in after.guests[0].units] == [f"{VFS[0]}/nvidia-470@12"]


def test_a_function_that_is_gone_is_no_vgpu_of_a_card_that_the_operator_names_no_more() -> None:
    before = model(card({VFS[0]: ("470", 12)}), HOSTDEV.format("vm", 1))
    gone = replace(facts("boot"), vgpu_gib={})
    named_no_more = replace(SETTINGS, mixed={})
    after = model(gone, HOSTDEV.format("vm", 1), settings=named_no_more, known=before.units)
    assert [each.unit for each in after.guests[0].units] == [VFS[0]]
    offered = {name for each in after.description.providers for name in each.inventories}
    assert not offered & {C4, C8, C20}


def test_a_function_without_a_type_is_nothing_that_a_guest_uses() -> None:
    found = model(card({}), HOSTDEV.format("vm", 1))
    assert found.guests[0].units == ()


def test_the_sizes_are_remembered_while_a_full_card_does_not_name_them() -> None:
    before = model(card({}))
    full = {vf: ("472", 20 * (index % 2)) for index, vf in enumerate(VFS[:2])}
    found = provider(model(card(full, {}), history=before.history))
    assert {name: each.total for name, each in found.inventories.items()} == {C4: 4, C8: 4, C20: 2}


def test_a_vgpu_of_a_type_that_is_not_enabled_takes_its_room_while_a_guest_has_it() -> None:
    found = model(card({VFS[0]: ("471", 10)}), HOSTDEV.format("vm", 1))
    card_of = provider(found)
    assert card_of.units["VGPU"] == (f"{VFS[0]}/471@10",) and card_of.inventories["VGPU"].total == 1
    assert card_of.card is not None and card_of.card.shapes["VGPU"].size == 10
    assert found.guests[0].resources["VGPU"] == 1
    assert "VGPU" not in provider(model(card({VFS[0]: ("471", 10)}))).units, "the carving takes it away"


def test_a_vgpu_of_unknown_size_leaves_nothing() -> None:
    unknown = card({VFS[0]: ("475", 0)}, {"468": "NVIDIA A100-4C", "475": "NVIDIA A100-1-5C"})
    layout = provider(model(unknown, HOSTDEV.format("vm", 1))).card
    assert layout is not None and layout.shapes["VGPU"].size == 40


def test_max_instances_counts_on_each_card() -> None:
    limited = replace(SETTINGS, mdevs=(replace(SETTINGS.mdevs[0], max_instances=2), *SETTINGS.mdevs[1:]))
    assert provider(model(card({}), settings=limited)).inventories[C4].total == 2


def test_a_card_whose_vgpus_have_no_place_is_not_in_that_mode_and_says_so() -> None:
    homogeneous = card({VFS[0]: ("470", -1)})
    assert provider(model(homogeneous)).units == {C8: (VFS[0],)}
    (sentence,) = contradictions(homogeneous, SETTINGS)
    assert A100 in sentence and "not in mixed-size mode" in sentence
    assert list(contradictions(card({}), SETTINGS)) == []
    (sentence,) = contradictions(card({}), replace(SETTINGS, mixed={"0000:99:00.0": MIXED_SIZES["A40"]}))
    assert "which this host does not have" in sentence


def test_a_card_that_the_operator_does_not_name_offers_what_it_has() -> None:
    assert provider(model(card({VFS[0]: ("470", 12)}), settings=replace(SETTINGS, mixed={}))).units == {
        C8: (VFS[0],)
    }


def test_a_domain_names_the_function_and_libvirt_leaves_its_driver_alone() -> None:
    given = GivenResources(
        "u",
        "vm",
        1,
        64,
        (GivenDevice("gpu", C20, f"{VFS[1]}/nvidia-472@20", 1), GivenDevice("", "PGPU", A100)),
    )
    assert [each.unit for each in given_functions(given).devices] == [VFS[1], A100]
    written = write_unmanaged(HOSTDEV.format("vm", 1), {VFS[0]})
    assert "managed='no'" in written or 'managed="no"' in written
    assert write_unmanaged(HOSTDEV.format("vm", 1), {VFS[1]}) == HOSTDEV.format("vm", 1)


def test_what_a_domain_asks_for_is_the_unit_of_the_function_it_names() -> None:
    units = vgpu_units(card({VFS[0]: ("470", 12)}), SETTINGS, {})
    needs = [NeededDevice(DeviceKind.PCI, "", vf, "<hostdev>") for vf in (VFS[0], VFS[1], "0000:43:00.0")]
    assert [each.unit for each in needs_with_units(needs, units)] == [
        f"{VFS[0]}/nvidia-470@12",
        VFS[1],
        "0000:43:00.0",
    ]


def test_the_carver_may_change_the_types_of_these_cards_alone() -> None:
    assert declared_carving({}, SETTINGS).mixed == {A100}


@pytest.mark.parametrize("place", [0, 20])
def test_a_vgpu_is_carved_with_its_place(place: int) -> None:
    devices = card({VFS[2]: ("472", place)})
    unit = CarvedUnit(VFS[2], A100, VFS[2], "nvidia-472", place)
    assert unit in carved_units(devices, (), SETTINGS)
    assert unit.names == (VFS[2], f"{VFS[2]}/nvidia-472@{place}")


# VRAM

V2, V4, V8 = (f"CUSTOM_VRAM_{mib}MB" for mib in (2048, 4096, 8192))
VRAM_SETTINGS = device_settings({"devices": {"vram_cards": [f"{A100}=20480/2048/4096/8192"]}})
FIXED_SETTINGS = device_settings({"devices": {"vram_cards": [f"{A100}=20480/4096"]}})


def vram_card(mib: Mapping[str, int], *, can_change: bool = True) -> DeviceFacts:
    """The recorded host, where the functions of a card have quotas {address: MiB}, and 0 without one."""
    return replace(
        facts("vendor-vfio"),
        vram={vf: (mib.get(vf, 0), can_change) for vf in VFS},
    )


def test_vram_is_a_budget_of_which_each_function_has_one_size() -> None:
    found = provider(model(vram_card({VFS[1]: 8192}), settings=VRAM_SETTINGS))
    assert {name: each.total for name, each in found.inventories.items()} == {V2: 4, V4: 4, V8: 2}
    assert found.units[V8] == tuple(f"{vf}/vram-8192@0" for vf in (VFS[1], VFS[0], VFS[2], VFS[3]))
    assert f"{VFS[1]}/vram-8192@0" not in found.to_make[V8]
    assert found.to_make[V2][f"{VFS[0]}/vram-2048@0"] == {
        "parent": VFS[0],
        "type": "vram-2048",
        "placement": "0",
    }
    layout = found.card
    assert layout is not None and layout.counters == {"virtual functions": 4, "MiB of VRAM": 20480}
    assert not any("MDEV_TYPE" in trait for trait in found.traits)


def test_what_the_budget_has_left_decides_what_fits_beside_a_size() -> None:
    layout = provider(model(vram_card({}), settings=VRAM_SETTINGS)).card
    assert layout is not None
    stock = Card.of(layout).stock([(V8, f"{VFS[0]}/vram-8192@0")], {V8: 1, V4: 2})
    assert stock.left == {V2: 1, V4: 1, V8: 0}, "4096 MiB and one function are left"
    assert stock.together({V4: 1}) == {V4: (f"{VFS[1]}/vram-4096@0",)}
    assert stock.together({V2: 2}) is None


def test_a_guest_on_a_function_without_vram_counts_so_that_no_other_guest_gets_it() -> None:
    found = model(vram_card({}), HOSTDEV.format("vm", 1), settings=VRAM_SETTINGS)
    assert [(each.resource_class, each.unit) for each in found.guests[0].units] == [
        ("CUSTOM_VRAM_0MB", f"{VFS[0]}/vram-0@0")
    ]
    layout = provider(found).card
    assert layout is not None
    stock = Card.of(layout).stock([("CUSTOM_VRAM_0MB", f"{VFS[0]}/vram-0@0")], {"CUSTOM_VRAM_0MB": 1})
    assert stock.functions == VFS[1:] and stock.left[V2] == 3


def test_after_a_boot_a_guest_keeps_its_amount_of_vram_while_its_function_has_another() -> None:
    before = model(vram_card({VFS[0]: 8192}), HOSTDEV.format("vm", 1), settings=VRAM_SETTINGS)
    after = model(vram_card({}), HOSTDEV.format("vm", 1), settings=VRAM_SETTINGS, known=before.units)
    assert [each.unit for each in after.guests[0].units] == [f"{VFS[0]}/vram-8192@0"]
    assert CarvedUnit(VFS[0], A100, VFS[0], "vram-8192", 0) in carved_units(
        after.devices, after.missing, VRAM_SETTINGS
    )


def test_an_amount_that_is_no_size_takes_its_room_while_a_guest_has_it_and_is_told() -> None:
    shared_out = vram_card({VFS[0]: 5120, VFS[1]: 5120})
    found = provider(model(shared_out, HOSTDEV.format("vm", 1), settings=VRAM_SETTINGS))
    assert found.units["CUSTOM_VRAM_5120MB"] == (f"{VFS[0]}/vram-5120@0",)
    (told,) = contradictions(with_vram(shared_out, VRAM_SETTINGS), VRAM_SETTINGS)
    assert told.startswith(f"{VFS[0]} (5120 MiB), {VFS[1]} (5120 MiB): none of the amounts of VRAM")


def test_functions_with_more_vram_than_the_option_says_are_told() -> None:
    too_much = with_vram(vram_card(dict.fromkeys(VFS[:3], 8192)), VRAM_SETTINGS)
    (sentence,) = contradictions(too_much, VRAM_SETTINGS)
    assert "24576 MiB of VRAM, more than the 20480 MiB" in sentence
    (sentence,) = contradictions(
        facts("boot"), replace(VRAM_SETTINGS, mixed={"0000:99:00.0": VRAM_SETTINGS.mixed[A100]})
    )
    assert "vram_cards names 0000:99:00.0, which this host does not have" in sentence


def test_functions_of_a_driver_without_quotas_have_the_one_size_that_the_operator_names() -> None:
    gim = replace(facts("vendor-vfio"), vgpu_types={}, vgpu_names={})
    found = model(gim, settings=FIXED_SETTINGS)
    assert provider(found).units == {V4: VFS} and provider(found).to_make == {}
    assert [
        each.type_id for each in carved_units(found.devices, (), FIXED_SETTINGS) if each.card == A100
    ] == [""] * 4, "the driver makes them as they are"
    assert unmanaged_functions(found.devices, FIXED_SETTINGS) == frozenset()
    assert unmanaged_functions(card({}), SETTINGS) == {*VFS}
    assert list(contradictions(found.devices, FIXED_SETTINGS)) == []
    several = model(gim, settings=VRAM_SETTINGS)
    (sentence,) = contradictions(several.devices, VRAM_SETTINGS)
    assert "name the one size that it gives to each" in sentence


def test_quotas_that_cannot_be_changed_are_reported_as_they_are() -> None:
    read_only = vram_card(dict.fromkeys(VFS, 4096), can_change=False)
    found = model(read_only, HOSTDEV.format("vm", 1), settings=VRAM_SETTINGS)
    assert provider(found).units == {V4: VFS}
    assert [each.unit for each in found.guests[0].units] == [VFS[0]]


def test_a_divided_card_says_how_its_functions_migrate() -> None:
    xe = replace(vram_card({}), migration_drivers=dict.fromkeys(VFS, "xe_vfio_pci"))
    traits = provider(model(xe, settings=VRAM_SETTINGS)).traits
    assert {"HW_PCI_LIVE_MIGRATABLE", "CUSTOM_VFIO_DRIVER_XE_VFIO_PCI"} <= traits
    some = replace(xe, migration_drivers={VFS[0]: "xe_vfio_pci"})
    assert "HW_PCI_LIVE_MIGRATABLE" not in provider(model(some, settings=VRAM_SETTINGS)).traits
    (gpu,) = (each for each in xe.cards if each.device.address == A100)
    vfs = tuple(replace(vf, driver="vfio-pci") for vf in gpu.vfs)
    plain = replace(
        vram_card({}), cards=tuple(replace(gpu, vfs=vfs) if each is gpu else each for each in xe.cards)
    )
    assert "CUSTOM_VFIO_DRIVER_VFIO_PCI" in provider(model(plain, settings=VRAM_SETTINGS)).traits
    nvidia = provider(model(replace(card({}), vgpu_branch="550"))).traits
    assert "CUSTOM_VGPU_DRIVER_NVIDIA_550" in nvidia and "HW_PCI_LIVE_MIGRATABLE" not in nvidia


def test_functions_with_quotas_on_a_card_that_the_operator_does_not_name_are_as_any_others() -> None:
    (spec,) = parse_device_specs(('{"vendor_id": "10de", "product_id": "20f1"}',))
    for mib in (0, 5120):
        found = model(vram_card(dict.fromkeys(VFS, mib)), settings=DeviceSettings((spec,)))
        assert provider(found).units == {"CUSTOM_PCI_10DE_20F1": VFS}
        carved = [each for each in carved_units(found.devices, (), DeviceSettings()) if each.card == A100]
        assert [each.type_id for each in carved] == [""] * 4
        assert unmanaged_functions(found.devices, DeviceSettings()) == frozenset()
