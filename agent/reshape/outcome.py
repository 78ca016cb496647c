"""What became of a reshape that was asked for and not answered, by what placement holds."""

from agent.errors import PlacementConflict
from agent.placement.client import PlacementClient
from agent.reshape.receipt import Receipt
from agent.reshape.types import total_at

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
        generation, inventories = client.inventories_of(touched[0])
        try:
            client.put_inventories(touched[0], generation, inventories)
            break
        except PlacementConflict:
            if attempt == FENCES_MAX - 1:
                raise
    return was_done(client, root, receipt)
