"""Allocation candidates: the ways in which the request groups of a query fit into the trees, found lazily.

The *anchor* of a tree is its root. The providers in reach of a tree are its own and the sharing ones that
have an aggregate in common with one of its own. A query consists of *slots* (slots.py), each filled by one
provider: a slot for each class of the unsuffixed group, and one for each suffixed group. `TreeSearch`
(search.py) yields all ways to fill the slots of one tree; it searches no further than the caller iterates.

Pure functions over the model; the caller holds `model.lock`. tests/differential compares them with OpenStack
Placement 16. Source: https://docs.openstack.org/api-ref/placement/#allocation-candidates.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from agent.placement.embedded.candidates.query import CandidateQuery
from agent.placement.embedded.candidates.search import TreeSearch
from agent.placement.embedded.candidates.slots import CandidateSlot, SlotDemands
from agent.placement.embedded.model import Model
from agent.placement.embedded.records import SHARING_TRAIT, ProviderRecord


class Candidate(NamedTuple):
    """{provider uuid: {class: amount}}, and {suffix of a group: [provider uuid, ...]}."""

    allocations: Mapping[str, Mapping[str, int]]
    mappings: Mapping[str, list[str]]


def find_candidates(model: Model, query: CandidateQuery) -> Iterator[Candidate]:
    """Each candidate once, tree by tree, in the order in which the trees were created.

    The caller has checked that the classes and traits of the query exist.
    """
    seen: set[tuple[str, ...]] = set()
    reach, demands = ProviderReach(model), SlotDemands(model, query)
    for root in anchors(model, query, reach):
        slots = demands.slots(reach.providers(root))
        if slots is None:
            continue
        for chosen in TreeSearch(model, query, slots).fill():
            if all(provider.is_sharing for provider in chosen):
                # No provider of the tree itself is used: other trees in reach give the same candidate.
                key = tuple(provider.uuid for provider in chosen)
                if key in seen:
                    continue
                seen.add(key)
            yield _candidate(slots, chosen)


def _candidate(slots: Iterable[CandidateSlot], chosen: Iterable[ProviderRecord]) -> Candidate:
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


class ProviderReach:
    """The providers that serve each tree: its own, and sharing ones."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._sharing: dict[str, list[ProviderRecord]] = {}
        for uuid in model.providers_by_trait.get(SHARING_TRAIT, ()):
            provider = model.providers[uuid]
            for aggregate in provider.aggregates:
                self._sharing.setdefault(aggregate, []).append(provider)

    def providers(self, root: str) -> list[ProviderRecord]:
        """The tree's own providers, then the sharing ones."""
        tree = self._model.tree(root)
        if not self._sharing:
            return tree
        reachable = {provider.uuid: provider for provider in tree}
        aggregates = {name for provider in tree for name in provider.aggregates}
        for aggregate in sorted(aggregates & self._sharing.keys()):
            reachable.update((provider.uuid, provider) for provider in self._sharing[aggregate])
        return list(reachable.values())

    def roots(self, provider: ProviderRecord) -> Iterator[str]:
        """The roots of the trees that the provider can serve."""
        yield provider.root_uuid
        if provider.is_sharing:
            for aggregate in provider.aggregates:
                for uuid in self._model.providers_by_aggregate[aggregate]:
                    yield self._model.providers[uuid].root_uuid


def anchors(model: Model, query: CandidateQuery, reach: ProviderReach) -> Iterator[str]:
    """The roots of the trees that may have a candidate, lazily, each once.

    The rarest requirement of the query selects the trees, so that most trees without a candidate are never
    read.
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
    """Sets of providers; each candidate contains at least one provider of each set."""
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
    entries = [index.get(key, {}) for key in sorted(keys)]
    return entries[0] if len(entries) == 1 else dict.fromkeys(itertools.chain(*entries))
