"""Allocation candidates: the ways in which a query's request groups fit into the trees, found one at a time.

For each tree (its root is the *anchor*) the providers in reach are those of the tree and the sharing ones
that have an aggregate in common with any of them. A query is cut into *slots*, each filled by one provider:
one slot per class of the unsuffixed group, one per suffixed group. The search fills slot after slot and is a
generator, so a limit bounds the work. A branch that failed is remembered by the state it failed in, because
isolated or crowded groups come to the same hopeless state in very many orders.

Pure functions over the model; the caller holds `model.lock`. tests/differential compares what follows here
with OpenStack Placement 16.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from agent.placement.embedded.candidate_query import CandidateQuery, RequestGroup
from agent.placement.embedded.microversions import CANDIDATES_TREES
from agent.placement.embedded.model import SHARING_TRAIT, Model, Provider


class Candidate(NamedTuple):
    """Amounts by provider and class, and the providers of each group."""

    allocations: Mapping[str, Mapping[str, int]]
    mappings: Mapping[str, list[str]]


class Slot(NamedTuple):
    """A group, or one class of the unsuffixed group, and the providers that could serve it by itself."""

    group: RequestGroup
    resources: Mapping[str, int]
    options: list[Provider]


def find_candidates(model: Model, query: CandidateQuery) -> Iterator[Candidate]:
    """Every candidate once, tree by tree, in the order in which the trees were made.

    The classes and traits of the query exist; whoever calls has checked that.
    """
    seen: set[tuple[str, ...]] = set()
    reach = Reach(model)
    for root in anchors(model, query, reach):
        slots = _slots(model, query, reach.providers(root))
        if slots is None or not _might_fit(model, query, slots):
            continue
        for chosen in TreeSearch(model, query, slots).fill():
            if all(provider.is_sharing for provider in chosen):
                # Nothing of the tree itself is used: other trees that share these come to the same candidate.
                key = tuple(provider.uuid for provider in chosen)
                if key in seen:
                    continue
                seen.add(key)
            yield _candidate(slots, chosen)


def _candidate(slots: Iterable[Slot], chosen: Iterable[Provider]) -> Candidate:
    allocations: dict[str, dict[str, int]] = {}
    mappings: dict[str, list[str]] = {}
    for slot, provider in zip(slots, chosen, strict=True):
        uuids = mappings.setdefault(slot.group.suffix, [])
        if provider.uuid not in uuids:
            uuids.append(provider.uuid)
        for name, amount in slot.resources.items():
            amounts = allocations.setdefault(provider.uuid, {})
            amounts[name] = amounts.get(name, 0) + amount
    return Candidate(allocations, mappings)


class Reach:
    """Which providers serve which tree."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._sharing: dict[str, list[Provider]] = {}
        for uuid in model.providers_by_trait.get(SHARING_TRAIT, ()):
            provider = model.providers[uuid]
            for aggregate in provider.aggregates:
                self._sharing.setdefault(aggregate, []).append(provider)

    def providers(self, root: str) -> list[Provider]:
        """The tree's own providers, then the sharing ones."""
        found = {provider.uuid: provider for provider in self._model.tree(root)}
        if self._sharing:
            aggregates = {name for provider in found.values() for name in provider.aggregates}
            for aggregate in sorted(aggregates & self._sharing.keys()):
                found.update((provider.uuid, provider) for provider in self._sharing[aggregate])
        return list(found.values())

    def roots(self, provider: Provider) -> Iterator[str]:
        """The roots of the trees that the provider can serve."""
        yield provider.root_uuid
        if provider.is_sharing:
            for aggregate in provider.aggregates:
                for uuid in self._model.providers_by_aggregate[aggregate]:
                    yield self._model.providers[uuid].root_uuid


def anchors(model: Model, query: CandidateQuery, reach: Reach) -> Iterator[str]:
    """Roots of the trees in which there might be a candidate, lazily, each once.

    The rarest thing that the query needs leads the way, so that it does not look at every tree in vain.
    """
    seen = set()
    for uuid in min(_needs(model, query), key=len):
        for root in reach.roots(model.providers[uuid]):
            if root in seen:
                continue
            seen.add(root)
            if query.root_traits.admits(model.providers[root].traits):
                yield root


