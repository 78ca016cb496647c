"""Functions over vDPA: read from node devices, offered in a class of their own, used and written by path."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kits.libvirt_model import DEVICES, FACTS
from kits.libvirt_node import domain
from kits.recorded_cards import NIC0, recorded

from agent.driver import DeviceKind, GivenDevice, GuestState
from drivers.host.domain_xml import guest_of, parse_domain, starting_guest
from drivers.host.xml_parser import parse_xml
from drivers.libvirt.describe.cards import Card, cards_of, parse_device_specs
from drivers.libvirt.describe.devices import (
    DeviceFacts,
    DeviceSettings,
    card_contexts,
    describe_cards,
    needed_vdpa,
    vdpa_functions,
    with_functions,
    write_vdpa,
)
from drivers.libvirt.xml import PciDevice, VdpaDevice, parse_node_device

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
    assert write_vdpa(written, given, functions) == written


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
