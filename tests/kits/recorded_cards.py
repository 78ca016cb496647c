"""The cards of a recorded hypervisor, and the providers that the libvirt driver describes for them."""

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from agent.driver import DescribedProvider
from drivers.host.sysfs import MemoryCell
from drivers.libvirt.describe.cards import Card, MdevSpec, cards_of, parse_device_specs
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings, card_contexts, describe_cards
from drivers.libvirt.xml import (
    NodeDevice,
    parse_node_device,
)
from kits.libvirt_node import DATA

M60, A100, T4 = "0000:42:00.0", "0000:84:00.0", "0000:43:00.0"
NIC0, NIC1 = "0000:41:00.0", "0000:81:00.0"
VF = '{"vendor_id": "8086", "product_id": "10ca", "physical_network": "physnet0"}'
WHOLE = (
    '{"vendor_id": "10de", "product_id": "1eb8", "resource_class": "PGPU", "traits": "CUSTOM_T4,tesla-t4"}'
)
MDEVS = (MdevSpec("nvidia-471"), MdevSpec("nvidia-11", max_instances=10))
SETTINGS = DeviceSettings(parse_device_specs((VF, WHOLE)), MDEVS, {"enp65s0": (1000, 2000)})
MOST = {A100: {"nvidia-471": 4}}


def recorded(moment: str) -> list[NodeDevice]:
    root = ElementTree.parse(DATA / "devices" / f"{moment}.xml").getroot()
    found = []
    for path, active in (("device", True), ("inactive/device", False)):
        for element in root.iterfind(path):
            device = parse_node_device(ElementTree.tostring(element, encoding="unicode"), active=active)
            if device is not None:
                found.append(device)
    return found


def cards(moment: str) -> dict[str, Card]:
    return {card.device.address: card for card in cards_of(recorded(moment))}


def under_cells(numa: int | None) -> str:
    """The parent of the devices of a cell, where each cell has a provider."""
    return "node1" if numa is None else f"node1_numa{numa}"


def describe(
    moment: str,
    settings: DeviceSettings = SETTINGS,
    held: frozenset[str] = frozenset(),
    memory_cells: Mapping[int, MemoryCell] | None = None,
    **more: Any,
) -> dict[str, DescribedProvider]:
    """{device: provider} of the cards at that moment; `more` are other facts."""
    facts = DeviceFacts(tuple(cards(moment).values()), MOST, memory_cells=memory_cells or {}, **more)
    providers = describe_cards(card_contexts(facts, settings, held), "node1", under_cells)
    return {provider.device: provider for provider in providers}


def amounts(provider: DescribedProvider) -> dict[str, int]:
    """{resource class: total}"""
    return {name: inventory.total for name, inventory in provider.inventories.items()}
