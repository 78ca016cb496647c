"""The entry of the embedded core: one function call per Placement API request.

core = Core.open(Path("/var/lib/plimsoll"))
answer = core.request("GET", "/resource_providers?name=host1", microversion="1.39")
answer.status, answer.headers["last-modified"], answer.body["resource_providers"]
core.close()
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from agent.durable.errors import DatabaseError
from agent.placement.embedded import microversions as mv
from agent.placement.embedded import routes
from agent.placement.embedded.messages import CoreResponse, Request
from agent.placement.embedded.problems import (
    INTERNAL_ERROR,
    NOT_ACCEPTABLE,
    TITLES,
    UNAVAILABLE,
    RequestRefused,
)
from agent.placement.embedded.query_string import Query
from agent.placement.embedded.store import Store

LOG = logging.getLogger(__name__)


class Core:
    """A complete Placement over one state directory. Any thread may call `request`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    def open(cls, state_dir: Path, *, clock: Callable[[], float] = time.time) -> Core:
        """Lock the directory, migrate and load placement.db.

        Raises DatabaseError, typed by cause (see agent/durable/errors.py); the file stays unchanged.
        """
        return cls(Store(state_dir, clock))

    def close(self) -> None:
        """Finish the current writes, close the file and release the lock."""
        self._store.close()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        microversion: str | None = None,
        headers: Mapping[str, str] | None = None,
        admit: Callable[[], None] | None = None,
    ) -> CoreResponse:
        """Answer one request as the Placement API does. A write is on disk when the call returns.

        `path` may have a query string; `body` is the Python object of the JSON. `microversion` is "1.N" or
        "latest"; by default the header openstack-api-version decides, and without it 1.0. `admit` is called
        before the body is checked; an HTTP server raises RequestRefused in it if the caller's role does not
        allow the request.

        Errors are responses too: 4xx, 503 if the disk failed (nothing has changed), 500.
        """
        request_id = f"req-{uuid.uuid4()}"
        minor: int | None = None
        try:
            lower_headers = {name.lower(): value for name, value in headers.items()} if headers else {}
            if microversion is None:
                microversion = mv.from_header(lower_headers.get(mv.HEADER))
            minor = mv.parse(microversion)
            bare_path, _, query = path.partition("?")
            route, args = routes.find_route(method, unquote(bare_path), minor)
            routes.check_media_types(route, lower_headers)
            if admit is not None:
                admit()
            answer = route.handler(Request(self._store, minor, method, args, Query(query), body))
        except RequestRefused as refusal:
            answer = error_response(refusal, minor, request_id)
        except DatabaseError as error:
            LOG.error("%s %s changed nothing: %s", method, path, error)
            answer = error_response(RequestRefused(UNAVAILABLE, str(error)), minor, request_id)
        except Exception as error:
            LOG.exception("%s %s failed", method, path)
            answer = error_response(RequestRefused(INTERNAL_ERROR, repr(error)), minor, request_id)
        if minor is not None:
            answer.headers[mv.HEADER] = f"{mv.SERVICE} {mv.text(minor)}"
            answer.headers["vary"] = mv.HEADER
        answer.headers["x-openstack-request-id"] = request_id
        if answer.body is not None:
            answer.headers["content-type"] = "application/json"
        return answer


def error_response(refusal: RequestRefused, minor: int | None, request_id: str) -> CoreResponse:
    """The response for a refused request. `minor` is None where the microversion itself was refused."""
    problem = refusal.problem
    error: dict[str, Any] = {
        "status": problem.status,
        "title": TITLES[problem.status],
        "detail": refusal.detail,
        "request_id": request_id,
    }
    if minor is not None and minor >= mv.ERROR_CODES:
        error["code"] = problem.code
    if minor is None and problem is NOT_ACCEPTABLE:
        error["max_version"], error["min_version"] = mv.text(mv.MAX), mv.text(mv.MIN)
    if refusal.reasons:
        error["reasons"] = [dict(reason) for reason in refusal.reasons]
    return CoreResponse(problem.status, dict(refusal.headers), {"errors": [error]})
