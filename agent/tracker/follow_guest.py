"""A claim gets what of its guest was not known when it was made: in one write, and nothing is let go."""

from collections.abc import Iterator
from dataclasses import replace

from agent.claims.claim import Claim, ClaimState, ClaimStep
from agent.claims.ledger import Ledger
from agent.claims.parse_request import ClaimRequest, RequestGroup
from agent.claims.refusal import does_not_fit, label
from agent.errors import ClaimConflict, PlimsollError
from agent.placement.client import PlacementClient
from agent.shapes import Allocations
from agent.tracker.register import Register
from agent.tracker.turns import Turns


def grow(register: Register, client: PlacementClient, request: ClaimRequest) -> Claim:
    """The claim of the request's consumer, with what the request has beyond it. The caller has its turn.

    Nobody else gets it from before it is written, and it is journaled after that: whatever cuts it off, the
    next attempt finds what placement holds. Raises DoesNotFit, ClaimConflict, PlacementError, StateError.
    """
    consumer = request.consumer
    held = client.allocations_of(consumer)
    with register.lock:
        before = register.ledger.claims.get(consumer)
        if before is None or before.state is not ClaimState.CLAIMED or register.move_of(consumer) is not None:
            raise ClaimConflict(f"{label(request)} is not claimed, or moves: its claim stays as it is.")
        after = _grown(register, before, request)
        if held.allocations not in (before.allocations, after.allocations):
            raise ClaimConflict(
                f"Placement holds something else for {label(request)} than its claim: mend that first "
                "(plimsoll audit).",
                consumer=consumer,
            )
        register.ledger.put(after)
    try:
        client.write_allocations(replace(held, allocations=after.allocations))
        register.move_durably(ClaimStep.FOUND, consumer, after)
    except PlimsollError:
        with register.lock:
            register.ledger.put(before)
        raise
    return after


def _grown(register: Register, before: Claim, request: ClaimRequest) -> Claim:
    """With the register's lock held. Raises DoesNotFit."""
    has = before.request.resources
    more = {name: amount - has.get(name, 0) for name, amount in request.resources.items()}
    missing = {name: amount for name, amount in more.items() if amount > 0}
    found = register.ledger.fit(ClaimRequest(request.consumer, (RequestGroup("", missing),)))
    if not found.fits:
        raise does_not_fit(request, found.shortfalls)
    return replace(before, request=request, allocations=_together(before.allocations, found.allocations))


def _together(first: Allocations, second: Allocations) -> Allocations:
    found = {uuid: dict(amounts) for uuid, amounts in first.items()}
    for uuid, amounts in second.items():
        here = found.setdefault(uuid, {})
        for name, amount in amounts.items():
            here[name] = here.get(name, 0) + amount
    return found


def follow_guests(register: Register, turns: Turns) -> None:
    """Let claims have the units that their guests hold; on disk, too. Takes the register's lock.

    A consumer at which an operation is under way is left for the next time. Raises StateError.
    """
    with register.lock:
        consumers = [now.consumer for now, _ in _found(register.ledger)]
    with turns.of_idle(consumers) as mine:
        with register.lock:
            steps = [
                (register.move(ClaimStep.FOUND, now.consumer, now), now.consumer, before)
                for now, before in list(_found(register.ledger))
                if now.consumer in mine and register.move_of(now.consumer) is None
            ]
        for written, consumer, before in steps:
            register.settle(written, consumer, before)


def _found(ledger: Ledger) -> Iterator[tuple[Claim, Claim]]:
    """(the claim as it shall be, as it is)"""
    for claim in ledger.claims.values():
        if claim.makings and claim.state is ClaimState.CLAIMED:
            instead = ledger.made_instead(claim)
            if instead:
                units = {
                    uuid: {
                        name: tuple(instead.get(unit, unit) for unit in exact)
                        for name, exact in classes.items()
                    }
                    for uuid, classes in claim.units.items()
                }
                makings = {unit: each for unit, each in claim.makings.items() if unit not in instead}
                yield replace(claim, units=units, makings=makings), claim
