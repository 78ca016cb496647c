"""Input for libvirt's own test driver: a host that the real libvirt library serves as test:///FILE, without
a daemon.

The test driver knows domains of type "test" only, and an old libvirt refuses elements that it does not know;
so a recorded domain is reduced to what this project reads of it.
"""

import ast
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from kits.paths import TESTS

DATA = TESTS / "data" / "libvirt"
_NAMESPACE = "http://libvirt.org/schemas/domain/test/1.0"
_SHUT_OFF = "5"
_KEPT = ("name", "uuid", "memory", "vcpu", "cputune", "os")
_KEPT_DEVICES = ("disk", "hostdev", "interface")


def domain(
    number: int,
    vcpus: int = 1,
    memory_mb: int = 512,
    *,
    running: bool = True,
    inside: str = "",
    devices: str = "",
) -> str:
    """A small domain's XML; `inside` goes into <domain>, `devices` into <devices>."""
    run_state = "" if running else f"<t:runstate xmlns:t='{_NAMESPACE}'>{_SHUT_OFF}</t:runstate>"
    return (
        f"<domain type='test'><name>guest-{number}</name><uuid>{domain_uuid(number)}</uuid>"
        f"<memory unit='MiB'>{memory_mb}</memory><vcpu>{vcpus}</vcpu><os><type>hvm</type></os>{inside}"
        f"<devices>{devices}</devices>{run_state}</domain>"
    )


def domain_uuid(number: int) -> str:
    return f"a0000000-0000-4000-8000-{number:012}"


def recorded_domain(name: str) -> str:
    """A recorded domain, as the test driver takes it; one without an id is shut off."""
    root = ElementTree.parse(DATA / "domains" / f"{name}.xml").getroot()
    reduced = Element("domain", type="test")
    reduced.extend(each for each in root if each.tag in _KEPT)
    for each in reduced.iter("type"):
        each.attrib.clear()
    devices = ElementTree.SubElement(reduced, "devices")
    for device in root.iterfind("devices/*"):
        if device.tag in _KEPT_DEVICES:
            for guest_address in device.findall("address"):
                device.remove(guest_address)
            devices.append(device)
    if "id" not in root.attrib:
        ElementTree.SubElement(reduced, f"{{{_NAMESPACE}}}runstate").text = _SHUT_OFF
    return ElementTree.tostring(reduced, encoding="unicode")


def recorded_devices(moment: str) -> list[str]:
    """The active node devices of a recorded moment; the test driver has no others."""
    root = ElementTree.parse(DATA / "devices" / f"{moment}.xml").getroot()
    return [ElementTree.tostring(element, encoding="unicode") for element in root.iterfind("device")]


def recorded_sysfs(folder: Path, moment: str, devices: Iterable[str] = ()) -> Path:
    """A folder with what sysfs said, and the mediated ones of `devices`; links are left out."""
    for device in map(ElementTree.fromstring, devices):
        capability = device.find("capability[@type='mdev']")
        if capability is not None:
            parent, uuid = capability.findtext("parent_addr", ""), capability.findtext("uuid", "")
            (folder / "bus" / "pci" / "devices" / parent / uuid).mkdir(parents=True)
    for line in (DATA / "sysfs" / f"{moment}.txt").read_text(encoding="utf-8").splitlines():
        path, separator, value = line.partition(": ")
        if separator:
            file = folder / "bus" / "pci" / "devices" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(ast.literal_eval(value), encoding="utf-8")
    return folder


def write_node(path: Path, domains: Iterable[str] = (), devices: Iterable[str] = (), pools: str = "") -> str:
    """Write the host's file; the URI to open it."""
    parts = ("<node>", *devices, *domains, pools, "</node>")
    path.write_text("\n".join(parts), encoding="utf-8")
    return f"test://{path}"
