"""The claim request for a guest as its domain describes it: its amounts, and the units it names. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agent.claims.claim import Claim
from agent.claims.fit import ProviderIndex
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import Guest, UsedUnit
from agent.shapes import Allocations, Units

DISK = "DISK_GB"
UNSEEN_MDEV = "mdev:"
"""Prefix of the device of a mediated device that no provider has, before its uuid."""
MEMORY = "MEMORY_MB"
GATE_USER = "plimsoll-gate"
"""The user of the claims that the gate makes. The gate never releases claims of other users."""


@dataclass(frozen=True, slots=True)
class DomainRequest:
    """The request for one domain, and which units and memory it needs exactly.

    `named` are the units that the claim must have. `unmanaged` are the units that no provider of this host
    has. `memory` {provider uuid: MiB} is where its MEMORY_MB must be; empty: anywhere. `bound` {suffix:
    provider uuid} are the request groups for units and memory, each with its provider.
    """

    request: ClaimRequest
    named: Units
    unmanaged: tuple[UsedUnit, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    bound: Mapping[str, str] = field(default_factory=dict)


def request_for_domain(
    guest: Guest,
    host: ProviderIndex,
    devices: Mapping[str, str],
    cells: Mapping[int, str],
    *,
    user_id: str = GATE_USER,
) -> DomainRequest:
    """The request for the guest that the domain's XML describes.

    `devices` is {device: provider uuid}, `cells` {host cell: uuid of the provider of its memory}. Named units
    and bound memory get a request group for each provider; the rest is in the unsuffixed group.
    """
    named, unmanaged = _named_units(guest, host, devices)
    memory = _bound_memory(guest, host, cells)
    amounts: dict[str, dict[str, int]] = {
        uuid: {name: len(units) for name, units in sorted(classes.items())} for uuid, classes in named.items()
    }
    for uuid, memory_mb in memory.items():
        amounts.setdefault(uuid, {})[MEMORY] = memory_mb
    bound = {f"_{number}": uuid for number, uuid in enumerate(sorted(amounts), start=1)}
    groups = [RequestGroup(suffix, amounts[uuid]) for suffix, uuid in bound.items()]
    rest = _rest(guest, named, memory)
    if rest:
        groups.insert(0, RequestGroup("", rest))
    request = ClaimRequest(
        guest.uuid,
        tuple(groups),
        group_policy="none" if len(amounts) > 1 else None,
        name=guest.name,
        user_id=user_id,
    )
    return DomainRequest(request, named, unmanaged, memory, bound)


def _named_units(
    guest: Guest, host: ProviderIndex, devices: Mapping[str, str]
) -> tuple[dict[str, dict[str, tuple[str, ...]]], tuple[UsedUnit, ...]]:
    """({provider uuid: {class: units}}, the units of which no provider has the class)."""
    named: dict[str, dict[str, tuple[str, ...]]] = {}
    unmanaged = []
    for used in guest.units:
        uuid, name = devices.get(used.device), used.resource_class
        provider = host.tree.get(uuid) if uuid else None
        if provider is None or name not in provider.inventories:
            unmanaged.append(used)
            continue
        classes = named.setdefault(provider.uuid, {})
        classes[name] = (*classes.get(name, ()), used.unit)
    return named, tuple(unmanaged)


def _bound_memory(guest: Guest, host: ProviderIndex, cells: Mapping[int, str]) -> dict[str, int]:
    """{provider uuid: MiB}; empty unless all memory is bound, each part to a cell that has a provider."""
    bound: dict[str, int] = {}
    for part in guest.memory:
        provider = host.tree.get(cells.get(part.cell, "")) if part.cell is not None else None
        reported = provider is not None and provider.parent is not None and MEMORY in provider.inventories
        if not reported or provider is None or part.guest_cell is None:
            return {}
        bound[provider.uuid] = bound.get(provider.uuid, 0) + part.memory_mb
    return bound if sum(bound.values()) == guest.resources.get(MEMORY) else {}


def _rest(guest: Guest, named: Units, memory: Mapping[str, int]) -> dict[str, int]:
    """{class: amount} that may come from any provider."""
    rest = {name: amount for name, amount in guest.resources.items() if amount > 0}
    for classes in named.values():
        for name, units in classes.items():
            rest[name] = rest.get(name, len(units)) - len(units)
    if memory:
        rest.pop(MEMORY, None)
    return {name: amount for name, amount in sorted(rest.items()) if amount > 0}


def with_allocated_disk(guest: Guest, allocations: Allocations) -> Guest:
    """The guest with the DISK_GB that its allocations have, if this host has not read its disks yet."""
    amount = sum(amounts.get(DISK, 0) for amounts in allocations.values())
    if guest.problem is None or not amount:
        return guest
    return replace(guest, resources={**guest.resources, DISK: amount}, problem=None)


def with_claimed_devices(guest: Guest, claim: Claim, devices: Mapping[str, str]) -> Guest:
    """The guest with those mediated devices located that its claim has, and that the driver did not see yet.

    Such a device was made for the claim a moment ago. `devices` is {provider uuid: device}.
    """
    claimed = {unit: (name, devices[uuid]) for uuid, name, unit in claim.exact if uuid in devices}
    units, amounts = [], dict(guest.resources)
    for used in guest.units:
        if used.device == f"{UNSEEN_MDEV}{used.unit}" and used.unit in claimed:
            name, device = claimed[used.unit]
            amounts[name] = amounts.get(name, 0) + 1
            units.append(UsedUnit(name, used.unit, device))
        else:
            units.append(used)
    return replace(guest, resources=amounts, units=tuple(units))


def with_disk(request: ClaimRequest, guest: Guest) -> ClaimRequest:
    """The request with the guest's DISK_GB, if the request has none."""
    amount = guest.resources.get(DISK, 0)
    if not amount or DISK in request.resources:
        return request
    unsuffixed = next((group for group in request.groups if not group.suffix), RequestGroup())
    suffixed = tuple(group for group in request.groups if group.suffix)
    return replace(
        request,
        groups=(replace(unsuffixed, resources={**unsuffixed.resources, DISK: amount}), *suffixed),
    )
