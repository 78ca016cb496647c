"""What Placement holds for one consumer, compared with a claim and with this host's providers. Pure."""

from agent.claims.claim import Claim
from agent.claims.fit import ProviderIndex
from agent.moves.ownership import MoveConsumer, SplitAllocations, split_allocations
from agent.placement.client import ConsumerAllocations
from agent.shapes import Allocations


def allocations_for(claim: Claim, generation: int | None = None) -> ConsumerAllocations:
    """What Placement shall hold for the claim; without a generation, Placement does not know the consumer."""
    request = claim.request
    owner = (request.project_id, request.user_id, request.consumer_type)
    return ConsumerAllocations(claim.consumer, claim.allocations, generation, *owner)


def is_allocation_of(held: ConsumerAllocations, claim: Claim) -> bool:
    """Whether Placement holds exactly what the claim wrote, or would have written."""
    request = claim.request
    return held.allocations == claim.allocations and (held.project_id, held.user_id) == (
        request.project_id,
        request.user_id,
    )


def holder(held: ConsumerAllocations) -> MoveConsumer:
    """The consumer as `agent.moves.ownership` takes it."""
    return MoveConsumer(held.consumer, held.allocations, held.project_id, held.user_id, held.consumer_type)


def split_by_host(held: Allocations, host: ProviderIndex) -> SplitAllocations:
    """The allocations on this host's tree, on the providers shared with it, and elsewhere."""
    serving = {provider.uuid for provider in host.providers}
    return split_allocations(held, host.is_own, serving.__contains__)
