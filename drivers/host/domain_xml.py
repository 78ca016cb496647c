"""What a domain's XML says: what the domain uses, and what it asks for before anything was claimed. Pure.

What a domain uses is in the live XML of a running domain, and in the configuration of one that is shut off:
where the network of an <interface> is a pool of virtual functions, only the live XML has the address of the
chosen one. What a domain asks for may be in XML that lacks what libvirt requires: the claim fills in the
addresses of devices, the CPUs of <vcpupin>, the name, the memory and the uuid.

Source: https://libvirt.org/formatdomain.html
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self
from xml.etree.ElementTree import Element

from agent.cpuset import parse_cpu_set
from agent.device_names import port_of
from agent.driver import (
    DeviceKind,
    DomainNeeds,
    Guest,
    GuestState,
    NeededCell,
    NeededDevice,
    UsedMemory,
    UsedUnit,
)
from agent.errors import DriverDataError
from agent.shapes import shares
from drivers.host import xml_parser
from drivers.host.providers import UnitLocation, locate_units

VCPUS_MAX = 65536
CELLS_MAX = 1024
BYTES_PER_MIB = 2**20
BYTES_PER_GIB = 2**30
DEFAULT_HUGE_PAGE_KIB = 2048

_ENCRYPTION = {
    "sev": frozenset({"HW_CPU_X86_AMD_SEV"}),
    "sev-snp": frozenset({"HW_CPU_X86_AMD_SEV_SNP"}),
    "tdx": frozenset({"HW_CPU_X86_INTEL_TDX"}),
}
"""{type of <launchSecurity> for which the processor has a limited number of keys: whose keys it takes}"""
_SEV_ES = frozenset({"HW_CPU_X86_AMD_SEV_ES", "HW_CPU_X86_AMD_SEV_SNP"})
_POLICY_ES = 0x4
"""The bit of the policy of a guest with SEV that asks for SEV-ES; with SEV-SNP, both share their keys."""

_MEMORY_OF_THE_HOST = ("dimm", "virtio-mem")
"""A virtio-mem counts in full: its guest may take all of it."""
_FILES = ("nvdimm", "virtio-pmem")
_ENCLAVES = ("sgx-epc",)

_KINDS: Mapping[tuple[object, str | None], DeviceKind] = {
    ("interface", "hostdev"): DeviceKind.INTERFACE,
    ("hostdev", "pci"): DeviceKind.PCI,
    ("hostdev", "mdev"): DeviceKind.MEDIATED,
    ("disk", "nvme"): DeviceKind.PCI,
}
ALIAS_PREFIX = "ua-"
"""Only aliases with this prefix are the operator's: libvirt makes the others, anew at each start."""


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk whose size counts as DISK_GB: the file `path`, or the `volume` of a `pool`.

    `target` is the guest's name of it, such as vda.
    """

    target: str
    path: str = ""
    pool: str = ""
    volume: str = ""


class DomainXml:
    """The facts in a domain's XML, each in one place for all that need it.

    Each raises DriverDataError, with the name `what` of the domain, where a value is out of range.
    """

    def __init__(self, root: Element, what: str) -> None:
        self.root = root
        self.what = what

    @classmethod
    def parse(cls, text: str, what: str = "the domain") -> Self:
        """The domain in `text`. Raises DriverDataError where it is malformed."""
        return cls(xml_parser.parse_xml(text, what, "domain"), what)

    # CPUs

    @cached_property
    def vcpus(self) -> frozenset[int]:
        """The ids of the present vCPUs: those enabled in <vcpus>, else the first `current` ones of <vcpu>."""
        what, element = f"{self.what}: <vcpu>", self.root.find("vcpu")
        if element is None:
            return frozenset({0})
        current = xml_parser.number(element.get("current", str(self.most_vcpus)), what, VCPUS_MAX)
        listed = self.root.findall("vcpus/vcpu")
        if listed:
            return frozenset(
                xml_parser.number(vcpu.get("id"), what, VCPUS_MAX)
                for vcpu in listed
                if vcpu.get("enabled") != "no"
            )
        return frozenset(range(current))

    @property
    def vcpus_may_change(self) -> bool:
        """Whether vCPUs may be added to the domain, or taken from it, while it runs."""
        listed = self.root.findall("vcpus/vcpu")
        return len(self.vcpus) < self.most_vcpus or any(vcpu.get("hotpluggable") == "yes" for vcpu in listed)

    @property
    def most_vcpus(self) -> int:
        """The number of vCPUs with those that may be plugged in."""
        element = self.root.find("vcpu")
        return 1 if element is None else xml_parser.number(element.text, f"{self.what}: <vcpu>", VCPUS_MAX)

    @property
    def later_vcpus(self) -> frozenset[int]:
        """The ids of the vCPUs that may be plugged in: what the guest starts with has none of them."""
        return frozenset(range(self.most_vcpus)) - self.vcpus

    def vcpu_of(self, vcpupin: Element) -> int:
        """The id of the vCPU that a <vcpupin> is about."""
        return xml_parser.number(vcpupin.get("vcpu"), f"{self.what}: <vcpupin>", VCPUS_MAX)

    @property
    def pins(self) -> dict[int, frozenset[int]]:
        """{present vCPU: host CPUs} from <vcpupin>, and for vCPUs without one from the cpuset of <vcpu>."""
        common_cpus = self.cpu_set(self.root.find("vcpu"))
        pins = dict.fromkeys(self.vcpus, common_cpus) if common_cpus else {}
        for element in self.root.findall("cputune/vcpupin"):
            vcpu = self.vcpu_of(element)
            if vcpu in self.vcpus:
                pins[vcpu] = self.cpu_set(element)
        return pins

    # Memory
    #
    # Source: https://libvirt.org/formatdomain.html#numa-node-tuning and #memory-backing

    @property
    def encryption(self) -> frozenset[str]:
        """See `DomainNeeds.encryption`; a policy that is no number is none, as for libvirt."""
        element = self.root.find("launchSecurity")
        kind = "" if element is None else element.get("type", "")
        policy = 0
        if element is not None and kind == "sev":
            with suppress(ValueError):
                policy = int((element.findtext("policy") or "0").strip(), 0)
        return _SEV_ES if policy & _POLICY_ES else _ENCRYPTION.get(kind, frozenset())

    @property
    def memory_files(self) -> tuple[str, ...]:
        """The paths of the memory devices that take no memory of the host."""
        devices = (each for each in self.root.findall("devices/memory") if each.get("model") in _FILES)
        return tuple(filter(None, ((each.findtext("source/path") or "").strip() for each in devices)))

    @property
    def epc_mb(self) -> int:
        """The memory for SGX enclaves in MiB, which is none of the host's other memory."""
        return -(-self._device_bytes(_ENCLAVES) // BYTES_PER_MIB)

    @property
    def memory_mb(self) -> int:
        """The memory of the host that the domain takes, in MiB; 0 if it has no <memory>.

        libvirt makes <memory> of a domain with cells their memory and that of its memory devices.
        """
        memory_mb = -(-(self._memory_bytes - self.file_bytes) // BYTES_PER_MIB)
        if not memory_mb or self.root.find("cpu/numa/cell") is None:
            return memory_mb
        plugged_mb = sum(self.plugged_mb(cell) for cell, _ in self.guest_cells)
        return max(memory_mb, sum(cell_mb for _, cell_mb in self.guest_cells) + plugged_mb)

    def plugged_mb(self, cell: int) -> int:
        """The memory of the host in MiB that the guest cell has in memory devices, beside its own."""
        return sum(memory_mb for guest_cell, memory_mb, _ in self.memory_devices if guest_cell == cell)

    @cached_property
    def memory_devices(self) -> tuple[tuple[int, int, Element], ...]:
        """(guest cell, its MiB, the element) of each memory device that takes memory of the host."""
        what, found = f"{self.what}: memory device", []
        for device in self.root.findall("devices/memory"):
            size = device.find("target/size")
            if device.get("model") in _MEMORY_OF_THE_HOST and size is not None:
                cell = xml_parser.number(device.findtext("target/node", "0"), what, CELLS_MAX)
                found.append((cell, -(-xml_parser.size_bytes(size, what) // BYTES_PER_MIB), device))
        return tuple(found)

    def own_nodes(self, device: Element) -> frozenset[int]:
        """The nodes of the host in a memory device's <nodemask>."""
        try:
            return parse_cpu_set(device.findtext("source/nodemask") or "")
        except ValueError as error:
            raise DriverDataError(f"{self.what}: <nodemask>: {error}") from error

    def own_page_kib(self, device: Element) -> int | None:
        """The page size in KiB in a memory device's <pagesize>; None if it has none."""
        page = device.find("source/pagesize")
        return (
            xml_parser.size_bytes(page, f"{self.what}: <pagesize>") // 2**10 or None
            if page is not None
            else None
        )

    @property
    def file_bytes(self) -> int:
        """The part of <memory> that is in files, or for enclaves: libvirt adds their sizes to it."""
        cells = self.root.findall("cpu/numa/cell")
        in_files = self._device_bytes((*_FILES, *(_ENCLAVES if cells else ())))
        in_cells = sum(memory_mb for _, memory_mb in self.guest_cells) if cells else 1
        return in_files if self._memory_bytes - in_files >= in_cells * BYTES_PER_MIB else 0

    @property
    def _memory_bytes(self) -> int:
        memory = self.root.find("memory")
        return 0 if memory is None else xml_parser.size_bytes(memory, f"{self.what}: <memory>")

    def _device_bytes(self, models: tuple[str, ...]) -> int:
        devices = (each for each in self.root.findall("devices/memory") if each.get("model") in models)
        sizes = (device.find("target/size") for device in devices)
        return sum(
            xml_parser.size_bytes(size, f"{self.what}: memory device") for size in sizes if size is not None
        )

    @cached_property
    def guest_cells(self) -> tuple[tuple[int, int], ...]:
        """(guest cell, its memory in MiB without memory devices); one cell 0 if the domain has no cells."""
        cells = []
        elements = self.root.findall("cpu/numa/cell")
        for index, element in enumerate(elements):
            cell = xml_parser.number(element.get("id", str(index)), f"{self.what}: <cell>", CELLS_MAX)
            size = Element("memory", {"unit": element.get("unit", "KiB")})
            size.text = element.get("memory")
            cells.append((cell, -(-xml_parser.size_bytes(size, f"{self.what}: <cell>") // BYTES_PER_MIB)))
        memory = self.root.find("memory")
        if not elements and memory is not None:
            cells.append((0, -(-xml_parser.size_bytes(memory, f"{self.what}: <memory>") // BYTES_PER_MIB)))
        return tuple(cells)

    @cached_property
    def memory_nodes(self) -> frozenset[int]:
        """The nodes in <numatune><memory>, for the whole domain. Any mode but strict binds nothing."""
        return self._bound_nodes(self.root.find("numatune/memory"))

    def nodes_of(self, cell: int) -> frozenset[int]:
        """The nodes of the host to which the memory of a guest cell is bound."""
        return self._cell_nodes.get(cell, self.memory_nodes)

    @cached_property
    def _cell_nodes(self) -> Mapping[int, frozenset[int]]:
        return {
            xml_parser.number(element.get("cellid"), f"{self.what}: <memnode>", CELLS_MAX): self._bound_nodes(
                element
            )
            for element in self.root.findall("numatune/memnode")
        }

    @property
    def is_loosely_bound(self) -> bool:
        """Whether nodes are named otherwise than strictly.

        Or, for one guest cell, several, or one that is none of those for the whole domain.
        """
        bindings = self.root.findall("numatune/memory") + self.root.findall("numatune/memnode")
        return any(each.get("mode", "strict") != "strict" for each in bindings) or any(
            len(nodes) > 1 or (self.memory_nodes and not nodes <= self.memory_nodes)
            for nodes in self._cell_nodes.values()
        )

    def _bound_nodes(self, element: Element | None) -> frozenset[int]:
        if element is None or element.get("mode", "strict") != "strict":
            return frozenset()
        return self.cpu_set(element, "nodeset")

    def page_kib_of(self, cell: int, huge_page_kib: int) -> int | None:
        """The page size in KiB that the domain asks for this guest cell; None if it asks for none.

        `huge_page_kib` is the size of huge pages where the XML gives none.
        """
        pages = self.root.findall("memoryBacking/hugepages/page")
        for_this_cell = [page for page in pages if cell in self.cpu_set(page, "nodeset")]
        for_all_cells = [page for page in pages if page.get("nodeset") is None]
        for page in (*for_this_cell, *for_all_cells):
            size_kib = xml_parser.size_bytes_of_page(page, self.what) // 2**10
            if not size_kib:
                raise DriverDataError(f"{self.what}: <page>: a page has at least 1 KiB")
            return size_kib
        has_huge_pages = self.root.find("memoryBacking/hugepages") is not None
        return huge_page_kib if has_huge_pages and not pages else None

    def used_memory(self, huge_page_kib: int = DEFAULT_HUGE_PAGE_KIB) -> Iterator[UsedMemory]:
        """The bound memory of each guest cell, or of the whole domain if it has no guest cells.

        Memory that may be on several nodes is divided evenly among them, because libvirt does not report
        where it is. Unbound memory is left out unless it is in huge pages, which the host takes from one of
        its nodes. Memory devices, which may be plugged while the guest runs, belong to guest cells and may
        have nodes and pages of their own.
        """
        of_cells = ((*cell, frozenset[int](), None) for cell in self.guest_cells)
        of_devices = (
            (cell, memory_mb, self.own_nodes(device), self.own_page_kib(device))
            for cell, memory_mb, device in self.memory_devices
        )
        for cell, memory_mb, own_nodes, own_page_kib in (*of_cells, *of_devices):
            nodes = sorted(own_nodes or self.nodes_of(cell))
            guest_cell = cell if len(nodes) == 1 else None
            page_kib = own_page_kib or self.page_kib_of(cell, huge_page_kib)
            if not nodes and page_kib is not None:
                yield UsedMemory(None, memory_mb, page_kib)
            for node, share_mb in zip(nodes, shares(memory_mb, max(1, len(nodes))), strict=False):
                yield UsedMemory(node, share_mb, page_kib, guest_cell)

    # Disks and devices

    @property
    def disks(self) -> tuple[Disk, ...]:
        """Writable disks that are files or volumes; removable and read-only media do not count."""
        found = []
        for disk in self.root.findall("devices/disk"):
            source, target = disk.find("source"), disk.find("target")
            if source is None or target is None or disk.get("device", "disk") != "disk":
                continue
            if disk.find("readonly") is not None:
                continue
            name, pool, volume = target.get("dev", ""), source.get("pool", ""), source.get("volume", "")
            if disk.get("type") == "file" and source.get("file"):
                found.append(Disk(name, path=source.get("file", "")))
            elif disk.get("type") == "volume" and pool and volume:
                found.append(Disk(name, pool=pool, volume=volume))
        return tuple(found)

    def addresses(self, *paths: str) -> tuple[str, ...]:
        """The host's PCI addresses of the elements at these paths.

        They are in <source>; an <address> beside it is the guest's.
        """
        found = (each for path in paths for each in self.root.findall(f"{path}/source/address"))
        return _unique(xml_parser.pci_address(address, self.what) for address in found)

    def cpu_set(self, element: Element | None, attribute: str = "cpuset") -> frozenset[int]:
        """The set of numbers in an attribute; empty if it is missing."""
        if element is None:
            return frozenset()
        try:
            return parse_cpu_set(element.get(attribute, ""))
        except ValueError as error:
            raise DriverDataError(f"{self.what}: <{element.tag}>: {error}") from error


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


# What a domain uses


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain as its XML describes it.

    `pins` {vCPU: host CPUs that it may run on} has the vCPUs that are present and pinned; `emulator_pin` is
    the same for the emulator's threads. `memory_nodes` are the NUMA nodes of the host to which all memory is
    bound, if it is. `mdevs` are uuids of mediated devices, `pci_devices` PCI addresses of <hostdev> and of
    NVMe devices that are disks, `interfaces` PCI addresses of <interface>. `memory` is the part of the memory
    that is bound to nodes or in huge pages. `vcpus_may_change`: vCPUs may be added to it, or taken from it,
    while it runs. `encryption` as of `Guest`. `memory_files` are the paths of its memory
    devices that take no memory of the host, such as /dev/dax0.0; `vdpa` those of its vDPA devices.
    `epc_mb` is its memory for SGX enclaves.
    """

    uuid: str
    name: str
    vcpus: int
    memory_mb: int
    pins: Mapping[int, frozenset[int]]
    emulator_pin: frozenset[int] = frozenset()
    disks: tuple[Disk, ...] = ()
    mdevs: tuple[str, ...] = ()
    pci_devices: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    ports: Mapping[str, str] = field(default_factory=dict)
    memory_nodes: frozenset[int] = frozenset()
    memory: tuple[UsedMemory, ...] = ()
    vcpus_may_change: bool = False
    encryption: frozenset[str] = frozenset()
    memory_files: tuple[str, ...] = ()
    vdpa: tuple[str, ...] = ()
    epc_mb: int = 0


def parse_domain(text: str, what: str = "a domain", huge_page_kib: int = DEFAULT_HUGE_PAGE_KIB) -> Domain:
    """The domain in `text`. `what` names it in errors; `huge_page_kib` is the host's default huge page size.

    Raises DriverDataError where the XML is malformed or a value is out of range.
    """
    xml = DomainXml.parse(text, what)
    root = xml.root
    if root.find("memory") is None:
        raise DriverDataError(f"{what}: <memory> is missing")
    vcpus = xml.vcpus
    return Domain(
        uuid=xml_parser.uuid_of(root.findtext("uuid"), f"{what}: <uuid>"),
        name=xml_parser.text_of(root, "name", what),
        vcpus=len(vcpus),
        memory_mb=xml.memory_mb,
        pins=xml.pins,
        emulator_pin=xml.cpu_set(root.find("cputune/emulatorpin")),
        disks=xml.disks,
        mdevs=_unique(
            xml_parser.uuid_of(address.get("uuid"), f"{what}: mediated device")
            for address in root.findall("devices/hostdev[@type='mdev']/source/address")
        ),
        pci_devices=xml.addresses("devices/hostdev[@type='pci']", "devices/disk[@type='nvme']"),
        interfaces=xml.addresses("devices/interface[@type='hostdev']"),
        ports={
            xml_parser.pci_address(source, what): port_of(
                mac.get("address", ""),
                0 if tag is None else xml_parser.number(tag.get("id"), f"{what}: VLAN", 4095),
            )
            for interface in root.findall("devices/interface[@type='hostdev']")
            for tag in (interface.find("vlan/tag"),)
            for source in interface.findall("source/address")
            for mac in interface.findall("mac")
        },
        memory_nodes=xml.memory_nodes,
        memory=tuple(xml.used_memory(huge_page_kib)),
        vcpus_may_change=xml.vcpus_may_change,
        encryption=xml.encryption,
        memory_files=xml.memory_files,
        epc_mb=xml.epc_mb,
        vdpa=_unique(
            source.get("dev", "").strip()
            for source in root.findall("devices/interface[@type='vdpa']/source")
            if source.get("dev")
        ),
    )


def guest_of(domain: Domain, state: GuestState, disk_bytes: int, dedicated: frozenset[int]) -> Guest:
    """The guest of a domain; `dedicated` are the host's CPUs for dedicated use.

    A vCPU that may run on only one of those uses it (PCPU); every other vCPU is a VCPU. Devices are units
    without amounts: `locate_units` adds the amounts from the providers that the host describes.
    """
    pinned = {vcpu: min(cpus) for vcpu, cpus in domain.pins.items() if len(cpus) == 1 and cpus <= dedicated}
    used_cpus = set(pinned.values())
    if len(domain.emulator_pin) == 1 and domain.emulator_pin <= dedicated:
        used_cpus |= domain.emulator_pin
    amounts = {
        "VCPU": domain.vcpus - len(pinned),
        "PCPU": len(used_cpus),
        "MEMORY_MB": domain.memory_mb,
        "DISK_GB": -(-disk_bytes // BYTES_PER_GIB),
    }
    return Guest(
        uuid=domain.uuid,
        name=domain.name,
        state=state,
        resources={name: amount for name, amount in amounts.items() if amount},
        units=(
            *(UsedUnit("PCPU", str(cpu), "host") for cpu in sorted(used_cpus)),
            *(UsedUnit("VGPU", uuid, f"mdev:{uuid}") for uuid in domain.mdevs),
            *(UsedUnit("PCI_DEVICE", address, f"pci:{address}") for address in domain.pci_devices),
            *(
                UsedUnit("SRIOV_NET_VF", address, f"pci:{address}", domain.ports.get(address, ""))
                for address in domain.interfaces
            ),
        ),
        memory=domain.memory,
        encryption=domain.encryption,
    )


def starting_guest(
    domain: Domain, disk_gb: int | None, dedicated: frozenset[int], locations: Mapping[str, UnitLocation]
) -> Guest:
    """The guest of a domain that is about to start; `disk_gb` None if the sizes of its disks are unknown."""
    guest = guest_of(domain, GuestState.STARTING, (disk_gb or 0) * BYTES_PER_GIB, dedicated)
    problem = "the sizes of its disks were not read yet" if disk_gb is None else None
    return replace(locate_units(guest, locations), problem=problem)


def passed_addresses(text: str) -> Mapping[str, bool]:
    """{PCI address: whether libvirt binds it to VFIO's driver} of the devices that a domain gives its guest.

    Raises DriverDataError where the XML is malformed.
    """
    what = "a domain"
    root = xml_parser.parse_xml(text, what, "domain")
    return {
        xml_parser.pci_address(source, what): element.get("managed") == "yes"
        for path in ("devices/hostdev[@type='pci']", "devices/interface[@type='hostdev']")
        for element in root.findall(path)
        for source in element.findall("source/address")
    }


def over_iommufd(text: str) -> frozenset[str]:
    """The PCI addresses of the devices that a domain gives its guest over iommufd.

    A device says so itself (libvirt 12.1), else the domain for all (12.2). Raises DriverDataError where the
    XML is malformed. Source: https://libvirt.org/formatdomain.html and libvirt's NEWS.rst
    """
    what = "a domain"
    root = xml_parser.parse_xml(text, what, "domain")
    every = root.find("iommufd[@enabled='yes']") is not None
    return frozenset(
        xml_parser.pci_address(source, what)
        for element in root.findall("devices/*")
        for own in (element.find("driver[@iommufd]"),)
        if (every if own is None else own.get("iommufd") == "yes")
        and device_kind(element.tag, element.get("type")) in (DeviceKind.PCI, DeviceKind.INTERFACE)
        for source in element.findall("source/address")
    )


# What a domain asks for


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
    xml = DomainXml.parse(text)
    root, what = xml.root, xml.what
    uuid_text = (root.findtext("uuid") or "").strip()
    uuid = xml_parser.uuid_of(uuid_text, f"{what}: <uuid>") if uuid_text else ""
    nodes = sorted(xml.memory_nodes)
    common = xml.cpu_set(root.find("vcpu"))
    pins: dict[int, int | None] = {}
    floating: dict[int, frozenset[int]] = {}
    if len(common) == 1 and common <= dedicated:
        pins.update(dict.fromkeys(xml.vcpus, min(common)))
    for element in root.findall("cputune/vcpupin"):
        cpus, vcpu = xml.cpu_set(element), xml.vcpu_of(element)
        if vcpu in xml.later_vcpus:
            continue
        pins.pop(vcpu, None)
        floating.pop(vcpu, None)
        if len(cpus) < 2:  # one that is pinned to several floats over them; None: none is named yet
            pins[vcpu] = min(cpus, default=None)
        if cpus and (len(cpus) > 1 or not cpus <= dedicated):
            floating[vcpu] = cpus
    emulator = xml.cpu_set(root.find("cputune/emulatorpin"))
    cells, scattered = _needed_cells(xml, huge_page_kib)
    isolate = len(emulator) == 1 and emulator <= dedicated and not emulator.intersection(pins.values())
    return DomainNeeds(
        uuid=uuid,
        name=(root.findtext("name") or "").strip(),
        vcpus=None if root.find("vcpu") is None else len(xml.vcpus),
        memory_mb=None if root.find("memory") is None else xml.memory_mb,
        disk_gb=disk_gb(uuid, xml.disks) or 0,
        dedicated={cpu: pin for cpu, pin in pins.items() if pin is None or pin in dedicated},
        pinned=frozenset(pins),
        isolate_emulator=isolate,
        emulator=min(emulator) if isolate else None,
        cells=cells,
        page_kib=xml.page_kib_of(0, huge_page_kib),
        host_cell=nodes[0] if len(nodes) == 1 else None,
        devices=tuple(_needed_devices(xml)),
        vcpu_ids=frozenset() if root.find("vcpu") is None else xml.vcpus,
        memory=tuple(xml.used_memory(huge_page_kib)),
        floating=floating,
        scattered=scattered or xml.is_loosely_bound,
    )


def _needed_cells(xml: DomainXml, huge_page_kib: int) -> tuple[tuple[NeededCell, ...], bool]:
    """(the cells, whether memory devices have other pages or nodes than their cells)"""
    elements = xml.root.findall("cpu/numa/cell")
    cpus = {
        xml_parser.number(element.get("id", str(index)), f"{xml.what}: <cell>", VCPUS_MAX): xml.cpu_set(
            element, "cpus"
        )
        for index, element in enumerate(elements)
    }
    if sorted(cpus) != list(range(len(elements))):
        raise DriverDataError(f"{xml.what}: the ids of its NUMA cells are not 0 to {len(elements) - 1}")
    sizes_mb, scattered = dict(xml.guest_cells), False
    for cell, memory_mb, device in xml.memory_devices:
        # A claim has one place and one page size for all memory of a cell.
        nodes, page_kib = xml.own_nodes(device), xml.own_page_kib(device)
        is_alike = page_kib in (None, xml.page_kib_of(cell, huge_page_kib))
        if cell in sizes_mb and is_alike and (not nodes or nodes == xml.nodes_of(cell)):
            sizes_mb[cell] += memory_mb
        else:
            scattered = True
    cells = []
    for cell in sorted(cpus):
        bound = sorted(xml.nodes_of(cell))
        node = bound[0] if len(bound) == 1 else None
        present = cpus[cell] - xml.later_vcpus
        cells.append(NeededCell(present, sizes_mb[cell], node, xml.page_kib_of(cell, huge_page_kib)))
    return tuple(cells), scattered


def _needed_devices(xml: DomainXml) -> Iterator[NeededDevice]:
    for element in xml.root.findall("devices/*"):
        kind = device_kind(element.tag, element.get("type"))
        if kind is None:
            continue
        address, unit = element.find("source/address"), ""
        if address is not None and kind is DeviceKind.MEDIATED and address.get("uuid"):
            unit = xml_parser.uuid_of(address.get("uuid"), f"{xml.what}: mediated device")
        elif address is not None and kind is not DeviceKind.MEDIATED and address.get("bus"):
            unit = xml_parser.pci_address(address, xml.what)
        alias = alias_of(element)
        # A disk is none of the host's other PCI devices, even of their class: only its name says which.
        yield NeededDevice(kind, alias, unit, shown_tag(element), element.tag == "disk")


def device_kind(tag: object, source_type: str | None) -> DeviceKind | None:
    """How an element of a domain with this tag and type names a device of the host; None if it is none."""
    return _KINDS.get((tag, source_type))


def alias_of(element: Any) -> str:
    """The operator's name in an element's alias, without the prefix; "" if it has none.

    The element is one of ElementTree or of lxml.
    """
    alias = element.find("alias")
    name = (alias.get("name") or "") if alias is not None else ""
    return str(name.removeprefix(ALIAS_PREFIX)) if name.startswith(ALIAS_PREFIX) else ""


def shown_tag(element: Any) -> str:
    """The element (of ElementTree or lxml) for the operator, with its alias: `<interface> ua-red`."""
    alias = alias_of(element)
    return f"<{element.tag}>{f' {ALIAS_PREFIX}{alias}' if alias else ''}"
