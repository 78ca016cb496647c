"""/allocations, /allocations/{consumer_uuid}, /resource_providers/{uuid}/allocations and /reshaper."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Mapping
from typing import Any

from agent.placement.embedded import microversions as mv
from agent.placement.embedded import schemas
from agent.placement.embedded.handlers.inventories import from_bodies
from agent.placement.embedded.messages import CoreResponse, Request, empty_response, json_response
from agent.placement.embedded.model import Model
from agent.placement.embedded.problems import BAD_REQUEST, RequestRefused
from agent.placement.embedded.records import ConsumerRecord
from agent.placement.embedded.rules import allocations, providers, reshaper
from agent.placement.embedded.rules.allocations import ConsumerWrite
from agent.placement.embedded.validation import is_loose_uuid

UNKNOWN_TYPE = "unknown"
"""The shown type of a consumer without a type."""

INCOMPLETE_OWNER = "00000000-0000-0000-0000-000000000000"
"""Project and user of a write below microversion 1.8, which does not name them."""


def get(request: Request) -> CoreResponse:
    """GET /allocations/{consumer_uuid}"""
    with request.store.reading() as model:
        consumer = model.consumer(request.args["consumer_uuid"])
        if consumer is not None and not consumer.allocations:
            consumer = None
        body = {"allocations": {}} if consumer is None else _show(model, consumer, request.minor)
    modified = request.store.clock() if consumer is None else consumer.updated_at
    return json_response(request, body, modified)


def _show(model: Model, consumer: ConsumerRecord, minor: int) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "allocations": {
            uuid: {"resources": dict(resources), "generation": model.providers[uuid].generation}
            for uuid, resources in consumer.allocations.items()
        }
    }
    if minor >= mv.ALLOCATIONS_BY_PROVIDER:
        shown["project_id"] = consumer.project_id
        shown["user_id"] = consumer.user_id
    if minor >= mv.CONSUMER_GENERATION:
        shown["consumer_generation"] = consumer.generation
    if minor >= mv.CONSUMER_TYPES:
        shown["consumer_type"] = consumer.consumer_type or UNKNOWN_TYPE
    return shown


def get_of_provider(request: Request) -> CoreResponse:
    """GET /resource_providers/{uuid}/allocations"""
    with request.store.reading() as model:
        provider = providers.get(model, request.args["uuid"])
        holders = model.consumers_of(provider.uuid)
    shown: dict[str, dict[str, Any]] = {}
    for consumer in holders:
        shown[consumer.uuid] = {"resources": dict(consumer.allocations[provider.uuid])}
        if request.minor >= mv.CONSUMER_GENERATION:
            shown[consumer.uuid]["consumer_generation"] = consumer.generation
    modified = max((consumer.updated_at for consumer in holders), default=request.store.clock())
    body = {"allocations": shown, "resource_provider_generation": provider.generation}
    return json_response(request, body, modified)


def put(request: Request) -> CoreResponse:
    """PUT /allocations/{consumer_uuid}"""
    given = request.args["consumer_uuid"]
    if not is_loose_uuid(given):
        raise RequestRefused(BAD_REQUEST, f"Malformed consumer_uuid: {given}")
    body = request.read_body(schemas.PUT_ALLOCATIONS)
    if request.minor < mv.ALLOCATIONS_BY_PROVIDER:
        body["allocations"] = {
            part["resource_provider"]["uuid"]: {"resources": part["resources"]}
            for part in body["allocations"]
        }
    write = _write_of(str(uuids.UUID(given)), body, request.minor)
    request.write(lambda draft: allocations.replace(draft, (write,)), releases=not write.allocations)
    return empty_response()


def post(request: Request) -> CoreResponse:
    """POST /allocations"""
    writes = _writes_of(request.read_body(schemas.POST_ALLOCATIONS), request.minor)
    # A body with empty allocations ends or reverts a move: it frees at least as much as it takes.
    releases = any(not write.allocations for write in writes)
    request.write(lambda draft: allocations.replace(draft, writes), releases=releases)
    return empty_response()


def delete(request: Request) -> CoreResponse:
    """DELETE /allocations/{consumer_uuid}"""
    uuid = request.args["consumer_uuid"]
    request.write(lambda draft: allocations.delete(draft, uuid), releases=True)
    return empty_response()


def reshape(request: Request) -> CoreResponse:
    """POST /reshaper"""
    body = request.read_body(schemas.POST_RESHAPER)
    now = request.store.clock()
    wanted = {
        uuid: (part["resource_provider_generation"], from_bodies(part["inventories"], now))
        for uuid, part in body["inventories"].items()
    }
    writes = _writes_of(body["allocations"], request.minor)
    request.write(lambda draft: reshaper.reshape(draft, wanted, writes))
    return empty_response()


def _writes_of(bodies: Mapping[str, Mapping[str, Any]], minor: int) -> list[ConsumerWrite]:
    return [_write_of(uuid, body, minor) for uuid, body in bodies.items()]


def _write_of(uuid: str, body: Mapping[str, Any], minor: int) -> ConsumerWrite:
    return ConsumerWrite(
        uuid=uuid,
        project_id=body.get("project_id", INCOMPLETE_OWNER),
        user_id=body.get("user_id", INCOMPLETE_OWNER),
        consumer_type=body.get("consumer_type"),
        generation=body.get("consumer_generation"),
        checks_generation=minor >= mv.CONSUMER_GENERATION,
        allocations={rp: allocation["resources"] for rp, allocation in body["allocations"].items()},
    )
