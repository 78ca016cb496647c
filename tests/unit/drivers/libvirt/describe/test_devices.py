import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.libvirt_node import DATA

from agent.driver import DescribedProvider
from agent.errors import DriverDataError, SettingsError
from drivers.libvirt.describe.cards import Card, cards_of
from drivers.libvirt.describe.device_spec import DeviceSpec, MdevSpec, parse_device_specs
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings, describe_cards
from drivers.libvirt.xml.nodedevs import parse_node_device

NIC0, NIC1 = "0000:41:00.0", "0000:81:00.0"
T4 = "0000:43:00.0"
VF = '{"vendor_id": "8086", "product_id": "10ca", "physical_network": "physnet0"}'
WHOLE = (
    '{"vendor_id": "10de", "product_id": "1eb8", "resource_class": "PGPU", "traits": "CUSTOM_T4,tesla-t4"}'
)
MDEVS = (MdevSpec("nvidia-471"), MdevSpec("nvidia-11", max_instances=10))
SETTINGS = DeviceSettings(parse_device_specs((VF, WHOLE)), MDEVS, {"enp65s0": (1000, 2000)})
MOST = {"0000:84:00.0": {"nvidia-471": 4}}


def recorded(moment: str) -> tuple[Card, ...]:
    root = ElementTree.parse(DATA / "devices" / f"{moment}.xml").getroot()
    found = []
    for path, active in (("device", True), ("inactive/device", False)):
        for element in root.iterfind(path):
            text = ElementTree.tostring(element, encoding="unicode")
            found.append(parse_node_device(text, active=active))
    return cards_of(device for device in found if device is not None)


def under_cells(numa: int | None) -> str:
    return "node1" if numa is None else f"node1_numa{numa}"


def describe(
    moment: str, settings: DeviceSettings = SETTINGS, held: frozenset[str] = frozenset()
) -> dict[str, DescribedProvider]:
    found = describe_cards(DeviceFacts(recorded(moment), MOST), settings, "node1", under_cells, held=held)
    return {provider.device: provider for provider in found}


def amounts(provider: DescribedProvider) -> dict[str, int]:
    return {name: inventory.total for name, inventory in provider.inventories.items()}


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
        "not the card as well, which nobody could tell apart"
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
    ("text", "matching"),
    [
        ('{"vendor_id": "8086", "product_id": "10ca"}', 6),
        ('{"vendor_id": "0x8086", "product_id": "10CA"}', 6),
        ('{"address": "0000:41:10.2"}', 1),
        ('{"address": ":41:10."}', 4),
        ('{"address": "*:41:00.0"}', 5),
        ('{"address": {"bus": "41|81", "slot": "10"}}', 6),
        ('{"devname": "enp129s0"}', 3),
        ('{"devname": "enp129s0", "product_id": "10ca"}', 2),
        ('{"vendor_id": "*", "address": "0000:43:00.0"}', 1),
        ('{"vendor_id": "dead"}', 0),
    ],
)
def test_specs_match_as_nova_has_them(text: str, matching: int) -> None:
    (spec,) = parse_device_specs((text,))
    found = [
        function.address
        for card in recorded("vfs")
        for function in (card.device, *card.vfs)
        if spec.matches(function, card)
    ]
    assert len(found) == matching


