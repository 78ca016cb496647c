"""What became of a reshape that was asked for and not answered, by what placement holds."""

from collections.abc import Mapping
from dataclasses import replace

from agent.claims.claim import Claim, ClaimState
from agent.errors import PlacementConflict, PlacementError, ReshapeRefused
from agent.moves.states import Move
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.reshape.receipt import Receipt
from agent.reshape.types import total_at
from agent.tracker.holdings import allocations_for

FENCES_MAX = 8
WITNESSES_MAX = 64


def was_done(client: PlacementClient, root: str, receipt: Receipt) -> bool:
    """By generations, then the totals of what moved, then what consumers hold. Raises PlacementError."""
    tree = client.read_tree(root)
    if any(uuid in tree and tree[uuid].generation == n for uuid, n in receipt.generations.items()):
        return False
    now = [total_at(tree, slot) for slot in receipt.before]
    before = [inventory.total if inventory else 0 for inventory in receipt.before.values()]
    after = [inventory.total if inventory else 0 for inventory in receipt.after.values()]
    if before != after and now in (before, after):
        return now == after
    witnesses = list(receipt.allocations.items())[:WITNESSES_MAX]
    return any(client.allocations_of(who).allocations == held for who, held in witnesses)


def done_after_all(client: PlacementClient, root: str, receipt: Receipt) -> bool:
    """Whether it was done; if not, it never will be.

    A request that placement may still be at names the generations of then. One of them is raised here, by
    writing a provider's inventories as they are. Raises PlacementError: it is not known yet.
    """
    touched = sorted(receipt.generations.keys() & client.generations(root).keys())
    for attempt in range(FENCES_MAX if touched else 0):
        generation, inventories = client.provider_inventories(touched[0])
        try:
            client.put_inventories(touched[0], generation, inventories)
            break
        except PlacementConflict:
            if attempt == FENCES_MAX - 1:
                raise
    return was_done(client, root, receipt)


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
        claim.consumer: replace(allocations_for(claim), generation=WRITTEN_ONCE + _reshapes_of(claim, done))
        for claim in claims.values()
        if claim.state is ClaimState.CLAIMED and not claim.adopted and claim.consumer not in moved
    }


def _reshapes_of(claim: Claim, done: Mapping[str, Receipt]) -> int:
    return sum(each.at >= claim.since and claim.consumer in each.allocations for each in done.values())


def put_off(why: str) -> ReshapeRefused:
    return ReshapeRefused(
        f"The reshape could not be done yet, {why.rstrip('.')}; nothing of it was, and it is tried again.",
        reasons=[why],
    )


def refused(error: PlacementError) -> ReshapeRefused:
    return ReshapeRefused(
        f"Placement refused the reshape, so nothing of it was done: {error.message}", reasons=[error.message]
    )
