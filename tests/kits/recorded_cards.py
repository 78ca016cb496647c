"""The cards of a recorded hypervisor, by address."""

from xml.etree import ElementTree

from drivers.libvirt.describe.cards import Card, cards_of
from drivers.libvirt.xml.nodedevs import (
    NodeDevice,
    parse_node_device,
)
from kits.libvirt_node import DATA

M60, A100, T4 = "0000:42:00.0", "0000:84:00.0", "0000:43:00.0"
NIC0, NIC1 = "0000:41:00.0", "0000:81:00.0"


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
