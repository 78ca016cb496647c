"""/resource_providers and /resource_providers/{uuid}."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterable
from typing import Any

from agent.placement.embedded import microversions as mv
from agent.placement.embedded import query_string, schemas
from agent.placement.embedded.draft import Draft
from agent.placement.embedded.messages import (
    CoreResponse,
    Request,
    cache_headers,
    empty_response,
    json_response,
)
from agent.placement.embedded.model import Model
from agent.placement.embedded.problems import BAD_REQUEST, RequestRefused
from agent.placement.embedded.records import ProviderRecord
from agent.placement.embedded.rules import inventories, providers

_LINKS = (
    ("inventories", mv.MIN),
    ("usages", mv.MIN),
    ("aggregates", mv.AGGREGATES),
    ("traits", mv.TRAITS),
    ("allocations", mv.ALLOCATIONS_LINK),
)


def url_of(provider_uuid: str) -> str:
    """The provider's path in the API."""
    return f"/resource_providers/{provider_uuid}"


def show(provider: ProviderRecord, minor: int) -> dict[str, Any]:
    """The provider's record in a response."""
    url = url_of(provider.uuid)
    links = [{"rel": "self", "href": url}]
    links += [{"rel": rel, "href": f"{url}/{rel}"} for rel, since in _LINKS if minor >= since]
    shown = {
        "uuid": provider.uuid,
        "name": provider.name,
        "generation": provider.generation,
        "links": links,
    }
    if minor >= mv.NESTED_PROVIDERS:
        shown["parent_provider_uuid"] = provider.parent_uuid
        shown["root_provider_uuid"] = provider.root_uuid
    return shown


def create(request: Request) -> CoreResponse:
    """POST /resource_providers"""
    body = request.read_body(schemas.POST_PROVIDER)
    given = body.get("uuid")
    uuid = str(uuids.UUID(given)) if given else str(uuids.uuid4())
    provider = request.write(
        lambda draft: providers.create(draft, uuid, body["name"], body.get("parent_provider_uuid"))
    )
    location = {"location": url_of(uuid)}
    if request.minor < mv.CREATED_PROVIDER_BODY:
        return empty_response(201, location)
    headers = cache_headers(request, provider.updated_at) | location
    return CoreResponse(200, headers, show(provider, request.minor))


def get(request: Request) -> CoreResponse:
    """GET /resource_providers/{uuid}"""
    provider = providers.get(request.store.model, request.args["uuid"])
    return json_response(request, show(provider, request.minor), provider.updated_at)


def update(request: Request) -> CoreResponse:
    """PUT /resource_providers/{uuid}"""
    uuid, minor = request.args["uuid"], request.minor
    providers.get(request.store.model, uuid)
    body = request.read_body(schemas.PUT_PROVIDER)

    def rule(draft: Draft) -> ProviderRecord:
        parent = body.get("parent_provider_uuid", providers.get(draft, uuid).parent_uuid)
        return providers.update(draft, uuid, body["name"], parent, may_reparent=minor >= mv.REPARENTING)

    provider = request.write(rule)
    return json_response(request, show(provider, minor), provider.updated_at)


def delete(request: Request) -> CoreResponse:
    """DELETE /resource_providers/{uuid}"""
    uuid = request.args["uuid"]
    request.write(lambda draft: providers.delete(draft, uuid), releases=True)
    return empty_response()


def list_all(request: Request) -> CoreResponse:
    """GET /resource_providers"""
    parameters = request.read_query(schemas.LIST_PROVIDERS)
    aggregates = query_string.parse_member_of(request.query.all("member_of"), request.minor)
    traits = query_string.parse_required(request.query.all("required"), request.minor)
    amounts = query_string.parse_resources(parameters["resources"]) if "resources" in parameters else {}
    with request.store.reading() as model:
        matching = _filtered(model, parameters, traits, aggregates, amounts)
    modified = max((provider.updated_at for provider in matching), default=request.store.clock())
    return json_response(
        request, {"resource_providers": [show(provider, request.minor) for provider in matching]}, modified
    )


def _filtered(
    model: Model,
    parameters: dict[str, str],
    traits: query_string.TraitFilter,
    aggregates: query_string.AggregateFilter,
    amounts: dict[str, int],
) -> list[ProviderRecord]:
    candidates: Iterable[ProviderRecord] = model.providers.values()
    if parameters.get("in_tree"):
        member = model.provider(parameters["in_tree"])
        if member is None:
            return []
        candidates = model.tree(member.root_uuid)
    if parameters.get("uuid"):
        candidates = [provider for provider in candidates if provider.uuid == parameters["uuid"]]
    if parameters.get("name"):
        candidates = [provider for provider in candidates if provider.name == parameters["name"]]
    unknown = sorted(name for name in traits.names if not model.has_trait(name))
    if unknown:
        raise RequestRefused(BAD_REQUEST, f"No such trait(s): {', '.join(unknown)}.")
    inventories.check_known(model, amounts)
    return [
        provider
        for provider in candidates
        if traits.admits(provider.traits)
        and aggregates.admits(provider.aggregates)
        and all(_has_room(model, provider, name, amount) for name, amount in amounts.items())
    ]


def _has_room(model: Model, provider: ProviderRecord, resource_class: str, amount: int) -> bool:
    inventory = provider.inventories.get(resource_class)
    return (
        inventory is not None
        and inventory.admits(amount)
        and model.used(provider.uuid, resource_class) + amount <= inventory.capacity
    )