def test_a_list_of_specs_is_as_good_as_many() -> None:
    assert parse_device_specs((f"[{VF}, {WHOLE}]",)) == parse_device_specs((VF, WHOLE))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "is not JSON"),
        ("3", "an object was expected"),
        ("{}", "it names no device"),
        ('{"physical_network": "p"}', "it names no device"),
        ('{"vendor": "8086"}', "'vendor' is not known; there are address, devname,"),
        ('{"vendor_id": "80867"}', "vendor_id '80867' is not an id of one to four hexadecimal digits"),
        ('{"vendor_id": 8086}', "vendor_id must be text"),
        ('{"address": "41"}', "is not a PCI address such as"),
        ('{"address": {"bus": "("}}', "address: "),
        ('{"address": {"bus": 3, "x": 1}}', "address must be text or an object of"),
        ('{"devname": "eth0", "address": "0000:41:00.0"}', "both name devices"),
        ('{"address": "0000:41:00.0", "traits": 3}', "traits must be text"),
        ('{"address": "0000:41:00.0", "resource_class": "!"}', "'!' has no letter or digit"),
    ],
)
def test_specs_that_make_no_sense(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_device_specs((text,))


def test_names_are_made_fit_for_placement() -> None:
    (spec,) = parse_device_specs(
        ('{"vendor_id": "1", "resource_class": "my-gpu", "traits": "HW_GPU_API_VULKAN, a b"}',)
    )
    assert spec == DeviceSpec(
        vendor_id="0001",
        resource_class="CUSTOM_MY_GPU",
        traits=frozenset({"HW_GPU_API_VULKAN", "CUSTOM_A_B"}),
    )


_JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=6) | st.sampled_from(["*", "8086", ":41:*.", "("]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["vendor_id", "product_id", "address", "devname", "traits", "resource_class", "bus"]),
        inner,
        max_size=4,
    ),
    max_leaves=6,
)  # fmt: skip


@given(_JSON)
def test_no_spec_does_worse_than_settingserror(data: object) -> None:
    try:
        specs = parse_device_specs((json.dumps(data),))
    except SettingsError as error:
        assert error.message.startswith("[pci] device_spec ")
    else:
        card = replace(recorded("boot")[0])
        assert all(spec.matches(card.device, card) in (True, False) for spec in specs)


M60_TYPES = (
    MdevSpec("nvidia-11", frozenset({"0000:42:00.0", "0000:82:00.0"}), "CUSTOM_SMALL"),
    MdevSpec("nvidia-12", frozenset({"0000:42:00.0", "0000:82:00.0"}), "CUSTOM_DESK", 8),
    MdevSpec("nvidia-22", frozenset({"0000:42:00.0", "0000:82:00.0"}), "CUSTOM_BIG"),
)
M60_MOST = {"nvidia-11": 16, "nvidia-12": 16, "nvidia-22": 1}


def typed(moment: str, held: frozenset[str] = frozenset()) -> dict[str, DescribedProvider]:
    facts = DeviceFacts(recorded(moment), {"0000:42:00.0": M60_MOST, "0000:82:00.0": M60_MOST})
    settings = DeviceSettings(mdevs=M60_TYPES)
    found = describe_cards(facts, settings, "node1", under_cells, held=held)
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


def test_what_is_there_of_another_type_is_not_given_out() -> None:
    idle = next(m.uuid for c in recorded("mdevs") for m in c.mdevs if m.type_id == "nvidia-12")
    card = describe("mdevs")["pci:0000:42:00.0"]
    assert idle not in card.units["VGPU"]
    assert len(card.units["VGPU"]) == card.inventories["VGPU"].total - 1, "it takes room all the same"
    in_use = describe("mdevs", held=frozenset({idle}))["pci:0000:42:00.0"]
    assert idle in in_use.units["VGPU"], "where its guest is found"


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
    functions = recorded("vendor-vfio")
    types = {vf.address: "471" for card in functions for vf in card.vfs if card.device.address in MOST}
    (card,) = describe_cards(
        DeviceFacts(functions, vgpu_types=types),
        DeviceSettings(mdevs=(MdevSpec("nvidia-471", max_instances=cap),)),
        "node1",
        under_cells,
        held=frozenset(f"0000:84:00.{number}" for number in held),
    )
    assert amounts(card) == {"VGPU": len(given)}
    assert set(card.units["VGPU"]) == {f"0000:84:00.{number}" for number in given}


def test_all_of_an_iommu_group_is_for_one_guest() -> None:
    group = ("0000:43:00.0", "0000:83:00.0")
    found = tuple(
        replace(card, device=replace(card.device, iommu_devices=group))
        if card.device.address in group
        else card
        for card in recorded("boot")
    )
    settings = DeviceSettings(parse_device_specs((WHOLE,)))
    for held in ((), group[:1], group):
        described = describe_cards(DeviceFacts(found), settings, "node1", under_cells, held=frozenset(held))
        assert {each.device for each in described} == {f"pci:{address}" for address in held or group}
