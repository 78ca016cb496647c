"""Parse what libvirt says of a host: its capabilities, those of its guests, and its node devices. Pure.

Names of node devices are not parsed where the XML has the value: the name of a network device changes with
its MAC address, that of a mediated device with libvirt's version.
Source: https://libvirt.org/formatcaps.html, https://libvirt.org/formatdomaincaps.html and
https://libvirt.org/formatnode.html
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from agent.cpuset import CPU_ID_MAX, parse_cpu_set
from agent.driver import Cell
from agent.errors import DriverDataError
from drivers.host.xml_parser import (
    HOST_SIZE_MAX,
    number,
    parse_xml,
    pci_address,
    size_bytes,
    size_bytes_of_page,
    text_of,
    uuid_of,
)

CELLS_MAX = 1024
_NAME_UUID = re.compile(r"mdev_([0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12})", re.ASCII)

Version = tuple[int, int, int]
"""(major, minor, release)"""


# The host


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
    bytes of memory for SGX enclaves}. `qemu` is (major, minor, release), or zeros where unknown.
    """

    domain_type: str
    enums: Mapping[str, frozenset[str]] = field(default_factory=dict)
    features: frozenset[str] = frozenset()
    cpu: str = ""
    described: frozenset[str] = frozenset()
    slots: Mapping[str, int] = field(default_factory=dict)
    epc: Mapping[int, int] = field(default_factory=dict)
    qemu: Version = (0, 0, 0)


def version_of(number: int) -> Version:
    """(major, minor, release) of a version as libvirt has it: 10005001 is 10.5.1."""
    return number // 1_000_000, number // 1_000 % 1_000, number % 1_000


def parse_capabilities(text: str) -> Capabilities:
    """The capabilities of the host. Raises DriverDataError."""
    what = "the host's capabilities"
    root = parse_xml(text, what, "capabilities", HOST_SIZE_MAX)
    elements = root.findall("host/topology/cells/cell")
    if len(elements) > CELLS_MAX:
        raise DriverDataError(f"{what}: more than {CELLS_MAX} NUMA cells")
    host_arch, host_cpu = text_of(root, "host/cpu/arch", what), root.find("host/cpu")
    cells = []
    for element in elements:
        cell_id = number(element.get("id"), f"{what}: NUMA cell", 2**16)
        where = f"{what}: NUMA cell {cell_id}"
        cpus: set[int] = set()
        siblings: set[frozenset[int]] = set()
        sockets: set[int] = set()
        for cpu in element.findall("cpus/cpu"):
            cpu_id = number(cpu.get("id"), f"{where}: CPU", CPU_ID_MAX)
            cpus.add(cpu_id)
            try:
                threads = parse_cpu_set(cpu.get("siblings", ""))
            except ValueError as error:
                raise DriverDataError(f"{where}: siblings of CPU {cpu_id}: {error}") from error
            siblings.add(threads | {cpu_id})  # an offline CPU has none in the XML, so it is a core alone
            if cpu.get("socket_id") is not None:  # an offline CPU has none
                sockets.add(number(cpu.get("socket_id"), f"{where}: socket of CPU {cpu_id}", CPU_ID_MAX))
        memory = element.find("memory")
        memory_mb = 0 if memory is None else size_bytes(memory, f"{where}: memory") // 2**20
        pages = {
            size_bytes_of_page(page, where) // 2**10: number(page.text, f"{where}: pages", 2**53)
            for page in element.findall("pages")
        }
        cores = tuple(sorted(siblings, key=min))
        socket = sockets.pop() if len(sockets) == 1 else None
        cells.append(Cell(cell_id, frozenset(cpus), memory_mb, cores, pages, socket))
    guests: dict[str, frozenset[str]] = {}
    for arch in root.findall("guest/arch"):
        domain_types = {domain.get("type", "") for domain in arch.findall("domain")}
        name = arch.get("name", "")
        guests[name] = guests.get(name, frozenset()) | domain_types
    return Capabilities(
        arch=host_arch,
        cells=tuple(sorted(cells, key=lambda cell: cell.id)),
        cpu="" if host_cpu is None else ElementTree.tostring(host_cpu, encoding="unicode"),
        features=_required_features(host_cpu),
        guests=guests,
    )


