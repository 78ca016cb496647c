"""The slots of a query, and the providers of a tree that could fill each of them alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from agent.placement.embedded.candidates.query import CandidateGroup, CandidateQuery
from agent.placement.embedded.candidates.view import TreeView
from agent.placement.embedded.records import ProviderRecord


class CandidateSlot(NamedTuple):
    """A suffixed group, or one class of the unsuffixed group, and the providers that could fill it alone."""

    group: CandidateGroup
    resources: Mapping[str, int]
    options: list[ProviderRecord]


class SlotDemands:
    """The resources of the query's slots; those of the unsuffixed group come first."""

    def __init__(self, query: CandidateQuery) -> None:
        self._query = query
        self._demands: list[tuple[CandidateGroup, Mapping[str, int]]] = []
        for group in sorted(query.groups, key=lambda group: group.suffix != ""):
            single = [{name: amount} for name, amount in group.resources.items()]
            self._demands += [
                (group, resources) for resources in ([group.resources] if group.suffix else single)
            ]
        self._order = list(range(len(self._demands)))

    def slots(self, view: TreeView) -> list[CandidateSlot] | None:
        """The slots with their options among the view's providers, None if the tree has no candidate.

        What one tree lacks, most others lack too: a slot without options is checked first in the next trees.
        """
        options: list[list[ProviderRecord]] = [[] for _ in self._demands]
        for place, number in enumerate(self._order):
            group, resources = self._demands[number]
            options[number] = [
                provider for provider in view.reachable if _serves(view, group, resources, provider)
            ]
            if not options[number]:
                self._order.insert(0, self._order.pop(place))
                return None
        slots = [
            CandidateSlot(*demand, serving) for demand, serving in zip(self._demands, options, strict=True)
        ]
        return slots if _might_fit(view, self._query, slots) else None


def _might_fit(view: TreeView, query: CandidateQuery, slots: list[CandidateSlot]) -> bool:
    """Whether sums and isolation allow a candidate, so that a full tree costs no search."""
    if query.isolate and not _can_be_isolated([slot for slot in slots if slot.group.suffix]):
        return False
    demands = Counter[str]()
    options: dict[str, dict[str, ProviderRecord]] = {}
    for slot in slots:
        demands.update(slot.resources)
        for name in slot.resources:
            options.setdefault(name, {}).update((provider.uuid, provider) for provider in slot.options)
    return all(
        amount <= sum(_free(view, provider, name) for provider in options[name].values())
        for name, amount in demands.items()
    )


def _free(view: TreeView, provider: ProviderRecord, name: str) -> float:
    return provider.inventories[name].capacity - view.used(provider.uuid, name)


def _can_be_isolated(slots: list[CandidateSlot]) -> bool:
    """Whether each slot can have a provider of its own: a bipartite matching, by augmenting paths."""
    owners: dict[str, int] = {}

    def place(number: int, tried: set[str]) -> bool:
        for provider in slots[number].options:
            if provider.uuid in tried:
                continue
            tried.add(provider.uuid)
            owner = owners.get(provider.uuid)
            if owner is None or place(owner, tried):
                owners[provider.uuid] = number
                return True
        return False

    return all(place(number, set()) for number in range(len(slots)))


def _serves(
    view: TreeView, group: CandidateGroup, resources: Mapping[str, int], provider: ProviderRecord
) -> bool:
    """Whether the provider alone can serve these resources of the group."""
    for name, amount in resources.items():
        inventory = provider.inventories.get(name)
        if inventory is None or not inventory.admits(amount):
            return False
        if view.used(provider.uuid, name) + amount > inventory.capacity:
            return False
    if group.in_tree is not None:
        known = view.providers.get(group.in_tree)
        if known is None or known.root_uuid != provider.root_uuid:
            return False
    if not resources and not group.traits.required and not group.aggregates.required:
        # A group without resources selects providers by trait or aggregate; an exclusion alone selects none.
        return False
    if group.suffix:
        return group.traits.admits(provider.traits) and group.aggregates.admits(provider.aggregates)
    return not group.traits.forbidden & provider.traits and _admits_tree(view, group, provider)


def _admits_tree(view: TreeView, group: CandidateGroup, provider: ProviderRecord) -> bool:
    """Whether the provider meets the unsuffixed group's `member_of`, by its own aggregates or its root's.

    The aggregates of a root count for all providers of its tree.
    """
    required, forbidden = group.aggregates
    if not required and not forbidden:
        return True
    memberships = (provider.aggregates, view.providers[provider.root_uuid].aggregates)
    return not any(forbidden & aggregates for aggregates in memberships) and any(
        all(any_of & aggregates for any_of in required) for aggregates in memberships
    )
