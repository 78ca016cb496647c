"""Taking a claim out of Placement: what the consumer holds on this host and on the pools that serve it."""

from dataclasses import replace

from agent.backoff import CONFLICTS_MAX, pause
from agent.claims.claim import Claim, ClaimState
from agent.claims.doubt import DoubtKind
from agent.errors import PlacementConflict, PlacementFull, PlacementUnavailable
from agent.placement.client import ConsumerAllocations
from agent.placement.replies import WriteDone, WriteRefused
from agent.shapes import Allocations
from agent.tracker.context import TrackerContext
from agent.tracker.guarded_write import checked
from agent.tracker.holdings import is_allocation_of


def withdraw(context: TrackerContext, claim: Claim) -> ConsumerAllocations | None:
    """Remove what the claim's consumer holds here; guarded by the consumer's generation, idempotent.

    Returns what the consumer holds elsewhere, where Placement held nothing of it here: it has moved.

    An intent (CLAIMING) is only removed where Placement holds exactly what the agent would have written:
    anything else was written by another client. Raises PlacementError; PlacementUnavailable: not done, or
    not known.
    """
    consumer = claim.consumer
    secured = _end_doubts(context, consumer)
    held = secured or context.client.allocations_of(consumer)
    for attempt in range(CONFLICTS_MAX):
        if held is secured and not held.allocations:
            return None
        rest = _remainder(context, claim, held)
        if rest and rest == held.allocations:
            return held
        outcome = (
            WriteDone()
            if not held.allocations
            else context.writer.send(DoubtKind.RELEASE, replace(held, allocations=rest))
        )
        if not (isinstance(outcome, WriteRefused) and isinstance(outcome.error, PlacementConflict)):
            checked(outcome, f"release of {consumer}", "the agent releases it again")
            if rest or context.writer.bar_again(consumer):
                return None
        pause(attempt)  # another client wrote in between
        held = context.client.allocations_of(consumer)
    raise PlacementConflict(
        f"Other clients wrote the allocations of {consumer}, or to its providers, {CONFLICTS_MAX} times "
        "while the agent released it. The agent tries again later."
    )


def _end_doubts(context: TrackerContext, consumer: str) -> ConsumerAllocations | None:
    """What the consumer holds after a fence; None where no doubt is open, or the release is the only fence.

    What is released needs no protection from the writes of a former life.
    """
    if not context.writer.in_doubt(consumer):
        return None
    try:
        return context.writer.secure(consumer)
    except PlacementFull:
        return None  # the inventory shrank, so what the consumer holds cannot be written again


def _remainder(context: TrackerContext, claim: Claim, held: ConsumerAllocations) -> Allocations:
    """What the consumer keeps."""
    if claim.state is ClaimState.CLAIMING:
        return {} if is_allocation_of(held, claim) else held.allocations
    host = context.register.host
    if host.root is None:
        if held.allocations.keys() <= claim.allocations.keys():
            return {}
        raise PlacementUnavailable(
            f"Before the first inventory the agent does not know which part of {claim.consumer}'s "
            "allocation is on this host. It tries again after the inventory."
        )
    serving = {provider.uuid for provider in host.providers} | claim.allocations.keys()
    if held.allocations.keys() <= serving:
        return {}
    # The consumer has moved, or is moving: shared providers (a storage pool) go with it.
    return {uuid: amounts for uuid, amounts in held.allocations.items() if not host.is_own(uuid)}
