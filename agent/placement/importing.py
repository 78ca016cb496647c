"""Brings a content into a placement service, over its API: plan, apply, verify.

A plan has three stages, each of which may be cut off and planned again: providers, with inventories as wide
as what is held on them needs; consumers, some at a time, all or none of them; then the inventories as they
shall be. Only a strained content (more in use than there is) needs the third: placement lets inventory shrink
below its use, but lets nobody claim beyond it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent.apply import apply
from agent.errors import ImportRefused, UsageError
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.content import CUSTOM, UNTYPED, Content, Difference, differences, same_consumer
from agent.placement.invariants import findings
from agent.plan import CreateResourceClass, CreateTrait, Operation, Plan, plan
from agent.tree import Inventory, Provider, ProviderTree

CONSUMERS_AT_ONCE = 100
UNTYPED_MICROVERSION = "1.37"
"""The newest in which a consumer can be written without a type."""

_CREATED = ("unknown_class", "unknown_trait")
_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """What to write, in the order of the stages. `consumers` carry the generations that are written over."""

    current: ProviderTree
    offer: Plan
    consumers: tuple[ConsumerAllocations, ...]
    settle: Plan

    @property
    def empty(self) -> bool:
        return self.offer.empty and not self.consumers and self.settle.empty

    def lines(self) -> Iterator[str]:
        yield from self.offer.lines()
        for consumer in self.consumers:
            yield f"Write the allocations of consumer {consumer.consumer}: {_held(consumer)}."
        yield from self.settle.lines()

    def to_json(self) -> dict[str, Any]:
        return {
            "offer": self.offer.to_json(),
            "consumers": [consumer.consumer for consumer in self.consumers],
            "settle": self.settle.to_json(),
        }


def plan_import(
    wanted: Content, found: Content, names: frozenset[str], *, overwrite: bool = False
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
        _refuse_conflicts(differences(wanted, found))
    consumers = tuple(_pending(wanted, found))
    current = ProviderTree(found.providers.values())
    desired = ProviderTree({**found.providers, **wanted.providers}.values())
    strained = _room(wanted, found, consumers)
    roomy = ProviderTree(
        replace(each, inventories=strained.get(each.uuid, each.inventories)) for each in desired
    )
    return ImportPlan(
        current,
        Plan((*_names_first(wanted, found), *_without_names(plan(current, roomy)))),
        consumers,
        Plan(tuple(_without_names(plan(roomy, desired)))),
    )


def apply_import(client: PlacementClient, untyped: PlacementClient, wanted: ImportPlan) -> None:
    """Write the plan. `untyped` speaks UNTYPED_MICROVERSION, for consumers that have no type.

    Raises what the client raises; what was written before that stays, and the next import goes on from there.
    """
    tree = apply(wanted.offer, client, wanted.current)
    for group in _groups(each for each in wanted.consumers if each.consumer_type != UNTYPED):
        client.write_allocations(*group)
    for group in _groups(each for each in wanted.consumers if each.consumer_type == UNTYPED):
        untyped.write_allocations(*group)
    apply(wanted.settle, client, tree)


def _refuse_broken(wanted: Content) -> None:
    broken = [each for each in findings(wanted) if not each.strained and each.name not in _CREATED]
    if broken:
        raise UsageError(
            f"The document is broken in {len(broken)} places, and no placement takes it: "
            f"{_some(finding.sentence for finding in broken)} `plimsoll placement check` shows all, with "
            "remedies.",
            findings=[finding.to_json() for finding in broken],
        )


def _refuse_unknown(wanted: Content, names: frozenset[str]) -> None:
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


def _refuse_taken_names(wanted: Content, found: Content) -> None:
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


def _pending(wanted: Content, found: Content) -> Iterator[ConsumerAllocations]:
    for uuid, consumer in wanted.consumers.items():
        present = found.consumers.get(uuid)
        if present is None:
            yield replace(consumer, generation=None)
        elif not same_consumer(consumer, present):
            yield replace(consumer, generation=present.generation)


def _room(
    wanted: Content, found: Content, pending: Iterable[ConsumerAllocations]
) -> dict[str, Mapping[str, Inventory]]:
    """{provider: inventories} for providers that are too narrow for what is to be written there."""
    merged = Content.of(
        {**found.providers, **wanted.providers}.values(), {**found.consumers, **wanted.consumers}.values()
    )
    used = merged.usages()
    touched = {uuid for consumer in pending for uuid in consumer.allocations}
    narrow: dict[str, set[str]] = {}
    for uuid in touched & used.keys():
        provider = merged.providers[uuid]
        for name, amount in used[uuid].items():
            inventory = provider.inventories.get(name)
            if inventory and amount > (inventory.total - inventory.reserved) * inventory.allocation_ratio:
                narrow.setdefault(uuid, set()).add(name)
    for consumer in pending:
        for uuid, amounts in consumer.allocations.items():
            for name, amount in amounts.items():
                inventory = merged.providers[uuid].inventories[name]
                if not inventory.min_unit <= amount <= inventory.max_unit or amount % inventory.step_size:
                    narrow.setdefault(uuid, set()).add(name)
    return {uuid: _widened(merged.providers[uuid], names, used[uuid]) for uuid, names in narrow.items()}


def _widened(provider: Provider, names: set[str], used: Mapping[str, int]) -> dict[str, Inventory]:
    return {
        name: Inventory(inventory.total, allocation_ratio=max(1.0, 2.0 * used[name] / inventory.total))
        if name in names
        else inventory
        for name, inventory in provider.inventories.items()
    }


def _names_first(wanted: Content, found: Content) -> Iterator[Operation]:
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


def _groups(consumers: Iterable[ConsumerAllocations]) -> Iterator[list[ConsumerAllocations]]:
    waiting = list(consumers)
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
