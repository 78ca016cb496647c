"""Parse the capabilities of the host and of its guests. Pure.

Source: https://libvirt.org/formatcaps.html and https://libvirt.org/formatdomaincaps.html
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from agent.cpuset import CPU_ID_MAX, parse_cpu_set
from agent.driver import Cell
from agent.errors import DriverDataError
from drivers.host.xml_parser import HOST_SIZE_MAX, number, parse_xml, size_bytes, size_bytes_of_page, text_of

CELLS_MAX = 1024

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The host. `cpu` is its <cpu> element as text, `features` are the CPU flags beside those of its model.

    `guests` {architecture: domain types of its guests, such as "kvm" and "qemu"}.
    """

    arch: str
    cells: tuple[Cell, ...]
    cpu: str = ""
    features: frozenset[str] = frozenset()
    guests: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DomainCapabilities:
    """What guests of one type can have.

    `enums` {"disk.bus": {"virtio", "sata"}} are the enumerations of supported elements, `features` the names
    of supported features. `cpu` is the host-model CPU as the text of a <cpu> element, "" if there is none.
    `described` are the kinds of devices of which libvirt says whether guests can have them; older versions
    are silent about some. `slots` {kind of encrypted memory: number of guests}. `epc` {NUMA cell:
    bytes of memory for SGX enclaves}. `libvirt` and `qemu` are
    (major, minor, release), or zeros where unknown.
    """

    domain_type: str
    enums: Mapping[str, frozenset[str]] = field(default_factory=dict)
    features: frozenset[str] = frozenset()
    cpu: str = ""
    described: frozenset[str] = frozenset()
    slots: Mapping[str, int] = field(default_factory=dict)
    epc: Mapping[int, int] = field(default_factory=dict)
    libvirt: Version = (0, 0, 0)
    qemu: Version = (0, 0, 0)


def version_of(number: int) -> Version:
    """(major, minor, release) of a version as libvirt has it: 10005001 is 10.5.1."""
    return number // 1_000_000, number // 1_000 % 1_000, number % 1_000


def parse_capabilities(text: str) -> Capabilities:
    """The capabilities of the host. Raises DriverDataError."""
    what = "the host's capabilities"
    root = parse_xml(text, what, "capabilities", HOST_SIZE_MAX)
    cells = root.findall("host/topology/cells/cell")
    if len(cells) > CELLS_MAX:
        raise DriverDataError(f"{what}: more than {CELLS_MAX} NUMA cells")
    cpu = root.find("host/cpu")
    guests: dict[str, frozenset[str]] = {}
    for arch in root.findall("guest/arch"):
        domain_types = {domain.get("type", "") for domain in arch.findall("domain")}
        name = arch.get("name", "")
        guests[name] = guests.get(name, frozenset()) | domain_types
    return Capabilities(
        arch=text_of(root, "host/cpu/arch", what),
        cells=tuple(sorted((_cell(cell, what) for cell in cells), key=lambda cell: cell.id)),
        cpu="" if cpu is None else ElementTree.tostring(cpu, encoding="unicode"),
        features=_required_features(cpu),
        guests=guests,
    )


def _cell(element: Element, what: str) -> Cell:
    cell_id = number(element.get("id"), f"{what}: NUMA cell", 2**16)
    what = f"{what}: NUMA cell {cell_id}"
    memory = element.find("memory")
    cpus: set[int] = set()
    siblings: set[frozenset[int]] = set()
    sockets: set[int] = set()
    for cpu in element.findall("cpus/cpu"):
        cpu_id = number(cpu.get("id"), f"{what}: CPU", CPU_ID_MAX)
        cpus.add(cpu_id)
        siblings.add(_siblings(cpu, cpu_id, what))
        if cpu.get("socket_id") is not None:  # an offline CPU has none
            sockets.add(number(cpu.get("socket_id"), f"{what}: socket of CPU {cpu_id}", CPU_ID_MAX))
    return Cell(
        id=cell_id,
        cpus=frozenset(cpus),
        memory_mb=0 if memory is None else size_bytes(memory, f"{what}: memory") // 2**20,
        siblings=tuple(sorted(siblings, key=min)),
        pages={
            size_bytes_of_page(page, what) // 2**10: number(page.text, f"{what}: pages", 2**53)
            for page in element.findall("pages")
        },
        socket=sockets.pop() if len(sockets) == 1 else None,
    )


def _siblings(cpu: Element, cpu_id: int, what: str) -> frozenset[int]:
    """The hardware threads of the CPU's core. An offline CPU has none in the XML, so it is a core alone."""
    try:
        return parse_cpu_set(cpu.get("siblings", "")) | {cpu_id}
    except ValueError as error:
        raise DriverDataError(f"{what}: siblings of CPU {cpu_id}: {error}") from error


