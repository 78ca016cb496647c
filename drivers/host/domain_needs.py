"""What a domain's XML asks for, before anything was claimed for it. Pure.

The XML may lack what libvirt requires: the claim fills in the addresses of devices, the CPUs of <vcpupin>,
the name, the memory and the uuid.
Source: https://libvirt.org/formatdomain.html
"""

from collections.abc import Callable, Iterator, Mapping
from xml.etree.ElementTree import Element

from agent.driver import DeviceKind, DomainNeeds, NeededCell, NeededDevice
from agent.errors import DriverDataError
from drivers.host.domain_memory import (
    BYTES_PER_MIB,
    DEFAULT_HUGE_PAGE_KIB,
    bound_nodes,
    cpu_set,
    file_bytes,
    guest_cells,
    memory_nodes,
    page_kib_of,
)
from drivers.host.domain_xml import VCPUS_MAX, Disk, counted_disks, present_vcpus
from drivers.host.xml_parser import number, parse_xml, pci_address, size_bytes, uuid_of

_KINDS: Mapping[tuple[object, str | None], DeviceKind] = {
    ("interface", "hostdev"): DeviceKind.INTERFACE,
    ("hostdev", "pci"): DeviceKind.PCI,
    ("hostdev", "mdev"): DeviceKind.MEDIATED,
    ("disk", "nvme"): DeviceKind.PCI,
}
ALIAS_PREFIX = "ua-"
"""Only aliases with this prefix are the operator's: libvirt makes the others, anew at each start."""


def read_needs(
    text: str,
    dedicated: frozenset[int] = frozenset(),
    huge_page_kib: int = DEFAULT_HUGE_PAGE_KIB,
    disk_gb: Callable[[str, tuple[Disk, ...]], int | None] = lambda uuid, disks: None,
) -> DomainNeeds:
    """The needs of the domain in `text`.

    `dedicated` are the host's CPUs for dedicated use, `huge_page_kib` is its default huge page size, and
    `disk_gb` (uuid, disks) returns the size of the disks where it is known. Raises DriverDataError where the
    XML is malformed or a value is out of range.
    """
    what = "the domain"
    root = parse_xml(text, what, "domain")
    uuid_text = (root.findtext("uuid") or "").strip()
    uuid = uuid_of(uuid_text, f"{what}: <uuid>") if uuid_text else ""
    memory = root.find("memory")
    nodes = sorted(memory_nodes(root, what))
    pins = _single_pins(root, what)
    return DomainNeeds(
        uuid=uuid,
        name=(root.findtext("name") or "").strip(),
        vcpus=None if root.find("vcpu") is None else len(present_vcpus(root, what)),
        memory_mb=None if memory is None else _mib(memory, what, file_bytes(root, what)),
        disk_gb=disk_gb(uuid, tuple(counted_disks(root))) or 0,
        dedicated={cpu: pin for cpu, pin in pins.items() if pin is None or pin in dedicated},
        pinned=frozenset(pins),
        cells=tuple(_cells(root, what, huge_page_kib)),
        page_kib=page_kib_of(root, 0, what, huge_page_kib),
        host_cell=nodes[0] if len(nodes) == 1 else None,
        devices=tuple(_devices(root, what)),
    )


def _mib(memory: Element, what: str, in_files: int) -> int:
    return -(-(size_bytes(memory, f"{what}: <memory>") - in_files) // BYTES_PER_MIB)


def _single_pins(root: Element, what: str) -> dict[int, int | None]:
    """{guest CPU: the one host CPU that it is pinned to}, None where none is named yet.

    A guest CPU that is pinned to several floats over them.
    """
    pins: dict[int, int | None] = {}
    for element in root.findall("cputune/vcpupin"):
        cpus = cpu_set(element, what)
        if len(cpus) < 2:
            pins[number(element.get("vcpu"), f"{what}: <vcpupin>", VCPUS_MAX)] = min(cpus, default=None)
    return pins


def _cells(root: Element, what: str, huge_page_kib: int) -> Iterator[NeededCell]:
    elements = root.findall("cpu/numa/cell")
    if not elements:
        return
    nodes = {
        number(element.get("cellid"), f"{what}: <memnode>", VCPUS_MAX): bound_nodes(element, what)
        for element in root.findall("numatune/memnode")
    }
    sizes = {cell: memory_mb for cell, memory_mb, _ in guest_cells(root, what)}
    cpus = {
        number(element.get("id", str(index)), f"{what}: <cell>", VCPUS_MAX): cpu_set(element, what, "cpus")
        for index, element in enumerate(elements)
    }
    if sorted(cpus) != list(range(len(elements))):
        raise DriverDataError(f"{what}: the ids of its NUMA cells are not 0 to {len(elements) - 1}")
    for cell in sorted(cpus):
        bound = sorted(nodes.get(cell, memory_nodes(root, what)))
        yield NeededCell(
            cpus[cell],
            sizes[cell],
            bound[0] if len(bound) == 1 else None,
            page_kib_of(root, cell, what, huge_page_kib),
        )


def _devices(root: Element, what: str) -> Iterator[NeededDevice]:
    for element in root.findall("devices/*"):
        kind = device_kind(element.tag, element.get("type"))
        if kind is None:
            continue
        alias = _alias(element)
        text = f"<{element.tag}>{f' {ALIAS_PREFIX}{alias}' if alias else ''}"
        # A disk is none of the host's other PCI devices, of whatever class: only its name says which.
        yield NeededDevice(kind, alias, _unit(element, kind, what), text, element.tag == "disk")


def device_kind(tag: object, source_type: str | None) -> DeviceKind | None:
    """How an element of a domain with this tag and type names a device of the host; None if it is none."""
    return _KINDS.get((tag, source_type))


def _alias(element: Element) -> str:
    alias = element.find("alias")
    name = (alias.get("name") or "") if alias is not None else ""
    return name.removeprefix(ALIAS_PREFIX) if name.startswith(ALIAS_PREFIX) else ""


def _unit(element: Element, kind: DeviceKind, what: str) -> str:
    address = element.find("source/address")
    if address is None:
        return ""
    if kind is DeviceKind.MEDIATED:
        return uuid_of(address.get("uuid"), f"{what}: mediated device") if address.get("uuid") else ""
    return pci_address(address, what) if address.get("bus") else ""
