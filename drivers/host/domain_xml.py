"""The resources that a domain uses, from its XML. Pure.

Use the live XML of a running domain, and the configuration of one that is shut off: where the network of an
<interface> is a pool of virtual functions, only the live XML has the address of the chosen one.
Source: https://libvirt.org/formatdomain.html
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from xml.etree.ElementTree import Element

from agent.driver import Guest, GuestState, UsedMemory, UsedUnit
from agent.errors import DriverDataError
from drivers.host.domain_memory import (
    DEFAULT_HUGE_PAGE_KIB,
    cpu_set,
    epc_bytes,
    file_bytes,
    memory_files,
    memory_nodes,
    used_memory,
)
from drivers.host.providers import UnitLocation, locate_units
from drivers.host.xml_parser import number, parse_xml, pci_address, size_bytes, text_of, uuid_of

VCPUS_MAX = 65536
BYTES_PER_MIB = 2**20
BYTES_PER_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk whose size counts as DISK_GB: the file `path`, or the `volume` of a `pool`.

    `target` is the guest's name of it, such as vda.
    """

    target: str
    path: str = ""
    pool: str = ""
    volume: str = ""


ENCRYPTION_TYPES = ("sev", "sev-snp", "tdx")
"""The types of <launchSecurity> for which the processor has a limited number of keys."""


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain as its XML describes it.

    `pins` {vCPU: host CPUs that it may run on} has the vCPUs that are present and pinned; `emulator_pin` is
    the same for the emulator's threads. `memory_nodes` are the NUMA nodes of the host to which all memory is
    bound, if it is. `mdevs` are uuids of mediated devices, `pci_devices` PCI addresses of <hostdev> and of
    NVMe devices that are disks, `interfaces` PCI addresses of <interface>. `memory` is the part of the memory
    that is bound to nodes or in huge pages. `vcpus_may_change`: vCPUs may be added to it, or taken from it,
    while it runs. `encrypted`: its memory is, by SEV or TDX. `memory_files` are the paths of its memory
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
    memory_nodes: frozenset[int] = frozenset()
    memory: tuple[UsedMemory, ...] = ()
    vcpus_may_change: bool = False
    encrypted: bool = False
    memory_files: tuple[str, ...] = ()
    vdpa: tuple[str, ...] = ()
    epc_mb: int = 0