def parse_domain_capabilities(text: str) -> DomainCapabilities:
    """The domain capabilities of one machine type. Raises DriverDataError."""
    what = "the domain capabilities"
    root = parse_xml(text, what, "domainCapabilities", HOST_SIZE_MAX)
    enums: dict[str, frozenset[str]] = {}
    for element in [*root.findall("os"), *root.findall("os/loader"), *root.findall("devices/*")]:
        if element.get("supported") == "yes":
            enums |= _enums(element)
    return DomainCapabilities(
        domain_type=text_of(root, "domain", what),
        enums=enums,
        features=_features(root),
        cpu=_host_model(root, text_of(root, "arch", what)),
        described=frozenset(element.tag for element in root.findall("devices/*")),
        slots=_encryption_slots(root, what),
        epc=_epc(root, what),
    )


def _enums(element: Element) -> dict[str, frozenset[str]]:
    return {
        f"{element.tag}.{enum.get('name')}": frozenset(value.text or "" for value in enum.findall("value"))
        for enum in element.findall("enum")
    }


def _features(root: Element) -> frozenset[str]:
    """The tags of supported features; kinds of encrypted memory are "sev", "sev-es", "sev-snp" and "tdx"."""
    supported = {feature.tag for feature in root.findall("features/*") if feature.get("supported") == "yes"}
    for kind in root.findall("features/launchSecurity[@supported='yes']/enum[@name='sectype']/value"):
        supported.add(kind.text or "")
    guests = root.findtext("features/sev[@supported='yes']/maxESGuests", "0").strip()
    if guests not in ("", "0"):
        supported.add("sev-es")
    return frozenset(supported)


def _encryption_slots(root: Element, what: str) -> dict[str, int]:
    """{"sev" or "sev-es": number of guests}; SEV-SNP has the number of SEV-ES."""
    sev = root.find("features/sev[@supported='yes']")
    if sev is None:
        return {}
    elements = {"sev": sev.find("maxGuests"), "sev-es": sev.find("maxESGuests")}
    return {
        kind: number(element.text, f"{what}: {element.tag}", 2**20)
        for kind, element in elements.items()
        if element is not None and (element.text or "").strip()
    }


def _epc(root: Element, what: str) -> dict[int, int]:
    """The sections of the enclave page cache by cell; before libvirt 8.10 there are none in the XML."""
    sizes: dict[int, int] = {}
    for section in root.findall("features/sgx[@supported='yes']/sections/section"):
        cell = number(section.get("node", "0"), f"{what}: SGX section", 2**16)
        size = Element("size", {"unit": section.get("unit", "KiB")})
        size.text = section.get("size")
        sizes[cell] = sizes.get(cell, 0) + size_bytes(size, f"{what}: SGX section")
    return sizes


def _host_model(root: Element, arch: str) -> str:
    """The host-model CPU in the form of an argument of libvirt's baselineCPU."""
    mode = root.find("cpu/mode[@name='host-model'][@supported='yes']")
    if mode is None or mode.find("model") is None:
        return ""
    cpu = Element("cpu")
    ElementTree.SubElement(cpu, "arch").text = arch
    cpu.extend(element for element in mode if element.tag in ("model", "vendor", "feature"))
    return ElementTree.tostring(cpu, encoding="unicode")


def merge(capabilities: Iterable[DomainCapabilities]) -> DomainCapabilities | None:
    """What guests of any of these machine types can have, with the CPU of the first; None for no types."""
    merged: DomainCapabilities | None = None
    for other in capabilities:
        if merged is None:
            merged = other
            continue
        names = merged.enums.keys() | other.enums.keys()
        none: frozenset[str] = frozenset()
        enums = {name: merged.enums.get(name, none) | other.enums.get(name, none) for name in names}
        merged = replace(
            merged,
            enums=enums,
            features=merged.features | other.features,
            described=merged.described | other.described,
            slots={**other.slots, **merged.slots},
            epc={**other.epc, **merged.epc},
        )
    return merged


def parse_cpu_features(text: str) -> frozenset[str]:
    """The flags that a <cpu> element requires, as baselineCPU returns it. Raises DriverDataError."""
    return _required_features(parse_xml(text, "the CPU's flags", "cpu"))


def _required_features(cpu: Element | None) -> frozenset[str]:
    if cpu is None:
        return frozenset()
    not_required = ("disable", "forbid", "optional")
    return frozenset(
        feature.get("name", "")
        for feature in cpu.findall("feature")
        if feature.get("policy", "require") not in not_required
    )
