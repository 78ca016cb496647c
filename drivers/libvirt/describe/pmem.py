"""Namespaces of persistent memory as exact units, by the labels of [libvirt] pmem_namespaces. Pure.

The units are the namespaces' names, which stay the same when the kernel numbers their devices anew. Source:
nova 34, nova/virt/libvirt/driver.py (`_discover_vpmems`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from xml.etree import ElementTree
from xml.etree.ElementTree import Element as PlainElement

from agent.device_names import pmem_class
from agent.driver import DescribedInventory, DescribedProvider, DeviceKind, Guest, NeededDevice, UsedUnit
from agent.errors import SettingsError
from drivers.host.domain_document import DomainDocument, Element, add_child, child, set_text
from drivers.host.domain_memory import memory_files
from drivers.host.domain_xml import Domain
from drivers.host.sysfs import PmemNamespace
from drivers.host.xml_parser import size_bytes

KIB = 1024
LABEL_KIB = 2048
OPTION = "[libvirt] pmem_namespaces"
_NAME = re.compile(r"[^\s:|,]{1,63}")
_LABEL = re.compile(r"[A-Za-z0-9_]{1,200}", re.ASCII)

PmemLabels = Mapping[str, str]
"""{name of a namespace: resource class}, in the order of the option"""


def parse_pmem_namespaces(words: Iterable[str]) -> PmemLabels:
    """The namespaces in words such as "6GB:ns0|ns1". Raises SettingsError."""
    classes: dict[str, str] = {}
    for word in words:
        label, _, names = (part.strip() for part in word.partition(":"))
        if not _LABEL.fullmatch(label):
            raise SettingsError(
                f"{OPTION}: {word[:80]!r} must be LABEL:NAME|NAME; a label, which hw:pmem names, has A-Z a-z "
                "0-9 _."
            )
        for name in map(str.strip, names.split("|")):
            if not _NAME.fullmatch(name) or name.isdecimal():
                raise SettingsError(
                    f"{OPTION}: {name[:80]!r} is no name of a namespace; a number alone is not allowed, "
                    "because CPUs have numbers. `ndctl create-namespace --name` gives one."
                )
            if name in classes:
                raise SettingsError(f"{OPTION} names {name} twice; remove one of them.")
            classes[name] = pmem_class(label)
    return classes


def with_namespaces(
    providers: tuple[DescribedProvider, ...], found: Iterable[PmemNamespace], labels: PmemLabels
) -> tuple[DescribedProvider, ...]:
    """The providers; the first, the host's, has the namespaces that it has and that are configured."""
    units: dict[str, tuple[str, ...]] = {}
    there = {namespace.name for namespace in found}
    for name, resource_class in labels.items():
        if name in there:
            units[resource_class] = (*units.get(resource_class, ()), name)
    root, *others = providers
    inventories = {
        name: DescribedInventory(total=len(names), allocation_ratio=1.0) for name, names in units.items()
    }
    if not inventories:
        return providers
    root = replace(root, inventories={**root.inventories, **inventories}, units={**root.units, **units})
    return (root, *others)


def with_used_namespaces(
    guest: Guest, domain: Domain | None, found: Iterable[PmemNamespace], labels: PmemLabels
) -> Guest:
    """The guest with the namespaces that its domain names."""
    if domain is None or not domain.memory_files or not labels:
        return guest
    names = {namespace.path: namespace.name for namespace in found if namespace.name in labels}
    used = [names[path] for path in domain.memory_files if path in names]
    amounts = dict(guest.resources)
    for name in used:
        amounts[labels[name]] = amounts.get(labels[name], 0) + 1
    units = tuple(UsedUnit(labels[name], name, "host") for name in used)
    return replace(guest, resources=amounts, units=(*guest.units, *units))


def needed_namespaces(
    root: PlainElement, found: Iterable[PmemNamespace], labels: PmemLabels
) -> Iterator[NeededDevice]:
    """The configured namespaces that a domain names; other files are none of the host's devices."""
    names = {namespace.path: namespace.name for namespace in found if namespace.name in labels}
    for path in memory_files(root):
        if path in names:
            yield NeededDevice(DeviceKind.MEMORY, "", names[path], f"<memory> {path}")


def write_namespaces(text: str, namespaces: Iterable[PmemNamespace]) -> str:
    """The domain's XML with a memory device for each namespace that it does not have yet, as nova writes it.

    Raises DriverDataError for malformed XML.
    """
    document = DomainDocument(text)
    present = {(path.text or "").strip() for path in document.root.findall("devices/memory/source/path")}
    missing = [namespace for namespace in namespaces if namespace.path not in present]
    if not missing:
        return text
    _make_room(document.root, missing)
    devices = child(document.root, "devices")
    for namespace in missing:
        device = add_child(devices, "memory", {"model": "nvdimm", "access": "shared"}, after=("memory",))
        source = add_child(device, "source", {})
        set_text(add_child(source, "path", {}), namespace.path)
        set_text(add_child(source, "alignsize", {"unit": "KiB"}), str(namespace.align // KIB))
        add_child(source, "pmem", {})
        target = add_child(device, "target", {})
        set_text(add_child(target, "size", {"unit": "KiB"}), str(namespace.size // KIB))
        set_text(add_child(target, "node", {}), "0")
        label = add_child(target, "label", {})
        set_text(add_child(label, "size", {"unit": "KiB"}), str(LABEL_KIB))
    return document.text


def _make_room(root: Element, namespaces: Sequence[PmemNamespace]) -> None:
    """Each memory device needs a slot, and the most memory that the guest may have has them in it."""
    most = root.find("maxMemory")
    slots = 0 if most is None else int(most.get("slots", "0"))
    before = next((each for each in (most, root.find("memory")) if each is not None), None)
    in_kib = 0 if before is None else _kib(before)
    if most is None:
        most = add_child(root, "maxMemory", {}, after=("name", "uuid", "metadata", "title", "description"))
    most.set("slots", str(slots + len(namespaces)))
    most.set("unit", "KiB")
    set_text(most, str(in_kib + sum(namespace.size // KIB for namespace in namespaces)))


def _kib(element: Element) -> int:
    plain = ElementTree.Element("memory", {"unit": element.get("unit", "KiB")})
    plain.text = element.text
    return size_bytes(plain, "the domain: <memory>") // KIB


def unmatched_namespaces(found: Iterable[PmemNamespace], labels: PmemLabels) -> Iterator[str]:
    """A sentence for each configured namespace that the host does not have."""
    there = {namespace.name for namespace in found}
    for name in labels:
        if name not in there:
            yield (
                f"{OPTION} names {name}, which this host does not have as a namespace in mode devdax; "
                "`ndctl list -N` shows those that it has."
            )
