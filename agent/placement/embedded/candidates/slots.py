"""The slots of a query, and which providers of a tree could fill each of them by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from agent.placement.embedded.candidates.query import CandidateGroup, CandidateQuery
from agent.placement.embedded.model import Model
from agent.placement.embedded.records import ProviderRecord


class CandidateSlot(NamedTuple):
    """A group, or one class of the unsuffixed group, and the providers that could serve it by itself."""

    group: CandidateGroup
    resources: Mapping[str, int]
    options: list[ProviderRecord]


class SlotDemands:
    """What the slots of a query ask for; the unsuffixed ones first."""

    def __init__(self, model: Model, query: CandidateQuery) -> None:
        self._model = model
        self._query = query
        self._asked: list[tuple[CandidateGroup, Mapping[str, int]]] = []
        for group in sorted(query.groups, key=lambda group: group.suffix != ""):
            single = [{name: amount} for name, amount in group.resources.items()]
            self._asked += [
                (group, resources) for resources in ([group.resources] if group.suffix else single)
            ]
        self._order = list(range(len(self._asked)))

    def slots(self, providers: list[ProviderRecord]) -> list[CandidateSlot] | None:
        """The slots with their options among the providers in reach of a tree.

        None when the tree certainly has no candidate. What one tree lacks most others lack too, so that is
        looked at first from then on.
        """
        options: list[list[ProviderRecord]] = [[] for _ in self._asked]
        for place, number in enumerate(self._order):
            group, resources = self._asked[number]
            options[number] = [one for one in providers if _serves(self._model, group, resources, one)]
            if not options[number]:
                self._order.insert(0, self._order.pop(place))
                return None
        slots = [CandidateSlot(*asked, some) for asked, some in zip(self._asked, options, strict=True)]
        return slots if _might_fit(self._model, self._query, slots) else None


def _might_fit(model: Model, query: CandidateQuery, slots: list[CandidateSlot]) -> bool:
    """Whether the slots could be filled as far as sums and isolation go: a full tree costs no search."""
    if query.isolate and not _can_be_isolated([slot for slot in slots if slot.group.suffix]):
        return False
    demands = Counter[str]()
    options: dict[str, dict[str, ProviderRecord]] = {}
    for slot in slots:
        demands.update(slot.resources)
        for name in slot.resources:
            options.setdefault(name, {}).update((one.uuid, one) for one in slot.options)
    return all(
        amount <= sum(_free(model, provider, name) for provider in options[name].values())
        for name, amount in demands.items()
    )


def _free(model: Model, provider: ProviderRecord, name: str) -> float:
    return provider.inventories[name].capacity - model.used(provider.uuid, name)


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
    model: Model, group: CandidateGroup, resources: Mapping[str, int], provider: ProviderRecord
) -> bool:
    """Whether the provider can serve these resources of the group, seen by itself."""
    for name, amount in resources.items():
        inventory = provider.inventories.get(name)
        if inventory is None or not inventory.admits(amount):
            return False
        if model.used(provider.uuid, name) + amount > inventory.capacity:
            return False
    if group.in_tree is not None:
        known = model.providers.get(group.in_tree)
        if known is None or known.root_uuid != provider.root_uuid:
            return False
    if not resources and not group.traits.required and not group.aggregates.required:
        # A group without resources finds what it asks for by trait or aggregate; to exclude finds nothing.
        return False
    if group.suffix:
        return group.traits.admits(provider.traits) and group.aggregates.admits(provider.aggregates)
    return not group.traits.forbidden & provider.traits and _admits_tree(model, group, provider)


def _admits_tree(model: Model, group: CandidateGroup, provider: ProviderRecord) -> bool:
    """Aggregates of the root span the tree, for the unsuffixed group: they let in, and they keep out."""
    required, forbidden = group.aggregates
    if not required and not forbidden:
        return True
    memberships = (provider.aggregates, model.providers[provider.root_uuid].aggregates)
    return not any(forbidden & one for one in memberships) and any(
        all(any_of & one for any_of in required) for one in memberships
    )