def parse_domain_capabilities(text: str) -> DomainCapabilities:
    """The domain capabilities of one machine type. Raises DriverDataError."""
    what = "the domain capabilities"
    root = parse_xml(text, what, "domainCapabilities", HOST_SIZE_MAX)
    enums: dict[str, frozenset[str]] = {}
    for element in [*root.findall("os"), *root.findall("os/loader"), *root.findall("devices/*")]:
        for enum in element.findall("enum") if element.get("supported") == "yes" else ():
            name = f"{element.tag}.{enum.get('name')}"
            enums[name] = frozenset(value.text or "" for value in enum.findall("value"))
    epc: dict[int, int] = {}  # before libvirt 8.10 there are no sections in the XML
    for section in root.findall("features/sgx[@supported='yes']/sections/section"):
        cell = number(section.get("node", "0"), f"{what}: SGX section", 2**16)
        size = Element("size", {"unit": section.get("unit", "KiB")})
        size.text = section.get("size")
        epc[cell] = epc.get(cell, 0) + size_bytes(size, f"{what}: SGX section")
    # The tags of supported features; kinds of encrypted memory are "sev", "sev-es", "sev-snp" and "tdx".
    supported = {feature.tag for feature in root.findall("features/*") if feature.get("supported") == "yes"}
    for kind in root.findall("features/launchSecurity[@supported='yes']/enum[@name='sectype']/value"):
        supported.add(kind.text or "")
    sev = root.find("features/sev[@supported='yes']")
    if sev is not None and sev.findtext("maxESGuests", "0").strip() not in ("", "0"):
        supported.add("sev-es")
    # SEV-SNP has the number of SEV-ES.
    most = {} if sev is None else {"sev": sev.find("maxGuests"), "sev-es": sev.find("maxESGuests")}
    # The host-model CPU in the form of an argument of libvirt's baselineCPU.
    domain_type, arch = text_of(root, "domain", what), text_of(root, "arch", what)
    mode, host_model = root.find("cpu/mode[@name='host-model'][@supported='yes']"), ""
    if mode is not None and mode.find("model") is not None:
        cpu = Element("cpu")
        ElementTree.SubElement(cpu, "arch").text = arch
        cpu.extend(element for element in mode if element.tag in ("model", "vendor", "feature"))
        host_model = ElementTree.tostring(cpu, encoding="unicode")
    return DomainCapabilities(
        domain_type=domain_type,
        enums=enums,
        features=frozenset(supported),
        cpu=host_model,
        described=frozenset(element.tag for element in root.findall("devices/*")),
        slots={
            kind: number(element.text, f"{what}: {element.tag}", 2**20)
            for kind, element in most.items()
            if element is not None and (element.text or "").strip()
        },
        epc=epc,
    )


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


# Node devices


@dataclass(frozen=True, slots=True)
class MdevType:
    """A type of mediated device; `available` is how many more can be created now, not a total."""

    id: str
    name: str
    available: int


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A PCI function. `vendor_id` and `product_id` are four hexadecimal digits, `class_id` is like 0x030200.

    `vfs` are the addresses of its virtual functions; `vfs_max` is how many it can have, None if it is not a
    physical function. `physical_function` is the address of the one to which a virtual function belongs.
    `numa` is the id of its NUMA cell, None without affinity; `iommu_devices` are the addresses in its group.
    `serial` is the serial number in its vital product data (VPD), which libvirt reports from 7.9.
    """

    name: str
    address: str
    vendor_id: str
    product_id: str
    class_id: int
    driver: str = ""
    numa: int | None = None
    iommu_devices: tuple[str, ...] = ()
    vfs: tuple[str, ...] = ()
    vfs_max: int | None = None
    physical_function: str | None = None
    mdev_types: Mapping[str, MdevType] = field(default_factory=dict)
    serial: str = ""


@dataclass(frozen=True, slots=True)
class NetDevice:
    """A network interface; `parent` is a node device's name."""

    name: str
    parent: str
    interface: str


