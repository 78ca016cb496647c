"""What a domain uses, from its XML. Pure.

The live XML counts for a running domain, the configuration for one that is shut off. An <interface> whose
network is a pool of virtual functions has the chosen one's address only in the live XML.
Source: https://libvirt.org/formatdomain.html
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from agent.driver import Guest, GuestState, UsedMemory, UsedUnit
from agent.errors import DriverDataError
from drivers.libvirt.xml.domain_memory import USUAL_KIB, cpu_set, memory_nodes, used_memory
from drivers.libvirt.xml.parse import number, parse_xml, pci_address, size_bytes, text_of, uuid_of

VCPUS_MAX = 65536
BYTES_PER_MIB = 2**20
BYTES_PER_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk whose size counts as DISK_GB: a file, or a `volume` of a `pool`. `target` is "vda"."""

    target: str
    path: str = ""
    pool: str = ""
    volume: str = ""


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain as its XML has it.

    `pins` {vCPU: host CPUs that it may run on} of the vCPUs that are there and are pinned at all;
    `emulator_pin` likewise. `memory_nodes` are the host's NUMA nodes that its memory must be on, if it must.
    `mdevs` are uuids; `pci_devices` the addresses of <hostdev>, and of disks that are an NVMe device whole,
    `interfaces` those of <interface>. `memory` says what of the memory must be on which nodes, and in what
    pages.
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


def parse_domain(text: str, what: str = "a domain", usual_page_kib: int = USUAL_KIB) -> Domain:
    """`what` names the domain in errors; `usual_page_kib` is the size of large pages that have none.

    Raises DriverDataError.
    """
    root = parse_xml(text, what, "domain")
    memory = root.find("memory")
    if memory is None:
        raise DriverDataError(f"{what}: <memory> is missing")
    vcpus = _vcpus(root, what)
    return Domain(
        uuid=uuid_of(root.findtext("uuid"), f"{what}: <uuid>"),
        name=text_of(root, "name", what),
        vcpus=len(vcpus),
        memory_mb=-(-size_bytes(memory, f"{what}: <memory>") // BYTES_PER_MIB),
        pins=_pins(root, vcpus, what),
        emulator_pin=cpu_set(root.find("cputune/emulatorpin"), what),
        disks=tuple(_disks(root)),
        mdevs=_once(
            uuid_of(each.get("uuid"), f"{what}: mediated device")
            for each in root.findall("devices/hostdev[@type='mdev']/source/address")
        ),
        pci_devices=_once(
            address
            for path in ("devices/hostdev[@type='pci']", "devices/disk[@type='nvme']")
            for address in _addresses(root, path, what)
        ),
        interfaces=_once(_addresses(root, "devices/interface[@type='hostdev']", what)),
        memory_nodes=memory_nodes(root, what),
        memory=tuple(used_memory(root, what, usual_page_kib)),
    )


def _vcpus(root: Element, what: str) -> frozenset[int]:
    """The ids of the vCPUs that are there: which ones, <vcpus> says; else the first `current` ones."""
    what = f"{what}: <vcpu>"
    element = root.find("vcpu")
    if element is None:
        return frozenset({0})
    maximum = number(element.text, what, VCPUS_MAX)
    current = number(element.get("current", str(maximum)), what, VCPUS_MAX)
    listed = root.findall("vcpus/vcpu")
    if listed:
        return frozenset(
            number(each.get("id"), what, VCPUS_MAX) for each in listed if each.get("enabled") != "no"
        )
    return frozenset(range(current))


def _pins(root: Element, vcpus: frozenset[int], what: str) -> dict[int, frozenset[int]]:
    """<vcpupin>, and for the others the cpuset of <vcpu>."""
    pins: dict[int, frozenset[int]] = {}
    all_of_them = cpu_set(root.find("vcpu"), what)
    if all_of_them:
        pins = dict.fromkeys(vcpus, all_of_them)
    for element in root.findall("cputune/vcpupin"):
        vcpu = number(element.get("vcpu"), f"{what}: <vcpupin>", VCPUS_MAX)
        if vcpu in vcpus:
            pins[vcpu] = cpu_set(element, what)
    return pins


def _disks(root: Element) -> Iterable[Disk]:
    """Disks of files and volumes that the domain writes to; removable and read-only media do not count."""
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
    """The host's side is in <source>; the <address> beside it is the guest's."""
    return [pci_address(each, what) for each in root.findall(f"{path}/source/address")]


def _once(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def guest_of(domain: Domain, state: GuestState, disk_bytes: int, dedicated: frozenset[int]) -> Guest:
    """The contract's guest. `dedicated` are the host's CPUs for dedicated use.

    A vCPU that may run on just one of those holds it (PCPU); every other vCPU is a VCPU. Devices are given as
    units only: the amounts follow when the host describes providers for them.
    """
    held = {vcpu: min(cpus) for vcpu, cpus in domain.pins.items() if len(cpus) == 1 and cpus <= dedicated}
    cpus = set(held.values())
    if len(domain.emulator_pin) == 1 and domain.emulator_pin <= dedicated:
        cpus |= domain.emulator_pin
    amounts = {
        "VCPU": domain.vcpus - len(held),
        "PCPU": len(cpus),
        "MEMORY_MB": domain.memory_mb,
        "DISK_GB": -(-disk_bytes // BYTES_PER_GIB),
    }
    return Guest(
        uuid=domain.uuid,
        name=domain.name,
        state=state,
        resources={name: amount for name, amount in amounts.items() if amount},
        units=(
            *(UsedUnit("PCPU", str(cpu), "host") for cpu in sorted(cpus)),
            *(UsedUnit("VGPU", uuid, f"mdev:{uuid}") for uuid in domain.mdevs),
            *(UsedUnit("PCI_DEVICE", address, f"pci:{address}") for address in domain.pci_devices),
            *(UsedUnit("SRIOV_NET_VF", address, f"pci:{address}") for address in domain.interfaces),
        ),
        memory=domain.memory,
    )
