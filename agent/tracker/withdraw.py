"""Taking a claim out of Placement, and only what belongs to the claim."""

from dataclasses import replace

from agent.backoff import pause
from agent.claims.claim import Claim, ClaimState
from agent.errors import PlacementConflict, PlacementUnavailable
from agent.placement.client import ConsumerAllocations
from agent.shapes import Allocations
from agent.tracker.context import TrackerContext
from agent.tracker.holdings import is_allocation_of

ATTEMPTS_MAX = 4


def withdraw(context: TrackerContext, claim: Claim) -> bool:
    """Remove the claim's allocations from Placement; guarded by the consumer's generation, idempotent.

    True: Placement held nothing of the claim, and the consumer holds allocations elsewhere: it has moved.

    An intent (CLAIMING) is only removed where Placement holds exactly what the agent would have written:
    anything else was written by another client. Raises PlacementError; PlacementUnavailable: not done, or
    not known.
    """
    for attempt in range(ATTEMPTS_MAX):
        held = context.client.allocations_of(claim.consumer)
        rest = _remainder(context, claim, held)
        if rest == held.allocations:
            return bool(rest)
        try:
            context.client.write_allocations(replace(held, allocations=rest))
        except PlacementConflict:
            pause(attempt)  # another client wrote in between
        else:
            return False
    raise PlacementConflict(
        f"Other clients wrote the allocations of {claim.consumer} {ATTEMPTS_MAX} times while the agent "
        "released it. The agent tries again later."
    )


def _remainder(context: TrackerContext, claim: Claim, held: ConsumerAllocations) -> Allocations:
    """What the consumer keeps."""
    if claim.state is ClaimState.CLAIMING:
        return {} if is_allocation_of(held, claim) else held.allocations
    elsewhere = held.allocations.keys() - claim.allocations.keys()
    if not elsewhere:
        return {}
    # The consumer has moved, or is moving: shared providers (a storage pool) go with it.
    host = context.register.host
    if host.root is None:
        raise PlacementUnavailable(
            f"Before the first inventory the agent does not know which part of {claim.consumer}'s "
            "allocation is on this host. It tries again after the inventory."
        )
    own = {uuid for uuid in claim.allocations if host.is_own(uuid)}
    return {uuid: amounts for uuid, amounts in held.allocations.items() if uuid not in own}
