"""/resource_classes and /resource_classes/{name}."""

from __future__ import annotations

from typing import Any

from agent.placement.embedded import schemas
from agent.placement.embedded.messages import CoreResponse, Request, empty_response, json_response
from agent.placement.embedded.problems import NOT_FOUND, RequestRefused
from agent.placement.embedded.rules import names


def _url_of(name: str) -> str:
    return f"/resource_classes/{name}"


def _show(name: str) -> dict[str, Any]:
    return {"name": name, "links": [{"rel": "self", "href": _url_of(name)}]}


def list_all(request: Request) -> CoreResponse:
    """GET /resource_classes"""
    with request.store.reading() as model:
        known = dict(model.resource_classes)
    return json_response(request, {"resource_classes": [_show(name) for name in known]}, max(known.values()))


def get(request: Request) -> CoreResponse:
    """GET /resource_classes/{name}"""
    name = request.args["name"]
    created_at = request.store.model.resource_classes.get(name)
    if created_at is None:
        raise RequestRefused(NOT_FOUND, f"No such resource class {name}.")
    return json_response(request, _show(name), created_at)


def create(request: Request) -> CoreResponse:
    """POST /resource_classes"""
    name: str = request.read_body(schemas.CUSTOM_CLASS)["name"]
    request.write(lambda draft: names.create_class(draft, name))
    return empty_response(201, {"location": _url_of(name)})


def ensure(request: Request) -> CoreResponse:
    """PUT /resource_classes/{name}, from microversion 1.7 on"""
    body = {"name": request.args["name"]}
    name: str = schemas.validate(schemas.CUSTOM_CLASS, request.minor, body, "the resource class")["name"]
    created = request.write(lambda draft: names.ensure_class(draft, name))
    return empty_response(201 if created else 204, {"location": _url_of(name)})


def rename(request: Request) -> CoreResponse:
    """PUT /resource_classes/{name}, up to microversion 1.6"""
    name = request.args["name"]
    new_name: str = request.read_body(schemas.CUSTOM_CLASS)["name"]
    request.write(lambda draft: names.rename_class(draft, name, new_name))
    return json_response(request, _show(new_name), None)


def delete(request: Request) -> CoreResponse:
    """DELETE /resource_classes/{name}"""
    name = request.args["name"]
    request.write(lambda draft: names.delete_class(draft, name), releases=True)
    return empty_response()
