"""Devices that an operator has cordoned: no guest gets them; their present consumers keep them. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from agent.device_names import address_of
from agent.providers.device_health import CELL
from agent.providers.resolve import ResolvedDescription
from agent.providers.unclaimed import with_reserved
from agent.shapes import Amounts, Units, Usages
from agent.tree import ProviderTree

Cordoned = frozenset[tuple[str, str]]
"""{(resource class, exact unit), ...} that are given to no consumer that does not have them"""


def cordoned_units(units: Units, devices: Mapping[str, str], addresses: Collection[str]) -> Cordoned:
    """The exact units at these addresses.

    An address is that of an exact unit, or the PCI address of a card, which stands for all of its units.
    `units` are all that the host offers, `devices` {provider uuid: `DescribedProvider.device`}.
    """
    cards = {f"pci:{address}" for address in addresses}
    return frozenset(
        (name, unit)
        for uuid, classes in units.items()
        for name, exact in classes.items()
        for unit in exact
        if unit in addresses or address_of(unit) in addresses or devices.get(uuid) in cards
    )


def idle_cordoned(units: Units, cordoned: Cordoned, taken: Collection[tuple[str, str]]) -> Usages:
    """{provider uuid: {class: number}} of the cordoned units that no consumer has."""
    idle = {
        uuid: {
            name: sum((name, unit) in cordoned and (name, unit) not in taken for unit in exact)
            for name, exact in classes.items()
        }
        for uuid, classes in units.items()
    }
    return {
        uuid: {name: number for name, number in amounts.items() if number}
        for uuid, amounts in idle.items()
        if any(amounts.values())
    }


def idle_pages(
    tree: ProviderTree, devices: Mapping[str, str], used: Usages, addresses: Collection[str]
) -> Usages:
    """{provider uuid: {class: number}} of the idle large pages on the cells among `addresses`.

    The address of a cell is that of its `DescribedProvider.device`, such as "numa:0". Pages have no exact
    units, so `used` says how many consumers have.
    """
    kinds = tuple(f"pages:{address.removeprefix(CELL)}:" for address in addresses if address.startswith(CELL))
    return {
        uuid: {
            name: max(0, inventory.capacity - used.get(uuid, {}).get(name, 0))
            for name, inventory in tree[uuid].inventories.items()
        }
        for uuid, device in devices.items()
        if kinds and device.startswith(kinds) and uuid in tree
    }


def with_idle(used: Usages, idle: Usages) -> Usages:
    """The usages with the idle cordoned units as if guests used them: they exclude what a use excludes."""
    return {**used, **{uuid: _sum(used.get(uuid, {}), here) for uuid, here in idle.items()}}


def _sum(one: Amounts, other: Amounts) -> Amounts:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {*one, *other}}


def reserve_cordoned(
    resolved: ResolvedDescription, cordoned: Cordoned, idle: Usages, pages: Usages
) -> ResolvedDescription:
    """`resolved` with the `idle` units and `pages` reserved, and the classes of what is withheld noted."""
    classes = {
        uuid: frozenset(
            name for name, exact in by_class.items() if any((name, unit) in cordoned for unit in exact)
        )
        for uuid, by_class in resolved.units.items()
    } | {uuid: frozenset(amounts) for uuid, amounts in pages.items()}
    return replace(
        resolved,
        tree=with_reserved(resolved.tree, {**idle, **pages}),
        cordoned={uuid: names for uuid, names in classes.items() if names},
    )
