"""The request that a handler receives, the response that it returns, and the headers of most responses."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from email.utils import formatdate
from typing import Any, NamedTuple, TypeVar

from agent.placement.embedded import microversions as mv
from agent.placement.embedded.model import Draft
from agent.placement.embedded.store import Store
from agent.placement.embedded.validation import Query, Versions, validate

T = TypeVar("T")
REQUEST_ID = "x-openstack-request-id"


class Request(NamedTuple):
    """One request.

    `minor` is the minor number of the microversion, `args` are the variable parts of the path, `body` is the
    Python object of the JSON, `key` the idempotency key.
    """

    store: Store
    minor: int
    method: str
    args: Mapping[str, str]
    query: Query
    body: Any
    key: str | None = None

    def read_body(self, versions: Versions) -> Any:
        """The body, valid for the microversion. Raises RequestRefused (400) where it is not."""
        return validate(versions, self.minor, self.body, "body")

    def write(self, rule: Callable[[Draft], T], *, releases: bool = False) -> T:
        """See `Store.write`; a repeated request with the same key is the same write."""
        what = (self.method, self.args, self.body, self.minor)
        return self.store.write(rule, releases=releases, key=self.key, what=what)

    def read_query(self, versions: Versions) -> dict[str, str]:
        """Each query parameter with its last value. Raises RequestRefused (400) for invalid parameters."""
        parameters: dict[str, str] = validate(versions, self.minor, self.query.as_dict(), "query")
        return parameters


class CoreResponse(NamedTuple):
    """One response.

    `headers` have lower-case names; `body` is a Python object that the caller owns, None for an empty one.
    """

    status: int
    headers: dict[str, str]
    body: Any


def new_request_id() -> str:
    """The id of one request, which its response has in the header REQUEST_ID."""
    return f"req-{uuid.uuid4()}"


def json_response(request: Request, body: Any, modified_at: float | None, status: int = 200) -> CoreResponse:
    """A response with a body. `modified_at` (seconds since 1970) becomes last-modified, unless it is None."""
    return CoreResponse(status, cache_headers(request, modified_at), body)


def cache_headers(request: Request, modified_at: float | None) -> dict[str, str]:
    """The caching headers, from microversion 1.15 on."""
    if request.minor < mv.LAST_MODIFIED:
        return {}
    headers = {"cache-control": "no-cache"}
    if modified_at is not None:
        headers["last-modified"] = formatdate(modified_at, usegmt=True)
    return headers


def empty_response(status: int = 204, headers: dict[str, str] | None = None) -> CoreResponse:
    """A response without a body."""
    return CoreResponse(status, headers or {}, None)