def _needs(model: Model, query: CandidateQuery) -> Iterator[Mapping[str, None]]:
    """Sets of providers; of each set at least one provider takes part in every candidate."""
    for group in query.groups:
        for name in group.resources:
            yield model.providers_by_class.get(name, {})
        for any_of in group.traits.required:
            yield _union(model.providers_by_trait, any_of)
        if group.suffix:
            for any_of in group.aggregates.required:
                yield _union(model.providers_by_aggregate, any_of)
        if group.in_tree is not None:
            known = model.providers.get(group.in_tree)
            yield {} if known is None else model.trees[known.root_uuid]


def _union(index: Mapping[str, Mapping[str, None]], keys: frozenset[str]) -> Mapping[str, None]:
    found = [index.get(key, {}) for key in sorted(keys)]
    return found[0] if len(found) == 1 else dict.fromkeys(itertools.chain(*found))


def _slots(model: Model, query: CandidateQuery, providers: list[Provider]) -> list[Slot] | None:
    """The slots of the query with their options among `providers`, the unsuffixed ones first.

    None when a slot has no option, for then the tree has no candidate.
    """
    slots = []
    for group in sorted(query.groups, key=lambda group: group.suffix != ""):
        demands = [group.resources] if group.suffix else [{name: n} for name, n in group.resources.items()]
        for resources in demands:
            options = [one for one in providers if _serves(model, group, resources, one)]
            if not options:
                return None
            slots.append(Slot(group, resources, options))
    return slots


def _might_fit(model: Model, query: CandidateQuery, slots: list[Slot]) -> bool:
    """Whether the slots could be filled as far as sums and isolation go: a full tree costs no search."""
    if query.isolate and not _can_be_isolated([slot for slot in slots if slot.group.suffix]):
        return False
    demands = Counter[str]()
    options: dict[str, dict[str, Provider]] = {}
    for slot in slots:
        demands.update(slot.resources)
        for name in slot.resources:
            options.setdefault(name, {}).update((one.uuid, one) for one in slot.options)
    return all(
        amount <= sum(_free(model, provider, name) for provider in options[name].values())
        for name, amount in demands.items()
    )


def _free(model: Model, provider: Provider, name: str) -> float:
    return provider.inventories[name].capacity - model.used(provider.uuid, name)


def _can_be_isolated(slots: list[Slot]) -> bool:
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


def _serves(model: Model, group: RequestGroup, resources: Mapping[str, int], provider: Provider) -> bool:
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


def _admits_tree(model: Model, group: RequestGroup, provider: Provider) -> bool:
    """Aggregates of the root span the tree, for the unsuffixed group: they let in, and they keep out."""
    required, forbidden = group.aggregates
    if not required and not forbidden:
        return True
    memberships = (provider.aggregates, model.providers[provider.root_uuid].aggregates)
    return not any(forbidden & one for one in memberships) and any(
        all(any_of & one for any_of in required) for one in memberships
    )


_State = tuple[int, frozenset[tuple[tuple[str, str], int]], frozenset[str], frozenset[str]]


