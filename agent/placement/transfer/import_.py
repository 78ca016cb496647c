"""Brings a content into a placement service, over its API: plan, apply, verify.

A plan has three stages, each of which may be cut off anywhere and planned again: providers, which offer
nothing yet; consumers, some at a time, each time in one request with inventories that are exactly as large as
what is held on them then; and at last the inventories as they shall be. So nobody else can get what is held
already, and a content in which more is in use than there is comes in like any other.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent.errors import ImportRefused, PlacementError, UsageError
from agent.placement.apply import apply
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.transfer.invariants import broken_invariants
from agent.placement.transfer.snapshot import (
    CUSTOM,
    UNTYPED,
    Difference,
    PlacementSnapshot,
    differences,
    same_consumer,
)
from agent.providers.plan import CreateResourceClass, CreateTrait, Operation, Plan, plan, same_inventories
from agent.tree import InventoriesByProvider, Inventory, ProviderTree

CONSUMERS_AT_ONCE = 50
FORBIDDEN = 403
UNTYPED_MICROVERSION = "1.37"
"""The newest in which a consumer can be written without a type."""

_CREATED = ("unknown_class", "unknown_trait")
_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class ImportStep:
    """Consumers, with the generations that are written over, and inventories that are full with them."""

    full: InventoriesByProvider
    consumers: tuple[ConsumerAllocations, ...]


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """What to write, in the order of the stages."""

    current: ProviderTree
    build: Plan
    steps: tuple[ImportStep, ...]
    offer: Plan

    @property
    def consumers(self) -> tuple[ConsumerAllocations, ...]:
        return tuple(consumer for step in self.steps for consumer in step.consumers)

    @property
    def operations(self) -> int:
        """How many writes of providers there are."""
        return len(self.build.operations) + len(self.offer.operations)

    @property
    def empty(self) -> bool:
        return self.build.empty and not self.steps and self.offer.empty

    def lines(self) -> Iterator[str]:
        yield from self.build.lines()
        for consumer in self.consumers:
            yield f"Write the allocations of consumer {consumer.consumer}: {_held(consumer)}."
        yield from self.offer.lines()

    def to_json(self) -> dict[str, Any]:
        return {
            "build": self.build.to_json(),
            "consumers": [consumer.consumer for consumer in self.consumers],
            "offer": self.offer.to_json(),
        }


def plan_import(
    wanted: PlacementSnapshot, found: PlacementSnapshot, names: frozenset[str], *, overwrite: bool = False
) -> ImportPlan:
    """What to write so that a service that holds `found` says everything that `wanted` says. Pure.

    `names` are all traits and resource classes that the service knows. What it holds beyond `wanted` stays.
    Raises UsageError where `wanted` is broken in a way that no service takes, ImportRefused where the service
    holds something else in the place of what is wanted and `overwrite` is not given, or lacks names.
    """
    _refuse_broken(wanted)
    _refuse_unknown(wanted, names)
    _refuse_taken_names(wanted, found)
    if not overwrite:
        _refuse_conflicts(differences(wanted, _without_full(found)))
    current = ProviderTree(found.providers.values())
    desired = ProviderTree({**found.providers, **wanted.providers}.values())
    built = _with_inventories(desired, {each.uuid: each.inventories for each in current}, {})
    steps = tuple(_steps(wanted, found))
    filled = _with_inventories(built, {uuid: full for step in steps for uuid, full in step.full.items()})
    return ImportPlan(
        current,
        Plan((*_names_first(wanted, found), *_without_names(plan(current, built)))),
        steps,
        Plan(tuple(_without_names(plan(filled, desired)))),
    )


def apply_import(client: PlacementClient, untyped: PlacementClient, wanted: ImportPlan) -> None:
    """Write the plan. `untyped` speaks UNTYPED_MICROVERSION, for consumers that have no type.

    Raises what the client raises; what was written before that stays, and the next import goes on from there.
    """
    tree = apply(wanted.build, client, wanted.current)
    for step in wanted.steps:
        _write(untyped if step.consumers[0].consumer_type == UNTYPED else client, tree, step)
        roots = {tree.root_of(uuid).uuid for uuid in step.full}
        generations = {uuid: now for root in roots for uuid, now in client.generations(root).items()}
        tree = ProviderTree(
            replace(each, generation=generations.get(each.uuid, each.generation))
            for each in _with_inventories(tree, step.full)
        )
    apply(wanted.offer, client, tree)


def _write(client: PlacementClient, tree: ProviderTree, step: ImportStep) -> None:
    """In one request; in several where the service keeps that one from us (role `service`): then somebody
    else could be faster in between, and the consumers would not fit any more.
    """
    offers = {uuid: (tree[uuid].generation or 0, full) for uuid, full in step.full.items()}
    try:
        client.reshape(offers, *step.consumers)
    except PlacementError as error:
        if error.status != FORBIDDEN:
            raise
        for uuid, (generation, full) in offers.items():
            client.put_inventories(uuid, generation, {**tree[uuid].inventories, **full})
        client.write_allocations(*step.consumers)


def _refuse_broken(wanted: PlacementSnapshot) -> None:
    broken = [each for each in broken_invariants(wanted) if not each.strained and each.name not in _CREATED]
    if broken:
        raise UsageError(
            f"The document is broken in {len(broken)} places, and no placement takes it: "
            f"{_some(finding.sentence for finding in broken)} `plimsoll placement check` shows all, with "
            "remedies.",
            findings=[finding.to_json() for finding in broken],
        )


def _refuse_unknown(wanted: PlacementSnapshot, names: frozenset[str]) -> None:
    used = {
        name
        for provider in wanted.providers.values()
        for name in (*provider.traits, *provider.inventories)
        if not name.startswith(CUSTOM)
    }
    unknown = sorted(used - names)
    if unknown:
        raise ImportRefused(
            f"The target does not know {_some(unknown)}: its os-traits or os-resource-classes are older than "
            "the source's. Upgrade those there, or take the names out of the document.",
            conflicts=unknown,
        )


def _refuse_taken_names(wanted: PlacementSnapshot, found: PlacementSnapshot) -> None:
    holders = {provider.name: provider.uuid for provider in found.providers.values()}
    taken = [
        f"{provider.name} is {holders[provider.name]}, not {provider.uuid}"
        for provider in wanted.providers.values()
        if provider.name in holders
        and holders[provider.name] != provider.uuid
        and holders[provider.name] not in wanted.providers
    ]
    if taken:
        raise ImportRefused(
            f"The target has other providers with names of the document: {_some(taken)}. Rename or delete "
            "those there, or rename the ones here.",
            conflicts=taken,
        )


def _refuse_conflicts(between: Iterable[Difference]) -> None:
    conflicts = [each for each in between if not each.missing and not _may_complete(each)]
    if conflicts:
        raise ImportRefused(
            f"The target holds something else in {len(conflicts)} places: "
            f"{_some(each.line() for each in conflicts)}. Nothing was written; --overwrite makes the "
            "target say what the document says.",
            conflicts=[each.to_json() for each in conflicts],
        )


def _may_complete(difference: Difference) -> bool:
    """Whether it is a provider without contents, as an import that was cut off leaves one."""
    return difference.aspect in ("traits", "aggregates", "inventories") and not difference.found


def _pending(wanted: PlacementSnapshot, found: PlacementSnapshot) -> Iterator[ConsumerAllocations]:
    for uuid, consumer in wanted.consumers.items():
        present = found.consumers.get(uuid)
        if present is None:
            yield replace(consumer, generation=None)
        elif not same_consumer(consumer, present):
            yield replace(consumer, generation=present.generation)


def _steps(wanted: PlacementSnapshot, found: PlacementSnapshot) -> Iterator[ImportStep]:
    """All that is to be written of consumers; those with a type and those without are not mixed."""
    pending = list(_pending(wanted, found))
    held = dict(found.consumers)
    for group in _groups(pending):
        before = [found.consumers[each.consumer] for each in group if each.consumer in found.consumers]
        held |= {each.consumer: each for each in group}
        used = PlacementSnapshot(consumers=held).usages()
        touched = {uuid for each in (*group, *before) for uuid in each.allocations} & wanted.providers.keys()
        yield ImportStep({uuid: _full(used.get(uuid, {})) for uuid in sorted(touched)}, tuple(group))


def _full(used: Mapping[str, int]) -> dict[str, Inventory]:
    """The inventories of a provider of which just as much is in use as there is."""
    return {name: Inventory(amount) for name, amount in used.items()}


def _without_full(found: PlacementSnapshot) -> PlacementSnapshot:
    """The same without the inventories that an import which was cut off left behind."""
    used = found.usages()
    return replace(
        found,
        providers={
            uuid: replace(each, inventories={})
            if same_inventories(each.inventories, _full(used.get(uuid, {})))
            else each
            for uuid, each in found.providers.items()
        },
    )


def _with_inventories(
    tree: ProviderTree, known: InventoriesByProvider, other: Mapping[str, Inventory] | None = None
) -> ProviderTree:
    """The tree with the inventories in `known`, and with `other` for the rest, None: as they are."""
    return ProviderTree(
        replace(each, inventories=known.get(each.uuid, each.inventories if other is None else other))
        for each in tree
    )


def _names_first(wanted: PlacementSnapshot, found: PlacementSnapshot) -> Iterator[Operation]:
    classes = {
        name for each in wanted.providers.values() for name in each.inventories if name.startswith(CUSTOM)
    }
    traits = {name for each in wanted.providers.values() for name in each.traits if name.startswith(CUSTOM)}
    yield from (
        CreateResourceClass(n) for n in sorted((classes | wanted.resource_classes) - found.resource_classes)
    )
    yield from (CreateTrait(name) for name in sorted((traits | wanted.traits) - found.traits))


def _without_names(found: Plan) -> Iterator[Operation]:
    return (each for each in found.operations if not isinstance(each, CreateResourceClass | CreateTrait))


def _groups(consumers: list[ConsumerAllocations]) -> Iterator[list[ConsumerAllocations]]:
    for untyped in (False, True):
        waiting = [each for each in consumers if (each.consumer_type == UNTYPED) is untyped]
        for start in range(0, len(waiting), CONSUMERS_AT_ONCE):
            yield waiting[start : start + CONSUMERS_AT_ONCE]


def _held(consumer: ConsumerAllocations) -> str:
    return "; ".join(
        ", ".join(f"{name} {amount}" for name, amount in sorted(amounts.items())) + f" on {provider}"
        for provider, amounts in consumer.allocations.items()
    )


def _some(things: Iterable[str]) -> str:
    """The first few, and how many more there are."""
    every = list(things)
    more = len(every) - _SHOWN_MAX
    return "; ".join(every[:_SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")
