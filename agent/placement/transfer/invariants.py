"""What must hold in a placement's content, and what to do where it does not. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import os_resource_classes
import os_traits

from agent.placement.client import ConsumerAllocations
from agent.placement.transfer.snapshot import PlacementSnapshot
from agent.shapes import Usages
from agent.tree import Inventory, Provider

STRAINED = frozenset({"over_capacity", "outside_limits"})
"""Findings that placement itself lets happen, where inventory was changed below what is in use."""

_LARGEST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class BrokenInvariant:
    """One broken invariant: its stable name, what it is about, what is wrong, and what to do."""

    name: str
    subject: str
    sentence: str
    remedy: str

    @property
    def strained(self) -> bool:
        """Whether placement accepts such a content; else it cannot even be written over its API."""
        return self.name in STRAINED

    def to_json(self) -> dict[str, str]:
        return {
            "name": self.name,
            "subject": self.subject,
            "sentence": self.sentence,
            "remedy": self.remedy,
        }


@dataclass(frozen=True, slots=True)
class ServiceEvidence:
    """What a service says besides its content, where it does: {provider: root} and {provider: usages}.

    `held` is what providers say of their consumers, {provider: {consumer: {class: amount}}}; `names` are the
    traits and resource classes that the service knows, standard ones of other releases among them.
    """

    roots: Mapping[str, str] = field(default_factory=dict)
    usages: Usages = field(default_factory=dict)
    held: Mapping[str, Usages] = field(default_factory=dict)
    names: frozenset[str] = frozenset()


def broken_invariants(
    content: PlacementSnapshot, evidence: ServiceEvidence | None = None
) -> tuple[BrokenInvariant, ...]:
    """Everything that is broken, providers first."""
    told = evidence or ServiceEvidence()
    check = _Check(content, told.names)
    return (
        *check.names(),
        *check.ancestry(told.roots),
        *check.providers(),
        *check.consumers(),
        *check.capacity(),
        *check.usages(told.usages),
        *check.views(told.held),
    )


class _Check:
    def __init__(self, content: PlacementSnapshot, names: frozenset[str]) -> None:
        self._content = content
        self._providers = content.providers
        self._used = content.usages()
        self._classes = content.resource_classes | names | frozenset(os_resource_classes.STANDARDS)
        self._traits = content.traits | names | frozenset(os_traits.get_traits())

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
                    f"{_called(provider)} hangs under {provider.parent}, which is not there.",
                    "Give it a parent that is there, or none: "
                    f"PUT /resource_providers/{provider.uuid} with parent_provider_uuid (1.37).",
                )
                continue
            root = self._root(provider)
            if root is None:
                yield BrokenInvariant(
                    "cycle",
                    provider.uuid,
                    f"{_called(provider)} is among its own ancestors, or below providers that are.",
                    f"Cut the ring: PUT /resource_providers/{provider.uuid} with parent_provider_uuid null "
                    "(1.37).",
                )
            elif roots.get(provider.uuid, root) != root:
                yield BrokenInvariant(
                    "wrong_root",
                    provider.uuid,
                    f"{_called(provider)} is said to be in the tree of {roots[provider.uuid]}, and its "
                    f"ancestors lead to {root}.",
                    f"Give it its parent again: PUT /resource_providers/{provider.uuid} with "
                    "parent_provider_uuid null, then with the parent (1.37).",
                )

    def _root(self, provider: Provider) -> str | None:
        """The last ancestor that is there; None where the ancestors never end."""
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
                    yield _unknown("class", name, f"{_called(provider)} offers", provider.uuid)
                wrong = _wrong_numbers(inventory)
                if wrong:
                    yield BrokenInvariant(
                        "impossible_inventory",
                        provider.uuid,
                        f"The inventory of {name} on {_called(provider)} {wrong}.",
                        f"Put it right: PUT /resource_providers/{provider.uuid}/inventories/{name}.",
                    )
            for trait in sorted(provider.traits - self._traits):
                yield _unknown("trait", trait, f"{_called(provider)} has", provider.uuid)

    def consumers(self) -> Iterator[BrokenInvariant]:
        for consumer in self._content.consumers.values():
            if not any(consumer.allocations.values()):
                yield BrokenInvariant(
                    "empty_consumer",
                    consumer.consumer,
                    f"Consumer {consumer.consumer} holds nothing, and bars its own first claim.",
                    f"Let it hold something with consumer_generation {consumer.generation}, then "
                    f"DELETE /allocations/{consumer.consumer}.",
                )
            for uuid, amounts in consumer.allocations.items():
                yield from self._allocation(consumer, uuid, amounts)

    def _allocation(
        self, consumer: ConsumerAllocations, uuid: str, amounts: Mapping[str, int]
    ) -> Iterator[BrokenInvariant]:
        provider = self._providers.get(uuid)
        drop = f"Write what consumer {consumer.consumer} really holds: PUT /allocations/{consumer.consumer}."
        if provider is None:
            yield BrokenInvariant(
                "orphan_allocation",
                consumer.consumer,
                f"Consumer {consumer.consumer} holds {_listed(amounts)} on {uuid}, which is no provider.",
                drop,
            )
            return
        for name, amount in amounts.items():
            inventory = provider.inventories.get(name)
            holds = f"Consumer {consumer.consumer} holds {amount} {name} on {_called(provider)}"
            if name not in self._classes:
                yield _unknown("class", name, f"Consumer {consumer.consumer} holds", consumer.consumer)
            if inventory is None:
                yield BrokenInvariant(
                    "no_inventory", consumer.consumer, f"{holds}, which offers none of it.", drop
                )
            elif not _admits(inventory, amount):
                yield BrokenInvariant(
                    "outside_limits",
                    consumer.consumer,
                    f"{holds}, which gives {inventory.min_unit} to {inventory.max_unit} in steps of "
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
                    f"{_called(provider)} can give {int(_capacity(inventory))} {name}; {amount} are in use.",
                    f"Move or release consumers (the largest: {largest}), or raise the inventory.",
                )

    def _largest(self, provider: str, name: str) -> Iterator[str]:
        held = [
            (consumer.allocations[provider][name], uuid)
            for uuid, consumer in self._content.consumers.items()
            if name in consumer.allocations.get(provider, {})
        ]
        for amount, uuid in sorted(held, reverse=True)[:_LARGEST_SHOWN]:
            yield f"{uuid} with {amount}"

    def usages(self, said: Usages) -> Iterator[BrokenInvariant]:
        for uuid, amounts in said.items():
            sums = self._used.get(uuid, {})
            for name in sorted({*amounts, *sums}):
                if amounts.get(name, 0) != sums.get(name, 0):
                    yield BrokenInvariant(
                        "usage_mismatch",
                        uuid,
                        f"Provider {uuid} says that {amounts.get(name, 0)} {name} are in use, and its "
                        f"consumers hold {sums.get(name, 0)}.",
                        "Check again when nobody writes; where it stays, compare GET "
                        f"/resource_providers/{uuid}/allocations with each consumer's GET /allocations/UUID.",
                    )

    def views(self, held: Mapping[str, Usages]) -> Iterator[BrokenInvariant]:
        for uuid, consumers in held.items():
            for consumer, amounts in consumers.items():
                own = self._content.consumers.get(consumer)
                says = {} if own is None else own.allocations.get(uuid, {})
                if dict(says) != dict(amounts):
                    yield BrokenInvariant(
                        "views_differ",
                        consumer,
                        f"Provider {uuid} says that consumer {consumer} holds {_listed(amounts)}, and the "
                        f"consumer says {_listed(says)}.",
                        f"Write what it really holds: PUT /allocations/{consumer}.",
                    )


def _wrong_numbers(inventory: Inventory) -> str:
    if inventory.reserved > inventory.total:
        return f"reserves {inventory.reserved} of {inventory.total}"
    if inventory.allocation_ratio < 0:
        return f"has the negative allocation ratio {inventory.allocation_ratio:g}"
    return ""


def _admits(inventory: Inventory, amount: int) -> bool:
    return inventory.min_unit <= amount <= inventory.max_unit and amount % max(inventory.step_size, 1) == 0


def _capacity(inventory: Inventory) -> float:
    """Not truncated: this is how placement compares."""
    return (inventory.total - inventory.reserved) * inventory.allocation_ratio


def _unknown(kind: str, name: str, whose: str, subject: str) -> BrokenInvariant:
    path, what = ("resource_classes", "resource class") if kind == "class" else ("traits", "trait")
    remedy = (
        f"Create it: PUT /{path}/{name}."
        if name.startswith("CUSTOM_")
        else f"Install an os-{path.replace('_', '-')} that knows it, or take it away."
    )
    return BrokenInvariant(
        f"unknown_{kind}", subject, f"{whose} the {what} {name}, which is not known.", remedy
    )


def _called(provider: Provider) -> str:
    return f"Provider {provider.name} ({provider.uuid})"


def _listed(amounts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}:{amount}" for name, amount in sorted(amounts.items())) or "nothing"
