"""Cards from recorded node devices, and which of them [pci] device_spec and the enabled types offer."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.recorded_cards import A100, M60, NIC0, NIC1, SETTINGS, T4, VF, WHOLE, cards

from agent.driver import DescribedProvider
from agent.errors import DriverDataError, SettingsError
from drivers.libvirt.describe.cards import (
    Card,
    DeviceSpec,
    cards_of,
    has_remote_managed_ports,
    mdev_total,
    mdev_types,
    parse_device_specs,
)
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings, card_contexts, describe_cards
from drivers.libvirt.describe.options import unmatched_options
from drivers.libvirt.xml import (
    MediatedDevice,
    NetDevice,
    PciDevice,
    parse_node_device,
)


def test_virtual_functions_belong_to_their_card() -> None:
    at_boot, with_vfs = cards("boot"), cards("vfs")
    assert at_boot.keys() == with_vfs.keys(), "virtual functions are no cards"
    assert [vf.address for vf in with_vfs[NIC0].vfs] == list(with_vfs[NIC0].device.vfs)
    assert [len(with_vfs[address].vfs) for address in (NIC0, NIC1, A100, M60)] == [4, 2, 4, 0]
    assert at_boot[NIC0].vfs == ()
    assert (at_boot[NIC0].device.vfs_max, at_boot[T4].device.vfs_max) == (7, None)


def test_a_cards_interface_is_the_physical_functions() -> None:
    card = cards("vfs")[NIC0]
    assert card.interface is not None
    assert (card.interface.interface, card.is_network, card.numa) == ("enp65s0", True, 0)
    assert cards("vfs")[M60].interface is None


def test_mediated_devices_belong_to_the_card_through_its_virtual_functions() -> None:
    found = cards("mdevs")
    assert [mdev.uuid[:8] for mdev in found[M60].mdevs] == ["11111111", "22222222"]
    assert [(mdev.uuid[:8], mdev.active) for mdev in found[A100].mdevs] == [
        ("33333333", True),
        ("55555555", False),
    ]
    assert mdev_types(found[T4]) == frozenset()
    assert "nvidia-471" in mdev_types(found[A100])


@pytest.mark.parametrize("moment", ["boot", "vfs", "mdevs", "domains"])
def test_a_total_stays_as_it_is_while_devices_are_made(moment: str) -> None:
    """An 8 GiB card is good for 16 of 512 MiB, before and after two were made, of two types of that size."""
    assert mdev_total(cards(moment)[M60], "nvidia-11") == 16


def test_a_type_that_is_excluded_by_those_that_are_there_counts_what_is_there() -> None:
    card = cards("mdevs")[M60]
    assert card.device.mdev_types["nvidia-22"].available == 0
    assert mdev_total(card, "nvidia-22") == 2, "a device in use never vanishes"
    assert mdev_total(cards("boot")[M60], "nvidia-22") == 1


@pytest.mark.parametrize(
    ("moment", "type_id", "most", "total"),
    [
        ("vfs", "nvidia-471", 4, 4),
        ("vfs", "nvidia-473", 1, 1),
        ("mdevs", "nvidia-471", 4, 4),
        ("vfs", "nvidia-473", None, 1),
        ("mdevs", "nvidia-471", None, 2),
        ("boot", "nvidia-471", 4, 0),
    ],
)
def test_the_functions_of_a_card_offer_the_same_room_again(
    moment: str, type_id: str, most: int | None, total: int
) -> None:
    """Four functions each offer one A100-40C; the card holds one."""
    assert mdev_total(cards(moment)[A100], type_id, most) == total


@pytest.mark.parametrize(("cap", "total"), [(None, 16), (5, 5), (2, 2), (1, 2), (0, 2), (99, 16)])
def test_a_cap_caps_exactly_and_takes_nothing_away(cap: int | None, total: int) -> None:
    """Scenario 100."""
    assert mdev_total(cards("mdevs")[M60], "nvidia-11", max_instances=cap) == total


def test_devices_that_are_half_gone_are_left_for_the_next_look() -> None:
    """libvirtd learns of a card's functions one by one."""
    orphan = PciDevice("vf", "0000:41:10.0", "8086", "10ca", 0x020000, physical_function=NIC0)
    mdev = MediatedDevice("m", "11111111-1111-4111-8111-111111111111", "gone", "t")
    net = NetDevice("n", "gone", "eth0")
    assert cards_of([orphan, mdev, net]) == ()


