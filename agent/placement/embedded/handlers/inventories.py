"""/resource_providers/{uuid}/inventories and /resource_providers/{uuid}/inventories/{resource_class}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.placement.embedded import microversions as mv
from agent.placement.embedded import schemas
from agent.placement.embedded.draft import Draft
from agent.placement.embedded.handlers.providers import url_of
from agent.placement.embedded.messages import CoreResponse, Request, empty_response, json_response
from agent.placement.embedded.problems import NOT_FOUND, RequestRefused
from agent.placement.embedded.records import InventoryRecord, ProviderRecord
from agent.placement.embedded.rules import inventories, providers

_FIELDS = ("total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio")


def get_all(request: Request) -> CoreResponse:
    """GET /resource_providers/{uuid}/inventories"""
    return _show_all(request, providers.get(request.store.model, request.args["uuid"]))


def get_one(request: Request) -> CoreResponse:
    """GET /resource_providers/{uuid}/inventories/{resource_class}"""
    provider = providers.get(request.store.model, request.args["uuid"])
    resource_class = request.args["resource_class"]
    if resource_class not in provider.inventories:
        raise RequestRefused(NOT_FOUND, f"No inventory of class {resource_class} for {provider.uuid}.")
    return _show_one(request, provider, resource_class)


def put_all(request: Request) -> CoreResponse:
    """PUT /resource_providers/{uuid}/inventories"""
    uuid = request.args["uuid"]
    providers.get(request.store.model, uuid)
    body = request.read_body(schemas.PUT_INVENTORIES)
    wanted = from_bodies(body["inventories"], request.store.clock())
    generation = body["resource_provider_generation"]

    def rule(draft: Draft) -> ProviderRecord:
        providers.get_at_generation(draft, uuid, generation)
        _check_capacity(request, wanted)
        return inventories.put_all(draft, uuid, generation, wanted)

    return _show_all(request, request.write(rule))


def delete_all(request: Request) -> CoreResponse:
    """DELETE /resource_providers/{uuid}/inventories"""
    uuid = request.args["uuid"]
    request.write(lambda draft: inventories.put_all(draft, uuid, None, {}), releases=True)
    return empty_response()


def add(request: Request) -> CoreResponse:
    """POST /resource_providers/{uuid}/inventories"""
    uuid = request.args["uuid"]
    providers.get(request.store.model, uuid)
    body = request.read_body(schemas.POST_INVENTORY)
    resource_class = body["resource_class"]
    inventory = inventories.from_body(body, request.store.clock())
    _check_capacity(request, {resource_class: inventory})
    provider = request.write(lambda draft: inventories.add(draft, uuid, resource_class, inventory))
    answer = _show_one(request, provider, resource_class, 201)
    answer.headers["location"] = f"{url_of(uuid)}/inventories/{resource_class}"
    return answer


def put_one(request: Request) -> CoreResponse:
    """PUT /resource_providers/{uuid}/inventories/{resource_class}"""
    uuid, resource_class = request.args["uuid"], request.args["resource_class"]
    providers.get(request.store.model, uuid)
    body = request.read_body(schemas.PUT_INVENTORY)
    inventory = inventories.from_body(body, request.store.clock())
    generation = body["resource_provider_generation"]

    def rule(draft: Draft) -> ProviderRecord:
        providers.get_at_generation(draft, uuid, generation)
        _check_capacity(request, {resource_class: inventory})
        return inventories.update(draft, uuid, generation, resource_class, inventory)

    return _show_one(request, request.write(rule), resource_class)


def delete_one(request: Request) -> CoreResponse:
    """DELETE /resource_providers/{uuid}/inventories/{resource_class}"""
    uuid, resource_class = request.args["uuid"], request.args["resource_class"]
    request.write(lambda draft: inventories.delete(draft, uuid, resource_class), releases=True)
    return empty_response()


def from_bodies(bodies: Mapping[str, Mapping[str, Any]], now: float) -> dict[str, InventoryRecord]:
    """{resource class: inventory} of valid bodies."""
    return {resource_class: inventories.from_body(body, now) for resource_class, body in bodies.items()}


def _check_capacity(request: Request, wanted: inventories.InventoryRecords) -> None:
    may_be_zero = request.minor >= mv.RESERVED_MAY_BE_TOTAL
    inventories.check_capacity(request.args["uuid"], wanted, may_be_zero=may_be_zero)


def _show_all(request: Request, provider: ProviderRecord) -> CoreResponse:
    shown = {name: _show(inventory) for name, inventory in provider.inventories.items()}
    modified = max((inventory.updated_at for inventory in provider.inventories.values()), default=None)
    body = {"resource_provider_generation": provider.generation, "inventories": shown}
    return json_response(request, body, modified)


def _show_one(
    request: Request, provider: ProviderRecord, resource_class: str, status: int = 200
) -> CoreResponse:
    inventory = provider.inventories[resource_class]
    body = _show(inventory) | {"resource_provider_generation": provider.generation}
    return json_response(request, body, inventory.updated_at, status)


def _show(inventory: InventoryRecord) -> dict[str, Any]:
    return {field: getattr(inventory, field) for field in _FIELDS}
