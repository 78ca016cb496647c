"""GET /allocation_candidates: the candidates, and the summaries of their providers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from agent.http.fair_threads import without_collection
from agent.placement.embedded import microversions as mv
from agent.placement.embedded.candidates.find import Candidate, find_candidates
from agent.placement.embedded.candidates.query import CandidateQuery, parse_query
from agent.placement.embedded.candidates.view import ProviderReach, TreeView
from agent.placement.embedded.messages import CoreResponse, Request, json_response
from agent.placement.embedded.model import Model
from agent.placement.embedded.problems import BAD_REQUEST, RequestRefused
from agent.placement.embedded.records import ProviderRecord


class FoundCandidates(NamedTuple):
    """The candidates of a query, and the providers of its summaries with their usage by class."""

    candidates: list[Candidate]
    providers: list[tuple[ProviderRecord, Mapping[str, int]]]


def get(request: Request) -> CoreResponse:
    """GET /allocation_candidates"""
    query = parse_query(request.query, request.minor)
    with without_collection():
        body = response_body(query, find_with_summaries(request.store.model, query))
    return json_response(request, body, request.store.clock())


def find_with_summaries(model: Model, query: CandidateQuery) -> FoundCandidates:
    """All that the response needs from the model, whose lock is taken for short times only.

    Raises RequestRefused (400) for unknown classes and traits.
    """
    with model.lock.reading():
        unknown_classes = query.resource_classes() - model.resource_classes.keys()
        unknown_traits = query.trait_names() - model.traits.keys()
    if unknown_classes:
        raise RequestRefused(BAD_REQUEST, f"No such resource class: {', '.join(sorted(unknown_classes))}.")
    if unknown_traits:
        raise RequestRefused(BAD_REQUEST, f"No such trait: {', '.join(sorted(unknown_traits))}.")
    candidates = []
    views: dict[str, TreeView] = {}
    for candidate, view in islice(find_candidates(model, query), query.limit):
        candidates.append(candidate)
        for uuid in candidate.allocations:
            views.setdefault(uuid, view)
    return FoundCandidates(candidates, list(_summarised(model, query, views)))


def response_body(query: CandidateQuery, results: FoundCandidates) -> dict[str, Any]:
    """`{"allocation_requests": [...], "provider_summaries": {uuid: {...}}}` in the query's microversion."""
    resources: dict[int, dict[str, Any]] = {}
    return {
        "allocation_requests": [
            _allocation_request(candidate, query.minor, resources) for candidate in results.candidates
        ],
        "provider_summaries": {
            provider.uuid: _summary(query, provider, usage) for provider, usage in results.providers
        },
    }


def _allocation_request(
    candidate: Candidate, minor: int, resources: dict[int, dict[str, Any]]
) -> dict[str, Any]:
    """The candidate in the form in which the same microversion accepts it as allocations.

    Candidates share their amounts: `resources` has {"resources": amounts} by the id of these amounts.
    """
    if minor < mv.ALLOCATIONS_BY_PROVIDER:
        return {
            "allocations": [
                {"resource_provider": {"uuid": uuid}, "resources": amounts}
                for uuid, amounts in candidate.allocations.items()
            ]
        }
    request: dict[str, Any] = {
        "allocations": {
            uuid: resources.get(id(amounts)) or resources.setdefault(id(amounts), {"resources": amounts})
            for uuid, amounts in candidate.allocations.items()
        }
    }
    if minor >= mv.MAPPINGS:
        request["mappings"] = candidate.mappings
    return request


def _summarised(
    model: Model, query: CandidateQuery, views: Mapping[str, TreeView]
) -> Iterator[tuple[ProviderRecord, Mapping[str, int]]]:
    """The providers of the candidates, each once, and from 1.29 on the rest of their trees.

    `views` are {uuid of a used provider: the view of its candidate}. A sharing provider's own tree may not be
    in it: that is read now.
    """
    used = {uuid: (view.providers[uuid], view) for uuid, view in views.items()}
    if query.minor < mv.CANDIDATES_TREES:
        yield from ((provider, view.usage(provider.uuid)) for provider, view in used.values())
        return
    shown = set()
    for provider, view in used.values():
        root = provider.root_uuid
        if root in shown:
            continue
        shown.add(root)
        own = root == view.reachable[0].root_uuid
        whole = view if own else ProviderReach(model).view(root)
        if whole is not None:
            yield from ((each, whole.usage(each.uuid)) for each in whole.reachable if each.root_uuid == root)


def _summary(query: CandidateQuery, provider: ProviderRecord, usage: Mapping[str, int]) -> dict[str, Any]:
    wanted = None if query.minor >= mv.SUMMARIES_ALL_CLASSES else query.resource_classes()
    summary: dict[str, Any] = {
        "resources": {
            name: {"capacity": int(inventory.capacity), "used": usage.get(name, 0)}
            for name, inventory in provider.inventories.items()
            if wanted is None or name in wanted
        }
    }
    if query.minor >= mv.CANDIDATES_REQUIRED:
        summary["traits"] = sorted(provider.traits)
    if query.minor >= mv.CANDIDATES_TREES:
        summary["parent_provider_uuid"] = provider.parent_uuid
        summary["root_provider_uuid"] = provider.root_uuid
    return summary
