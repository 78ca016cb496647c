"""Records of a Placement service as values: their differences, document, and invariants. Pure.

The export document is a snapshot as JSON (docs/placement-export.md describes the format). The same snapshot
always gives the same text: records are ordered by uuid or name. Each broken invariant comes with its remedy.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import os_resource_classes
import os_traits

from agent.errors import UsageError, counted
from agent.json_checks import below, fault, read_list, read_object, read_text, read_uuid, read_whole
from agent.placement.client import UNTYPED, ConsumerAllocations
from agent.providers.plan import CUSTOM, same_inventories
from agent.shapes import Usages, total
from agent.tree import MAX_UNIT, Inventory, Provider, ProviderTree

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class PlacementSnapshot:
    """Providers and consumers by uuid, in the order of their uuids, and the custom traits and classes.

    A snapshot may be inconsistent: `broken_invariants` checks it.
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
            dict(sorted({provider.uuid: provider for provider in providers}.items())),
            dict(sorted({consumer.consumer: consumer for consumer in consumers}.items())),
            frozenset(traits),
            frozenset(resource_classes),
        )

    def usages(self) -> Usages:
        """{provider uuid: {resource class: sum of the allocations}}, without zeros."""
        return total(consumer.allocations for consumer in self.consumers.values())

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
    found = [
        *(
            Difference("resource class", name, "", name, None)
            for name in sorted(wanted.resource_classes - present.resource_classes)
        ),
        *(Difference("trait", name, "", name, None) for name in sorted(wanted.traits - present.traits)),
    ]
    aspects: tuple[tuple[str, Any, Any], ...]
    for provider in wanted.providers.values():
        key, there = f"{provider.name} ({provider.uuid})", present.providers.get(provider.uuid)
        if there is None:
            found.append(Difference("provider", key, "", provider.uuid, None))
            continue
        aspects = (
            ("name", provider.name, there.name),
            ("parent", provider.parent, there.parent),
            ("traits", sorted(provider.traits), sorted(there.traits)),
            ("aggregates", sorted(provider.aggregates), sorted(there.aggregates)),
        )
        if not same_inventories(provider.inventories, there.inventories):
            aspects += (("inventories", _inventories_json(provider), _inventories_json(there)),)
        found += [Difference("provider", key, name, one, two) for name, one, two in aspects if one != two]
    for consumer in wanted.consumers.values():
        uuid, other = consumer.consumer, present.consumers.get(consumer.consumer)
        if other is None:
            found.append(Difference("consumer", uuid, "", uuid, None))
            continue
        aspects = tuple(
            (name, getattr(consumer, name), getattr(other, name))
            for name in ("project_id", "user_id", "consumer_type", "allocations")
        )
        found += [Difference("consumer", uuid, name, one, two) for name, one, two in aspects if one != two]
    return tuple(found)


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


def _inventories_json(provider: Provider) -> dict[str, Any]:
    return {name: inventory.to_json() for name, inventory in sorted(provider.inventories.items())}


def select_trees(snapshot: PlacementSnapshot, roots: Iterable[str]) -> PlacementSnapshot:
    """The trees whose roots have these names or uuids, their consumers, and the custom names in use there.

    Raises UsageError where there is no such root, or where a consumer also has allocations in another tree:
    then the operator must name that root too.
    """
    tree = ProviderTree(snapshot.providers.values())
    providers: dict[str, Provider] = {}
    for name_or_uuid in roots:
        root = tree.get(name_or_uuid) or tree.by_name(name_or_uuid)
        if root is None or root.parent is not None:
            raise UsageError(f"There is no root provider {name_or_uuid!r} in this placement.")
        providers |= {provider.uuid: provider for provider in tree.subtree(root.uuid)}
    consumers = [
        consumer for consumer in snapshot.consumers.values() if providers.keys() & consumer.allocations.keys()
    ]
    outside = sorted(
        {
            tree.root_of(uuid).name
            for consumer in consumers
            for uuid in consumer.allocations
            if uuid not in providers
        }
    )
    if outside:
        raise UsageError(
            f"Consumers of these trees also have allocations on {', '.join(outside)}: name that root, too.",
            roots=outside,
        )
    traits = {name for provider in providers.values() for name in provider.traits}
    classes = {name for provider in providers.values() for name in provider.inventories}
    return PlacementSnapshot.of(
        providers.values(), consumers, snapshot.traits & traits, snapshot.resource_classes & classes
    )


# The export document

FORMAT = "plimsoll-placement"
VERSION = 1

_NAME = re.compile(r"[A-Z0-9_]+")
_CUSTOM_NAME = re.compile(r"CUSTOM_[A-Z0-9_]+")
_NAME_MAX = 200
_RATIO_MAX = 3.40282e38
_TOP = ("format", "version", "resource_classes", "traits", "resource_providers", "consumers")
_PROVIDER = (
    "uuid",
    "name",
    "parent_provider_uuid",
    "generation",
    "inventories",
    "traits",
    "aggregates",
)
_INVENTORY = ("total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio")
_CONSUMER = ("uuid", "project_id", "user_id", "consumer_type", "generation", "allocations")