def parse_domain(text: str, what: str = "a domain", huge_page_kib: int = DEFAULT_HUGE_PAGE_KIB) -> Domain:
    """The domain in `text`. `what` names it in errors; `huge_page_kib` is the host's default huge page size.

    Raises DriverDataError where the XML is malformed or a value is out of range.
    """
    root = parse_xml(text, what, "domain")
    memory = root.find("memory")
    if memory is None:
        raise DriverDataError(f"{what}: <memory> is missing")
    vcpus = present_vcpus(root, what)
    return Domain(
        uuid=uuid_of(root.findtext("uuid"), f"{what}: <uuid>"),
        name=text_of(root, "name", what),
        vcpus=len(vcpus),
        memory_mb=-(-(size_bytes(memory, f"{what}: <memory>") - file_bytes(root, what)) // BYTES_PER_MIB),
        pins=_pins(root, vcpus, what),
        emulator_pin=cpu_set(root.find("cputune/emulatorpin"), what),
        disks=tuple(counted_disks(root)),
        mdevs=_unique(
            uuid_of(address.get("uuid"), f"{what}: mediated device")
            for address in root.findall("devices/hostdev[@type='mdev']/source/address")
        ),
        pci_devices=_unique(
            address
            for path in ("devices/hostdev[@type='pci']", "devices/disk[@type='nvme']")
            for address in _addresses(root, path, what)
        ),
        interfaces=_unique(_addresses(root, "devices/interface[@type='hostdev']", what)),
        memory_nodes=memory_nodes(root, what),
        memory=tuple(used_memory(root, what, huge_page_kib)),
        vcpus_may_change=len(vcpus) < _most_vcpus(root, what)
        or any(vcpu.get("hotpluggable") == "yes" for vcpu in root.findall("vcpus/vcpu")),
        encrypted=is_encrypted(root),
        memory_files=memory_files(root),
        epc_mb=-(-epc_bytes(root, what) // BYTES_PER_MIB),
        vdpa=_unique(
            source.get("dev", "").strip()
            for source in root.findall("devices/interface[@type='vdpa']/source")
            if source.get("dev")
        ),
    )


def is_encrypted(root: Element) -> bool:
    """Whether the guest's memory is encrypted by SEV or TDX."""
    return any(element.get("type") in ENCRYPTION_TYPES for element in root.findall("launchSecurity"))


def passed_addresses(text: str, what: str = "a domain") -> Mapping[str, bool]:
    """{PCI address: whether libvirt binds it to VFIO's driver} of the devices that a domain gives its guest.

    Raises DriverDataError where the XML is malformed.
    """
    root = parse_xml(text, what, "domain")
    return {
        address: element.get("managed") == "yes"
        for path in ("devices/hostdev[@type='pci']", "devices/interface[@type='hostdev']")
        for element in root.findall(path)
        for source in element.findall("source/address")
        for address in (pci_address(source, what),)
    }


def present_vcpus(root: Element, what: str) -> frozenset[int]:
    """The ids of the present vCPUs: those enabled in <vcpus>, else the first `current` ones of <vcpu>."""
    what = f"{what}: <vcpu>"
    element = root.find("vcpu")
    if element is None:
        return frozenset({0})
    maximum = number(element.text, what, VCPUS_MAX)
    current = number(element.get("current", str(maximum)), what, VCPUS_MAX)
    listed = root.findall("vcpus/vcpu")
    if listed:
        return frozenset(
            number(vcpu.get("id"), what, VCPUS_MAX) for vcpu in listed if vcpu.get("enabled") != "no"
        )
    return frozenset(range(current))


def _most_vcpus(root: Element, what: str) -> int:
    element = root.find("vcpu")
    return 1 if element is None else number(element.text, f"{what}: <vcpu>", VCPUS_MAX)


def _pins(root: Element, vcpus: frozenset[int], what: str) -> dict[int, frozenset[int]]:
    """{vCPU: host CPUs} from <vcpupin>, and for vCPUs without one from the cpuset of <vcpu>."""
    pins: dict[int, frozenset[int]] = {}
    common_cpus = cpu_set(root.find("vcpu"), what)
    if common_cpus:
        pins = dict.fromkeys(vcpus, common_cpus)
    for element in root.findall("cputune/vcpupin"):
        vcpu = number(element.get("vcpu"), f"{what}: <vcpupin>", VCPUS_MAX)
        if vcpu in vcpus:
            pins[vcpu] = cpu_set(element, what)
    return pins


def counted_disks(root: Element) -> Iterable[Disk]:
    """Writable disks that are files or volumes; removable and read-only media do not count."""
    for disk in root.findall("devices/disk"):
        source, target = disk.find("source"), disk.find("target")
        if source is None or target is None or disk.get("device", "disk") != "disk":
            continue
        if disk.find("readonly") is not None:
            continue
        if disk.get("type") == "file" and source.get("file"):
            yield Disk(target.get("dev", ""), path=source.get("file", ""))
        elif disk.get("type") == "volume" and source.get("pool") and source.get("volume"):
            yield Disk(target.get("dev", ""), pool=source.get("pool", ""), volume=source.get("volume", ""))


def _addresses(root: Element, path: str, what: str) -> Iterable[str]:
    """The host's PCI addresses, which are in <source>; an <address> beside it is the guest's."""
    return [pci_address(address, what) for address in root.findall(f"{path}/source/address")]


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


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
            *(UsedUnit("SRIOV_NET_VF", address, f"pci:{address}") for address in domain.interfaces),
        ),
        memory=domain.memory,
    )


def starting_guest(
    domain: Domain, disk_gb: int | None, dedicated: frozenset[int], locations: Mapping[str, UnitLocation]
) -> Guest:
    """The guest of a domain that is about to start; `disk_gb` None if the sizes of its disks are unknown."""
    guest = guest_of(domain, GuestState.STARTING, (disk_gb or 0) * BYTES_PER_GIB, dedicated)
    problem = "the sizes of its disks were not read yet" if disk_gb is None else None
    return replace(locate_units(guest, locations), problem=problem)
