"""A recorded host for `build_model`: its cells, and its devices at several moments."""

from collections.abc import Mapping
from dataclasses import replace
from xml.etree import ElementTree

from agent.driver import GuestState, HostSettings, MoveInstruction
from drivers.host.domain_xml import guest_of, parse_domain
from drivers.libvirt.describe.cards import MdevSpec, UnitRecord, cards_of, parse_device_specs
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings, GuestDomain
from drivers.libvirt.describe.host import HostFacts, HostModel, ModelSettings, build_model
from drivers.libvirt.xml import parse_capabilities, parse_node_device
from kits.libvirt_node import DATA

HOST = HostFacts(
    parse_capabilities((DATA / "host" / "capabilities.xml").read_text()),
    None,
    frozenset(),
    frozenset({0, 1, 2, 3}),
    3072,
    40,
)
ANY_VF = parse_device_specs(('{"vendor_id": "8086", "product_id": "10ca"}',))
DEVICES = DeviceSettings(ANY_VF, (MdevSpec("nvidia-11"), MdevSpec("nvidia-471")))
MOST = {"0000:84:00.0": {"nvidia-471": 4}}
HOSTDEV = "<hostdev mode='subsystem' type='mdev'><source><address uuid='{}'/></source></hostdev>"
INTERFACE = (
    "<interface type='hostdev'><source><address type='pci' domain='0x{0[0]}' bus='0x{0[1]}' slot='0x{0[2]}' "
    "function='0x{0[3]}'/></source></interface>"
)


def facts(moment: str) -> DeviceFacts:
    """The recorded devices at a moment."""
    root = ElementTree.parse(DATA / "devices" / f"{moment}.xml").getroot()
    devices = [
        parse_node_device(ElementTree.tostring(element, encoding="unicode"), active=active)
        for path, active in (("device", True), ("inactive/device", False))
        for element in root.iterfind(path)
    ]
    return DeviceFacts(cards_of(device for device in devices if device is not None), MOST)


FACTS = {moment: facts(moment) for moment in ("boot", "vfs", "mdevs", "domains", "migrated-in")}


def hostdev(mdev: str) -> str:
    """The XML of a mediated device with that uuid in a domain."""
    return HOSTDEV.format(mdev)


def interface(vf: str) -> str:
    """The XML of a network interface that is the virtual function with that address."""
    return INTERFACE.format(vf.replace(".", ":").split(":"))


def model(
    moment: str,
    *xml: str,
    numa: bool = False,
    host: HostSettings | None = None,
    known: Mapping[str, UnitRecord] | None = None,
    devices: DeviceSettings = DEVICES,
    problem: str | None = None,
) -> HostModel:
    """The model of the host at that moment, with these domains running; all of them have the problem."""
    host = host or HostSettings()
    dedicated = host.cpu_dedicated_set or frozenset()
    domains = [parse_domain(text) for text in xml]
    guests = [guest_of(domain, GuestState.RUNNING, 0, dedicated) for domain in domains]
    guest_domains = [
        GuestDomain(replace(guest, problem=problem), domain)
        for guest, domain in zip(guests, domains, strict=True)
    ]
    settings = ModelSettings("node1", host, devices, numa)
    return build_model(HOST, FACTS[moment], guest_domains, known or {}, "boot-1", settings)


def moves(found: HostModel, source: str, target: str) -> list[MoveInstruction]:
    """The model's moves from one provider to another, by their names."""
    return [
        move
        for move in found.description.moves
        if (move.from_resource_provider, move.to_resource_provider) == (source, target)
    ]
