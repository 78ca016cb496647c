"""What placement holds for claims of this agent's own, by its journal alone."""

from collections.abc import Mapping
from dataclasses import replace

from agent.claims.claim import Claim, ClaimState
from agent.claims.claiming import wanted
from agent.moves.table import Move
from agent.placement.client import ConsumerAllocations
from agent.reshape.receipt import Receipt

WRITTEN_ONCE = 1
"""The generation of a consumer after its first write."""


def expected(
    claims: Mapping[str, Claim], moves: Mapping[str, Move], done: Mapping[str, Receipt]
) -> dict[str, ConsumerAllocations]:
    """{consumer: what it holds} of those that nobody but this agent wrote: the claim, and reshapes since.

    `claims` by consumer, `moves` by migration, `done` the receipts by id. If somebody did all the same, the
    generation is another one, and a write that names it is refused.
    """
    moved = {uuid for move in moves.values() for uuid in (move.instance, move.migration)}
    return {
        claim.consumer: replace(wanted(claim), generation=WRITTEN_ONCE + _reshapes_of(claim, done))
        for claim in claims.values()
        if claim.state is ClaimState.CLAIMED and not claim.adopted and claim.consumer not in moved
    }


def _reshapes_of(claim: Claim, done: Mapping[str, Receipt]) -> int:
    return sum(each.at >= claim.since and claim.consumer in each.allocations for each in done.values())