@dataclass(frozen=True, slots=True)
class MediatedDevice:
    """A mediated device; `parent` is a node device's name. One that is not active is only defined."""

    name: str
    uuid: str
    parent: str
    type_id: str
    active: bool = True


@dataclass(frozen=True, slots=True)
class VdpaDevice:
    """A vDPA device; `parent` is a node device's name, `path` its device such as /dev/vhost-vdpa-0."""

    name: str
    parent: str
    path: str


NodeDevice = PciDevice | NetDevice | MediatedDevice | VdpaDevice


def parse_node_device(text: str, what: str = "a node device", *, active: bool = True) -> NodeDevice | None:
    """The device, None for kinds that the driver does not use. Raises DriverDataError naming `what`."""
    root = parse_xml(text, what, "device")
    name = text_of(root, "name", what)
    for capability in root.findall("capability"):
        match capability.get("type"):
            case "pci":
                return _pci(name, root, capability, what)
            case "net":
                parent = root.findtext("parent", "")
                return NetDevice(name, parent, text_of(capability, "interface", what))
            case "mdev":
                kind = capability.find("type")
                if kind is None or not kind.get("id"):
                    raise DriverDataError(f"{what}: the mediated device has no type")
                uuid = capability.findtext("uuid")
                if uuid is None:  # libvirt before 7.3 has the uuid in the name only
                    match = _NAME_UUID.match(name)
                    uuid = match[1].replace("_", "-") if match else ""
                uuid, parent = uuid_of(uuid, what), text_of(root, "parent", what)
                return MediatedDevice(name, uuid, parent, kind.get("id", ""), active)
            case "vdpa":
                path = capability.findtext("chardev", "").strip()
                return VdpaDevice(name, root.findtext("parent", ""), path) if path else None
    return None


def _pci(name: str, root: Element, capability: Element, what: str) -> PciDevice:
    address = Element(
        "address", {part: capability.findtext(part, "") for part in ("domain", "bus", "slot", "function")}
    )
    physical = capability.find("capability[@type='phys_function']/address")
    virtual = capability.find("capability[@type='virt_functions']")
    cell = capability.find("numa")
    node = "-1" if cell is None else cell.get("node", "-1")
    mdev_types = {}
    for element in capability.findall("capability[@type='mdev_types']/type"):
        type_id = element.get("id", "")
        which = f"{what}: availableInstances of {type_id[:40]}"
        available = number(element.findtext("availableInstances"), which)
        mdev_types[type_id] = MdevType(type_id, element.findtext("name", ""), available)
    return PciDevice(
        name=name,
        address=pci_address(address, what),
        vendor_id=_id(capability, "vendor", what),
        product_id=_id(capability, "product", what),
        class_id=number(capability.findtext("class", "0"), f"{what}: <class>", 0xFFFFFF),
        driver=root.findtext("driver/name", ""),
        numa=None if node == "-1" else number(node, f"{what}: <numa>", 2**16),
        iommu_devices=tuple(pci_address(each, what) for each in capability.findall("iommuGroup/address")),
        vfs=() if virtual is None else tuple(pci_address(each, what) for each in virtual.findall("address")),
        vfs_max=None if virtual is None else number(virtual.get("maxCount", "0"), f"{what}: maxCount"),
        physical_function=None if physical is None else pci_address(physical, what),
        mdev_types=mdev_types,
        serial=capability.findtext(
            "capability[@type='vpd']/fields[@access='readonly']/serial_number", ""
        ).strip(),
    )


def _id(capability: Element, tag: str, what: str) -> str:
    element = capability.find(tag)
    return f"{number(None if element is None else element.get('id'), f'{what}: <{tag}>', 0xFFFF):04x}"
