"""Input for libvirt's test driver: a host that the real library serves as test:///FILE, without a daemon.

The test driver has only domains of type "test", and an old libvirt refuses elements that it does not know. So
a recorded domain is reduced to the elements that this project reads.
Source: https://libvirt.org/drvtest.html
"""

import ast
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from drivers.libvirt.io.connection import Connection, DeadlineRunner, PendingReads
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
    """The XML of a small domain; `inside` is put into <domain>, `devices` into <devices>."""
    run_state = "" if running else f"<t:runstate xmlns:t='{_NAMESPACE}'>{_SHUT_OFF}</t:runstate>"
    return (
        f"<domain type='test'><name>guest-{number}</name><uuid>{domain_uuid(number)}</uuid>"
        f"<memory unit='MiB'>{memory_mb}</memory><vcpu>{vcpus}</vcpu><os><type>hvm</type></os>{inside}"
        f"<devices>{devices}</devices>{run_state}</domain>"
    )


def domain_uuid(number: int) -> str:
    """The uuid of `domain(number)`."""
    return f"a0000000-0000-4000-8000-{number:012}"


def recorded_domain(name: str) -> str:
    """The XML of a recorded domain for the test driver; one without an id is shut off."""
    root = ElementTree.parse(DATA / "domains" / f"{name}.xml").getroot()
    reduced = Element("domain", type="test")
    reduced.extend(element for element in root if element.tag in _KEPT)
    for os_type in reduced.iter("type"):
        os_type.attrib.clear()
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
    """The XML of the active node devices at a moment; the test driver cannot have inactive ones."""
    root = ElementTree.parse(DATA / "devices" / f"{moment}.xml").getroot()
    return [ElementTree.tostring(element, encoding="unicode") for element in root.iterfind("device")]


def recorded_sysfs(folder: Path, moment: str, devices: Iterable[str] = ()) -> Path:
    """Write the recorded files of sysfs, and folders for the mediated ones of `devices`, below `folder`."""
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


def connection_to(
    uri: str,
    pending_reads: PendingReads | None = None,
    call_timeout_s: float = 10,
    total_timeout_s: float = 10,
) -> Connection:
    """A connection to the test driver that reports no events."""
    return Connection(
        uri,
        DeadlineRunner("libvirt", "look at libvirtd", call_timeout_s, total_timeout_s),
        pending_reads or PendingReads(),
        turn_timeout_s=10,
        changed=_nothing,
        opened=_nothing,
        disconnected=_nothing,
    )


def _nothing(*_: object) -> None:
    """No events are reported."""


def write_node(path: Path, domains: Iterable[str] = (), devices: Iterable[str] = (), pools: str = "") -> str:
    """Write the file of a host, and return its URI."""
    parts = ("<node>", *devices, *domains, pools, "</node>")
    path.write_text("\n".join(parts), encoding="utf-8")
    return f"test://{path}"
