"""Memory of particular kinds: persistent, encrypted, for SGX enclaves, and of cells without CPUs. Pure.

Of each kind: what the host has of it, as providers or units; what a domain uses or asks for; and for
namespaces of persistent memory what is written into a domain's XML.

Source: nova 34, nova/virt/libvirt/driver.py (`_discover_vpmems`) and nova/virt/libvirt/host.py;
https://libvirt.org/formatdomaincaps.html#sgx-capabilities and
https://libvirt.org/formatdomain.html#memory-devices
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from xml.etree import ElementTree

from agent.cpuset import format_cpu_set
from agent.device_names import CONFIDENTIAL, CONTEXT, CPULESS_MEMORY, EPC_CLASS, pmem_class
from agent.driver import (
    Cell,
    DescribedInventory,
    DescribedProvider,
    DeviceKind,
    DomainNeeds,
    Guest,
    MoveInstruction,
    NeededDevice,
    UsedUnit,
)
from agent.errors import SettingsError
from drivers.host.domain_writer import DomainDocument, add_child, child, set_text
from drivers.host.domain_xml import BYTES_PER_MIB, Domain
from drivers.host.providers import HUGE_KIB, cell_provider_name
from drivers.host.sysfs import UNKNOWN_KIND, MemoryCell, PmemNamespace
from drivers.host.xml_parser import size_bytes
from drivers.libvirt.xml import DomainCapabilities

# Namespaces of persistent memory
#
# They are exact units, by the labels of [libvirt] pmem_namespaces. The units are the namespaces' names, which
# stay the same when the kernel numbers their devices anew.

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
    files: Iterable[str], found: Iterable[PmemNamespace], labels: PmemLabels
) -> Iterator[NeededDevice]:
    """The configured namespaces among a domain's memory files; other files are none of the host's devices."""
    names = {namespace.path: namespace.name for namespace in found if namespace.name in labels}
    for path in files:
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
    # Each memory device needs a slot, and the most memory that the guest may have has them in it.
    root = document.root
    most = root.find("maxMemory")
    slots = 0 if most is None else int(most.get("slots", "0"))
    before = next((each for each in (most, root.find("memory")) if each is not None), None)
    in_kib = 0
    if before is not None:
        plain = ElementTree.Element("memory", {"unit": before.get("unit", "KiB")})
        plain.text = before.text
        in_kib = size_bytes(plain, "the domain: <memory>") // KIB
    if most is None:
        most = add_child(root, "maxMemory", {}, after=("name", "uuid", "metadata", "title", "description"))
    most.set("slots", str(slots + len(missing)))
    most.set("unit", "KiB")
    set_text(most, str(in_kib + sum(namespace.size // KIB for namespace in missing)))
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


def unmatched_namespaces(found: Iterable[PmemNamespace], labels: PmemLabels) -> Iterator[str]:
    """A sentence for each configured namespace that the host does not have."""
    there = {namespace.name for namespace in found}
    for name in labels:
        if name not in there:
            yield (
                f"{OPTION} names {name}, which this host does not have as a namespace in mode devdax; "
                "`ndctl list -N` shows those that it has."
            )


# Contexts for guests with encrypted memory
#
# There is a provider for each kind, named as in nova. The numbers are the processor's: AMD's are in the
# domain capabilities; SEV-ES and SEV-SNP share the keys of one pool, so only one of the two is offered.

KINDS: Mapping[str, tuple[str, str]] = {
    "sev": ("amd_sev", "HW_CPU_X86_AMD_SEV"),
    "sev-es": ("amd_sev_es", "HW_CPU_X86_AMD_SEV_ES"),
    "sev-snp": ("amd_sev_snp", "HW_CPU_X86_AMD_SEV_SNP"),
    "tdx": ("intel_tdx", "HW_CPU_X86_INTEL_TDX"),
}
"""{kind: (end of the provider's name, its trait)}"""


def contexts(guests: DomainCapabilities | None) -> Mapping[str, int]:
    """{kind: how many guests may have their memory encrypted by it}, without kinds that have none."""
    if guests is None:
        return {}
    slots = {kind: guests.slots.get(kind, 0) for kind in KINDS if kind in guests.features}
    if "sev-snp" in slots:
        slots["sev-snp"] = guests.slots.get("sev-es", 0)
        if slots["sev-snp"]:
            slots.pop("sev-es", None)
    return {kind: count for kind, count in slots.items() if count}


def tdx_slots(capacity: str | None, configured: int | None) -> int:
    """The number of guests with TDX: the kernel's number of keys, or [libvirt] num_intel_tdx_guests if lower.

    `capacity` is the text of the kernel's misc.capacity; where that is None or does not tell the number,
    the configured one counts alone.
    """
    lines = [line.split() for line in (capacity or "").splitlines()]
    keys = [
        int(words[1]) for words in lines if len(words) == 2 and words[0] == "tdx" and words[1].isdecimal()
    ]
    known = [*keys, *(() if configured is None else (configured,))]
    return min(known, default=0)


def encryption_providers(name: str, guests: DomainCapabilities | None) -> Iterator[DescribedProvider]:
    """A provider below the host for each kind of encryption; a guest takes one context."""
    for kind, count in contexts(guests).items():
        end, trait = KINDS[kind]
        yield DescribedProvider(
            name=f"{name}_{end}",
            parent=name,
            inventories={CONTEXT: DescribedInventory(total=count, max_unit=1, allocation_ratio=1.0)},
            traits=frozenset({trait}),
            device=f"encryption:{kind}",
        )


KINDS_OF_CARDS = (DeviceKind.PCI, DeviceKind.MEDIATED)


def counted_encryption(guests: DomainCapabilities | None) -> frozenset[str]:
    """The traits of the kinds of which a guest asks for a context.

    Of every kind, if the host has contexts; if it has none, of those that libvirt does not have, so that such
    a claim is refused. A kind whose number alone is not known is not asked for, see `needed_contexts`.
    """
    if guests is None:
        return frozenset()
    uncounted = () if contexts(guests) else guests.features
    return frozenset(trait for kind, (_, trait) in KINDS.items() if kind not in uncounted)


def needed_contexts(encryption: frozenset[str], counted: frozenset[str], *, has_card: bool) -> dict[str, int]:
    """{class: 1} for a guest with that encryption, where a context is asked for it.

    One with SEV-SNP or TDX that has a card asks always: by that its claim tells which cards it may have.
    """
    is_confidential = bool(encryption) and encryption <= CONFIDENTIAL
    return {CONTEXT: 1} if encryption & counted or (is_confidential and has_card) else {}


def with_context(guest: Guest, domain: Domain | None, counted: frozenset[str]) -> Guest:
    """The guest with the context that it uses; see `counted_encryption`."""
    if domain is None:
        return guest
    has_card = bool(domain.pci_devices or domain.mdevs)
    needed = needed_contexts(domain.encryption, counted, has_card=has_card)
    return replace(guest, resources={**guest.resources, **needed}) if needed else guest


def moved_traits(guests: DomainCapabilities | None) -> frozenset[str]:
    """The traits that these providers have in place of the host."""
    moved = {KINDS[kind][1] for kind in contexts(guests)}
    if KINDS["sev-snp"][1] in moved:
        moved.add(KINDS["sev-es"][1])
    return frozenset(moved)


# Memory for SGX enclaves (EPC)
#
# There is a provider for each NUMA cell that has some. nova has nothing of the kind; its traits tell only
# that the processor has SGX.


def epc_providers(
    name: str, guests: DomainCapabilities | None, *, report_numa: bool = False
) -> Iterator[DescribedProvider]:
    """A provider for each cell with such memory, in MiB, below the cell or the host."""
    for cell, size in sorted(guests.epc.items()) if guests is not None else ():
        below = cell_provider_name(name, cell)
        if size >= BYTES_PER_MIB:
            yield DescribedProvider(
                name=f"{below}_sgx_epc",
                parent=below if report_numa else name,
                inventories={
                    EPC_CLASS: DescribedInventory(total=size // BYTES_PER_MIB, allocation_ratio=1.0)
                },
                device=f"sgx:{cell}",
                cell=cell,
            )


def with_epc(guest: Guest, domain: Domain | None) -> Guest:
    """The guest with the memory for enclaves that its domain has."""
    if domain is None or not domain.epc_mb:
        return guest
    return replace(guest, resources={**guest.resources, EPC_CLASS: domain.epc_mb})


# Memory of cells without CPUs: CXL, HBM, persistent memory as system RAM
#
# It is none of the host's MEMORY_MB, by which a claim means DRAM. One class counts all kinds; traits say of
# which kind a cell is and how far away. What the kernel tells of a cell changes with its drivers, and a trait
# may change under allocations where a class may not. nova counts such memory as MEMORY_MB.


def cpuless_providers(
    cells: Iterable[Cell],
    told: Mapping[int, MemoryCell],
    offered: Collection[str],
    guests: Iterable[Guest],
    parent_of: Callable[[int | None], str],
) -> Iterator[DescribedProvider]:
    """A provider for each of the cells that has memory, in MiB, below the nearest cell or the host.

    Memory of a kind that is not `offered` is withheld; large pages are reserved but for what `guests` have.
    """
    parts = [part for guest in guests for part in guest.memory]
    for cell in (cell for cell in cells if cell.memory_mb > 0):
        known = told.get(cell.id, MemoryCell())
        left_mb = max(0, cell.memory_mb - sum(part.memory_mb for part in parts if part.cell == cell.id))
        pages_mb = sum(size * count for size, count in cell.pages.items() if size >= HUGE_KIB) // KIB
        is_offered = known.kind in offered
        reserved_mb = min(left_mb, pages_mb) if is_offered else 0
        far = () if known.distance is None else (f"CUSTOM_MEMORY_DISTANCE_{known.distance}",)
        yield DescribedProvider(
            name=f"{cell_provider_name(parent_of(None), cell.id)}_memory",
            parent=parent_of(known.near),
            inventories={
                CPULESS_MEMORY: DescribedInventory(cell.memory_mb, reserved_mb, allocation_ratio=1.0)
            },
            traits=frozenset({f"CUSTOM_MEMORY_{known.kind.upper()}", *far}),
            device=f"memory:{cell.id}",
            cell=cell.id,
            withheld=frozenset() if is_offered else frozenset({CPULESS_MEMORY}),
        )


def unusable_cells(told: Mapping[int, MemoryCell], cells: Collection[Cell]) -> Iterator[str]:
    """Sentences on the cells of the kernel of which nothing is offered.

    Those that libvirt lacks, because it looks for cells when it starts, and those of an unknown kind.
    """
    unknown = sorted(cell for cell, known in told.items() if known.kind == UNKNOWN_KIND)
    if unknown:
        yield (
            f"Which kind of memory NUMA cell {format_cpu_set(unknown)} has is not known: `target_node` of a "
            "device below /sys/bus/dax/devices is no number of a cell. Nothing more of it is offered until "
            "the kernel tells it; `daxctl list` shows these devices."
        )
    unlisted = sorted(frozenset(told) - {cell.id for cell in cells}) if cells else ()
    if unlisted:
        yield (
            f"libvirt does not list the memory of NUMA cell {format_cpu_set(unlisted)}, which came after "
            "libvirt started: none of it is offered. Restart libvirtd, or virtqemud; guests keep running."
        )


def with_cpuless_memory(guest: Guest, cells: Collection[int]) -> Guest:
    """The guest, whose memory on these cells is none of its MEMORY_MB."""
    apart_mb = sum(part.memory_mb for part in guest.memory if part.cell in cells)
    if not apart_mb:
        return guest
    resources = {**guest.resources, CPULESS_MEMORY: apart_mb}
    resources["MEMORY_MB"] = max(0, resources.get("MEMORY_MB", 0) - apart_mb)
    return replace(guest, resources={name: amount for name, amount in resources.items() if amount})


def without_cpuless_memory(needs: DomainNeeds, cells: Collection[int]) -> DomainNeeds:
    """The needs, whose memory on these cells is an amount of its own.

    A claim places none of the guest cells without CPUs that are there and come after all others. Of any other
    domain with such memory, its claim has what it uses as it is.
    """
    apart_mb = sum(part.memory_mb for part in needs.memory if part.cell in cells)
    if not apart_mb:
        return needs
    placed = tuple(cell for cell in needs.cells if cell.cpus or cell.host_cell not in cells)
    is_plain = placed and needs.cells[: len(placed)] == placed
    is_one = len(placed) == 1 and placed[0].host_cell is None
    return replace(
        needs,
        memory_mb=None if needs.memory_mb is None else max(0, needs.memory_mb - apart_mb),
        amounts={**needs.amounts, CPULESS_MEMORY: apart_mb},
        cells=() if is_one else placed,
        host_cell=None if needs.host_cell in cells else needs.host_cell,
        scattered=needs.scattered or not is_plain or any(cell.host_cell in cells for cell in placed),
    )


def cpuless_moves(
    host: str, providers: Iterable[DescribedProvider], guests: Sequence[Guest]
) -> Iterator[MoveInstruction]:
    """To each of these providers, from where its memory was MEMORY_MB: the host's, or that of the cell."""
    for provider in providers:
        used = {
            guest.uuid: {"MEMORY_MB": amount}
            for guest in guests
            if (amount := sum(part.memory_mb for part in guest.memory if part.cell == provider.cell))
        }
        totals = {"MEMORY_MB": provider.inventories[CPULESS_MEMORY].total}
        for source in (host, cell_provider_name(host, provider.cell or 0)):
            yield MoveInstruction(source, totals, provider.name, used, {"MEMORY_MB": CPULESS_MEMORY})
