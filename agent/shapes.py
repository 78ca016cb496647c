"""The shapes of plain mappings that many modules pass to each other, and the arithmetic with amounts.

Providers and consumers are keyed by uuid, resource classes by name. An amount is a whole number in the unit
of its class: MiB for MEMORY_MB, GiB for DISK_GB, a count for all others.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, TypeVar

from agent.codec import whole
from agent.json_checks import read_uuid

Uuid = Annotated[str, read_uuid]
"""A uuid; what is read from JSON is checked, and in its dashed lower-case form."""

Amounts = Mapping[str, Annotated[int, whole(1)]]
"""{resource class: amount}"""

Allocations = Mapping[Uuid, Amounts]
"""{provider uuid: {resource class: amount}}: what one consumer has, as Placement's allocations write it."""

Usages = Mapping[str, Amounts]
"""{provider uuid: {resource class: amount}}: what all consumers together use of each provider."""

Holders = Mapping[str, Amounts]
"""{consumer uuid: {resource class: amount}}: the allocations on one provider, by consumer."""

Held = Mapping[str, Holders]
"""{provider uuid: {consumer uuid: {resource class: amount}}}: the allocations on several providers."""

Classes = Mapping[str, frozenset[str]]
"""{provider uuid: {resource class, ...}}"""

Units = Mapping[Uuid, Mapping[str, tuple[str, ...]]]
"""{provider uuid: {resource class: (exact unit, ...)}}, only for classes that have exact units.

An exact unit is a thing that can be told apart from the others of its class: a CPU's id, a PCI address,
the uuid of a mediated device. The order is the one in which units are given out.
"""

Makings = Mapping[str, Mapping[str, str]]
"""{exact unit: {"parent": PCI address, "type": id of a mediated type}} of units that do not exist yet."""

UnitsToMake = Mapping[str, Mapping[str, Makings]]
"""{provider uuid: {resource class: makings}}: `DescribedProvider.to_make` of each provider."""


Outer = TypeVar("Outer")
Inner = TypeVar("Inner")
Value = TypeVar("Value")


def turned(table: Mapping[Outer, Mapping[Inner, Value]]) -> dict[Inner, dict[Outer, Value]]:
    """{inner: {outer: value}}: what providers have of consumers as the consumers have it, and back."""
    other: dict[Inner, dict[Outer, Value]] = {}
    for outer, row in table.items():
        for inner, value in row.items():
            other.setdefault(inner, {})[outer] = value
    return other


def total(columns: Iterable[Usages]) -> Usages:
    """The sum of the amounts, by provider and class."""
    filled = [amounts for amounts in columns if amounts]
    if len(filled) < 2:
        return filled[0] if filled else {}
    summed: dict[str, dict[str, int]] = {}
    for column in filled:
        for uuid, amounts in column.items():
            there = summed.setdefault(uuid, {})
            for name, amount in amounts.items():
                there[name] = there.get(name, 0) + amount
    return summed


def largest(columns: Iterable[Usages]) -> Usages:
    """The largest of the amounts, by provider and class."""
    filled = [amounts for amounts in columns if amounts]
    if not filled or all(column == filled[0] for column in filled[1:]):
        return filled[0] if filled else {}
    most: dict[str, dict[str, int]] = {}
    for column in filled:
        for uuid, amounts in column.items():
            there = most.setdefault(uuid, {})
            for name, amount in amounts.items():
                there[name] = max(there.get(name, 0), amount)
    return most


def beyond(amounts: Usages, others: Usages) -> Usages:
    """The part of `amounts` that exceeds `others`, by provider and class; without zeros."""
    rest = {
        uuid: {
            name: amount - others.get(uuid, {}).get(name, 0)
            for name, amount in of_provider.items()
            if amount > others.get(uuid, {}).get(name, 0)
        }
        for uuid, of_provider in amounts.items()
    }
    return {uuid: of_provider for uuid, of_provider in rest.items() if of_provider}


def shares(amount: int, parts: int) -> tuple[int, ...]:
    """`amount` in `parts` whole shares that differ by at most one, the larger ones first."""
    smallest, rest = divmod(amount, parts)
    return tuple(smallest + (1 if part < rest else 0) for part in range(parts))


def add_units(units: dict[str, dict[str, tuple[str, ...]]], uuid: str, name: str, *more: str) -> None:
    """Add these exact units of the class to those of the provider."""
    classes = units.setdefault(uuid, {})
    classes[name] = (*classes.get(name, ()), *more)


def by_class(amounts: Iterable[Amounts]) -> dict[str, int]:
    """The sum of the amounts, by class: of the providers of an allocation, say, or of some groups."""
    summed: dict[str, int] = {}
    for part in amounts:
        for name, amount in part.items():
            summed[name] = summed.get(name, 0) + amount
    return summed
