"""What a guest that is about to start asks for: its amounts, and the very units that it names. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent.claims.claim import Claim, Units
from agent.claims.fit import Host
from agent.claims.request_types import ClaimRequest, RequestGroup
from agent.driver import Guest, UsedUnit

DISK = "DISK_GB"
GATE_USER = "plimsoll-gate"
"""The user that the gate's claims are of; those of others it never releases."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """`named` are the units that must be the claim's, `unmanaged` those that no provider of this host has."""

    request: ClaimRequest
    named: Units
    unmanaged: tuple[UsedUnit, ...] = ()


def wanted(guest: Guest, host: Host, devices: Mapping[str, str]) -> Wanted:
    """`devices` is {device: provider uuid}.

    Each named unit comes from its own provider, in a group of its own; the rest is the host's choice.
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
    groups = [
        RequestGroup(f"_{number}", {name: len(units) for name, units in sorted(named[uuid].items())})
        for number, uuid in enumerate(sorted(named), start=1)
    ]
    left = {name: amount for name, amount in sorted(rest.items()) if amount > 0}
    if left:
        groups.insert(0, RequestGroup("", left))
    request = ClaimRequest(
        guest.uuid,
        tuple(groups),
        group_policy="none" if len(named) > 1 else None,
        name=guest.name,
        user_id=GATE_USER,
    )
    return Wanted(request, named, tuple(unmanaged))


def with_disk(request: ClaimRequest, guest: Guest) -> ClaimRequest:
    """The request with the DISK_GB of its guest, where it has none yet."""
    amount = guest.resources.get(DISK, 0)
    if not amount or DISK in request.resources:
        return request
    rest = next((group for group in request.groups if not group.suffix), RequestGroup())
    others = tuple(group for group in request.groups if group.suffix)
    return replace(request, groups=(replace(rest, resources={**rest.resources, DISK: amount}), *others))


def covers(claim: Claim, asked: Wanted) -> bool:
    """Whether the claim has all that is wanted, and the named units where it has exact ones."""
    has = claim.request.resources
    if any(amount > has.get(name, 0) for name, amount in asked.request.resources.items()):
        return False
    for uuid, classes in asked.named.items():
        for name, units in classes.items():
            exact = claim.units.get(uuid, {}).get(name)
            if exact is not None and not set(units) <= set(exact):
                return False
            if len(units) > claim.allocations.get(uuid, {}).get(name, 0):
                return False
    return True


def is_gates(claim: Claim) -> bool:
    """Whether the gate made the claim, and nobody else wrote what it holds."""
    return claim.request.user_id == GATE_USER and not claim.adopted
