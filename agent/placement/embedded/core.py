"""The entry of the embedded core: one function call per Placement API request.

core = Core.open(Path("/var/lib/plimsoll"))
answer = core.request("GET", "/resource_providers?name=host1", microversion="1.39")
answer.status, answer.headers["last-modified"], answer.body["resource_providers"]
core.close()
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from agent.clock import HostClock
from agent.durable.errors import DatabaseError, DatabaseTimeout
from agent.placement.embedded import microversions as mv
from agent.placement.embedded import routes
from agent.placement.embedded.messages import REQUEST_ID, CoreResponse, Request, new_request_id
from agent.placement.embedded.problems import (
    INTERNAL_ERROR,
    KEY_REUSED,
    NOT_ACCEPTABLE,
    TITLES,
    UNAVAILABLE,
    UNKNOWN_OUTCOME,
    RequestRefused,
)
from agent.placement.embedded.store import WAIT_S, KeyReused, Store
from agent.placement.embedded.validation import Query

KEY_HEADER = "idempotency-key"
LOG = logging.getLogger(__name__)


class Core:
    """A complete Placement over one state directory. Any thread may call `request`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    def open(cls, state_dir: Path, *, clock: HostClock | None = None, wait_s: float = WAIT_S) -> Core:
        """Lock the directory, migrate and load placement.db; a write waits `wait_s` seconds for the disk.

        Raises DatabaseError, typed by cause (see agent/durable/errors.py); the file stays unchanged.
        """
        return cls(Store(state_dir, clock, wait_s=wait_s))

    @property
    def in_doubt(self) -> bool:
        """Whether the outcome of a write is unknown: its caller waits no longer, and it may still be done."""
        return self._store.in_doubt

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
        key: str | None = None,
    ) -> CoreResponse:
        """Answer one request as the Placement API does. A write is on disk when the call returns.

        `path` may have a query string; `body` is the Python object of the JSON. `microversion` is "1.N" or
        "latest"; by default the header openstack-api-version decides, and without it 1.0. `admit` is called
        before the body is checked; an HTTP server raises RequestRefused in it if the caller's role does not
        allow the request. `key` is the idempotency key of a write (by default the header Idempotency-Key):
        the same request with the same key is not executed twice, but answered with what became of the first.

        Errors are responses too: 4xx, 503 if the disk failed (nothing has changed), 500. The response to a
        write whose outcome is unknown, because the disk does not answer, is a 504 without a request id.
        """
        request_id: str | None = new_request_id()
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
            key = key or lower_headers.get(KEY_HEADER)
            answer = route.handler(Request(self._store, minor, method, args, Query(query), body, key))
        except RequestRefused as refusal:
            answer = error_response(refusal, minor, request_id)
        except KeyReused:
            reused = RequestRefused(KEY_REUSED, f"Another request had the idempotency key {key!r}.")
            answer = error_response(reused, minor, request_id)
        except DatabaseTimeout as error:
            LOG.error("%s %s: %s", method, path, error)
            # The id says that an answer is final, which this one is not.
            request_id = None if error.begun else request_id
            problem = UNKNOWN_OUTCOME if error.begun else UNAVAILABLE
            answer = error_response(RequestRefused(problem, str(error)), minor, request_id)
        except DatabaseError as error:
            LOG.error("%s %s changed nothing: %s", method, path, error)
            answer = error_response(RequestRefused(UNAVAILABLE, str(error)), minor, request_id)
        except Exception as error:
            LOG.exception("%s %s failed", method, path)
            answer = error_response(RequestRefused(INTERNAL_ERROR, repr(error)), minor, request_id)
        if minor is not None:
            answer.headers[mv.HEADER] = f"{mv.SERVICE} {mv.text(minor)}"
            answer.headers["vary"] = mv.HEADER
        if request_id is not None:
            answer.headers[REQUEST_ID] = request_id
        if answer.body is not None:
            answer.headers["content-type"] = "application/json"
        return answer


def error_response(refusal: RequestRefused, minor: int | None, request_id: str | None) -> CoreResponse:
    """The response for a refused request. `minor` is None where the microversion itself was refused."""
    problem = refusal.problem
    error: dict[str, Any] = {
        "status": problem.status,
        "title": TITLES[problem.status],
        "detail": refusal.detail,
    }
    if request_id is not None:
        error["request_id"] = request_id
    if minor is not None and minor >= mv.ERROR_CODES:
        error["code"] = problem.code
    if minor is None and problem is NOT_ACCEPTABLE:
        error["max_version"], error["min_version"] = mv.text(mv.MAX), mv.text(mv.MIN)
    if refusal.reasons:
        error["reasons"] = [dict(reason) for reason in refusal.reasons]
    return CoreResponse(problem.status, dict(refusal.headers), {"errors": [error]})
