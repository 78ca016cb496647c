"""The providers of recorded cards: their functions, mediated devices, and functions over vDPA."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kits.libvirt_model import DEVICES, FACTS
from kits.libvirt_node import domain
from kits.recorded_cards import (
    MDEVS,
    MOST,
    NIC0,
    NIC1,
    SETTINGS,
    T4,
    WHOLE,
    amounts,
    cards,
    describe,
    recorded,
    under_cells,
)

from agent.driver import DescribedProvider, DeviceKind, GivenDevice, GuestState
from agent.errors import DriverDataError, SettingsError
from drivers.host.domain_xml import guest_of, parse_domain, starting_guest
from drivers.host.sysfs import MemoryCell
from drivers.host.xml_parser import parse_xml
from drivers.libvirt.describe.cards import Card, MdevSpec, UnitRecord, cards_of, parse_device_specs
from drivers.libvirt.describe.devices import (
    LINKS,
    NOT_CONFIGURED,
    DeviceFacts,
    DeviceSettings,
    card_contexts,
    class_of,
    describe_cards,
    needed_vdpa,
    unknown_groups,
    unusable_modes,
    usable,
    vdpa_functions,
    with_functions,
    with_peers,
    write_vdpa,
)
from drivers.libvirt.xml import DomainCapabilities, MediatedDevice, PciDevice, VdpaDevice, parse_node_device


def apart_from_units(provider: DescribedProvider) -> DescribedProvider:
    inventories = {name: replace(each, reserved=0) for name, each in provider.inventories.items()}
    return replace(provider, inventories=inventories, units={}, unit_drivers={}, to_make={})


def test_a_recorded_hosts_devices() -> None:
    found = describe("vfs")
    assert {device: (each.name, each.parent, amounts(each)) for device, each in found.items()} == {
        "pci:0000:41:00.0": (
            "node1_net_enp65s0",
            "node1_numa0",
            {"SRIOV_NET_VF": 4, "NET_BW_EGR_KILOBIT_PER_SEC": 1000, "NET_BW_IGR_KILOBIT_PER_SEC": 2000},
        ),
        "pci:0000:42:00.0": ("node1_pci_0000:42:00.0", "node1_numa0", {"VGPU": 10}),
        "pci:0000:43:00.0": ("node1_pci_0000:43:00.0", "node1_numa0", {"PGPU": 1}),
        "pci:0000:81:00.0": ("node1_net_enp129s0", "node1_numa1", {"SRIOV_NET_VF": 2}),
        "pci:0000:82:00.0": ("node1_pci_0000:82:00.0", "node1_numa1", {"VGPU": 10}),
        "pci:0000:83:00.0": ("node1_pci_0000:83:00.0", "node1_numa1", {"PGPU": 1}),
        "pci:0000:84:00.0": ("node1_pci_0000:84:00.0", "node1_numa1", {"VGPU": 4}),
    }
    assert found[f"pci:{NIC0}"].units == {
        "SRIOV_NET_VF": ("0000:41:10.0", "0000:41:10.2", "0000:41:10.4", "0000:41:10.6")
    }
    of_model = {"CUSTOM_PCI_VENDOR_8086", "CUSTOM_PCI_PRODUCT_10CA", "CUSTOM_PCI_TYPE_VF"}
    assert found[f"pci:{NIC0}"].traits == {"CUSTOM_PHYSNET_PHYSNET0", *of_model}
    assert found[f"pci:{T4}"].units == {"PGPU": (T4,)}
    ratios = {each.allocation_ratio for card in found.values() for each in card.inventories.values()}
    assert ratios == {1.0}, "no device is there twice"
    of_model = {"CUSTOM_PCI_VENDOR_10DE", "CUSTOM_PCI_PRODUCT_1EB8", "CUSTOM_PCI_TYPE_PCI"}
    assert found[f"pci:{T4}"].traits == {"CUSTOM_T4", "CUSTOM_TESLA_T4", *of_model}
    of_model = {"CUSTOM_PCI_VENDOR_10DE", "CUSTOM_PCI_PRODUCT_13F2"}
    assert found["pci:0000:42:00.0"].traits == {"CUSTOM_MDEV_TYPE_NVIDIA_11", *of_model}


@pytest.mark.parametrize("moment", ["mdevs", "domains"])
def test_nothing_changes_while_guests_take_devices(moment: str) -> None:
    held = frozenset({"0000:41:10.0", "0000:41:10.2", T4}) if moment == "domains" else frozenset()
    before, after = describe("vfs"), describe(moment, held=held)
    other_type = "pci:0000:82:00.0"
    assert amounts(after.pop(other_type)) == {"VGPU": 1}, "a device of another size takes the whole card"
    assert amounts(before.pop(other_type)) == {"VGPU": 10}
    assert {device: apart_from_units(each) for device, each in after.items()} == {
        device: apart_from_units(each) for device, each in before.items()
    }


def test_without_settings_nothing_is_offered() -> None:
    assert describe("vfs", DeviceSettings()) == {}
    assert describe("boot", DeviceSettings(SETTINGS.specs)).keys() == {"pci:0000:43:00.0", "pci:0000:83:00.0"}


def test_what_is_in_use_stays_though_the_settings_do_not_have_it() -> None:
    found = describe("domains", DeviceSettings(), frozenset({"0000:41:10.0", "0000:41:10.2", T4}))
    assert {device: amounts(each) for device, each in found.items()} == {
        "pci:0000:41:00.0": {"SRIOV_NET_VF": 2},
        "pci:0000:42:00.0": {"VGPU": 2},
        "pci:0000:43:00.0": {"CUSTOM_PCI_10DE_1EB8": 1},
        "pci:0000:82:00.0": {"VGPU": 1},
        "pci:0000:84:00.0": {"VGPU": 1},
    }
    assert found[f"pci:{NIC0}"].units == {"SRIOV_NET_VF": ("0000:41:10.0", "0000:41:10.2")}


def test_a_card_and_its_parts_exclude_each_other() -> None:
    anything = DeviceSettings(parse_device_specs(('{"address": "*:*:*.*"}',)), MDEVS)
    with_vfs = describe("vfs", anything)
    whole_or_parts = {"SRIOV_NET_VF": 4, "CUSTOM_PCI_8086_10C9": 1}
    assert amounts(with_vfs[f"pci:{NIC0}"]) == whole_or_parts
    assert set(with_vfs[f"pci:{NIC0}"].ways) == {
        frozenset({"CUSTOM_PCI_8086_10C9"}),
        frozenset({"SRIOV_NET_VF"}),
    }
    one_class = parse_device_specs(('{"address": "*:*:*.*", "resource_class": "X"}',))
    assert amounts(describe("vfs", DeviceSettings(one_class))[f"pci:{NIC0}"]) == {"CUSTOM_X": 4}, (
        "not the card as well, which could not be told apart"
    )
    assert amounts(with_vfs["pci:0000:42:00.0"]) == {"VGPU": 10}, "not the card as well"
    assert amounts(describe("boot", anything)[f"pci:{NIC0}"]) == {"CUSTOM_PCI_8086_10C9": 1}
    taken_whole = describe("vfs", anything, frozenset({NIC0, "0000:42:00.0"}))
    assert amounts(taken_whole[f"pci:{NIC0}"]) == {"CUSTOM_PCI_8086_10C9": 1}
    assert amounts(taken_whole["pci:0000:42:00.0"]) == {"CUSTOM_PCI_10DE_13F2": 1}


def test_a_card_of_a_physical_network_without_functions_yet_has_nothing_to_give() -> None:
    whole_card = DeviceSettings(parse_device_specs(('{"devname": "enp65s0", "physical_network": "p"}',)))
    assert describe("boot", whole_card) == {}
    assert amounts(describe("vfs", whole_card)[f"pci:{NIC0}"]) == {"SRIOV_NET_VF": 4}


def test_a_type_goes_to_the_cards_it_is_meant_for() -> None:
    mdevs = (
        MdevSpec("nvidia-22", frozenset({"0000:82:00.0"}), "CUSTOM_BIG"),
        MdevSpec("nvidia-11", frozenset({"0000:42:00.0"})),
    )
    found = describe("boot", DeviceSettings(mdevs=mdevs))
    assert {device: amounts(each) for device, each in found.items()} == {
        "pci:0000:42:00.0": {"VGPU": 16},
        "pci:0000:82:00.0": {"CUSTOM_BIG": 1},
    }


@pytest.mark.parametrize(
    "second",
    ['"resource_class": "X"', '"traits": "gold"', '"physical_network": "other"', '"live_migratable": "yes"'],
)
def test_siblings_that_contradict_each_other_are_named(second: str) -> None:
    """Scenario 104: another class, other traits, another network for functions of one card."""
    specs = ('{"address": "0000:41:10.2", ' + second + "}", '{"vendor_id": "8086", "product_id": "10ca"}')
    with pytest.raises(
        DriverDataError, match=r"gives 0000:41:10.0 and 0000:41:10.2, virtual functions of one"
    ):
        describe("vfs", DeviceSettings(parse_device_specs(specs)))


VFS = tuple(f"0000:41:10.{number}" for number in (0, 2, 4, 6))
MLX5, XE = "CUSTOM_VFIO_DRIVER_MLX5_VFIO_PCI", "CUSTOM_VFIO_DRIVER_XE_VFIO_PCI"


@pytest.mark.parametrize(
    ("drivers", "said", "expected"),
    [
        (dict.fromkeys(VFS, "mlx5_vfio_pci"), "", {"HW_PCI_LIVE_MIGRATABLE", MLX5}),
        (dict.fromkeys(VFS[1:], "mlx5_vfio_pci"), "", set()),
        (
            {**dict.fromkeys(VFS, "mlx5_vfio_pci"), VFS[0]: "xe_vfio_pci"},
            "",
            {"HW_PCI_LIVE_MIGRATABLE", MLX5, XE},
        ),
        (
            dict.fromkeys(VFS, "mlx5_vfio_pci"),
            ', "live_migratable": "no"',
            {"CUSTOM_VFIO_DRIVER_VFIO_PCI"},
        ),
        (dict.fromkeys(VFS, "mlx5_vfio_pci"), ', "managed": "no"', set()),
        (dict.fromkeys(VFS, "mlx5_vfio_pci"), ', "live_migratable": "yes"', {"HW_PCI_LIVE_MIGRATABLE", MLX5}),
        ({}, ', "live_migratable": "yes"', {"HW_PCI_LIVE_MIGRATABLE"}),
        ({}, "", set()),
    ],
)
def test_functions_of_which_a_driver_says_that_they_migrate(
    drivers: dict[str, str], said: str, expected: set[str]
) -> None:
    """A claim gets any of the functions, so the trait is of all of them; the operator's word counts more.

    The functions are under the NIC's driver (igbvf), where libvirt binds another one to managed ones alone.
    """
    spec = f'{{"vendor_id": "8086", "product_id": "10ca"{said}}}'
    settings = DeviceSettings(parse_device_specs((spec,)))
    traits = describe("vfs", settings, migration_drivers=drivers)[f"pci:{NIC0}"].traits
    assert {each for each in traits if "MIGRATABLE" in each or "VFIO_DRIVER" in each} == expected


PLAIN = "CUSTOM_VFIO_DRIVER_VFIO_PCI"


@pytest.mark.parametrize(
    ("bound", "said", "facts", "expected"),
    [
        (VFS, "", {}, {PLAIN}),
        (VFS[1:], "", {}, set()),
        (VFS[1:], "", {"held": VFS[:1]}, {PLAIN}),
        (VFS[:3], "", {"held": VFS[:3]}, set()),
        (VFS, "", {"held": VFS}, set()),
        ((), "", {}, set()),
        (VFS, "", {"rebound": VFS[:1]}, set()),
        (VFS, ', "live_migratable": "no"', {"rebound": VFS}, {PLAIN}),
        (VFS, ', "managed": "no"', {"rebound": VFS}, {PLAIN}),
        ((), ', "managed": "no"', {}, set()),
        (VFS, ', "managed": "yes"', {"rebound": VFS}, set()),
        (VFS, ', "live_migratable": "yes"', {}, {"HW_PCI_LIVE_MIGRATABLE"}),
        (VFS, ', "live_migratable": "no"', {}, {PLAIN}),
        (VFS, "", {"migration_drivers": dict.fromkeys(VFS, "new_vfio_pci")}, {"HW_PCI_LIVE_MIGRATABLE"}),
        (VFS[1:], "", {"migration_drivers": {VFS[0]: "mlx5_vfio_pci"}, "held": VFS[:1]}, {PLAIN}),
        (VFS, "", {"migration_drivers": dict.fromkeys(VFS, ""), "rebound": VFS}, set()),
        (VFS, "", {"driver": "mlx5_vfio_pci", "migration_drivers": dict.fromkeys(VFS, "")}, {PLAIN}),
        (
            VFS,
            ', "live_migratable": "no"',
            {"driver": "mlx5_vfio_pci", "migration_drivers": dict.fromkeys(VFS, "mlx5_vfio_pci")},
            {PLAIN},
        ),
        (VFS, "", {"driver": "mlx5_vfio_pci", "migration_drivers": dict.fromkeys(VFS[1:], "")}, set()),
        (VFS, "", {"driver": "new_vfio_pci"}, set()),
        (VFS, "", {"driver": "new_vfio_pci", "plain": VFS}, {PLAIN}),
        (VFS, ', "managed": "no"', {"driver": "new_vfio_pci", "plain": VFS}, set()),
        (VFS, "", {"driver": "nvidia", "migration_drivers": dict.fromkeys(VFS, "")}, {PLAIN}),
        (VFS, "", {"driver": "nvidia", "migration_drivers": dict.fromkeys(VFS, ""), "plain": VFS}, {PLAIN}),
        (VFS, "", {"driver": "nvidia", "migration_drivers": dict.fromkeys(VFS[1:], "")}, set()),
        (VFS, "", {"driver": "igbvf", "plain": VFS}, {PLAIN}),
        (VFS, "", {"driver": "igbvf", "plain": VFS[1:]}, set()),
        (VFS, "", {"driver": "igbvf", "plain": VFS[1:], "held": VFS[:1]}, {PLAIN}),
        (VFS, ', "managed": "no"', {"driver": "igbvf", "plain": VFS}, set()),
        (VFS, "", {"rebound": VFS, "by": "mlx5_vfio_pci"}, set()),
    ],
)
def test_functions_under_a_driver_of_vfio_that_takes_over_no_state(
    bound: tuple[str, ...], said: str, facts: dict[str, Any], expected: set[str]
) -> None:
    """It is told of the functions that a guest can get, and only where it is so of all of them."""
    spec = f'{{"vendor_id": "8086", "product_id": "10ca"{said}}}'
    card = cards("vfs")[NIC0]
    driver = facts.get("driver", "vfio-pci")
    vfs = tuple(replace(vf, driver=driver) if vf.address in bound else vf for vf in card.vfs)
    known = DeviceFacts(
        (replace(card, vfs=vfs),),
        rebound=dict.fromkeys(facts.get("rebound", ()), facts.get("by", "")),
        plain=frozenset(facts.get("plain", ())),
        migration_drivers=facts.get("migration_drivers", {}),
    )
    settings = DeviceSettings(parse_device_specs((spec,)))
    contexts = card_contexts(known, settings, frozenset(facts.get("held", ())))
    (provider,) = describe_cards(contexts, "node1", under_cells)
    found = {each for each in provider.traits if "MIGRATABLE" in each or "VFIO_DRIVER" in each}
    assert found - {"CUSTOM_VFIO_DRIVER_NEW_VFIO_PCI"} == expected


XE, MIGRATES = "CUSTOM_VFIO_DRIVER_XE_VFIO_PCI", "HW_PCI_LIVE_MIGRATABLE"


@pytest.mark.parametrize(
    ("said", "bound_migrates", "by", "held", "expected"),
    [
        ("", True, "", "", set()),
        ("", True, "xe_vfio_pci", "", {MIGRATES, XE}),
        ("", True, "", "0", set()),
        ("", True, "", "0123", {MIGRATES, MLX5}),
        ("", True, "xe_vfio_pci", "0123", {MIGRATES, MLX5}),
        ("", False, "", "", set()),
        ("", False, "xe_vfio_pci", "", {MIGRATES, XE}),
        ("", None, "xe_vfio_pci", "", {MIGRATES, XE}),
        (', "managed": "no"', True, "", "", {MIGRATES, MLX5}),
        (', "managed": "no"', True, "xe_vfio_pci", "", {MIGRATES, MLX5}),
        (', "managed": "no"', False, "xe_vfio_pci", "", {PLAIN}),
        (', "live_migratable": "yes"', True, "", "", {MIGRATES}),
        (', "live_migratable": "no"', True, "xe_vfio_pci", "", {PLAIN}),
    ],
)
def test_functions_whose_driver_of_vfio_libvirt_replaces_by_another_one(
    said: str, bound_migrates: bool | None, by: str, held: str, expected: set[str]
) -> None:
    """From 10.0 on, by that of modules.alias, if the domain is managed. `by` "": it may not migrate."""
    card = cards("vfs")[NIC0]
    vfs = tuple(replace(vf, driver="mlx5_vfio_pci") for vf in card.vfs)
    known = {None: {}, True: dict.fromkeys(VFS, "mlx5_vfio_pci"), False: dict.fromkeys(VFS, "")}
    drivers = known[bound_migrates]
    read = DeviceFacts((replace(card, vfs=vfs),), migration_drivers=drivers, rebound=dict.fromkeys(VFS, by))
    settings = DeviceSettings(parse_device_specs((f'{{"vendor_id": "8086", "product_id": "10ca"{said}}}',)))
    in_guests = frozenset(VFS[int(number)] for number in held)
    (provider,) = describe_cards(card_contexts(read, settings, in_guests), "node1", under_cells)
    assert {each for each in provider.traits if "MIGRATABLE" in each or "VFIO_DRIVER" in each} == expected
    of_free = {XE} if XE in expected else {PLAIN} & expected
    if not held and "yes" not in said and MLX5 not in expected:
        assert {*provider.unit_drivers.values()} == of_free


def test_before_libvirt_10_a_function_with_a_vgpu_stays_under_its_vendors_driver() -> None:
    """Its domain has managed='no', even where [pci] device_spec says other."""
    card = cards("vfs")[NIC0]
    vfs = tuple(replace(vf, driver="nvidia") for vf in card.vfs)
    known = DeviceFacts((replace(card, vfs=vfs),), vgpu_types=dict.fromkeys(VFS, "471"), plain=frozenset(VFS))
    (spec,) = parse_device_specs(('{"vendor_id": "8086", "product_id": "10ca"}',))
    for settings in (
        DeviceSettings((spec,)),
        DeviceSettings(mdevs=(MdevSpec("nvidia-471"),)),
        DeviceSettings((spec,), (MdevSpec("nvidia-471"),)),
    ):
        (provider,) = describe_cards(card_contexts(known, settings), "node1", under_cells)
        assert provider.units and PLAIN not in provider.traits and not provider.unit_drivers


@pytest.mark.parametrize(
    ("plain", "held", "expected"),
    [
        (VFS[:1], (), VFS[:1]),
        (VFS[:3], VFS[:1], VFS[1:3]),
        (VFS[:1], VFS[:1], ()),
        (VFS, VFS[:1], VFS[1:]),
        ((), (), ()),
    ],
)
def test_the_driver_of_each_function_of_a_card(
    plain: tuple[str, ...], held: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    """Plain ones beside others under a driver that migrates."""
    card = cards("vfs")[NIC0]
    vfs = tuple(replace(vf, driver="vfio-pci" if vf.address in plain else "mlx5_vfio_pci") for vf in card.vfs)
    drivers = dict.fromkeys((each for each in VFS if each not in plain), "mlx5_vfio_pci")
    known = DeviceFacts((replace(card, vfs=vfs),), migration_drivers=drivers)
    settings = DeviceSettings(parse_device_specs(('{"vendor_id": "8086", "product_id": "10ca"}',)))
    (provider,) = describe_cards(card_contexts(known, settings, frozenset(held)), "node1", under_cells)
    free = {*VFS} - {*held}
    assert provider.unit_drivers == {each: PLAIN if each in plain else MLX5 for each in VFS}
    told = {trait for trait in provider.traits if "MIGRATABLE" in trait or "VFIO_DRIVER" in trait}
    mixed = set() if plain else {"HW_PCI_LIVE_MIGRATABLE", MLX5}
    assert told == ({PLAIN} if {*plain} >= free and expected else mixed)


USED, USED_PLAIN, USED_XE = (
    f"CUSTOM_VFIO_IN_USE_{name}" for name in ("MLX5_VFIO_PCI", "VFIO_PCI", "XE_VFIO_PCI")
)


@pytest.mark.parametrize(
    ("bound", "held", "facts", "said", "expected"),
    [
        ("mlx5", "0", {}, "", set()),
        ("plain", "0", {}, "", set()),
        ("mixed", "", {}, "", set()),
        ("mixed", "0", {}, "", {USED}),
        ("mixed", "03", {}, "", {USED}),
        ("mixed", "1", {}, "", set()),
        ("mixed", "01", {}, "", {USED, USED_PLAIN}),
        ("mixed", "0", {"migration_drivers": {VFS[0]: ""}}, "", set()),
        ("mixed", "0", {"migration_drivers": {}}, "", set()),
        ("mixed", "0", {}, ', "live_migratable": "no"', set()),
        ("mixed", "01", {"rebound": {VFS[1]: ""}}, "", set()),
        (
            "mixed",
            "03",
            {"migration_drivers": {VFS[0]: "", VFS[3]: "mlx5_vfio_pci"}, "rebound": {VFS[0]: ""}},
            "",
            {USED, USED_PLAIN},
        ),
        ("two", "0", {}, "", {USED}),
        ("two", "1", {}, "", {USED_XE}),
        ("two", "01", {}, "", {USED, USED_XE}),
        ("two", "", {}, "", set()),
    ],
)
def test_a_mixed_card_tells_the_drivers_of_the_functions_that_guests_have(
    bound: str, held: str, facts: dict[str, Any], said: str, expected: set[str]
) -> None:
    """Placement does not tell the unit of a guest. Nothing is told where one of the drivers is not known."""
    drivers = {"mlx5": "mmmm", "plain": "pppp", "mixed": "mppm", "two": "mxxm"}[bound]
    names = {"m": "mlx5_vfio_pci", "p": "vfio-pci", "x": "xe_vfio_pci"}
    card = cards("vfs")[NIC0]
    of_unit = {unit: names[each] for unit, each in zip(VFS, drivers, strict=True)}
    vfs = tuple(replace(vf, driver=of_unit[vf.address]) for vf in card.vfs)
    known = {unit: each for unit, each in of_unit.items() if each != "vfio-pci"}
    read = DeviceFacts((replace(card, vfs=vfs),), **{"migration_drivers": known, **facts})
    settings = DeviceSettings(parse_device_specs((f'{{"vendor_id": "8086", "product_id": "10ca"{said}}}',)))
    in_guests = frozenset(VFS[int(number)] for number in held)
    (provider,) = describe_cards(card_contexts(read, settings, in_guests), "node1", under_cells)
    assert {trait for trait in provider.traits if "IN_USE" in trait} == expected


def test_a_whole_card_under_plain_vfio_says_nothing_of_it() -> None:
    """No driver of VFIO migrates one, so nothing comes whose state it could take."""
    card = cards("vfs")[T4]
    bound = replace(card, device=replace(card.device, driver="vfio-pci"))
    (provider,) = describe_cards(card_contexts(DeviceFacts((bound,)), SETTINGS), "node1", under_cells)
    assert PLAIN not in provider.traits


@pytest.mark.parametrize(
    ("kinds", "qemu", "why"),
    [
        (None, (), "neither SEV-SNP nor TDX"),
        ("sev", (10, 1, 0), "neither SEV-SNP nor TDX"),
        ("sev-snp", (9, 0, 2), ""),
        ("sev-snp", (9, 1, 0), "QEMU 9.1.0 gives no device"),
        ("sev-snp", (10, 0, 5), "QEMU 10.0.5 gives no device"),
        ("sev-snp", (10, 1, 0), ""),
        ("sev-snp", (0, 0, 0), ""),
        ("tdx", (10, 1, 0), ""),
        ("tdx without keys", (10, 1, 0), "no key of tdx"),
    ],
)
def test_a_host_that_cannot_give_devices_to_such_guests_says_so(
    kinds: str | None, qemu: tuple[int, int, int], why: str
) -> None:
    """Nor can one whose libvirt does not tell what guests can have, or where guests get no key."""
    kind, *without = kinds.split(maxsplit=1) if kinds else [""]
    slots = {} if without else {"sev-es" if kind == "sev-snp" else kind: 2}
    known = DomainCapabilities("kvm", features=frozenset({kind}), slots=slots, qemu=qemu)
    guests = None if kinds is None else known
    card = DescribedProvider("card", traits=frozenset({"CUSTOM_CC", "CUSTOM_CC_ON", "CUSTOM_A"}))
    sentences = list(unusable_modes([card, DescribedProvider("other")], guests))
    assert [why in sentence and "card" in sentence for sentence in sentences] == [True] * bool(why)
    off = replace(card, name="off", traits=frozenset({"CUSTOM_CC", "CUSTOM_CC_OFF_NOT_ON"}))
    other, *same = unusable_modes([off, card], guests)
    assert other.startswith(
        "No guest gets off: it is in the mode off of confidential computing, and by its [pci]"
    )
    assert same == sentences
    facts = usable(DeviceFacts(), guests, (0, 0, 0))
    assert facts.withheld == ({"CUSTOM_CC_ON", "CUSTOM_CC_DEVTOOLS"} if why else set())


def test_a_card_with_vgpus_has_the_branch_of_their_driver() -> None:
    found = describe("vfs", vgpu_branch="550")
    with_branch = {device for device, each in found.items() if "CUSTOM_VGPU_DRIVER_NVIDIA_550" in each.traits}
    assert with_branch == {"pci:0000:42:00.0", "pci:0000:82:00.0", "pci:0000:84:00.0"}


def test_one_time_use_is_for_whole_devices() -> None:
    spec = '{"vendor_id": "%s", "product_id": "%s", "one_time_use": "yes"}'
    found = describe("vfs", DeviceSettings(parse_device_specs((spec % ("10de", "1eb8"),))))
    assert "HW_PCI_ONE_TIME_USE" in found[f"pci:{T4}"].traits
    with pytest.raises(
        DriverDataError, match=r"one_time_use for 0000:41:10.0, a virtual function of 0000:41:00"
    ):
        describe("vfs", DeviceSettings(parse_device_specs((spec % ("8086", "10ca"),))))
    with pytest.raises(SettingsError, match="not with a physical_network"):
        parse_device_specs(('{"address": "0000:41:00.0", "physical_network": "p", "one_time_use": true}',))
    with pytest.raises(SettingsError, match="live_migratable must be true or false, not 'perhaps'"):
        parse_device_specs(('{"address": "0000:41:00.0", "live_migratable": "perhaps"}',))


def test_only_the_functions_that_are_named_are_divided() -> None:
    """The others are for something else, another type for example; what is there is never left out."""
    named = [f"0000:84:00.{number}" for number in (1, 2)]
    found = describe("vfs", DeviceSettings(mdevs=(MdevSpec("nvidia-471", frozenset(named)),)))
    card = found["pci:0000:84:00.0"]
    assert amounts(card) == {"VGPU": 2}
    assert sorted(each["parent"] for each in card.to_make["VGPU"].values()) == named
    others = frozenset({"0000:84:00.2", "0000:84:00.3"})
    found = describe("mdevs", DeviceSettings(mdevs=(MdevSpec("nvidia-471", others),)))
    card = found["pci:0000:84:00.0"]
    assert amounts(card) == {"VGPU": 3}, "one is on the first function already"
    assert {each["parent"] for each in card.to_make["VGPU"].values()} == others


def test_types_of_one_class_on_functions_of_one_card_are_named() -> None:
    """Their addresses differ, so that only the card shows it."""
    types = [MdevSpec(f"nvidia-{n}", frozenset({f"0000:84:00.{n - 470}"})) for n in (471, 473)]
    with pytest.raises(DriverDataError, match=r"0000:84:00\.0 into nvidia-471, nvidia-473, several of which"):
        describe("vfs", DeviceSettings(mdevs=tuple(types)))
    types[1] = replace(types[1], resource_class="CUSTOM_40C")
    card = describe("vfs", DeviceSettings(mdevs=tuple(types)))["pci:0000:84:00.0"]
    assert [len(card.to_make[name]) for name in ("VGPU", "CUSTOM_40C")] == [1, 1]


@pytest.mark.parametrize(
    ("cap", "held", "given"), [(2, "", "12"), (1, "3", "3"), (1, "34", "34"), (9, "", "1234")]
)
def test_a_cap_caps_functions_of_a_vendors_own_driver_exactly_too(cap: int, held: str, given: str) -> None:
    functions = tuple(cards("vendor-vfio").values())
    types = {vf.address: "471" for card in functions for vf in card.vfs if card.device.address in MOST}
    (card,) = describe_cards(
        card_contexts(
            DeviceFacts(functions, vgpu_types=types),
            DeviceSettings(mdevs=(MdevSpec("nvidia-471", max_instances=cap),)),
            frozenset(f"0000:84:00.{number}" for number in held),
        ),
        "node1",
        under_cells,
    )
    assert amounts(card) == {"VGPU": len(given)}
    assert set(card.units["VGPU"]) == {f"0000:84:00.{number}" for number in given}


def test_all_of_an_iommu_group_is_for_one_guest() -> None:
    group = ("0000:43:00.0", "0000:83:00.0")
    found = tuple(
        replace(card, device=replace(card.device, iommu_devices=group))
        if card.device.address in group
        else card
        for card in tuple(cards("boot").values())
    )
    settings = DeviceSettings(parse_device_specs((WHOLE,)))
    for held in ((), group[:1], group):
        described = describe_cards(
            card_contexts(DeviceFacts(found), settings, frozenset(held)), "node1", under_cells
        )
        assert {each.device for each in described} == {f"pci:{address}" for address in held or group}


def test_cards_behind_one_switch_and_on_one_cell_are_peers() -> None:
    """A card on a root port itself has none; one that the firmware has on another cell stays there."""
    switch = ("pci0000:40", "0000:40:01.0", "0000:41:00.0", "0000:42:02.0")
    above = {"a": switch, "b": (*switch, "0000:43:00.0"), "c": switch, "d": switch[:2], "e": ()}
    cards = [
        DescribedProvider(name, f"cell{cell}", device=f"pci:{name}", cell=cell)
        for name, cell in (("a", 0), ("b", 0), ("c", 1), ("d", 0), ("e", 0), ("f", 0))
    ]
    facts = DeviceFacts(bridges=above)
    assert with_peers(cards, facts, None, "x") == tuple(cards)
    port, *placed = with_peers(cards, facts, "switch", "x")
    assert (port.name, port.parent, port.cell, port.inventories) == ("x_pcie_0000:40:01.0", "cell0", 0, {})
    assert [card.parent for card in placed] == [port.name, port.name, "cell1", "cell0", "cell0", "cell0"]
    root, *placed = with_peers(cards, facts, "root_complex", "x")
    assert (root.name, root.traits) == ("x_pcie_pci0000:40", {"CUSTOM_PCIE_ROOT_COMPLEX"})
    assert [card.parent == root.name for card in placed] == [True, True, False, True, False, False]
    assert [replace(card, parent=each.parent) for card, each in zip(placed, cards, strict=True)] == cards


def test_gpus_of_one_group_are_below_it_on_each_cell_that_has_some() -> None:
    cards = [
        DescribedProvider(name, parent, device=f"pci:{name}", cell=cell)
        for name, parent, cell in (
            ("a", "x0", 0),
            ("b", "x1", 1),
            ("c", "x0", 0),
            ("d", "x0", 0),
            ("e", "x0", 0),
        )
    ]
    facts = DeviceFacts(groups={**dict.fromkeys("abc", "a"), **dict.fromkeys("dz", "d")})
    *groups, a, b, c, d, e = with_peers(cards, facts, LINKS, "x")
    assert [(each.name, each.parent) for each in groups] == [
        ("x0_link_a", "x0"),
        ("x1_link_a", "x1"),
        ("x0_link_d", "x0"),
    ]
    assert {each.device for each in groups} == {f"gpu_link:{each.name}" for each in groups}
    assert all(each.traits == {"CUSTOM_GPU_LINK"} and not each.inventories for each in groups)
    assert [each.parent for each in (a, b, c, d, e)] == [
        "x0_link_a",
        "x1_link_a",
        "x0_link_a",
        "x0_link_d",
        "x0",
    ]
    flat = [replace(card, parent="x") for card in cards]
    assert {card.parent for card in with_peers(flat, facts, LINKS, "x")[-5:-2]} == {"x_link_a"}, (
        "of both cells"
    )


def test_it_is_said_why_no_group_of_gpus_is_known() -> None:
    cards = FACTS["vfs"].cards
    known = DeviceFacts(cards, groups={cards[0].device.address: "a"})
    assert not [*unknown_groups(known, LINKS, ""), *unknown_groups(DeviceFacts(cards), "switch", "x")]
    (none,) = unknown_groups(DeviceFacts(cards), LINKS, "")
    (failed,) = unknown_groups(known, LINKS, "nvidia-smi does not end within 30 s")
    assert "no group of GPUs is known. `plimsoll devices apply`" in none
    assert "gpu_link: nvidia-smi does not end within 30 s. " in failed


def test_a_card_on_a_cell_without_cpus_is_near_to_the_guests_of_another() -> None:
    """Its provider stays where the card is; claims look for it from the nearest cell with CPUs."""
    plain = describe("vfs")[f"pci:{NIC1}"]
    near = describe("vfs", memory_cells={1: MemoryCell(near=0)})[f"pci:{NIC1}"]
    assert (plain.cell, near.cell) == (1, 0)
    assert near == replace(plain, cell=0)


M60_TYPES = (
    MdevSpec("nvidia-11", frozenset({"0000:42:00.0", "0000:82:00.0"}), "CUSTOM_SMALL"),
    MdevSpec("nvidia-12", frozenset({"0000:42:00.0", "0000:82:00.0"}), "CUSTOM_DESK", 8),
    MdevSpec("nvidia-22", frozenset({"0000:42:00.0", "0000:82:00.0"}), "CUSTOM_BIG"),
)


M60_MOST = {"nvidia-11": 16, "nvidia-12": 16, "nvidia-22": 1}


def typed(moment: str, held: frozenset[str] = frozenset()) -> dict[str, DescribedProvider]:
    facts = DeviceFacts(tuple(cards(moment).values()), {"0000:42:00.0": M60_MOST, "0000:82:00.0": M60_MOST})
    settings = DeviceSettings(mdevs=M60_TYPES)
    found = describe_cards(card_contexts(facts, settings, held), "node1", under_cells)
    return {provider.device: provider for provider in found}


def test_types_of_one_card_share_it_or_exclude_each_other() -> None:
    card = typed("boot")["pci:0000:42:00.0"]
    assert amounts(card) == {"CUSTOM_SMALL": 16, "CUSTOM_DESK": 8, "CUSTOM_BIG": 1}
    assert card.ways == (frozenset({"CUSTOM_SMALL", "CUSTOM_DESK"}), frozenset({"CUSTOM_BIG"}))
    assert {"CUSTOM_MDEV_TYPE_NVIDIA_11", "CUSTOM_MDEV_TYPE_NVIDIA_22"} <= card.traits
    assert not any(inventory.reserved for inventory in card.inventories.values())
    for resource_class, units in card.units.items():
        assert list(card.to_make[resource_class]) == list(units), "none is there yet"
        assert len(units) == card.inventories[resource_class].total


def test_what_is_made_takes_the_room_of_other_types() -> None:
    first, second = (typed("mdevs")[f"pci:0000:{bus}:00.0"] for bus in ("42", "82"))
    assert {name: (each.total, each.reserved) for name, each in first.inventories.items()} == {
        "CUSTOM_SMALL": (16, 1),  # one nvidia-12 is there
        "CUSTOM_DESK": (8, 0),
        "CUSTOM_BIG": (1, 1),
    }
    assert first.units["CUSTOM_SMALL"][0] == "11111111-1111-4111-8111-111111111111"
    assert {name: each.total - each.reserved for name, each in second.inventories.items()} == {
        "CUSTOM_SMALL": 0,
        "CUSTOM_DESK": 0,
        "CUSTOM_BIG": 0,  # one of another size is there, and nothing else fits
    }


def test_what_can_be_made_has_its_uuid_parent_and_type_already() -> None:
    before, after = describe("vfs"), describe("mdevs")
    m60, a100 = "pci:0000:42:00.0", "pci:0000:84:00.0"
    makings = before[m60].to_make["VGPU"]
    assert len(makings) == 10
    assert all(each == {"parent": "0000:42:00.0", "type": "nvidia-11"} for each in makings.values())
    parents = [each["parent"] for each in before[a100].to_make["VGPU"].values()]
    assert parents == ["0000:84:00.1", "0000:84:00.2", "0000:84:00.3", "0000:84:00.4"], "one each"
    there = "33333333-3333-4333-8333-333333333333"
    assert after[a100].units["VGPU"][0] == there, "what is there goes first"
    assert list(after[a100].to_make["VGPU"]) == list(before[a100].to_make["VGPU"])[1:], "and the rest stays"


def test_what_was_made_is_the_unit_that_was_to_be_made_and_is_not_to_be_made_again() -> None:
    m60 = "0000:42:00.0"
    found = cards("vfs")
    unmade = describe("vfs")[f"pci:{m60}"]
    third = unmade.units["VGPU"][2]
    made = MediatedDevice("mdev_x", third, found[m60].device.name, "nvidia-11")
    facts = DeviceFacts((replace(found[m60], mdevs=(made,)),), {m60: {"nvidia-11": 10}})
    (card,) = describe_cards(card_contexts(facts, SETTINGS), "node1", under_cells)
    assert card.units["VGPU"][0] == third and sorted(card.units["VGPU"]) == sorted(unmade.units["VGPU"])
    assert list(card.to_make["VGPU"]) == [unit for unit in unmade.to_make["VGPU"] if unit != third]


@pytest.mark.parametrize(
    ("specs", "totals"),
    [
        ((), {"VGPU": 1, "CUSTOM_BIG": 1, "CUSTOM_OLD": 1}),
        ((MdevSpec("nvidia-11", max_instances=1),), {"VGPU": 3}),
        ((MdevSpec("nvidia-11", max_instances=9),), {"VGPU": 9}),
        (
            (
                MdevSpec("nvidia-11", frozenset({"0000:42:00.0"}), "VGPU", 1),
                MdevSpec("nvidia-22", frozenset({"0000:42:00.0"}), "CUSTOM_BIG", 0),
                MdevSpec("nvidia-12", frozenset({"0000:42:00.0"}), "CUSTOM_OLD", 5),
            ),
            {"VGPU": 1, "CUSTOM_BIG": 1, "CUSTOM_OLD": 5},
        ),
    ],
)
def test_what_a_reboot_took_away_keeps_its_room_whatever_the_cap(
    specs: tuple[MdevSpec, ...], totals: dict[str, int]
) -> None:
    m60 = "0000:42:00.0"
    (made,) = (each for each in cards("mdevs")[m60].mdevs if each.type_id == "nvidia-11")
    missing = [UnitRecord(name, m60, name, m60, "t", "boot-1") for name in ("CUSTOM_BIG", "CUSTOM_OLD")]
    facts = DeviceFacts((replace(cards("boot")[m60], mdevs=(made,)),))
    contexts = card_contexts(facts, DeviceSettings(mdevs=specs), frozenset({made.uuid}), missing)
    (card,) = describe_cards(contexts, "node1", under_cells)
    assert amounts(card) == totals
    known = {made.uuid, "CUSTOM_BIG", "CUSTOM_OLD"}
    assert known <= {unit for units in card.units.values() for unit in units}
    for name, total in totals.items():
        there = known & set(card.units[name])
        assert len(card.to_make.get(name, ())) == total - len(there)


def test_what_is_there_of_another_type_is_not_given_out() -> None:
    idle = next(m.uuid for c in tuple(cards("mdevs").values()) for m in c.mdevs if m.type_id == "nvidia-12")
    card = describe("mdevs")["pci:0000:42:00.0"]
    assert idle not in card.units["VGPU"]
    assert len(card.units["VGPU"]) == card.inventories["VGPU"].total - 1, "it takes room all the same"
    in_use = describe("mdevs", held=frozenset({idle}))["pci:0000:42:00.0"]
    assert idle in in_use.units["VGPU"], "where its guest is found"


NODE_DEVICE = """<device><name>vdpa_vdpa{n}</name><path>/sys/devices/x/vdpa{n}</path><parent>{parent}</parent>
<driver><name>vhost_vdpa</name></driver><capability type='vdpa'><chardev>/dev/vhost-vdpa-{n}</chardev>
</capability></device>"""


def cards_with(count: int) -> tuple[Card, ...]:
    """The recorded cards; the first `count` virtual functions of a network card have vDPA devices."""
    devices = recorded("vfs")
    vfs = [each for each in devices if isinstance(each, PciDevice) and each.physical_function == NIC0]
    vfs.sort(key=lambda vf: vf.address)
    added = [parse_node_device(NODE_DEVICE.format(n=n, parent=vf.name)) for n, vf in enumerate(vfs[:count])]
    return cards_of([*devices, *(each for each in added if each is not None)])


VFS = [vf.address for card in FACTS["vfs"].cards if card.device.address == NIC0 for vf in card.vfs]
INTERFACE = "<interface type='vdpa'><source dev='{}'/></interface>"


def test_a_node_device_names_its_path_and_the_card_has_it_by_address() -> None:
    assert parse_node_device(NODE_DEVICE.format(n=3, parent="pci_x")) == VdpaDevice(
        "vdpa_vdpa3", "pci_x", "/dev/vhost-vdpa-3"
    )
    found = {card.device.address: card for card in cards_with(2)}
    assert found[NIC0].vdpa == {VFS[0]: "/dev/vhost-vdpa-0", VFS[1]: "/dev/vhost-vdpa-1"}
    assert vdpa_functions(found.values()) == {"/dev/vhost-vdpa-0": VFS[0], "/dev/vhost-vdpa-1": VFS[1]}


def test_they_are_offered_beside_the_other_functions_in_a_class_of_their_own() -> None:
    providers = describe_cards(card_contexts(DeviceFacts(cards_with(2)), DEVICES), "node1", lambda _: "node1")
    (card,) = (each for each in providers if each.device == f"pci:{NIC0}")
    assert card.units == {"CUSTOM_VDPA": tuple(VFS[:2]), "SRIOV_NET_VF": tuple(VFS[2:])}
    assert card.inventories["CUSTOM_VDPA"].total == 2
    assert {"CUSTOM_PCI_TYPE_VDPA", "CUSTOM_PCI_TYPE_VF"} <= card.traits
    providers = describe_cards(card_contexts(DeviceFacts(cards_with(4)), DEVICES), "node1", lambda _: "node1")
    (card,) = (each for each in providers if each.device == f"pci:{NIC0}")
    assert card.units == {"CUSTOM_VDPA": tuple(VFS)} and "CUSTOM_PCI_TYPE_VF" not in card.traits


def test_the_class_of_the_operator_counts_as_in_nova() -> None:
    specs = parse_device_specs(('{"vendor_id": "8086", "product_id": "10ca", "resource_class": "fast"}',))
    providers = describe_cards(
        card_contexts(DeviceFacts(cards_with(4)), DeviceSettings(specs)), "node1", lambda _: "node1"
    )
    (card,) = (each for each in providers if each.device == f"pci:{NIC0}")
    assert card.units == {"CUSTOM_FAST": tuple(VFS)}


def test_a_domain_names_them_by_path() -> None:
    functions = vdpa_functions(cards_with(2))
    devices = INTERFACE.format("/dev/vhost-vdpa-1") + INTERFACE.format("/dev/vhost-vdpa-9")
    read = with_functions(parse_domain(domain(1, devices=devices)), functions)
    assert read.interfaces == (VFS[1],)
    assert [unit.unit for unit in guest_of(read, GuestState.RUNNING, 0, frozenset()).units] == [VFS[1]]
    assert starting_guest(read, 0, frozenset(), {}).units[0].device == f"pci:{VFS[1]}"
    plain = replace(read, vdpa=(), interfaces=())
    assert with_functions(plain, functions) is plain


@pytest.mark.parametrize("present", [False, True])
def test_a_domain_gets_an_interface_for_each_that_it_lacks(present: bool) -> None:
    functions = vdpa_functions(cards_with(2))
    text = domain(1, devices=INTERFACE.format("/dev/vhost-vdpa-0") if present else "")
    given = [GivenDevice("", "CUSTOM_VDPA", address) for address in VFS[:2]]
    written = write_vdpa(text, given, functions)
    assert parse_domain(written).vdpa == ("/dev/vhost-vdpa-0", "/dev/vhost-vdpa-1")
    added = [each.find("model") is not None for each in parse_xml(written, "x", "domain").iter("interface")]
    assert added == [not present, True], "as nova writes one of its own"
    assert write_vdpa(written, given, functions) == written
    as_by_hand = written.replace("</devices>", """<hostdev managed="yes" mode='x'></hostdev></devices>""")
    assert write_vdpa(as_by_hand, given, functions) == as_by_hand, "byte for byte, as nothing is missing"


def test_an_interface_without_a_device_gets_one_and_a_domain_says_what_it_needs() -> None:
    functions = vdpa_functions(cards_with(2))
    open_one = "<interface type='vdpa'><alias name='ua-red'/></interface>"
    text = domain(1, devices=open_one + INTERFACE.format("/dev/vhost-vdpa-9"))
    needed = list(needed_vdpa(parse_xml(text, "x", "domain"), functions))
    assert [(each.kind, each.alias, each.unit) for each in needed] == [
        (DeviceKind.VDPA, "red", ""),
        (DeviceKind.VDPA, "", "/dev/vhost-vdpa-9"),
    ]
    written = write_vdpa(text, [GivenDevice("red", "CUSTOM_VDPA", VFS[1])], functions)
    assert parse_domain(written).vdpa == ("/dev/vhost-vdpa-1", "/dev/vhost-vdpa-9")
    (first, _) = needed_vdpa(parse_xml(written, "x", "domain"), functions)
    assert (first.alias, first.unit) == ("red", VFS[1])


def test_a_mediated_device_has_the_class_of_its_type_and_of_the_first_one_where_that_is_not_enabled() -> None:
    specs = (MdevSpec("nvidia-1", resource_class="VGPU"), MdevSpec("nvidia-2", resource_class="CUSTOM_LARGE"))
    named = {type_id: class_of(specs, type_id) for type_id in ("nvidia-1", "nvidia-2", "nvidia-3")}
    assert named == {"nvidia-1": "VGPU", "nvidia-2": "CUSTOM_LARGE", "nvidia-3": "VGPU"}
    assert class_of((), "nvidia-1") == NOT_CONFIGURED