@pytest.mark.parametrize(
    ("text", "matching"),
    [
        ('{"vendor_id": "8086", "product_id": "10ca"}', 6),
        ('{"vendor_id": "0x8086", "product_id": "10CA"}', 6),
        ('{"address": "0000:41:10.2"}', 1),
        ('{"address": ":41:10."}', 4),
        ('{"address": "0000:41:00.0"}', 5),
        ('{"address": "*:41:00.0"}', 1),
        ('{"address": {"domain": "0000", "bus": "41", "slot": "00", "function": "0"}}', 5),
        ('{"address": {"domain": "0000", "bus": "41", "slot": "0", "function": "0"}}', 1),
        ('{"address": {"bus": "41", "slot": "00", "function": "0"}}', 1),
        ('{"address": {"bus": "4", "slot": "10"}}', 4),
        ('{"address": {"bus": "4$"}}', 0),
        ('{"address": "10.2"}', 2),
        ('{"address": "0:41:10.2"}', 1),
        ('{"address": "*:4*:10."}', 4),
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
        for card in tuple(cards("vfs").values())
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
        ('{"vendor": "8086"}', "'vendor' is not known; there are address, cc_mode, devname,"),
        ('{"vendor_id": "80867"}', "vendor_id '80867' is not an id of one to four hexadecimal digits"),
        ('{"vendor_id": 8086}', "vendor_id must be text"),
        ('{"address": "41"}', "is not a PCI address such as"),
        ('{"address": {"bus": "("}}', "address: "),
        ('{"address": {"bus": 3, "x": 1}}', "address must be text or an object of"),
        ('{"devname": "eth0", "address": "0000:41:00.0"}', "both name devices"),
        ('{"address": "0000:41:00.0", "traits": 3}', "traits must be text"),
        (
            '{"address": "0000:41:00.0", "cc_mode": "On"}',
            "cc_mode must be one of on, devtools, off, not 'On'",
        ),
        ('{"address": "0000:41:00.0", "cc_mode": true}', "cc_mode must be text"),
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


def test_the_mode_of_a_card_is_a_trait() -> None:
    text = '{"address": "0000:41:00.0", "cc_mode": "%s"}'
    traits = {mode: parse_device_specs((text % mode,))[0].traits for mode in ("on", "devtools", "off")}
    assert traits == {
        "on": {"CUSTOM_CC", "CUSTOM_CC_ON"},
        "devtools": {"CUSTOM_CC", "CUSTOM_CC_DEVTOOLS"},
        "off": {"CUSTOM_CC_OFF"},
    }


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
        card = replace(next(iter(cards("boot").values())))
        assert all(spec.matches(card.device, card) in (True, False) for spec in specs)


NIC = "0000:41:00.0"
PORTS = '{"devname": "enp65s0", "product_id": "10ca", "physical_network": "p0", "remote_managed": "true"}'
NODE_DEVICE = """<device><name>pci_0000_41_00_0</name><capability type='pci'><class>0x020000</class>
  <domain>0</domain><bus>65</bus><slot>0</slot><function>0</function>
  <product id='0xa2d6'/><vendor id='0x15b3'/>{}</capability></device>"""
VPD = """<capability type='vpd'><name>BlueField-2</name><fields access='readonly'>
  <change_level>B1</change_level><serial_number> {} </serial_number></fields></capability>"""


def with_serials(**serials: str) -> tuple[Card, ...]:
    """The recorded cards; `serials` {"card" or "vf": number} of the network card and its functions."""
    found = cards("vfs")
    card = found[NIC]
    found[NIC] = replace(
        card,
        device=replace(card.device, serial=serials.get("card", "")),
        vfs=tuple(replace(vf, serial=serials.get("vf", "")) for vf in card.vfs),
    )
    return tuple(found.values())


def settings(*specs: str) -> DeviceSettings:
    return replace(SETTINGS, specs=parse_device_specs(specs))


def offered(found: tuple[Card, ...], *specs: str) -> dict[str, DescribedProvider]:
    described = describe_cards(
        card_contexts(DeviceFacts(found), settings(*specs)), "node1", lambda cell: "node1"
    )
    return {provider.device or "": provider for provider in described}


def test_the_serial_number_is_read_as_libvirt_reports_it() -> None:
    read: Any = parse_node_device(NODE_DEVICE.format(VPD.format("MT2113X00000")))
    assert isinstance(read, PciDevice)
    assert read.serial == "MT2113X00000"
    plain: Any = parse_node_device(NODE_DEVICE.format(""))
    assert plain.serial == ""


@pytest.mark.parametrize("owner", ["card", "vf"])
def test_functions_with_a_serial_number_are_in_no_inventory_and_give_the_trait(owner: str) -> None:
    found = with_serials(**{owner: "MT2113X00000"})
    wide = '{"devname": "enp65s0", "physical_network": "p0"}'
    assert f"pci:{NIC}" not in offered(found, PORTS, wide)
    assert f"pci:{NIC}" in offered(found, wide)
    assert has_remote_managed_ports(found, settings(PORTS).specs)
    assert not has_remote_managed_ports(found, settings(wide).specs)


def test_functions_without_a_serial_number_are_not_of_these_and_the_sentence_says_so() -> None:
    found = with_serials()
    assert not has_remote_managed_ports(found, settings(PORTS).specs)
    assert f"pci:{NIC}" not in offered(found, PORTS)
    told = unmatched_options(DeviceFacts(found), settings(PORTS))
    (sentence,) = [text for text in told if "number 1" in text]
    assert "number 1: remote_managed needs the serial number" in sentence
    assert "0000:41:10.0" in sentence


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        ("", "physical function: guests cannot reach"),
        (', "product_id": "10c9"', "physical function: guests cannot reach"),
        (', "product_id": "1889"', "product_id 1889"),
        (', "product_id": "10ca", "vendor_id": "15b3"', "vendor_id 15b3"),
    ],
)
@pytest.mark.parametrize("name", ['"address": "0000:41:00.0"', '"devname": "enp65s0"'])
def test_a_physical_function_is_refused_with_the_reason(name: str, ids: str, why: str) -> None:
    with pytest.raises(DriverDataError, match=why):
        offered(with_serials(card="MT2113X00000"), f'{{{name}{ids}, "remote_managed": true}}')


def test_what_would_be_in_an_inventory_is_refused() -> None:
    with pytest.raises(SettingsError, match="remote_managed devices are in no inventory"):
        parse_device_specs(('{"address": "*:41:00.0", "resource_class": "NET", "remote_managed": true}',))
