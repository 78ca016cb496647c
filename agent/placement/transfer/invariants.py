"""The invariants of a Placement snapshot, and the remedy for each broken one. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import os_resource_classes
import os_traits

from agent.errors import counted
from agent.placement.client import ConsumerAllocations
from agent.placement.transfer.snapshot import PlacementSnapshot
from agent.shapes import Usages
from agent.tree import Inventory, Provider

ACCEPTED = frozenset({"over_capacity", "outside_limits"})
"""The broken invariants that Placement accepts: an inventory may be changed below its use."""

_LARGEST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class BrokenInvariant:
    """A broken invariant: its stable name, the uuid of its subject, a description, and the remedy."""

    name: str
    subject: str
    sentence: str
    remedy: str

    @property
    def accepted(self) -> bool:
        """Whether Placement accepts it; otherwise it cannot be written over its API."""
        return self.name in ACCEPTED

    def to_json(self) -> dict[str, str]:
        """The invariant as `plimsoll placement check -o json` prints it."""
        return {
            "name": self.name,
            "subject": self.subject,
            "sentence": self.sentence,
            "remedy": self.remedy,
        }


@dataclass(frozen=True, slots=True)
class ServiceEvidence:
    """What a service shows of its records in other requests, to be compared with the snapshot.

    `roots` is {provider: root}; `usages` and `held` are what providers show of their use; `names` are all
    traits and resource classes of the service, including the standard names of other releases.
    """

    roots: Mapping[str, str] = field(default_factory=dict)
    usages: Usages = field(default_factory=dict)
    held: Mapping[str, Usages] = field(default_factory=dict)
    names: frozenset[str] = frozenset()


def broken_invariants(
    snapshot: PlacementSnapshot, evidence: ServiceEvidence | None = None
) -> tuple[BrokenInvariant, ...]:
    """All broken invariants, those of providers first."""
    service = evidence or ServiceEvidence()
    checker = _Checker(snapshot, service.names)
    return (
        *checker.names(),
        *checker.ancestry(service.roots),
        *checker.providers(),
        *checker.consumers(),
        *checker.capacity(),
        *checker.usages(service.usages),
        *checker.views(service.held),
    )


class _Checker:
    """Checks one snapshot; each public method yields the broken invariants of one kind."""

    def __init__(self, snapshot: PlacementSnapshot, names: frozenset[str]) -> None:
        self._snapshot = snapshot
        self._providers = snapshot.providers
        self._used = snapshot.usages()
        self._classes = snapshot.resource_classes | names | frozenset(os_resource_classes.STANDARDS)
        self._traits = snapshot.traits | names | frozenset(os_traits.get_traits())

    def names(self) -> Iterator[BrokenInvariant]:
        first: dict[str, str] = {}
        for provider in self._providers.values():
            twin = first.setdefault(provider.name, provider.uuid)
            if twin != provider.uuid:
                yield BrokenInvariant(
                    "duplicate_name",
                    provider.uuid,
                    f"Two providers are named {provider.name!r}: {twin} and {provider.uuid}.",
                    f"Rename one: PUT /resource_providers/{provider.uuid} with another name.",
                )

    def ancestry(self, roots: Mapping[str, str]) -> Iterator[BrokenInvariant]:
        for provider in self._providers.values():
            if provider.parent is not None and provider.parent not in self._providers:
                yield BrokenInvariant(
                    "missing_parent",
                    provider.uuid,
                    f"{_name_and_uuid(provider)} has the parent {provider.parent}, which does not exist.",
                    "Give it a parent that exists, or none: "
                    f"PUT /resource_providers/{provider.uuid} with parent_provider_uuid (1.37).",
                )
                continue
            root = self._root(provider)
            if root is None:
                yield BrokenInvariant(
                    "cycle",
                    provider.uuid,
                    f"{_name_and_uuid(provider)} is its own ancestor, or a descendant of one that is.",
                    f"Break it: PUT /resource_providers/{provider.uuid} with parent_provider_uuid null "
                    "(1.37).",
                )
            elif roots.get(provider.uuid, root) != root:
                yield BrokenInvariant(
                    "wrong_root",
                    provider.uuid,
                    f"{_name_and_uuid(provider)} has the root {roots[provider.uuid]}, and its "
                    f"ancestors lead to {root}.",
                    f"Set its parent again: PUT /resource_providers/{provider.uuid} with "
                    "parent_provider_uuid null, then with the parent (1.37).",
                )

    def _root(self, provider: Provider) -> str | None:
        """The topmost ancestor that exists; None in a cycle."""
        seen = {provider.uuid}
        while provider.parent is not None and provider.parent in self._providers:
            provider = self._providers[provider.parent]
            if provider.uuid in seen:
                return None
            seen.add(provider.uuid)
        return provider.uuid

    def providers(self) -> Iterator[BrokenInvariant]:
        for provider in self._providers.values():
            for name, inventory in provider.inventories.items():
                if name not in self._classes:
                    yield _unknown("class", name, f"{_name_and_uuid(provider)} offers", provider.uuid)
                wrong = _wrong_numbers(inventory)
                if wrong:
                    yield BrokenInvariant(
                        "impossible_inventory",
                        provider.uuid,
                        f"The inventory of {name} on {_name_and_uuid(provider)} {wrong}.",
                        f"Correct it: PUT /resource_providers/{provider.uuid}/inventories/{name}.",
                    )
            for trait in sorted(provider.traits - self._traits):
                yield _unknown("trait", trait, f"{_name_and_uuid(provider)} has", provider.uuid)

    def consumers(self) -> Iterator[BrokenInvariant]:
        for consumer in self._snapshot.consumers.values():
            if not any(consumer.allocations.values()):
                yield BrokenInvariant(
                    "empty_consumer",
                    consumer.consumer,
                    f"Consumer {consumer.consumer} has no allocations, which blocks its first claim.",
                    f"Write any allocation with consumer_generation {consumer.generation}, then "
                    f"DELETE /allocations/{consumer.consumer}.",
                )
            for uuid, amounts in consumer.allocations.items():
                yield from self._allocation(consumer, uuid, amounts)

    def _allocation(
        self, consumer: ConsumerAllocations, uuid: str, amounts: Mapping[str, int]
    ) -> Iterator[BrokenInvariant]:
        provider = self._providers.get(uuid)
        remedy = f"Write the true allocations of the consumer: PUT /allocations/{consumer.consumer}."
        if provider is None:
            yield BrokenInvariant(
                "orphan_allocation",
                consumer.consumer,
                f"Consumer {consumer.consumer} has {_listed(amounts)} on {uuid}, which does not exist.",
                remedy,
            )
            return
        for name, amount in amounts.items():
            inventory = provider.inventories.get(name)
            holds = f"Consumer {consumer.consumer} has {amount} {name} on {_name_and_uuid(provider)}"
            if name not in self._classes:
                yield _unknown("class", name, f"Consumer {consumer.consumer} has", consumer.consumer)
            if inventory is None:
                yield BrokenInvariant(
                    "no_inventory", consumer.consumer, f"{holds}, which has no inventory of it.", remedy
                )
            elif not (
                inventory.min_unit <= amount <= inventory.max_unit
                and amount % max(inventory.step_size, 1) == 0
            ):
                yield BrokenInvariant(
                    "outside_limits",
                    consumer.consumer,
                    f"{holds}, which allows {inventory.min_unit} to {inventory.max_unit} in steps of "
                    f"{inventory.step_size}.",
                    f"Change the inventory's limits, or claim again: PUT /allocations/{consumer.consumer}.",
                )

    def capacity(self) -> Iterator[BrokenInvariant]:
        for uuid, used in self._used.items():
            provider = self._providers.get(uuid)
            for name, amount in used.items():
                inventory = provider.inventories.get(name) if provider else None
                if provider is None or inventory is None or amount <= _capacity(inventory):
                    continue
                largest = ", ".join(self._largest(uuid, name))
                yield BrokenInvariant(
                    "over_capacity",
                    uuid,
                    f"{_name_and_uuid(provider)} has a capacity of {int(_capacity(inventory))} {name}; "
                    f"{counted(amount, 'is', 'are')} in use.",
                    f"Move or release consumers (the largest: {largest}), or raise the inventory.",
                )

    def _largest(self, provider: str, name: str) -> Iterator[str]:
        held = [
            (consumer.allocations[provider][name], uuid)
            for uuid, consumer in self._snapshot.consumers.items()
            if name in consumer.allocations.get(provider, {})
        ]
        for amount, uuid in sorted(held, reverse=True)[:_LARGEST_SHOWN]:
            yield f"{uuid} with {amount}"

    def usages(self, shown: Usages) -> Iterator[BrokenInvariant]:
        for uuid, amounts in shown.items():
            sums = self._used.get(uuid, {})
            for name in sorted({*amounts, *sums}):
                if amounts.get(name, 0) != sums.get(name, 0):
                    yield BrokenInvariant(
                        "usage_mismatch",
                        uuid,
                        f"Provider {uuid} shows that {amounts.get(name, 0)} {name} "
                        f"{'is' if amounts.get(name) == 1 else 'are'} in use, and the "
                        f"allocations of its consumers add up to {sums.get(name, 0)}.",
                        "Check again while no client writes; if it remains, compare GET "
                        f"/resource_providers/{uuid}/allocations with each consumer's GET /allocations/UUID.",
                    )

    def views(self, held: Mapping[str, Usages]) -> Iterator[BrokenInvariant]:
        for uuid, consumers in held.items():
            for consumer, amounts in consumers.items():
                own = self._snapshot.consumers.get(consumer)
                shown = {} if own is None else own.allocations.get(uuid, {})
                if dict(shown) != dict(amounts):
                    yield BrokenInvariant(
                        "views_differ",
                        consumer,
                        f"Provider {uuid} shows {_listed(amounts)} for consumer {consumer}, and the "
                        f"consumer itself shows {_listed(shown)}.",
                        f"Write its true allocations: PUT /allocations/{consumer}.",
                    )


def _wrong_numbers(inventory: Inventory) -> str:
    if inventory.reserved > inventory.total:
        return f"reserves {inventory.reserved} of {inventory.total}"
    if inventory.allocation_ratio < 0:
        return f"has the negative allocation ratio {inventory.allocation_ratio:g}"
    return ""


def _capacity(inventory: Inventory) -> float:
    """The capacity, not truncated, as Placement compares it."""
    return (inventory.total - inventory.reserved) * inventory.allocation_ratio


def _unknown(kind: str, name: str, whose: str, subject: str) -> BrokenInvariant:
    path, what = ("resource_classes", "resource class") if kind == "class" else ("traits", "trait")
    remedy = (
        f"Create it: PUT /{path}/{name}."
        if name.startswith("CUSTOM_")
        else f"Install an os-{path.replace('_', '-')} that has it, or remove it."
    )
    return BrokenInvariant(
        f"unknown_{kind}", subject, f"{whose} the {what} {name}, which is unknown.", remedy
    )


def _name_and_uuid(provider: Provider) -> str:
    return f"Provider {provider.name} ({provider.uuid})"


def _listed(amounts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}:{amount}" for name, amount in sorted(amounts.items())) or "nothing"