def to_document(snapshot: PlacementSnapshot) -> dict[str, Any]:
    """The document as a JSON-ready object."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "resource_classes": sorted(snapshot.resource_classes),
        "traits": sorted(snapshot.traits),
        "resource_providers": [
            {
                "uuid": provider.uuid,
                "name": provider.name,
                "parent_provider_uuid": provider.parent,
                "generation": provider.generation,
                "inventories": _inventories_json(provider),
                "traits": sorted(provider.traits),
                "aggregates": sorted(provider.aggregates),
            }
            for provider in snapshot.providers.values()
        ],
        "consumers": [
            {
                "uuid": consumer.consumer,
                "project_id": consumer.project_id,
                "user_id": consumer.user_id,
                "consumer_type": None if consumer.consumer_type == UNTYPED else consumer.consumer_type,
                "generation": consumer.generation,
                "allocations": {
                    provider: dict(sorted(amounts.items()))
                    for provider, amounts in sorted(consumer.allocations.items())
                },
            }
            for consumer in snapshot.consumers.values()
        ],
    }


def to_text(snapshot: PlacementSnapshot) -> str:
    """The document as text."""
    return json.dumps(to_document(snapshot), indent=1, ensure_ascii=False) + "\n"


def from_text(text: str) -> PlacementSnapshot:
    """The snapshot in the text of a document. Raises UsageError, with the place, for an invalid one."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"This is no export document: it is not JSON ({error}).") from error
    return from_document(document)


