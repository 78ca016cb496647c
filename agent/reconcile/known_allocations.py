"""The allocations of the consumers that only this agent has written, which a reshape need not read."""

from collections.abc import Mapping
from dataclasses import replace

from agent.claims.claim import Claim, ClaimState
from agent.moves.states import Move
from agent.placement.client import ConsumerAllocations
from agent.reshape.receipt import Receipt
from agent.tracker.holdings import allocations_for

FIRST_GENERATION = 1
"""The generation of a consumer after its first write."""


def known_allocations(
    claims: Mapping[str, Claim], moves: Mapping[str, Move], receipts: Mapping[str, Receipt]
) -> dict[str, ConsumerAllocations]:
    """{consumer: its whole allocation}: what the claim wrote, with a generation for each reshape since.

    `claims` by consumer, `moves` by migration, `receipts` of the executed reshapes by id. If another client
    has written the consumer, its generation is higher, and Placement rejects a write with this one.
    """
    moved = {uuid for move in moves.values() for uuid in (move.instance, move.migration)}
    return {
        claim.consumer: replace(
            allocations_for(claim), generation=FIRST_GENERATION + _reshapes_since(claim, receipts)
        )
        for claim in claims.values()
        if claim.state is ClaimState.CLAIMED and not claim.adopted and claim.consumer not in moved
    }


def _reshapes_since(claim: Claim, receipts: Mapping[str, Receipt]) -> int:
    return sum(
        receipt.at >= claim.since and claim.consumer in receipt.allocations for receipt in receipts.values()
    )
