"""Claims whose records are older than Placement and the guests, as in a restored state directory. Pure.

Such a claim follows what its guest uses, where Placement holds just that. The unit that it gets may be that
of another claim, which is as old and follows its own guest: then the claims follow together.
"""

from dataclasses import replace

from agent.audit.observation import Observation
from agent.audit.repair import FollowGuests
from agent.claims.claim import Claim, ClaimState
from agent.claims.rows import Row
from agent.claims.use_difference import use_difference
from agent.claims.used import IDLE, use_of
from agent.moves.states import request_for_allocations
from agent.shapes import Allocations, beyond, by_class


def held_of(observation: Observation, claim: Claim) -> Allocations:
    """What Placement has of the claim here, as far as the observation goes: pools are as the claim says."""
    pools = {
        uuid: amounts for uuid, amounts in claim.allocations.items() if not observation.host.is_own(uuid)
    }
    return {**observation.allocations_here(claim.consumer), **pools}


def is_older(observation: Observation, claim: Claim, held: Allocations) -> bool:
    """Whether the claim's guest runs with just what Placement has, and not with what the claim has.

    `held` is what Placement has.
    """
    if claim.consumer in observation.consumers_in_moves:
        return False
    by_placement, by_claim = _differences(observation, claim, held)
    return by_placement == 0 and bool(by_claim)


def is_undecided(observation: Observation, claim: Claim, held: Allocations) -> bool:
    """Whether nothing tells which is newer, the claim or Placement: the same amounts, on other providers.

    No exact unit is among them, and the guest, if there is one, runs with the one as well as with the other.
    """
    more = {name for amounts in beyond(held, claim.allocations).values() for name in amounts}
    if by_class(held.values()) != by_class(claim.allocations.values()) or more & _exact(observation, claim):
        return False
    by_placement, by_claim = _differences(observation, claim, held)
    return by_claim != 0 or by_placement == 0


def used_by_others(observation: Observation, claim: Claim) -> tuple[tuple[str, str], ...]:
    """(unit, instance whose guest uses it) of the claim's units: others got them since it was recorded."""
    users = {
        (used.resource_class, used.unit): guest.uuid
        for guest in observation.guests.values()
        for used in guest.units
        if guest.uuid != claim.consumer and guest.state not in IDLE
    }
    return tuple((unit, users[name, unit]) for _, name, unit in claim.exact if (name, unit) in users)


def _differences(observation: Observation, claim: Claim, held: Allocations) -> tuple[int | None, int | None]:
    """By how much the guest's use differs from what Placement has, and from the claim; None: unknown."""
    consumer, place = claim.consumer, observation.place
    guest = observation.guests.get(consumer)
    row = Row(consumer, {consumer: held}, {}, guest)
    by_placement = use_difference(row, place)
    by_claim = use_difference(Row(consumer, {}, {consumer: claim}, guest), place)
    if by_placement is None or by_claim is None:
        return None, None
    elsewhere = sum(map(len, beyond(use_of(row, place).amounts, held).values()))
    return by_placement.size + elsewhere, by_claim.size


def _exact(observation: Observation, claim: Claim) -> frozenset[str]:
    """The classes that have exact units here, or in the claim."""
    offered = (*observation.offered.values(), *claim.units.values())
    return frozenset(name for classes in offered for name in classes)


def as_used(observation: Observation, claim: Claim, held: Allocations) -> Claim | None:
    """The claim with what Placement has and its guest uses; None where that does not say all of it.

    The cells of a claim were chosen together with its amounts.
    """
    guest = observation.guests.get(claim.consumer)
    units = use_of(Row(claim.consumer, {claim.consumer: held}, {}, guest), observation.place).units
    exact = _exact(observation, claim)
    told = [
        len(units.get(uuid, {}).get(name, ())) == amount
        for uuid, amounts in held.items()
        for name, amount in amounts.items()
        if name in exact
    ]
    if claim.state is not ClaimState.CLAIMED or claim.cells or not all(told):
        return None
    request = claim.request
    if held != claim.allocations:
        request = request_for_allocations(
            claim.consumer,
            held,
            name=request.name,
            project_id=request.project_id,
            user_id=request.user_id,
            consumer_type=request.consumer_type,
        )
    return replace(claim, request=request, allocations=held, units=units, makings={}, group_units={})


def follow_together(observation: Observation, claim: Claim, held: Allocations) -> tuple[FollowGuests, ...]:
    """The step that has the claim follow its guest, and with it the claims whose units it gets; () if none.

    Where such a claim cannot follow as well, the step fails, and names it.
    """
    now = as_used(observation, claim, held)
    if now is None:
        return ()
    owners = {
        (name, unit): consumer
        for consumer, each in observation.claims.items()
        for _, name, unit in each.exact
    }
    found, to_look_at = {claim.consumer: (claim, now)}, [now]
    while to_look_at:
        for _, name, unit in to_look_at.pop().exact:
            owner = owners.get((name, unit), claim.consumer)
            other = observation.claims[owner]
            other_held = held_of(observation, other)
            if owner not in found and is_older(observation, other, other_held):
                other_now = as_used(observation, other, other_held)
                if other_now is not None:
                    found[owner] = other, other_now
                    to_look_at.append(other_now)
    return (FollowGuests(tuple(pair for _, pair in sorted(found.items()))),)
