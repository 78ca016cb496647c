"""Allocation candidates: the ways in which the request groups of a query fit into the trees, found lazily.

The *anchor* of a tree is its root. The providers in reach of a tree are its own and the sharing ones that
have an aggregate in common with one of its own. A query consists of *slots* (slots.py), each filled by one
provider: a slot for each class of the unsuffixed group, and one for each suffixed group. `TreeSearch`
(search.py) yields all ways to fill the slots of one tree; it searches no further than the caller iterates.

No search holds `model.lock`: it is taken for the time of one tree's view (view.py), so that a long question
holds no write up. tests/differential compares the candidates with OpenStack Placement 16.

Source: https://docs.openstack.org/api-ref/placement/#allocation-candidates.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from agent.placement.embedded.candidates.query import CandidateQuery
from agent.placement.embedded.candidates.search import TreeSearch
from agent.placement.embedded.candidates.slots import CandidateSlot, SlotDemands
from agent.placement.embedded.candidates.view import ProviderReach, TreeView
from agent.placement.embedded.model import Model
from agent.placement.embedded.records import ProviderRecord


class Candidate(NamedTuple):
    """{provider uuid: {class: amount}}, and {suffix of a group: [provider uuid, ...]}."""

    allocations: Mapping[str, Mapping[str, int]]
    mappings: Mapping[str, list[str]]


class FoundCandidate(NamedTuple):
    """A candidate and the view of the tree that it is from."""

    candidate: Candidate
    view: TreeView


def find_candidates(model: Model, query: CandidateQuery) -> Iterator[FoundCandidate]:
    """Each candidate once, tree by tree, in the order in which the trees were created.

    The caller has checked that the classes and traits of the query exist, and does not hold `model.lock`.
    """
    seen: set[tuple[str, ...]] = set()
    with model.lock.reading():
        reach = ProviderReach(model, (group.in_tree for group in query.groups if group.in_tree is not None))
        demands = SlotDemands(query)
        starts = tuple(_rarest(model, query))
    values = _SharedValues()
    for root in anchors(starts, reach):
        view = reach.view(root)
        if view is None or not query.root_traits.admits(view.providers[root].traits):
            continue
        slots = demands.slots(view)
        if slots is None:
            continue
        for chosen in TreeSearch(view, query, slots).fill():
            if all(provider.is_sharing for provider in chosen):
                # No provider of the tree itself is used: other trees in reach give the same candidate.
                key = tuple(provider.uuid for provider in chosen)
                if key in seen:
                    continue
                seen.add(key)
            yield FoundCandidate(values.candidate(slots, chosen), view)


class _SharedValues:
    """Makes candidates. Equal parts of them are one object: there may be very many candidates."""

    def __init__(self) -> None:
        self._amounts: dict[tuple[tuple[str, int], ...], Mapping[str, int]] = {}
        self._uuids: dict[tuple[str, ...], list[str]] = {}

    def candidate(self, slots: Iterable[CandidateSlot], chosen: Iterable[ProviderRecord]) -> Candidate:
        """The candidate in which the chosen providers fill the slots."""
        allocations: dict[str, dict[str, int]] = {}
        mappings: dict[str, tuple[str, ...]] = {}
        for slot, provider in zip(slots, chosen, strict=True):
            uuids = mappings.get(slot.group.suffix, ())
            if provider.uuid not in uuids:
                mappings[slot.group.suffix] = (*uuids, provider.uuid)
            for name, amount in slot.resources.items():
                amounts = allocations.setdefault(provider.uuid, {})
                amounts[name] = amounts.get(name, 0) + amount
        return Candidate(
            {
                uuid: self._amounts.setdefault(tuple(amounts.items()), amounts)
                for uuid, amounts in allocations.items()
            },
            {suffix: self._uuids.setdefault(uuids, list(uuids)) for suffix, uuids in mappings.items()},
        )


def anchors(starts: Iterable[str], reach: ProviderReach) -> Iterator[str]:
    """The roots of the trees that may have a candidate, lazily, each once.

    `starts` are the providers that meet the rarest requirement of the query, so that most trees without a
    candidate are never read.
    """
    seen = set()
    for uuid in starts:
        for root in reach.roots(uuid):
            if root not in seen:
                seen.add(root)
                yield root


def _rarest(model: Model, query: CandidateQuery) -> Mapping[str, None]:
    return min(_needs(model, query), key=len)


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
