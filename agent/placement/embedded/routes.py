"""The routes of the Placement API: the handler of each path and method, from its first microversion on.

The entries of a route are ordered newest first. Before the oldest one the route does not exist yet: 404, or
405 where the path has other methods and the API defines it so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Flag, auto
from typing import NamedTuple

from agent.placement.embedded import handlers
from agent.placement.embedded import microversions as mv
from agent.placement.embedded.messages import CoreResponse, Request
from agent.placement.embedded.problems import (
    METHOD_NOT_ALLOWED,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    UNSUPPORTED_MEDIA_TYPE,
    ProblemType,
    RequestRefused,
)


class BodyRule(Flag):
    """The media types of a route.

    JSON_IN: the request body must be JSON. JSON_OUT: an Accept header that excludes JSON is refused.
    """

    NONE = 0
    JSON_IN = auto()
    JSON_OUT = auto()


NONE, JSON_IN, JSON_OUT = BodyRule.NONE, BodyRule.JSON_IN, BodyRule.JSON_OUT


class Route(NamedTuple):
    """A handler, its first microversion, its media types, and the problem before that microversion."""

    since: int
    handler: Callable[[Request], CoreResponse]
    content: BodyRule
    before: ProblemType = NOT_FOUND


def _too_early(request: Request) -> CoreResponse:
    """Raises RequestRefused (404)."""
    raise RequestRefused(NOT_FOUND, f"This resource is not served yet at microversion 1.{request.minor}.")


_JSON_RANGES = ("*/*", "application/*", "application/json")
"""The media ranges that include JSON, the most precise last."""

Methods = Mapping[str, tuple[Route, ...]]

ROUTES: Mapping[str, Methods] = {
    "/": {"GET": (Route(mv.MIN, handlers.get_root, NONE),)},
    "/resource_classes": {
        "GET": (Route(mv.CUSTOM_CLASSES, handlers.list_classes, JSON_OUT),),
        "POST": (Route(mv.CUSTOM_CLASSES, handlers.create_class, JSON_IN),),
    },
    "/resource_classes/{name}": {
        "GET": (Route(mv.CUSTOM_CLASSES, handlers.get_class, JSON_OUT),),
        "PUT": (
            Route(mv.CLASS_PUT_CREATES, handlers.ensure_class, NONE),
            Route(mv.CUSTOM_CLASSES, handlers.rename_class, JSON_IN),
        ),
        "DELETE": (Route(mv.CUSTOM_CLASSES, handlers.delete_class, NONE),),
    },
    "/resource_providers": {
        "GET": (Route(mv.MIN, handlers.list_providers, JSON_OUT),),
        "POST": (Route(mv.MIN, handlers.create_provider, JSON_IN),),
    },
    "/resource_providers/{uuid}": {
        "GET": (Route(mv.MIN, handlers.get_provider, JSON_OUT),),
        "DELETE": (Route(mv.MIN, handlers.delete_provider, NONE),),
        "PUT": (Route(mv.MIN, handlers.update_provider, JSON_IN),),
    },
    "/resource_providers/{uuid}/inventories": {
        "GET": (Route(mv.MIN, handlers.get_inventories, JSON_OUT),),
        "POST": (Route(mv.MIN, handlers.add_inventory, JSON_IN),),
        "PUT": (Route(mv.MIN, handlers.put_inventories, JSON_IN),),
        "DELETE": (Route(mv.DELETE_INVENTORIES, handlers.delete_inventories, NONE, METHOD_NOT_ALLOWED),),
    },
    "/resource_providers/{uuid}/inventories/{resource_class}": {
        "GET": (Route(mv.MIN, handlers.get_inventory, JSON_OUT),),
        "PUT": (Route(mv.MIN, handlers.put_inventory, JSON_IN),),
        "DELETE": (Route(mv.MIN, handlers.delete_inventory, NONE),),
    },
    "/resource_providers/{uuid}/usages": {
        "GET": (Route(mv.MIN, handlers.get_provider_usages, JSON_OUT),),
    },
    "/resource_providers/{uuid}/aggregates": {
        "GET": (Route(mv.AGGREGATES, handlers.get_aggregates, JSON_OUT),),
        # Only here, Placement checks the media type before the microversion.
        "PUT": (Route(mv.AGGREGATES, handlers.put_aggregates, JSON_IN), Route(mv.MIN, _too_early, JSON_IN)),
    },
    "/resource_providers/{uuid}/allocations": {
        "GET": (Route(mv.MIN, handlers.get_provider_allocations, JSON_OUT),),
    },
    "/resource_providers/{uuid}/traits": {
        "GET": (Route(mv.TRAITS, handlers.get_provider_traits, JSON_OUT),),
        "PUT": (Route(mv.TRAITS, handlers.put_provider_traits, JSON_IN),),
        "DELETE": (Route(mv.TRAITS, handlers.delete_provider_traits, NONE),),
    },
    "/allocations": {
        "POST": (Route(mv.POST_ALLOCATIONS, handlers.post_allocations, JSON_IN),),
    },
    "/allocations/{consumer_uuid}": {
        "GET": (Route(mv.MIN, handlers.get_allocations, JSON_OUT),),
        "PUT": (Route(mv.MIN, handlers.put_allocations, JSON_IN),),
        "DELETE": (Route(mv.MIN, handlers.delete_allocations, NONE),),
    },
    "/allocation_candidates": {"GET": (Route(mv.CANDIDATES, handlers.get_candidates, JSON_OUT),)},
    "/traits": {"GET": (Route(mv.TRAITS, handlers.list_traits, JSON_OUT),)},
    "/traits/{name}": {
        "GET": (Route(mv.TRAITS, handlers.get_trait, NONE),),
        "PUT": (Route(mv.TRAITS, handlers.put_trait, NONE),),
        "DELETE": (Route(mv.TRAITS, handlers.delete_trait, NONE),),
    },
    "/usages": {"GET": (Route(mv.USAGES, handlers.get_usages, JSON_OUT),)},
    "/reshaper": {"POST": (Route(mv.RESHAPER, handlers.reshape, JSON_IN),)},
}


def find_route(method: str, path: str, minor: int) -> tuple[Route, dict[str, str]]:
    """The route of a decoded path without query string, and the values of the path's variable parts.

    Raises RequestRefused: 404, or 405 with the allowed methods.
    """
    parts = path.split("/")[1:] if path not in ("", "/") else []
    names, methods = _BY_SHAPE.get(_shape(parts), ((), None))
    if methods is None or not all(parts):
        raise RequestRefused(NOT_FOUND, "The resource could not be found.")
    rows = methods.get(method)
    if rows is None:
        allowed = {"allow": ", ".join(methods)}
        raise RequestRefused(
            METHOD_NOT_ALLOWED, f"{method} is not allowed for this resource.", headers=allowed
        )
    for route in rows:
        if minor >= route.since:
            return route, dict(zip(names, parts[1::2], strict=True))
    raise RequestRefused(rows[-1].before, f"This resource is served from microversion 1.{rows[-1].since} on.")


def check_media_types(route: Route, headers: Mapping[str, str]) -> None:
    """Check the media types in the headers (lower-case names); a call in the same process has none.

    Raises RequestRefused: 406 or 415.
    """
    if JSON_OUT in route.content and not _takes_json(headers.get("accept", "")):
        raise RequestRefused(NOT_ACCEPTABLE, "Only application/json is provided.")
    if JSON_IN in route.content and "content-type" in headers:
        given = headers["content-type"].partition(";")[0].strip().lower()
        if given != "application/json":
            raise RequestRefused(
                UNSUPPORTED_MEDIA_TYPE,
                f"The media type {given or None} is not supported, use application/json.",
            )


def _takes_json(accept: str) -> bool:
    """Whether an Accept header, if there is one, allows JSON (RFC 9110, section 12.5.1)."""
    best: tuple[int, bool] = (-1, not accept.strip())
    for media_range in accept.split(","):
        name, *parameters = (part.strip().lower() for part in media_range.split(";"))
        if name in _JSON_RANGES:
            barred = any(re.fullmatch(r"q=0(\.0*)?", parameter) for parameter in parameters)
            best = max(best, (_JSON_RANGES.index(name), not barred))
    return best[1]


def _shape(parts: list[str]) -> tuple[str | int, ...]:
    """The key of a route: the number of parts and the fixed parts, which alternate with the variable ones."""
    return (len(parts), *parts[::2])


def _by_shape(routes: Mapping[str, Methods]) -> dict[tuple[str | int, ...], tuple[tuple[str, ...], Methods]]:
    shapes = {}
    for pattern, methods in routes.items():
        parts = pattern.split("/")[1:] if pattern != "/" else []
        shapes[_shape(parts)] = (tuple(part.strip("{}") for part in parts[1::2]), methods)
    return shapes


_BY_SHAPE = _by_shape(ROUTES)
