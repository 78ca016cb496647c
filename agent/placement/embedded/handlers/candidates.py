"""GET /allocation_candidates: the candidates, and summaries of the providers behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from agent.placement.embedded import microversions as mv
from agent.placement.embedded.answers import Answer, Request, ok
from agent.placement.embedded.candidate_query import CandidateQuery, parse_query
from agent.placement.embedded.candidates import Candidate, find_candidates
from agent.placement.embedded.errors import BAD_REQUEST, Refused
from agent.placement.embedded.model import Model, Provider


def get(request: Request) -> Answer:
    query = parse_query(request.query, request.minor)
    with request.store.reading() as model:
        body = document(model, query)
    return ok(request, body, request.store.clock())


def document(model: Model, query: CandidateQuery) -> dict[str, Any]:
    """`{"allocation_requests": [...], "provider_summaries": {uuid: {...}}}` in the query's microversion.

    :raises Refused: 400, for classes and traits that do not exist
    """
    if unknown := query.resource_classes() - model.resource_classes.keys():
        raise Refused(BAD_REQUEST, f"No such resource class: {', '.join(sorted(unknown))}.")
    if unknown := query.trait_names() - model.traits.keys():
        raise Refused(BAD_REQUEST, f"No such trait: {', '.join(sorted(unknown))}.")
    found = list(islice(find_candidates(model, query), query.limit))
    return {
        "allocation_requests": [_allocation_request(candidate, query.minor) for candidate in found],
        "provider_summaries": {
            provider.uuid: _summary(model, query, provider) for provider in _summarised(model, query, found)
        },
    }


def _allocation_request(candidate: Candidate, minor: int) -> dict[str, Any]:
    """A candidate in the form in which the same microversion takes it as an allocation."""
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


def _summarised(model: Model, query: CandidateQuery, found: Iterable[Candidate]) -> Iterator[Provider]:
    """The providers that give something, each once, and from 1.29 on the rest of their trees."""
    used = dict.fromkeys(uuid for candidate in found for uuid in candidate.allocations)
    if query.minor < mv.CANDIDATES_TREES:
        yield from (model.providers[uuid] for uuid in used)
        return
    for root in dict.fromkeys(model.providers[uuid].root_uuid for uuid in used):
        yield from model.tree(root)


def _summary(model: Model, query: CandidateQuery, provider: Provider) -> dict[str, Any]:
    wanted = None if query.minor >= mv.SUMMARIES_ALL_CLASSES else query.resource_classes()
    summary: dict[str, Any] = {
        "resources": {
            name: {"capacity": int(inventory.capacity), "used": model.used(provider.uuid, name)}
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
