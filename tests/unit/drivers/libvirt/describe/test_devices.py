from dataclasses import replace

import pytest
from kits.recorded_cards import MDEVS, MOST, SETTINGS, WHOLE, amounts, cards, describe, under_cells

from agent.driver import DescribedProvider
from agent.errors import DriverDataError, SettingsError
from drivers.libvirt.describe.cards import MdevSpec, parse_device_specs
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings, card_contexts, describe_cards

NIC0, NIC1 = "0000:41:00.0", "0000:81:00.0"
T4 = "0000:43:00.0"


def apart_from_units(provider: DescribedProvider) -> DescribedProvider:
    inventories = {name: replace(each, reserved=0) for name, each in provider.inventories.items()}
    return replace(provider, inventories=inventories, units={}, to_make={})


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


def test_a_card_on_a_cell_without_cpus_is_near_to_the_guests_of_another() -> None:
    """Its provider stays where the card is; claims look for it from the nearest cell with CPUs."""
    plain = describe("vfs")[f"pci:{NIC1}"]
    near = describe("vfs", near_cells={1: 0})[f"pci:{NIC1}"]
    assert (plain.cell, near.cell) == (1, 0)
    assert near == replace(plain, cell=0)
