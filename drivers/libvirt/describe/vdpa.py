"""Functions of network cards that guests get over vDPA, as /dev/vhost-vdpa-N, and not as a PCI device. Pure.

nova tells such a function apart by its type of device. Placement has classes only, so these functions have a
class of their own unless [pci] device_spec gives one; their units are PCI addresses, as in nova. Source:
https://libvirt.org/formatnode.html and nova 34, nova/virt/libvirt/host.py (`_get_device_type`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from xml.etree.ElementTree import Element

from agent.device_names import VDPA_CLASS
from agent.driver import DeviceKind, GivenDevice, Guest, NeededDevice, UsedUnit
from drivers.host.domain_document import DomainDocument, add_child, child
from drivers.host.domain_needs import ALIAS_PREFIX
from drivers.host.domain_xml import Domain
from drivers.libvirt.describe.cards import Card
from drivers.libvirt.describe.moves import GuestDomain


def vdpa_functions(cards: Iterable[Card]) -> Mapping[str, str]:
    """{/dev/vhost-vdpa-N: PCI address of the function}"""
    return {path: address for card in cards for address, path in card.vdpa.items()}


def with_functions(domain: Domain, functions: Mapping[str, str]) -> Domain:
    """The domain with the functions of its vDPA devices among its interfaces."""
    used = tuple(functions[path] for path in domain.vdpa if path in functions)
    return replace(domain, interfaces=(*domain.interfaces, *used)) if used else domain


def with_vdpa(guest_domains: Sequence[GuestDomain], cards: Iterable[Card]) -> Sequence[GuestDomain]:
    """The guests with the functions of their vDPA devices as units, not located yet."""
    if not any(pair.domain is not None and pair.domain.vdpa for pair in guest_domains):
        return guest_domains
    functions = vdpa_functions(cards)
    return [
        pair
        if pair.domain is None
        else GuestDomain(
            with_units(pair.guest, pair.domain, functions), with_functions(pair.domain, functions)
        )
        for pair in guest_domains
    ]


def with_units(guest: Guest, domain: Domain, functions: Mapping[str, str]) -> Guest:
    """The guest with the functions of its vDPA devices as units, not located yet."""
    addresses = [functions[path] for path in domain.vdpa if path in functions]
    units = tuple(UsedUnit(VDPA_CLASS, address, f"pci:{address}") for address in addresses)
    return replace(guest, units=(*guest.units, *units)) if units else guest


def needed_vdpa(root: Element, functions: Mapping[str, str]) -> Iterator[NeededDevice]:
    """The functions that a domain asks for; one whose device the host does not have keeps its path."""
    for interface in root.findall("devices/interface[@type='vdpa']"):
        source, alias = interface.find("source"), interface.find("alias")
        path = "" if source is None else source.get("dev", "").strip()
        name = "" if alias is None else alias.get("name", "")
        name = name.removeprefix(ALIAS_PREFIX) if name.startswith(ALIAS_PREFIX) else ""
        text = f"<interface type='vdpa'{f' {ALIAS_PREFIX}{name}' if name else ''}>"
        yield NeededDevice(DeviceKind.VDPA, name, functions.get(path, path), text)


def write_vdpa(text: str, devices: Iterable[GivenDevice], functions: Mapping[str, str]) -> str:
    """The domain's XML with an interface for each of these devices that it does not have yet.

    An interface without a device gets one. `functions` as of `vdpa_functions`.
    Raises DriverDataError for malformed XML.
    """
    paths = {address: path for path, address in functions.items()}
    document = DomainDocument(text)
    found = document.root.findall("devices/interface[@type='vdpa']/source")
    present = {source.get("dev") for source in found}
    missing = [paths[device.unit] for device in devices if paths.get(device.unit, "") not in {"", *present}]
    if not missing:
        return text
    interfaces = document.root.findall("devices/interface[@type='vdpa']")
    open_ones = iter([each for each in interfaces if each.find("source[@dev]") is None])
    for path in missing:
        interface = next(open_ones, None)
        if interface is None:
            devices_element = child(document.root, "devices")
            interface = add_child(devices_element, "interface", {"type": "vdpa"}, after=("interface",))
            add_child(interface, "model", {"type": "virtio"})
        child(interface, "source").set("dev", path)
    return document.text
