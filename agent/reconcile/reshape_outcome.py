"""Whether Placement executed a reshape that it did not answer, by what it holds now."""

from agent.errors import PlacementConflict
from agent.placement.client import PlacementClient
from agent.reshape.laws import total_at
from agent.reshape.receipt import Receipt

FENCE_ATTEMPTS_MAX = 8
CONSUMERS_READ_MAX = 64


def was_executed(client: PlacementClient, root_uuid: str, receipt: Receipt) -> bool:
    """Whether Placement shows the reshape as executed. Raises PlacementError.

    Generations that are unchanged show that it was not; then the totals of the slots that exchange units
    decide, and where those are ambiguous the allocations of some consumers.
    """
    tree = client.read_tree(root_uuid)
    if any(
        uuid in tree and tree[uuid].generation == generation
        for uuid, generation in receipt.generations.items()
    ):
        return False
    now = [total_at(tree, slot) for slot in receipt.before]
    before = [inventory.total if inventory else 0 for inventory in receipt.before.values()]
    after = [inventory.total if inventory else 0 for inventory in receipt.after.values()]
    if before != after and now in (before, after):
        return now == after
    sample = list(receipt.allocations.items())[:CONSUMERS_READ_MAX]
    return any(client.allocations_of(consumer).allocations == held for consumer, held in sample)


def fence_and_check(client: PlacementClient, root_uuid: str, receipt: Receipt) -> bool:
    """Whether the reshape was executed; if not, Placement can no longer execute it.

    A request that Placement still has names the generations of its time. The fence raises one of them, by
    writing a provider's inventories as they are. Raises PlacementError where the outcome stays unknown.
    """
    touched = sorted(receipt.generations.keys() & client.generations(root_uuid).keys())
    for attempt in range(FENCE_ATTEMPTS_MAX if touched else 0):
        generation, inventories = client.provider_inventories(touched[0])
        try:
            client.put_inventories(touched[0], generation, inventories)
            break
        except PlacementConflict:
            if attempt == FENCE_ATTEMPTS_MAX - 1:
                raise
    return was_executed(client, root_uuid, receipt)
