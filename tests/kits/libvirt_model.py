"""A host as it was recorded, for the pure model: its cells, and its devices at several moments."""

from xml.etree import ElementTree

from drivers.libvirt.describe.cards import cards_of
from drivers.libvirt.describe.devices import DeviceFacts
from drivers.libvirt.describe.host import HostFacts
from drivers.libvirt.xml.capabilities import parse_capabilities
from drivers.libvirt.xml.nodedevs import parse_node_device
from kits.libvirt_node import DATA

HOST = HostFacts(
    parse_capabilities((DATA / "host" / "capabilities.xml").read_text()),
    None,
    frozenset(),
    frozenset({0, 1, 2, 3}),
    3072,
    40,
)
MOST = {"0000:84:00.0": {"nvidia-471": 4}}
HOSTDEV = "<hostdev mode='subsystem' type='mdev'><source><address uuid='{}'/></source></hostdev>"
INTERFACE = (
    "<interface type='hostdev'><source><address type='pci' domain='0x{0[0]}' bus='0x{0[1]}' slot='0x{0[2]}' "
    "function='0x{0[3]}'/></source></interface>"
)


def facts(moment: str) -> DeviceFacts:
    root = ElementTree.parse(DATA / "devices" / f"{moment}.xml").getroot()
    found = [
        parse_node_device(ElementTree.tostring(element, encoding="unicode"), active=active)
        for path, active in (("device", True), ("inactive/device", False))
        for element in root.iterfind(path)
    ]
    return DeviceFacts(cards_of(device for device in found if device is not None), MOST)


FACTS = {moment: facts(moment) for moment in ("boot", "vfs", "mdevs", "domains", "migrated-in")}


def hostdev(mdev: str) -> str:
    return HOSTDEV.format(mdev)


def interface(vf: str) -> str:
    """A network interface that is the virtual function with that address."""
    return INTERFACE.format(vf.replace(".", ":").split(":"))
