"""Selects whole trees of a Placement service, and plans and does their removal.

To move a host to another Placement, its trees are imported and verified there first, and removed here last.
So at each moment at least one of the two services has the allocations.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from agent.errors import ImportRefused, UsageError, counted
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.transfer.snapshot import PlacementSnapshot, differences, foreign_consumers
from agent.tree import Provider, ProviderTree

CONSUMERS_AT_ONCE = 100
CHANGES_SHOWN_MAX = 5

_Value = TypeVar("_Value")


def select_trees(snapshot: PlacementSnapshot, roots: Iterable[str]) -> PlacementSnapshot:
    """The trees whose roots have these names or uuids, their consumers, and the custom names in use there.

    Raises UsageError where there is no such root, or where a consumer also has allocations in another tree:
    then the operator must name that root too.
    """
    tree = ProviderTree(snapshot.providers.values())
    providers = {
        provider.uuid: provider for root in roots for provider in tree.subtree(_root(tree, root).uuid)
    }
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


@dataclass(frozen=True, slots=True)
class RemovalPlan:
    """The writes of a removal: `consumers`, empty, with their generations, then `providers`, in order."""

    consumers: tuple[ConsumerAllocations, ...]
    providers: tuple[Provider, ...]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.consumers and not self.providers

    def lines(self) -> Iterator[str]:
        """A sentence for each write."""
        for consumer in self.consumers:
            yield f"Delete the allocations of consumer {consumer.consumer}."
        for provider in self.providers:
            yield f"Delete the provider {provider.name} ({provider.uuid})."


def plan_removal(unwanted: PlacementSnapshot, present: PlacementSnapshot) -> RemovalPlan:
    """The writes that remove the records of `unwanted` that a service with the records `present` still has.

    Raises ImportRefused where the service changed since `unwanted` was exported: then the import does not
    have the changes, and to remove them would lose them.
    """
    changes = [difference.line() for difference in differences(_still_present(unwanted, present), present)]
    changes += [
        f"consumer {uuid}: has allocations there, and is not in the document"
        for uuid in foreign_consumers(unwanted, present)
    ]
    changes += [
        f"provider {provider.name} ({provider.uuid}): is a child there, and is not in the document"
        for provider in present.providers.values()
        if provider.parent in unwanted.providers and provider.uuid not in unwanted.providers
    ]
    if changes:
        more = len(changes) - CHANGES_SHOWN_MAX
        raise ImportRefused(
            f"The Placement differs from the document in {counted(len(changes), 'place')}: "
            f"{'; '.join(changes[:CHANGES_SHOWN_MAX])}{f'; and {more} more' if more > 0 else ''}. Nothing "
            "was removed; export and import again.",
            conflicts=changes,
        )
    tree = ProviderTree(present.providers.values())
    return RemovalPlan(
        tuple(
            replace(consumer, allocations={})
            for uuid, consumer in present.consumers.items()
            if uuid in unwanted.consumers
        ),
        tuple(provider for provider in tree.bottom_up() if provider.uuid in unwanted.providers),
    )


def apply_removal(client: PlacementClient, removal: RemovalPlan) -> None:
    """Write the plan. Raises what the client raises; the next removal does the rest."""
    for start in range(0, len(removal.consumers), CONSUMERS_AT_ONCE):
        client.write_allocations(*removal.consumers[start : start + CONSUMERS_AT_ONCE])
    for provider in removal.providers:
        client.delete_provider(provider.uuid)


def _still_present(unwanted: PlacementSnapshot, present: PlacementSnapshot) -> PlacementSnapshot:
    return PlacementSnapshot(
        _only(unwanted.providers, present.providers), _only(unwanted.consumers, present.consumers)
    )


def _only(values: Mapping[str, _Value], among: Mapping[str, object]) -> dict[str, _Value]:
    return {uuid: value for uuid, value in values.items() if uuid in among}


def _root(tree: ProviderTree, name_or_uuid: str) -> Provider:
    provider = tree.get(name_or_uuid) or tree.by_name(name_or_uuid)
    if provider is None or provider.parent is not None:
        raise UsageError(f"There is no root provider {name_or_uuid!r} in this placement.")
    return provider