class TreeSearch:
    """Fills the slots of one tree, depth first; see the module's docstring."""

    def __init__(self, model: Model, query: CandidateQuery, slots: list[Slot]) -> None:
        self._model = model
        self._query = query
        self._slots = slots
        self._unsuffixed = sum(1 for slot in slots if not slot.group.suffix)
        demanded = Counter(name for slot in slots for name in slot.resources)
        self._contended = {name for name, times in demanded.items() if times > 1}
        self._required = slots[0].group.traits.required if self._unsuffixed else ()
        self._taken: Counter[tuple[str, str]] = Counter()
        self._chosen: list[Provider] = []
        self._hopeless: set[_State] = set()

    def fill(self) -> Iterator[tuple[Provider, ...]]:
        """Every way to fill all slots: one provider for each, in the order of the slots."""
        subtrees = self._query.same_subtrees
        if not subtrees:
            yield from self._fill(0, [slot.options for slot in self._slots])
            return
        # The top of a subtree is one of the providers chosen in it, so each possible top is tried on its own.
        for tops in itertools.product(*(self._tops(suffixes) for suffixes in subtrees)):
            options = self._below(tops)
            if all(options):
                self._hopeless.clear()
                for chosen in self._fill(0, options):
                    if self._tops_are_chosen(tops, chosen):
                        yield chosen

    def _fill(self, depth: int, options: list[list[Provider]]) -> Iterator[tuple[Provider, ...]]:
        if depth == self._unsuffixed and not self._traits_are_met():
            return
        if depth == len(self._slots):
            yield tuple(self._chosen)
            return
        if self._hopeless and self._state(depth) in self._hopeless:
            return
        slot, fruitful = self._slots[depth], False
        for provider in options[depth]:
            if self._fits(depth, slot, provider):
                self._take(slot, provider, 1)
                for chosen in self._fill(depth + 1, options):
                    fruitful = True
                    yield chosen
                self._take(slot, provider, -1)
        if not fruitful:
            self._hopeless.add(self._state(depth))

    def _fits(self, depth: int, slot: Slot, provider: Provider) -> bool:
        """Whether the provider can take this slot besides those it has taken already."""
        if self._query.isolate and slot.group.suffix and provider in self._chosen[self._unsuffixed :]:
            return False
        if self._query.minor < CANDIDATES_TREES and any(
            one.root_uuid == provider.root_uuid and one.uuid != provider.uuid for one in self._chosen
        ):
            return False
        for name, amount in slot.resources.items():
            if name not in self._contended:
                continue
            inventory = provider.inventories[name]
            total = amount + self._taken[provider.uuid, name]
            if total > inventory.max_unit:
                return False
            if self._model.used(provider.uuid, name) + total > inventory.capacity:
                return False
        return True

    def _take(self, slot: Slot, provider: Provider, sign: int) -> None:
        if sign > 0:
            self._chosen.append(provider)
        else:
            self._chosen.pop()
        for name, amount in slot.resources.items():
            if name in self._contended:
                self._taken[provider.uuid, name] += sign * amount

    def _state(self, depth: int) -> _State:
        """All that decides whether the slots from `depth` on can be filled."""
        first = self._unsuffixed
        return (
            depth,
            frozenset((key, amount) for key, amount in self._taken.items() if amount),
            frozenset(provider.uuid for provider in self._chosen[:first]),
            frozenset(provider.uuid for provider in self._chosen[first:]),
        )

    def _traits_are_met(self) -> bool:
        """The unsuffixed group's traits are met by its providers together."""
        if not self._required:
            return True
        traits = frozenset().union(*(provider.traits for provider in self._chosen[: self._unsuffixed]))
        return all(any_of & traits for any_of in self._required)

    # -- same_subtree --

    def _tops(self, suffixes: frozenset[str]) -> list[tuple[frozenset[str], Provider]]:
        """Each provider that could be the top of the subtree, together with the suffixes it is to hold."""
        options = (slot.options for slot in self._slots if slot.group.suffix in suffixes)
        distinct = {provider.uuid: provider for some in options for provider in some}
        return [(suffixes, provider) for provider in distinct.values()]

    def _below(self, tops: Iterable[tuple[frozenset[str], Provider]]) -> list[list[Provider]]:
        """The options of every slot, cut down to what lies under the tops of its subtrees."""
        options = [slot.options for slot in self._slots]
        for suffixes, top in tops:
            for number, slot in enumerate(self._slots):
                if slot.group.suffix in suffixes:
                    options[number] = [one for one in options[number] if self._is_under(one, top.uuid)]
        return options

    def _is_under(self, provider: Provider, top: str) -> bool:
        above: Provider | None = provider
        while above is not None:
            if above.uuid == top:
                return True
            above = None if above.parent_uuid is None else self._model.providers[above.parent_uuid]
        return False

    def _tops_are_chosen(
        self, tops: Iterable[tuple[frozenset[str], Provider]], chosen: tuple[Provider, ...]
    ) -> bool:
        filled = list(zip(self._slots, chosen, strict=True))
        return all(
            any(slot.group.suffix in suffixes and provider.uuid == top.uuid for slot, provider in filled)
            for suffixes, top in tops
        )
