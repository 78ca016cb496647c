"""Classes of one device that exclude each other: a card whole or by its functions, one vGPU type or another.

A provider's *ways* are sets of classes (`DescribedProvider.ways`). While a class of one way is in use
nothing of another way can be given; the classes of one way share what there is, which is the largest total
among them. So what is given out of one class takes room from others, at once in this agent, and with its
next pass in placement, where it is reserved (`reserve_excluded`). Pure.
"""

from collections.abc import Mapping
from dataclasses import replace

from agent.shapes import Usages
from agent.tree import Inventory, Provider, ProviderTree

Ways = tuple[frozenset[str], ...]
"""Of one provider; a class is in one way at most."""

WaysOf = Mapping[str, Ways]
"""{provider uuid: its ways}, of those that have two classes that exclude each other."""


def room(ways: Ways, there: Mapping[str, int], used: Mapping[str, int]) -> dict[str, int]:
    """{class: how many more can be given}, for the classes of the ways.

    `there` {class: what the provider has for guests}, `used` {class: in use, by whomever}.
    """
    found = {}
    for way in ways:
        taken = sum(used.get(name, 0) for name in way)
        elsewhere = any(used.get(name, 0) for other in ways if other is not way for name in other)
        most = max((there.get(name, 0) for name in way), default=0)
        for name in way:
            left = min(most - taken, there.get(name, 0) - used.get(name, 0))
            found[name] = 0 if elsewhere else max(0, left)
    return found


def excluding_class(ways: Ways, name: str, used: Mapping[str, int]) -> str | None:
    """A class in use that keeps the provider from giving any of this one."""
    if not any(name in way for way in ways):
        return None
    others = (other for way in ways if name not in way for other in sorted(way))
    return next((other for other in others if used.get(other, 0)), None)


def can_give_together(ways: Ways, left: Mapping[str, int], wanted: Mapping[str, int]) -> bool:
    """Whether these amounts can be given at once; `left` is the `room` there is."""
    asked = [way for way in ways if any(wanted.get(name, 0) for name in way)]
    return len(asked) < 2 and all(
        sum(wanted.get(name, 0) for name in way) <= max(left[name] for name in way) for way in asked
    )


def reserve_excluded(tree: ProviderTree, ways: WaysOf, used: Usages) -> ProviderTree:
    """The tree with so much reserved that placement offers no more than there is room for."""
    for uuid, excluding in ways.items():
        provider = tree.get(uuid)
        if provider is not None:
            tree = tree.with_provider(_reserved(provider, excluding, used.get(uuid, {})))
    return tree


def _reserved(provider: Provider, ways: Ways, used: Mapping[str, int]) -> Provider:
    there = {name: each.total - each.reserved for name, each in provider.inventories.items()}
    left = room(ways, there, used)
    inventories = {
        name: _leaving(each, used.get(name, 0) + left[name]) if name in left else each
        for name, each in provider.inventories.items()
    }
    return provider if inventories == provider.inventories else replace(provider, inventories=inventories)


def _leaving(inventory: Inventory, capacity: int) -> Inventory:
    return replace(inventory, reserved=max(inventory.reserved, inventory.total - max(0, capacity)))
