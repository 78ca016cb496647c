"""Find providers whose usage exceeds their capacity. Pure.

Usage can exceed capacity in two ways: OpenStack Placement may grant concurrent requests that together exceed
the capacity, and both OpenStack Placement and the embedded one accept an inventory that is smaller than its
usage. The agent cannot correct either, but it reports both.
"""

from collections.abc import Iterator

from agent.shapes import Held, Holders
from agent.tree import Inventory, Provider, ProviderTree

NAMED_MAX = 5


def find_overuse(tree: ProviderTree, held: Held) -> dict[str, tuple[str, ...]]:
    """{provider uuid: (sentence, ...)}, one sentence for each class whose usage exceeds its capacity."""
    overuse = {provider.uuid: tuple(_sentences(provider, held.get(provider.uuid, {}))) for provider in tree}
    return {uuid: sentences for uuid, sentences in overuse.items() if sentences}


def _limit(inventory: Inventory) -> int:
    """The amount that may be in use without a report.

    A completely reserved inventory, as during a reshape, only keeps new consumers out; its reservation does
    not count against the consumers that it has.
    """
    withheld = inventory.reserved >= inventory.total
    return int(inventory.total * inventory.allocation_ratio) if withheld else inventory.capacity


def _sentences(provider: Provider, consumers: Holders) -> Iterator[str]:
    for name, inventory in provider.inventories.items():
        holders = sorted(consumer for consumer, amounts in consumers.items() if name in amounts)
        used = sum(consumers[consumer][name] for consumer in holders)
        if used > _limit(inventory):
            more = len(holders) - NAMED_MAX
            yield (
                f"Provider {provider.name} is over capacity: {used} {name} {'is' if used == 1 else 'are'} "
                f"in use of {inventory.capacity}, by {', '.join(holders[:NAMED_MAX])}"
                f"{f' and {more} more' if more > 0 else ''}; release one of them, or move it away."
            )
