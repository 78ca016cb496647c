"""Resource classes of one device that exclude each other, and how much of each can still be allocated. Pure.

Examples are a card that is passed through whole or by its virtual functions, and a card that offers one vGPU
type or another. A provider's *ways* are sets of classes (`DescribedProvider.ways`). While a class of one way
is in use, no class of another way can be allocated. The classes of one way share the largest total among
them. An allocation of one class therefore leaves less of the others: at once in this agent, and from the next
pass on in Placement, where the agent reserves the difference (`reserve_excluded`).
"""

from collections.abc import Mapping
from dataclasses import replace

from agent.shapes import Usages
from agent.tree import Inventory, Provider, ProviderTree

Ways = tuple[frozenset[str], ...]
"""The ways of one provider: sets of resource classes. A class is in at most one of them."""

WaysOf = Mapping[str, Ways]
"""{provider uuid: its ways}, of the providers that have classes that exclude each other."""


def room(ways: Ways, offered: Mapping[str, int], used: Mapping[str, int]) -> dict[str, int]:
    """{class: amount that can still be allocated}, for each class of the ways.

    `offered` {class: amount for guests} and `used` {class: amount in use} are those of the same provider.
    """
    left_of = {}
    for way in ways:
        taken = sum(used.get(name, 0) for name in way)
        elsewhere = any(used.get(name, 0) for other in ways if other is not way for name in other)
        most = max((offered.get(name, 0) for name in way), default=0)
        for name in way:
            left = min(most - taken, offered.get(name, 0) - used.get(name, 0))
            left_of[name] = 0 if elsewhere else max(0, left)
    return left_of


def excluding_class(ways: Ways, name: str, used: Mapping[str, int]) -> str | None:
    """A class in use that excludes the class `name` on the same provider, or None."""
    if not any(name in way for way in ways):
        return None
    others = (other for way in ways if name not in way for other in sorted(way))
    return next((other for other in others if used.get(other, 0)), None)


def can_give_together(ways: Ways, left: Mapping[str, int], wanted: Mapping[str, int]) -> bool:
    """Whether the amounts `wanted` can be allocated together; `left` is the result of `room`."""
    asked = [way for way in ways if any(wanted.get(name, 0) for name in way)]
    return len(asked) < 2 and all(
        sum(wanted.get(name, 0) for name in way) <= max(left[name] for name in way) for way in asked
    )


def reserve_excluded(tree: ProviderTree, ways: WaysOf, used: Usages) -> ProviderTree:
    """The tree with enough reserved that Placement offers no more of any class than `room` allows."""
    for uuid, excluding in ways.items():
        provider = tree.get(uuid)
        if provider is not None:
            tree = tree.with_provider(_reserve_on(provider, excluding, used.get(uuid, {})))
    return tree


def _reserve_on(provider: Provider, ways: Ways, used: Mapping[str, int]) -> Provider:
    offered = {name: inventory.total - inventory.reserved for name, inventory in provider.inventories.items()}
    left = room(ways, offered, used)
    inventories = {
        name: _with_capacity(inventory, used.get(name, 0) + left[name]) if name in left else inventory
        for name, inventory in provider.inventories.items()
    }
    return provider if inventories == provider.inventories else replace(provider, inventories=inventories)


def _with_capacity(inventory: Inventory, capacity: int) -> Inventory:
    return replace(inventory, reserved=max(inventory.reserved, inventory.total - max(0, capacity)))
