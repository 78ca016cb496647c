"""Providers of the contexts for guests with encrypted memory, one for each kind, named as in nova. Pure.

The numbers are the processor's: AMD's are in the domain capabilities; SEV-ES and SEV-SNP share the keys of
one pool, so only one of the two is offered. Source: nova 34, nova/virt/libvirt/host.py.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from agent.driver import DescribedInventory, DescribedProvider, Guest
from drivers.host.domain_xml import Domain
from drivers.libvirt.xml import DomainCapabilities

CONTEXT = "MEM_ENCRYPTION_CONTEXT"

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


def needed_contexts(encrypted: bool, described: Collection[DescribedProvider]) -> dict[str, int]:
    """{class: 1} where the host has contexts and the guest's memory is encrypted."""
    return {CONTEXT: 1} if encrypted and described else {}


def with_context(guest: Guest, domain: Domain | None, described: Collection[DescribedProvider]) -> Guest:
    """The guest with the context that it uses, if its memory is encrypted and the host has contexts."""
    needed = needed_contexts(domain is not None and domain.encrypted, described)
    return replace(guest, resources={**guest.resources, **needed}) if needed else guest


def moved_traits(guests: DomainCapabilities | None) -> frozenset[str]:
    """The traits that these providers have in place of the host."""
    moved = {KINDS[kind][1] for kind in contexts(guests)}
    if KINDS["sev-snp"][1] in moved:
        moved.add(KINDS["sev-es"][1])
    return frozenset(moved)
