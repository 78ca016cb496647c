"""What a handler gets and gives: the parsed request, the answer, and the headers that most answers carry."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import formatdate
from typing import Any, NamedTuple

from agent.placement.embedded import microversions as mv
from agent.placement.embedded.query_string import Query
from agent.placement.embedded.schemas import Versions, validate
from agent.placement.embedded.store import Store


class Request(NamedTuple):
    """`minor` is the microversion, `args` are the path's own parts, `body` is a Python object."""

    store: Store
    minor: int
    method: str
    args: Mapping[str, str]
    query: Query
    body: Any

    def checked_body(self, versions: Versions) -> Any:
        """:raises Refused: 400"""
        return validate(versions, self.minor, self.body, "body")

    def checked_query(self, versions: Versions) -> dict[str, str]:
        """Each parameter with its last value.

        :raises Refused: 400
        """
        parameters: dict[str, str] = validate(versions, self.minor, self.query.as_dict(), "query")
        return parameters


class CoreResponse(NamedTuple):
    """`headers` have lower-case names; `body` is a Python object of its own, None for an empty one."""

    status: int
    headers: dict[str, str]
    body: Any


def json_response(request: Request, body: Any, modified_at: float | None, status: int = 200) -> CoreResponse:
    """An answer with a body. `modified_at` None leaves out last-modified."""
    return CoreResponse(status, cache_headers(request, modified_at), body)


def cache_headers(request: Request, modified_at: float | None) -> dict[str, str]:
    """The caching headers, from the microversion on that has them."""
    if request.minor < mv.LAST_MODIFIED:
        return {}
    headers = {"cache-control": "no-cache"}
    if modified_at is not None:
        headers["last-modified"] = formatdate(modified_at, usegmt=True)
    return headers


def empty_response(status: int = 204, headers: dict[str, str] | None = None) -> CoreResponse:
    return CoreResponse(status, headers or {}, None)
