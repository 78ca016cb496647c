"""The audit's judgement: three truths compared, each difference a finding with a name and a repair. Pure.

The truths are what the driver sees, what the local state says, and what placement holds. A consumer with an
operation under way is nobody's finding: its claim is on the way to somewhere, or its move is. What each
finding means is in docs/audit.md.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.audit.finding import (
    OURS,
    Deliver,
    DropClaim,
    Finding,
    FindingKind,
    Holding,
    TakeClaim,
    WriteAllocations,
)
from agent.claims.claim import Claim, ClaimState
from agent.claims.fit import ProviderIndex, fit
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import Guest
from agent.moves.ownership import SplitAllocations, reduce_allocations, split_allocations
from agent.moves.states import MIGRATION_TYPE, Move, MoveState, request_for_allocations
from agent.shapes import Allocations, Held, Units, Usages

# The truths


@dataclass(frozen=True, slots=True)
class Truths:
    """All that was seen in one look. `devices` {device: provider uuid}, `offered` the exact units there are.

    `held` is what placement holds on the providers of this host's own tree.
    """

    host: ProviderIndex
    guests: Mapping[str, Guest]
    claims: Mapping[str, Claim]
    moves: Collection[Move]
    held: Held
    devices: Mapping[str, str] = field(default_factory=dict)
    offered: Units = field(default_factory=dict)

    def holds_here(self, consumer: str) -> Allocations:
        return {uuid: held[consumer] for uuid, held in self.held.items() if consumer in held}

    def own(self, allocations: Allocations) -> Allocations:
        return {uuid: amounts for uuid, amounts in allocations.items() if amounts and self.host.is_own(uuid)}

    @property
    def used(self) -> Usages:
        """What is held or claimed, whichever is more, by anybody: {provider uuid: {class: amount}}."""
        used: dict[str, dict[str, int]] = {}
        consumers = {name for held in self.held.values() for name in held} | self.claims.keys()
        for consumer in consumers:
            claim = self.claims.get(consumer)
            for allocations in (self.holds_here(consumer) or (claim.allocations if claim else {}),):
                for uuid, amounts in allocations.items():
                    for name, amount in amounts.items():
                        here = used.setdefault(uuid, {})
                        here[name] = here.get(name, 0) + amount
        return used


def moving(truths: Truths) -> frozenset[str]:
    """The consumers of moves under way."""
    return frozenset(
        each for move in truths.moves if not move.ended for each in (move.instance, move.migration)
    )


def suspects(truths: Truths) -> frozenset[str]:
    """The consumers worth a closer look; none on a healthy host. What is in flight is left alone."""
    away = moving(truths)
    found = set()
    holders = {name for held in truths.held.values() for name in held}
    for consumer in holders | truths.claims.keys() | truths.guests.keys():
        claim = truths.claims.get(consumer)
        here = truths.holds_here(consumer)
        if consumer in away:
            continue
        if claim is not None:
            differs = claim.state is not ClaimState.CLAIMED or truths.own(claim.allocations) != here
            if differs:
                found.add(consumer)
        elif consumer not in truths.guests or not here:
            found.add(consumer)
    return frozenset(found)


# Judging one consumer that nothing else happens to


def judge(truths: Truths, consumer: str, held: Holding) -> Finding | None:
    """`held` is all that placement holds for it, read after the rest; None: nothing is wrong, or not ours."""
    if consumer in moving(truths):
        return None
    claim = truths.claims.get(consumer)
    shared = {*(each.uuid for each in truths.host.providers), *(claim.allocations if claim else ())}
    found = split_allocations(held.allocations, truths.host.is_own, shared.__contains__)
    if claim is None:
        return _without_claim(truths, consumer, held, found)
    if claim.state is not ClaimState.CLAIMED:
        return Finding(
            FindingKind.STUCK_CONSUMER,
            consumer,
            f"The claim of {consumer} is {claim.state}, and nobody is at work on it.",
            _evidence(truths, consumer, held),
            own=True,
            repair=(Deliver(consumer),),
        )
    return _with_claim(truths, claim, held, found)


def _with_claim(truths: Truths, claim: Claim, held: Holding, found: SplitAllocations) -> Finding | None:
    consumer = claim.consumer
    evidence = _evidence(truths, consumer, held)
    if not held.allocations:
        if consumer in truths.guests:
            who = claim.request
            write = Holding(consumer, claim.allocations, None, who.project_id, who.user_id, who.consumer_type)
            reason = f"{consumer} is on this host and has a claim, and placement holds nothing for it."
            return Finding(
                FindingKind.AMOUNTS_DIFFER, consumer, reason, evidence, repair=(WriteAllocations(write),)
            )
        reason = f"{consumer} has a claim, and neither a guest on this host nor anything in placement."
        return Finding(
            FindingKind.LEAKED_CLAIM, consumer, reason, evidence, own=True, repair=(DropClaim(consumer),)
        )
    if found.doubled:
        return _doubled(truths, held, found, evidence)
    wanted = {uuid: amounts for uuid, amounts in claim.allocations.items() if amounts}
    there = {**found.here, **found.shared}
    if there == wanted or not found.here:
        return None  # as it shall be; or it has moved away, which is for the mover to learn
    kind = FindingKind.AMOUNTS_DIFFER if there.keys() == wanted.keys() else FindingKind.WRONG_PROVIDER
    write = _with(held, wanted)
    reason = f"Placement holds for {consumer} something else than it claimed on this host."
    return Finding(kind, consumer, reason, evidence, repair=(WriteAllocations(write),))


def _without_claim(truths: Truths, consumer: str, held: Holding, found: SplitAllocations) -> Finding | None:
    guest = truths.guests.get(consumer)
    if guest is not None and guest.problem is not None:
        return None
    evidence = _evidence(truths, consumer, held)
    if guest is not None:
        if not held.allocations:
            return _unclaimed(truths, guest, evidence)
        if found.doubled:
            return _doubled(truths, held, found, evidence)
        if found.here:
            return _unrecorded(guest, held, evidence)
        reason = f"{consumer} is on this host, and what it holds is elsewhere: move it, or its allocation."
        return Finding(FindingKind.WRONG_PROVIDER, consumer, reason, evidence)
    if not found.here or _may_be_moving(truths, found.here):
        return None
    if found.doubled:
        return _doubled(truths, held, found, evidence)
    return _unowned(truths, held, found, evidence)


def _unrecorded(guest: Guest, held: Holding, evidence: Mapping[str, Any]) -> Finding | None:
    """Placed here by somebody else, who needs no claim; or by this agent, whose record of it is lost."""
    if (held.project_id, held.user_id) != OURS:
        return None
    reason = f"The guest {guest.uuid} ({guest.name}) holds what this agent placed, and has no claim."
    request = request_for_allocations(guest.uuid, held.allocations, name=guest.name)
    repair = (TakeClaim(request),)
    return Finding(FindingKind.UNCLAIMED_INSTANCE, guest.uuid, reason, evidence, own=True, repair=repair)


def _doubled(truths: Truths, held: Holding, found: SplitAllocations, evidence: Mapping[str, Any]) -> Finding:
    runs_here = held.consumer in truths.guests
    where = "here" if runs_here else "not here"
    reason = f"{held.consumer} holds something on this host and on another one, and its guest is {where}."
    claim = truths.claims.get(held.consumer)
    kept = reduce_allocations(
        found, runs_here=runs_here, resources=claim.request.resources if claim else None
    )
    write = _with(held, kept)
    return Finding(FindingKind.DOUBLED, held.consumer, reason, evidence, repair=(WriteAllocations(write),))


def _unowned(truths: Truths, held: Holding, found: SplitAllocations, evidence: Mapping[str, Any]) -> Finding:
    """Neither a guest nor a claim: a migration, or anybody."""
    ended = next((move for move in truths.moves if move.migration == held.consumer), None)
    rest = {uuid: amounts for uuid, amounts in held.allocations.items() if uuid not in found.here}
    if not found.elsewhere:
        rest = {}  # what is shared goes with it
    repair = (WriteAllocations(_with(held, rest)),)
    if ended is not None or held.consumer_type == MIGRATION_TYPE:
        # A reverted move may be begun again under the same uuid, by somebody else.
        final = ended is not None and ended.state in (MoveState.CONFIRMED, MoveState.DELETED)
        own = final and ended is not None and held.allocations == ended.handed
        told = f"which is {ended.state} here" if ended else "of which this host knows nothing"
        reason = f"Migration {held.consumer}, {told}, holds something on this host."
        return Finding(FindingKind.STALE_MIGRATION, held.consumer, reason, evidence, own, repair)
    reason = (
        f"{held.consumer} holds something on this host, where it has neither a guest nor a claim; an "
        "instance that is still to be started looks the same."
    )
    return Finding(FindingKind.ORPHANED_ALLOCATION, held.consumer, reason, evidence, repair=repair)


def _may_be_moving(truths: Truths, here: Allocations) -> bool:
    """Whether a claim that lost its place here may have handed it to this consumer."""
    linked = moving(truths)
    return any(
        _may_have_handed(truths, claim, here, in_a_move=claim.consumer in linked)
        for claim in truths.claims.values()
        if not truths.holds_here(claim.consumer)
    )


def _may_have_handed(truths: Truths, claim: Claim, here: Allocations, *, in_a_move: bool) -> bool:
    """A claim in doubt, or that shall go, may have moved, too: then the other holds just what it chose."""
    if claim.state is not ClaimState.CLAIMED:
        return not in_a_move and truths.own(claim.allocations) == here
    return any(name in amounts for uuid, amounts in claim.allocations.items() for name in here.get(uuid, ()))


def _unclaimed(truths: Truths, guest: Guest, evidence: Mapping[str, Any]) -> Finding:
    """What it really uses, on real providers: devices where they are, the rest where it fits."""
    placed: dict[str, dict[str, int]] = {}
    rest = {name: amount for name, amount in guest.resources.items() if amount > 0}
    reason = f"The guest {guest.uuid} ({guest.name}) is on this host, and nothing is claimed for it"
    kind = FindingKind.UNCLAIMED_INSTANCE
    for unit in guest.units:
        provider = truths.devices.get(unit.device)
        if provider is None or unit.resource_class not in _classes(truths.host, provider):
            why = f"{reason}: its {unit.resource_class} {unit.unit} is on no provider of this host."
            return Finding(kind, guest.uuid, why, evidence)
        here = placed.setdefault(provider, {})
        here[unit.resource_class] = here.get(unit.resource_class, 0) + 1
        rest[unit.resource_class] = rest.get(unit.resource_class, 1) - 1
    rest = {name: amount for name, amount in rest.items() if amount > 0}
    if rest:
        used = {uuid: dict(amounts) for uuid, amounts in truths.used.items()}
        found = fit(ClaimRequest(guest.uuid, (RequestGroup("", rest),)), truths.host, used, truths.offered)
        if not found.fits:
            short = "; ".join(f"{each.resource_class}: {each.reason}" for each in found.shortfalls)
            return Finding(kind, guest.uuid, f"{reason}, and it does not fit ({short}).", evidence)
        for uuid, amounts in found.allocations.items():
            for name, amount in amounts.items():
                here = placed.setdefault(uuid, {})
                here[name] = here.get(name, 0) + amount
    if not placed:
        return Finding(kind, guest.uuid, f"{reason}; what it uses is not known.", evidence)
    request = request_for_allocations(guest.uuid, placed, name=guest.name)
    repair = (WriteAllocations(Holding(guest.uuid, placed)), TakeClaim(request))
    return Finding(kind, guest.uuid, f"{reason}.", evidence, repair=repair)


# Providers and devices


def on_providers(truths: Truths) -> Iterator[Finding]:
    """More held than there is: the holders are named, and nothing is taken from them."""
    for provider in truths.host.providers:
        if not truths.host.is_own(provider.uuid):
            continue
        holders = truths.held.get(provider.uuid, {})
        for name in sorted({name for amounts in holders.values() for name in amounts}):
            inventory = provider.inventories.get(name)
            if inventory and inventory.reserved >= inventory.total:
                continue  # withheld: a reshape is under way, or somebody drains it
            capacity = inventory.capacity if inventory else 0
            each = {who: amounts[name] for who, amounts in sorted(holders.items()) if name in amounts}
            used = sum(each.values())
            if used > capacity:
                yield Finding(
                    FindingKind.SHRUNK_INVENTORY,
                    provider.uuid,
                    f"On {provider.name} {used} {name} are held of {capacity}, by {', '.join(each)}: release "
                    "one of them, or move it away.",
                    {"class": name, "capacity": int(capacity), "used": used, "consumers": each},
                )


def on_devices(truths: Truths) -> Iterator[Finding]:
    """Guests that use what no provider offers, where the host names each unit of that class."""
    offered: dict[str, set[str]] = {}
    for classes in truths.offered.values():
        for name, units in classes.items():
            offered.setdefault(name, set()).update(units)
    for guest in truths.guests.values():
        if guest.problem is not None:
            continue
        for used in guest.units:
            if used.resource_class in offered and used.unit not in offered[used.resource_class]:
                yield Finding(
                    FindingKind.UNKNOWN_DEVICE,
                    used.unit,
                    f"{guest.uuid} uses the {used.resource_class} {used.unit}, which this host has not.",
                    {"guest": guest.uuid, "class": used.resource_class, "device": used.device},
                )


# Below


def _classes(host: ProviderIndex, uuid: str) -> Collection[str]:
    provider = host.tree.get(uuid)
    return provider.inventories if provider else ()


def _with(held: Holding, allocations: Allocations) -> Holding:
    return Holding(
        held.consumer, allocations, held.generation, held.project_id, held.user_id, held.consumer_type
    )


def _evidence(truths: Truths, consumer: str, held: Holding) -> dict[str, Any]:
    guest, claim = truths.guests.get(consumer), truths.claims.get(consumer)
    return {
        "guest": dict(guest.resources) if guest else None,
        "claim": {uuid: dict(each) for uuid, each in claim.allocations.items()} if claim else None,
        "placement": {uuid: dict(each) for uuid, each in held.allocations.items()},
        "generation": held.generation,
    }
