"""All that a placement service holds, as values, and how two such contents differ. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from agent.placement.client import ConsumerAllocations
from agent.providers.plan import same_inventories
from agent.tree import Provider

CUSTOM = "CUSTOM_"
UNTYPED = "unknown"
"""How placement shows a consumer that was written before microversion 1.38."""

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class PlacementSnapshot:
    """Providers and consumers by uuid, in the order of their uuids; of traits and classes the custom ones.

    Nothing is promised about how they go together: invariants.py says whether they do.
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
        return cls(
            _sorted({provider.uuid: provider for provider in providers}),
            _sorted({consumer.consumer: consumer for consumer in consumers}),
            frozenset(traits),
            frozenset(resource_classes),
        )

    def usages(self) -> dict[str, dict[str, int]]:
        """{provider uuid: {resource class: sum of what consumers hold}}; without those that nobody uses."""
        sums: dict[str, dict[str, int]] = {}
        for consumer in self.consumers.values():
            for provider, amounts in consumer.allocations.items():
                used = sums.setdefault(provider, {})
                for resource_class, amount in amounts.items():
                    used[resource_class] = used.get(resource_class, 0) + amount
        return sums

    def without_types(self) -> "PlacementSnapshot":
        """The same for a service that does not tell consumers' types apart."""
        untyped = (replace(each, consumer_type=UNTYPED) for each in self.consumers.values())
        return replace(self, consumers={each.consumer: each for each in untyped})

    def counts(self) -> dict[str, int]:
        return {
            "resource_providers": len(self.providers),
            "consumers": len(self.consumers),
            "traits": len(self.traits),
            "resource_classes": len(self.resource_classes),
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that two contents say differently. `found` is None where the other does not have it."""

    subject: str
    key: str
    aspect: str
    wanted: Any
    found: Any

    @property
    def missing(self) -> bool:
        return self.aspect == ""

    def line(self) -> str:
        if self.missing:
            return f"{self.subject} {self.key}: not there"
        return f"{self.subject} {self.key}: {self.aspect} is {self.found}, not {self.wanted}"

    def to_json(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "key": self.key,
            "aspect": self.aspect or None,
            "wanted": self.wanted,
            "found": self.found,
        }


def differences(wanted: PlacementSnapshot, found: PlacementSnapshot) -> tuple[Difference, ...]:
    """Where `found` does not say what `wanted` says. What it says beyond that is no difference.

    Generations are left out: each service counts its own writes.
    """
    return (
        *(Difference("resource class", name, "", name, None) for name in _lacking(wanted, found, "classes")),
        *(Difference("trait", name, "", name, None) for name in _lacking(wanted, found, "traits")),
        *(
            each
            for provider in wanted.providers.values()
            for each in _between_providers(provider, found.providers.get(provider.uuid))
        ),
        *(
            each
            for consumer in wanted.consumers.values()
            for each in _between_consumers(consumer, found.consumers.get(consumer.consumer))
        ),
    )


def foreign_consumers(wanted: PlacementSnapshot, found: PlacementSnapshot) -> tuple[str, ...]:
    """Consumers that `wanted` does not have, and that hold something in `found` on providers of `wanted`."""
    return tuple(
        uuid
        for uuid, consumer in found.consumers.items()
        if uuid not in wanted.consumers and any(each in wanted.providers for each in consumer.allocations)
    )


def same_consumer(one: ConsumerAllocations, other: ConsumerAllocations) -> bool:
    """Whether both hold the same for the same, whatever their generations."""
    return replace(one, generation=None) == replace(other, generation=None)


def _between_providers(wanted: Provider, found: Provider | None) -> Iterator[Difference]:
    key = f"{wanted.name} ({wanted.uuid})"
    if found is None:
        yield Difference("provider", key, "", wanted.uuid, None)
        return
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("name", wanted.name, found.name),
        ("parent", wanted.parent, found.parent),
        ("traits", sorted(wanted.traits), sorted(found.traits)),
        ("aggregates", sorted(wanted.aggregates), sorted(found.aggregates)),
    )
    for aspect, here, there in pairs:
        if here != there:
            yield Difference("provider", key, aspect, here, there)
    if not same_inventories(wanted.inventories, found.inventories):
        yield Difference("provider", key, "inventories", _shown(wanted), _shown(found))


def _between_consumers(
    wanted: ConsumerAllocations, found: ConsumerAllocations | None
) -> Iterator[Difference]:
    if found is None:
        yield Difference("consumer", wanted.consumer, "", wanted.consumer, None)
        return
    for aspect in ("project_id", "user_id", "consumer_type", "allocations"):
        here, there = getattr(wanted, aspect), getattr(found, aspect)
        if here != there:
            yield Difference("consumer", wanted.consumer, aspect, here, there)


def _lacking(wanted: PlacementSnapshot, found: PlacementSnapshot, what: str) -> list[str]:
    if what == "traits":
        return sorted(wanted.traits - found.traits)
    return sorted(wanted.resource_classes - found.resource_classes)


def _shown(provider: Provider) -> dict[str, Any]:
    return {name: inventory.to_json() for name, inventory in sorted(provider.inventories.items())}


def _sorted(values: dict[str, _Value]) -> dict[str, _Value]:
    return dict(sorted(values.items()))