def from_document(document: object) -> PlacementSnapshot:
    """The snapshot in a parsed document. Raises UsageError, with the place, for an invalid one."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(f"This is no export document: its format is not {FORMAT!r}.")
    if document.get("version") != VERSION:
        raise UsageError(
            f"This export document has version {document.get('version')!r}, and this plimsoll reads "
            f"version {VERSION}: use the plimsoll that wrote the document, or a newer one."
        )
    top = _complete_object(document, "", _TOP)
    return PlacementSnapshot.of(
        _distinct(
            [_read_provider(*item) for item in _items(top, "resource_providers")], "resource_providers"
        ),
        _distinct([_read_consumer(*item) for item in _items(top, "consumers")], "consumers"),
        _names(top["traits"], "traits", _CUSTOM_NAME),
        _names(top["resource_classes"], "resource_classes", _CUSTOM_NAME),
    )


def _read_provider(value: object, path: str) -> Provider:
    record = _complete_object(value, path, _PROVIDER)
    parent = record["parent_provider_uuid"]
    return Provider(
        uuid=_uuid(record["uuid"], f"{path}.uuid"),
        name=_text(record["name"], f"{path}.name", _NAME_MAX),
        parent=None if parent is None else _uuid(parent, f"{path}.parent_provider_uuid"),
        inventories={
            _class_name(name, f"{path}.inventories"): _inventory(inventory, f"{path}.inventories.{name}")
            for name, inventory in read_object(record["inventories"], f"{path}.inventories").items()
        },
        traits=_names(record["traits"], f"{path}.traits", _NAME),
        aggregates=frozenset(
            _uuid(aggregate, f"{path}.aggregates[{index}]")
            for index, aggregate in enumerate(read_list(record["aggregates"], f"{path}.aggregates"))
        ),
        generation=_generation(record["generation"], f"{path}.generation"),
    )


def _inventory(value: object, path: str) -> Inventory:
    record = _complete_object(value, path, _INVENTORY)
    ratio = record["allocation_ratio"]
    if not isinstance(ratio, int | float) or isinstance(ratio, bool) or not 0 <= ratio <= _RATIO_MAX:
        raise fault(f"{path}.allocation_ratio", "a number from 0 on", ratio)
    least = {"total": 1, "reserved": 0, "min_unit": 1, "max_unit": 1, "step_size": 1}
    whole = {name: read_whole(record[name], f"{path}.{name}", low, MAX_UNIT) for name, low in least.items()}
    return Inventory(**whole, allocation_ratio=float(ratio))


def _read_consumer(value: object, path: str) -> ConsumerAllocations:
    record = _complete_object(value, path, _CONSUMER)
    consumer_type = record["consumer_type"]
    allocations = read_object(record["allocations"], f"{path}.allocations")
    return ConsumerAllocations(
        consumer=_uuid(record["uuid"], f"{path}.uuid"),
        allocations={
            _uuid(provider, f"{path}.allocations"): {
                _class_name(name, where): read_whole(amount, f"{where}.{name}", 1, MAX_UNIT)
                for name, amount in read_object(amounts, where).items()
            }
            for provider, amounts in allocations.items()
            for where in (f"{path}.allocations.{provider}",)
        },
        generation=_generation(record["generation"], f"{path}.generation"),
        project_id=_text(record["project_id"], f"{path}.project_id"),
        user_id=_text(record["user_id"], f"{path}.user_id"),
        consumer_type=UNTYPED
        if consumer_type is None
        else _class_name(consumer_type, f"{path}.consumer_type"),
    )


def _items(top: Mapping[str, Any], key: str) -> list[tuple[object, str]]:
    return [(value, f"{key}[{index}]") for index, value in enumerate(read_list(top[key], key))]


def _distinct(values: list[Any], path: str) -> list[Any]:
    """The values, unchanged. Raises UsageError where two have the same uuid."""
    seen: dict[str, int] = {}
    for index, value in enumerate(values):
        uuid = value.consumer if isinstance(value, ConsumerAllocations) else value.uuid
        if uuid in seen:
            raise UsageError(
                f"{path}[{index}].uuid: {path}[{seen[uuid]}] has the uuid {uuid} too.", path=path
            )
        seen[uuid] = index
    return values


def _complete_object(value: object, path: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    """An object with exactly these keys."""
    record = read_object(value, path, keys)
    for key in keys:
        if key not in record:
            raise UsageError(f"{below(path, key)}: missing.", path=below(path, key))
    return record


def _names(value: object, path: str, pattern: re.Pattern[str]) -> frozenset[str]:
    return frozenset(
        read_text(name, f"{path}[{index}]", pattern, f"a name like {pattern.pattern}")
        for index, name in enumerate(read_list(value, path))
    )


def _class_name(value: object, path: str) -> str:
    return read_text(value, path, _NAME, f"a name like {_NAME.pattern}")


def _uuid(value: object, path: str) -> str:
    """The uuid, unchanged: Placement compares some uuids as text."""
    read_uuid(value, path)
    return str(value)


def _text(value: object, path: str, longest: int = 255) -> str:
    text = read_text(value, path, wanted=f"a text of 1 to {longest} characters", longest=longest)
    if not text:
        raise fault(path, f"a text of 1 to {longest} characters", value)
    return text


def _generation(value: object, path: str) -> int | None:
    return None if value is None else read_whole(value, path, 0, 2**63 - 1)


# Invariants

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
        return asdict(self)


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
                wrong = ""
                if inventory.reserved > inventory.total:
                    wrong = f"reserves {inventory.reserved} of {inventory.total}"
                elif inventory.allocation_ratio < 0:
                    wrong = f"has the negative allocation ratio {inventory.allocation_ratio:g}"
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
                provider = self._providers.get(uuid)
                remedy = f"Write the true allocations of the consumer: PUT /allocations/{consumer.consumer}."
                if provider is None:
                    yield BrokenInvariant(
                        "orphan_allocation",
                        consumer.consumer,
                        f"Consumer {consumer.consumer} has {_listed(amounts)} on {uuid}, which does not "
                        "exist.",
                        remedy,
                    )
                    continue
                for name, amount in amounts.items():
                    inventory = provider.inventories.get(name)
                    holds = f"Consumer {consumer.consumer} has {amount} {name} on {_name_and_uuid(provider)}"
                    if name not in self._classes:
                        yield _unknown("class", name, f"Consumer {consumer.consumer} has", consumer.consumer)
                    if inventory is None:
                        yield BrokenInvariant(
                            "no_inventory",
                            consumer.consumer,
                            f"{holds}, which has no inventory of it.",
                            remedy,
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
                            "Change the inventory's limits, or claim again: PUT "
                            f"/allocations/{consumer.consumer}.",
                        )

    def capacity(self) -> Iterator[BrokenInvariant]:
        for uuid, used in self._used.items():
            provider = self._providers.get(uuid)
            for name, amount in used.items():
                inventory = provider.inventories.get(name) if provider else None
                if provider is None or inventory is None:
                    continue
                # Not truncated, as Placement compares it.
                capacity = (inventory.total - inventory.reserved) * inventory.allocation_ratio
                if amount <= capacity:
                    continue
                holders = [
                    (consumer.allocations[uuid][name], holder)
                    for holder, consumer in self._snapshot.consumers.items()
                    if name in consumer.allocations.get(uuid, {})
                ]
                shown = sorted(holders, reverse=True)[:_LARGEST_SHOWN]
                largest = ", ".join(f"{holder} with {held}" for held, holder in shown)
                yield BrokenInvariant(
                    "over_capacity",
                    uuid,
                    f"{_name_and_uuid(provider)} has a capacity of {int(capacity)} {name}; "
                    f"{counted(amount, 'is', 'are')} in use.",
                    f"Move or release consumers (the largest: {largest}), or raise the inventory.",
                )

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


def _unknown(kind: str, name: str, whose: str, subject: str) -> BrokenInvariant:
    path, what = ("resource_classes", "resource class") if kind == "class" else ("traits", "trait")
    remedy = (
        f"Create it: PUT /{path}/{name}."
        if name.startswith(CUSTOM)
        else f"Install an os-{path.replace('_', '-')} that has it, or remove it."
    )
    return BrokenInvariant(
        f"unknown_{kind}", subject, f"{whose} the {what} {name}, which is unknown.", remedy
    )


def _name_and_uuid(provider: Provider) -> str:
    return f"Provider {provider.name} ({provider.uuid})"


def _listed(amounts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}:{amount}" for name, amount in sorted(amounts.items())) or "nothing"
