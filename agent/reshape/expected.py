"""What placement holds for claims of this agent's own, by its journal alone."""

from collections.abc import Iterable
from dataclasses import replace

from agent.claims.claim import Claim, ClaimState
from agent.claims.claiming import wanted
from agent.moves.table import Move
from agent.placement.client import ConsumerAllocations

WRITTEN_ONCE = 1
"""The generation of a consumer after its first write."""


def expected(claims: Iterable[Claim], moves: Iterable[Move]) -> dict[str, ConsumerAllocations]:
    """{consumer: what it holds} of those that nobody but this agent wrote, and only once.

    If somebody did all the same, the generation is another one, and a write that names it is refused.
    """
    moved = {uuid for move in moves for uuid in (move.instance, move.migration)}
    return {
        claim.consumer: replace(wanted(claim), generation=WRITTEN_ONCE)
        for claim in claims
        if claim.state is ClaimState.CLAIMED and not claim.adopted and claim.consumer not in moved
    }
