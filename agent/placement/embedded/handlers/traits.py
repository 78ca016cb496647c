"""/traits and /resource_providers/{uuid}/traits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agent.placement.embedded import microversions as mv
from agent.placement.embedded import schemas
from agent.placement.embedded.messages import (
    CoreResponse,
    Request,
    cache_headers,
    empty_response,
    json_response,
)
from agent.placement.embedded.model import Model
from agent.placement.embedded.problems import BAD_REQUEST, NOT_FOUND, RequestRefused
from agent.placement.embedded.records import ProviderRecord
from agent.placement.embedded.rules import names, providers


def list_all(request: Request) -> CoreResponse:
    """GET /traits"""
    parameters = request.read_query(schemas.LIST_TRAITS)
    with request.store.reading() as model:
        known = _filtered(model, parameters)
    return json_response(request, {"traits": list(known)}, _newest(request, known.values()))


def _filtered(model: Model, parameters: Mapping[str, str]) -> dict[str, float]:
    known = dict(model.traits)
    if "name" in parameters:
        kind, colon, value = parameters["name"].partition(":")
        if not colon:
            raise RequestRefused(BAD_REQUEST, "name must be in:NAME,NAME or startswith:PREFIX.")
        if kind == "in":
            wanted = set(value.split(","))
            known = {name: created_at for name, created_at in known.items() if name in wanted}
        elif kind == "startswith":
            known = {name: created_at for name, created_at in known.items() if name.startswith(value)}
    if "associated" in parameters:
        associated = {"true": True, "false": False}.get(parameters["associated"].lower())
        if associated is None:
            raise RequestRefused(BAD_REQUEST, 'associated must be "true" or "false".')
        known = {
            name: created_at
            for name, created_at in known.items()
            if (name in model.providers_by_trait) is associated
        }
    return known


def get(request: Request) -> CoreResponse:
    """GET /traits/{name}"""
    name = request.args["name"]
    created_at = request.store.model.traits.get(name)
    if created_at is None:
        raise RequestRefused(NOT_FOUND, f"No such trait(s): {name}.")
    return empty_response(204, cache_headers(request, created_at))


def put(request: Request) -> CoreResponse:
    """PUT /traits/{name}"""
    name = schemas.validate(schemas.CUSTOM_TRAIT, request.minor, request.args["name"], "the trait's name")
    created = request.write(lambda draft: names.ensure_trait(draft, name))
    headers = cache_headers(request, request.store.model.traits.get(name)) | {"location": f"/traits/{name}"}
    return empty_response(201 if created else 204, headers)


def delete(request: Request) -> CoreResponse:
    """DELETE /traits/{name}"""
    name = request.args["name"]
    request.write(lambda draft: names.delete_trait(draft, name), releases=True)
    return empty_response()


def get_of_provider(request: Request) -> CoreResponse:
    """GET /resource_providers/{uuid}/traits"""
    return _show(request, providers.get(request.store.model, request.args["uuid"]))


def put_of_provider(request: Request) -> CoreResponse:
    """PUT /resource_providers/{uuid}/traits"""
    uuid = request.args["uuid"]
    body = request.read_body(schemas.PUT_PROVIDER_TRAITS)
    provider = request.write(
        lambda draft: providers.set_traits(draft, uuid, body["resource_provider_generation"], body["traits"])
    )
    return _show(request, provider)


def delete_of_provider(request: Request) -> CoreResponse:
    """DELETE /resource_providers/{uuid}/traits"""
    uuid = request.args["uuid"]
    request.write(lambda draft: providers.set_traits(draft, uuid, None, ()), releases=True)
    return empty_response()


def get_aggregates(request: Request) -> CoreResponse:
    """GET /resource_providers/{uuid}/aggregates"""
    provider = providers.get(request.store.model, request.args["uuid"])
    return _show_aggregates(request, provider, sorted(provider.aggregates))


def put_aggregates(request: Request) -> CoreResponse:
    """PUT /resource_providers/{uuid}/aggregates"""
    uuid = request.args["uuid"]
    providers.get(request.store.model, uuid)
    body = request.read_body(schemas.PUT_AGGREGATES)
    guarded = request.minor >= mv.AGGREGATES_GENERATION
    aggregates = body["aggregates"] if guarded else body
    generation = body["resource_provider_generation"] if guarded else None
    provider = request.write(
        lambda draft: providers.set_aggregates(draft, uuid, generation, aggregates, raises_generation=guarded)
    )
    return _show_aggregates(request, provider, aggregates)


def _show(request: Request, provider: ProviderRecord) -> CoreResponse:
    known = request.store.model.traits
    body = {"traits": sorted(provider.traits), "resource_provider_generation": provider.generation}
    return json_response(request, body, _newest(request, (known.get(name, 0.0) for name in provider.traits)))


def _show_aggregates(request: Request, provider: ProviderRecord, aggregates: list[str]) -> CoreResponse:
    body: dict[str, Any] = {"aggregates": aggregates}
    if request.minor >= mv.AGGREGATES_GENERATION:
        body["resource_provider_generation"] = provider.generation
    return json_response(request, body, request.store.clock())


def _newest(request: Request, times: Iterable[float]) -> float:
    return max(times, default=request.store.clock())
