"""GET /allocation_candidates: the candidates, and the summaries of their providers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from agent.placement.embedded import microversions as mv
from agent.placement.embedded.candidates.find import Candidate, find_candidates
from agent.placement.embedded.candidates.query import CandidateQuery, parse_query
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
    with request.store.reading() as model:
        candidates = find_with_summaries(model, query)
    return json_response(request, response_body(query, candidates), request.store.clock())


def find_with_summaries(model: Model, query: CandidateQuery) -> FoundCandidates:
    """All that the response needs from the model.

    The caller holds the model's lock, so the response is built later. Raises RequestRefused (400) for unknown
    classes and traits.
    """
    if unknown := query.resource_classes() - model.resource_classes.keys():
        raise RequestRefused(BAD_REQUEST, f"No such resource class: {', '.join(sorted(unknown))}.")
    if unknown := query.trait_names() - model.traits.keys():
        raise RequestRefused(BAD_REQUEST, f"No such trait: {', '.join(sorted(unknown))}.")
    candidates = list(islice(find_candidates(model, query), query.limit))
    summarised = _summarised(model, query, candidates)
    return FoundCandidates(
        candidates, [(provider, dict(model.usages.get(provider.uuid, {}))) for provider in summarised]
    )


def response_body(query: CandidateQuery, results: FoundCandidates) -> dict[str, Any]:
    """`{"allocation_requests": [...], "provider_summaries": {uuid: {...}}}` in the query's microversion."""
    return {
        "allocation_requests": [
            _allocation_request(candidate, query.minor) for candidate in results.candidates
        ],
        "provider_summaries": {
            provider.uuid: _summary(query, provider, usage) for provider, usage in results.providers
        },
    }


def _allocation_request(candidate: Candidate, minor: int) -> dict[str, Any]:
    """The candidate in the form in which the same microversion accepts it as allocations."""
    if minor < mv.ALLOCATIONS_BY_PROVIDER:
        return {
            "allocations": [
                {"resource_provider": {"uuid": uuid}, "resources": amounts}
                for uuid, amounts in candidate.allocations.items()
            ]
        }
    request: dict[str, Any] = {
        "allocations": {uuid: {"resources": amounts} for uuid, amounts in candidate.allocations.items()}
    }
    if minor >= mv.MAPPINGS:
        request["mappings"] = candidate.mappings
    return request


def _summarised(
    model: Model, query: CandidateQuery, candidates: Iterable[Candidate]
) -> Iterator[ProviderRecord]:
    """The providers of the candidates, each once, and from 1.29 on the rest of their trees."""
    used = dict.fromkeys(uuid for candidate in candidates for uuid in candidate.allocations)
    if query.minor < mv.CANDIDATES_TREES:
        yield from (model.providers[uuid] for uuid in used)
        return
    for root in dict.fromkeys(model.providers[uuid].root_uuid for uuid in used):
        yield from model.tree(root)


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
