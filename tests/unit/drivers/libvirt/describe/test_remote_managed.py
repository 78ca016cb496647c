"""Functions that a network service manages: of a card with a serial number, and no physical function."""

from dataclasses import replace
from typing import Any

import pytest
from kits.recorded_cards import SETTINGS, cards

from agent.driver import DescribedProvider
from agent.errors import DriverDataError, SettingsError
from drivers.libvirt.describe.cards import Card, has_remote_managed_ports, parse_device_specs
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings, card_contexts, describe_cards
from drivers.libvirt.describe.options import unmatched_options
from drivers.libvirt.xml import PciDevice, parse_node_device

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
