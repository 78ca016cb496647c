"""The records of a Placement service, all or some, as values, and how two such snapshots differ. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from agent.placement.client import ConsumerAllocations
from agent.providers.plan import same_inventories
from agent.tree import Provider

CUSTOM = "CUSTOM_"
UNTYPED = "unknown"
"""The type that Placement shows for a consumer that was last written before microversion 1.38."""

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class PlacementSnapshot:
    """Providers and consumers by uuid, in the order of their uuids, and the custom traits and classes.

    A snapshot may be inconsistent: invariants.py checks it.
    """

    providers: Mapping[str, Provider] = field(default_factory=dict)
    consumers: Mapping[str, ConsumerAllocations] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    resource_classes: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        providers: Iterable[Provider],
        consumers: Iterable[ConsumerAllocations],
        traits: Iterable[str] = (),
        resource_classes: Iterable[str] = (),
    ) -> "PlacementSnapshot":
        """A snapshot of these records, in the order of their uuids."""
        return cls(
            _sorted({provider.uuid: provider for provider in providers}),
            _sorted({consumer.consumer: consumer for consumer in consumers}),
            frozenset(traits),
            frozenset(resource_classes),
        )

    def usages(self) -> dict[str, dict[str, int]]:
        """{provider uuid: {resource class: sum of the allocations}}, without zeros."""
        sums: dict[str, dict[str, int]] = {}
        for consumer in self.consumers.values():
            for provider, amounts in consumer.allocations.items():
                used = sums.setdefault(provider, {})
                for resource_class, amount in amounts.items():
                    used[resource_class] = used.get(resource_class, 0) + amount
        return sums

    def without_types(self) -> "PlacementSnapshot":
        """The same records for a service below microversion 1.38, which has no consumer types."""
        untyped = (replace(consumer, consumer_type=UNTYPED) for consumer in self.consumers.values())
        return replace(self, consumers={consumer.consumer: consumer for consumer in untyped})

    def counts(self) -> dict[str, int]:
        """The number of records of each kind."""
        return {
            "resource_providers": len(self.providers),
            "consumers": len(self.consumers),
            "traits": len(self.traits),
            "resource_classes": len(self.resource_classes),
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """A record, or one aspect of a record, that differs between two snapshots.

    `aspect` is "" and `found` is None where the second snapshot lacks the record.
    """

    subject: str
    key: str
    aspect: str
    wanted: Any
    found: Any

    @property
    def missing(self) -> bool:
        """Whether the second snapshot lacks the record."""
        return self.aspect == ""

    def line(self) -> str:
        """The difference in one line, for an operator."""
        if self.missing:
            return f"{self.subject} {self.key}: missing"
        return f"{self.subject} {self.key}: {self.aspect} is {self.found}, not {self.wanted}"

    def to_json(self) -> dict[str, Any]:
        """The difference as the command line prints it in JSON."""
        return {
            "subject": self.subject,
            "key": self.key,
            "aspect": self.aspect or None,
            "wanted": self.wanted,
            "found": self.found,
        }


def differences(wanted: PlacementSnapshot, present: PlacementSnapshot) -> tuple[Difference, ...]:
    """The records of `wanted` that `present` lacks or has differently; `present` may have more records.

    Generations are not compared: each service counts its own writes.
    """
    classes = sorted(wanted.resource_classes - present.resource_classes)
    traits = sorted(wanted.traits - present.traits)
    return (
        *(Difference("resource class", name, "", name, None) for name in classes),
        *(Difference("trait", name, "", name, None) for name in traits),
        *(
            difference
            for provider in wanted.providers.values()
            for difference in _compare_providers(provider, present.providers.get(provider.uuid))
        ),
        *(
            difference
            for consumer in wanted.consumers.values()
            for difference in _compare_consumers(consumer, present.consumers.get(consumer.consumer))
        ),
    )


def foreign_consumers(wanted: PlacementSnapshot, present: PlacementSnapshot) -> tuple[str, ...]:
    """The consumers of `present` that have allocations on providers of `wanted` and are not in `wanted`."""
    return tuple(
        uuid
        for uuid, consumer in present.consumers.items()
        if uuid not in wanted.consumers
        and any(provider in wanted.providers for provider in consumer.allocations)
    )


def same_consumer(one: ConsumerAllocations, other: ConsumerAllocations) -> bool:
    """Whether both have the same owner, type and allocations; generations are not compared."""
    return replace(one, generation=None) == replace(other, generation=None)


def _compare_providers(wanted: Provider, present: Provider | None) -> Iterator[Difference]:
    key = f"{wanted.name} ({wanted.uuid})"
    if present is None:
        yield Difference("provider", key, "", wanted.uuid, None)
        return
    aspects: tuple[tuple[str, Any, Any], ...] = (
        ("name", wanted.name, present.name),
        ("parent", wanted.parent, present.parent),
        ("traits", sorted(wanted.traits), sorted(present.traits)),
        ("aggregates", sorted(wanted.aggregates), sorted(present.aggregates)),
    )
    for aspect, wanted_value, present_value in aspects:
        if wanted_value != present_value:
            yield Difference("provider", key, aspect, wanted_value, present_value)
    if not same_inventories(wanted.inventories, present.inventories):
        yield Difference(
            "provider", key, "inventories", _inventories_json(wanted), _inventories_json(present)
        )


def _compare_consumers(
    wanted: ConsumerAllocations, present: ConsumerAllocations | None
) -> Iterator[Difference]:
    if present is None:
        yield Difference("consumer", wanted.consumer, "", wanted.consumer, None)
        return
    for aspect in ("project_id", "user_id", "consumer_type", "allocations"):
        wanted_value, present_value = getattr(wanted, aspect), getattr(present, aspect)
        if wanted_value != present_value:
            yield Difference("consumer", wanted.consumer, aspect, wanted_value, present_value)


def _inventories_json(provider: Provider) -> dict[str, Any]:
    return {name: inventory.to_json() for name, inventory in sorted(provider.inventories.items())}


def _sorted(values: dict[str, _Value]) -> dict[str, _Value]:
    return dict(sorted(values.items()))
