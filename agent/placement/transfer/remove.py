"""A part of what a placement holds, to be carried away, and what it takes to take that part out. Pure.

A part is whole trees with all that is held on them. A host that goes from one placement to another is first
brought into the other one, verified there, and only then taken out of the first: at each moment one of them,
or both, say who owns what.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from agent.errors import ImportRefused, UsageError
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.transfer.snapshot import PlacementSnapshot, differences, foreign_consumers
from agent.tree import Provider, ProviderTree

CONSUMERS_AT_ONCE = 100
NAMED_MAX = 5

_Value = TypeVar("_Value")


def select_trees(content: PlacementSnapshot, roots: Iterable[str]) -> PlacementSnapshot:
    """The trees whose root has that name or uuid, who holds something there, and the custom names used there.

    Raises UsageError where there is no such root, or somebody holds something inside and outside at once:
    then the other tree must be named, too.
    """
    tree = ProviderTree(content.providers.values())
    found = {provider.uuid: provider for root in roots for provider in tree.subtree(_root(tree, root).uuid)}
    consumers = [each for each in content.consumers.values() if found.keys() & each.allocations.keys()]
    outside = sorted(
        {tree.root_of(uuid).name for each in consumers for uuid in each.allocations if uuid not in found}
    )
    if outside:
        raise UsageError(
            f"What is held in this part is held together with something on {', '.join(outside)}: name "
            "that root, too.",
            roots=outside,
        )
    traits = {name for provider in found.values() for name in provider.traits}
    classes = {name for provider in found.values() for name in provider.inventories}
    return PlacementSnapshot.of(
        found.values(), consumers, content.traits & traits, content.resource_classes & classes
    )


@dataclass(frozen=True, slots=True)
class RemovalPlan:
    """`consumers` are to be written, empty, with the generations they have; `providers` deleted in order."""

    consumers: tuple[ConsumerAllocations, ...]
    providers: tuple[Provider, ...]

    @property
    def empty(self) -> bool:
        return not self.consumers and not self.providers

    def lines(self) -> Iterator[str]:
        for consumer in self.consumers:
            yield f"Take away what consumer {consumer.consumer} holds."
        for provider in self.providers:
            yield f"Delete the provider {provider.name} ({provider.uuid})."


def plan_removal(unwanted: PlacementSnapshot, found: PlacementSnapshot) -> RemovalPlan:
    """How to take out of a placement that holds `found` all that `unwanted` says, and that is still there.

    Raises ImportRefused where the placement says something else by now, so that `unwanted` is not the last
    word on it: then it was not carried elsewhere either.
    """
    changed = [each.line() for each in differences(_there(unwanted, found), found)]
    changed += [
        f"consumer {uuid}: holds something on it, and is not in the document"
        for uuid in foreign_consumers(unwanted, found)
    ]
    changed += [
        f"provider {each.name} ({each.uuid}): hangs below, and is not in the document"
        for each in found.providers.values()
        if each.parent in unwanted.providers and each.uuid not in unwanted.providers
    ]
    if changed:
        more = len(changed) - NAMED_MAX
        raise ImportRefused(
            f"The placement holds something else than the document in {len(changed)} places: "
            f"{'; '.join(changed[:NAMED_MAX])}{f'; and {more} more' if more > 0 else ''}. Nothing was "
            "removed; export and import again.",
            conflicts=changed,
        )
    tree = ProviderTree(found.providers.values())
    return RemovalPlan(
        tuple(
            replace(each, allocations={})
            for uuid, each in found.consumers.items()
            if uuid in unwanted.consumers
        ),
        tuple(each for each in tree.bottom_up() if each.uuid in unwanted.providers),
    )


def apply_removal(client: PlacementClient, removal: RemovalPlan) -> None:
    """Write it. Raises what the client raises; what was removed before stays so, and the next one goes on."""
    for start in range(0, len(removal.consumers), CONSUMERS_AT_ONCE):
        client.write_allocations(*removal.consumers[start : start + CONSUMERS_AT_ONCE])
    for provider in removal.providers:
        client.delete_provider(provider.uuid)


def _there(unwanted: PlacementSnapshot, found: PlacementSnapshot) -> PlacementSnapshot:
    return PlacementSnapshot(
        _only(unwanted.providers, found.providers), _only(unwanted.consumers, found.consumers)
    )


def _only(values: Mapping[str, _Value], among: Mapping[str, object]) -> dict[str, _Value]:
    return {uuid: each for uuid, each in values.items() if uuid in among}


def _root(tree: ProviderTree, named: str) -> Provider:
    found = tree.get(named) or tree.by_name(named)
    if found is None or found.parent is not None:
        raise UsageError(f"There is no root provider {named!r} in this placement.")
    return found
