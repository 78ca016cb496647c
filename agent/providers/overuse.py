"""Providers of which more is in use than there is. Pure.

OpenStack Placement grants claims that race with each other beyond what there is, and both placements let an
inventory shrink below its use. Neither is this agent's to mend, but both must be seen.
"""

from collections.abc import Iterator

from agent.shapes import Held, Holders
from agent.tree import Inventory, Provider, ProviderTree

NAMED_MAX = 5


def find_overuse(tree: ProviderTree, held: Held) -> dict[str, tuple[str, ...]]:
    """{provider uuid: (sentence, ...)}, one sentence for each class of which too much is in use."""
    found = {provider.uuid: tuple(_sentences(provider, held.get(provider.uuid, {}))) for provider in tree}
    return {uuid: sentences for uuid, sentences in found.items() if sentences}


def _limit(inventory: Inventory) -> int:
    """What is reserved whole is kept from newcomers, as before a reshape: it says nothing of who has it."""
    withheld = inventory.reserved >= inventory.total
    return int(inventory.total * inventory.allocation_ratio) if withheld else inventory.capacity


def _sentences(provider: Provider, consumers: Holders) -> Iterator[str]:
    for name, inventory in provider.inventories.items():
        holders = sorted(consumer for consumer, amounts in consumers.items() if name in amounts)
        used = sum(consumers[consumer][name] for consumer in holders)
        if used > _limit(inventory):
            more = len(holders) - NAMED_MAX
            yield (
                f"Provider {provider.name} is over capacity: {used} {name} are in use of "
                f"{inventory.capacity}, by {', '.join(holders[:NAMED_MAX])}"
                f"{f' and {more} more' if more > 0 else ''}; release one of them, or move it away."
            )
