"""What a guest that is about to start asks for: its amounts, and the very units that it names. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agent.claims.claim import Claim
from agent.claims.fit import ProviderIndex
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import Guest, UsedUnit
from agent.shapes import Allocations, Units

DISK = "DISK_GB"
MEMORY = "MEMORY_MB"
GATE_USER = "plimsoll-gate"
"""The user that the gate's claims are of; those of others it never releases."""


@dataclass(frozen=True, slots=True)
class DomainRequest:
    """`named` are the units that must be the claim's, `unmanaged` those that no provider of this host has.

    `memory` {provider uuid: MiB} is where its MEMORY_MB must be, empty: anywhere; `bound` {suffix: provider
    uuid} are the groups of both.
    """

    request: ClaimRequest
    named: Units
    unmanaged: tuple[UsedUnit, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    bound: Mapping[str, str] = field(default_factory=dict)


def request_for_domain(guest: Guest, host: ProviderIndex, devices: Mapping[str, str], cells: Mapping[int, str]) -> DomainRequest:
    """`devices` is {device: provider uuid}, `cells` {cell: uuid of the provider that has its memory}.

    Each named unit comes from its own provider, in a group of its own, and with it the memory that must be
    on that cell; the rest is the host's choice.
    """
    rest = {name: amount for name, amount in guest.resources.items() if amount > 0}
    named: dict[str, dict[str, tuple[str, ...]]] = {}
    unmanaged = []
    for used in guest.units:
        uuid, name = devices.get(used.device), used.resource_class
        provider = host.tree.get(uuid) if uuid else None
        if provider is None or name not in provider.inventories:
            unmanaged.append(used)
            continue
        exact = named.setdefault(provider.uuid, {})
        exact[name] = (*exact.get(name, ()), used.unit)
        rest[name] = rest.get(name, 1) - 1
    memory = _memory(guest, host, cells)
    if memory:
        rest.pop(MEMORY)
    amounts = {
        uuid: {name: len(units) for name, units in sorted(exact.items())} for uuid, exact in named.items()
    }
    for uuid, memory_mb in memory.items():
        amounts.setdefault(uuid, {})[MEMORY] = memory_mb
    bound = {f"_{number}": uuid for number, uuid in enumerate(sorted(amounts), start=1)}
    groups = [RequestGroup(suffix, amounts[uuid]) for suffix, uuid in bound.items()]
    left = {name: amount for name, amount in sorted(rest.items()) if amount > 0}
    if left:
        groups.insert(0, RequestGroup("", left))
    request = ClaimRequest(
        guest.uuid,
        tuple(groups),
        group_policy="none" if len(amounts) > 1 else None,
        name=guest.name,
        user_id=GATE_USER,
    )
    return DomainRequest(request, named, tuple(unmanaged), memory, bound)


def _memory(guest: Guest, host: ProviderIndex, cells: Mapping[int, str]) -> dict[str, int]:
    """{provider uuid: MiB} where cells are reported, and all of its memory is bound, each part to one."""
    found: dict[str, int] = {}
    for each in guest.memory:
        provider = host.tree.get(cells.get(each.cell, "")) if each.cell is not None else None
        reported = provider is not None and provider.parent is not None and MEMORY in provider.inventories
        if not reported or provider is None or each.guest_cell is None:
            return {}
        found[provider.uuid] = found.get(provider.uuid, 0) + each.memory_mb
    return found if sum(found.values()) == guest.resources.get(MEMORY) else {}


def with_allocated_disk(guest: Guest, held: Allocations) -> Guest:
    """A guest that comes in with disks that were not read here yet has the DISK_GB that it holds."""
    amount = sum(amounts.get(DISK, 0) for amounts in held.values())
    if guest.problem is None or not amount:
        return guest
    return replace(guest, resources={**guest.resources, DISK: amount}, problem=None)


def with_disk(request: ClaimRequest, guest: Guest) -> ClaimRequest:
    """The request with the DISK_GB of its guest, where it has none yet."""
    amount = guest.resources.get(DISK, 0)
    if not amount or DISK in request.resources:
        return request
    rest = next((group for group in request.groups if not group.suffix), RequestGroup())
    others = tuple(group for group in request.groups if group.suffix)
    return replace(request, groups=(replace(rest, resources={**rest.resources, DISK: amount}), *others))


def covers(claim: Claim, asked: DomainRequest) -> bool:
    """Whether the claim has all that is wanted, and the named units where it has exact ones.

    One of the gate's own must have the memory where it must be; of another one that is its maker's affair.
    """
    has = claim.request.resources
    if any(amount > has.get(name, 0) for name, amount in asked.request.resources.items()):
        return False
    if made_by_gate(claim) and any(
        amount > claim.allocations.get(uuid, {}).get(MEMORY, 0) for uuid, amount in asked.memory.items()
    ):
        return False
    for uuid, classes in asked.named.items():
        for name, units in classes.items():
            exact = claim.units.get(uuid, {}).get(name)
            if exact is not None and not set(units) <= set(exact):
                return False
            if len(units) > claim.allocations.get(uuid, {}).get(name, 0):
                return False
    return True


def made_by_gate(claim: Claim) -> bool:
    """Whether the gate made the claim, and nobody else wrote what it holds."""
    return claim.request.user_id == GATE_USER and not claim.adopted
