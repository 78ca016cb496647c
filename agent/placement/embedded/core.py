"""The entry of the embedded core: one function call per Placement API request, and its routes.

    core = Core.open(Path("/var/lib/plimsoll"))
    answer = core.request("GET", "/resource_providers?name=host1", microversion="1.39")
    answer.status, answer.headers["last-modified"], answer.body["resource_providers"]
    core.close()

A path and a method have a handler for each microversion that changed them, the newest first. Before the
oldest one the route does not exist yet: 404, or 405 where the path has other methods and the API defines it
so.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from enum import Flag, auto
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from agent.clock import HostClock
from agent.durable.errors import DatabaseClosed, DatabaseError, DatabaseTimeout
from agent.placement.embedded import handlers
from agent.placement.embedded import microversions as mv
from agent.placement.embedded.fleet import HostNotes
from agent.placement.embedded.handlers import REQUEST_ID, CoreResponse, Request, new_request_id
from agent.placement.embedded.problems import (
    INTERNAL_ERROR,
    METHOD_NOT_ALLOWED,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    TITLES,
    UNAVAILABLE,
    UNKNOWN_OUTCOME,
    UNSUPPORTED_MEDIA_TYPE,
    ProblemType,
    RequestRefused,
)
from agent.placement.embedded.rules import Binding
from agent.placement.embedded.store import (
    SEEN_HEADER,
    WAIT_S,
    NotActive,
    SqliteHome,
    Store,
    WholeRequest,
)
from agent.placement.embedded.validation import Query

T = TypeVar("T")
LOG = logging.getLogger(__name__)
KEY_HEADER = "idempotency-key"
ACTIVE_HEADER = "plimsoll-active"
"""In any answer of a server that follows another one: the address of that one, which takes writes."""
STALE_HEADER = "plimsoll-stale"
"""In any answer of a server that follows another one: what it says may be old."""
READS = ("GET", "HEAD")
HANGS_AFTER_S = 5.0
"""A group of writes that is under way for so long waits for a disk that does not answer."""


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
    "/fleet": {"GET": (Route(mv.MIN, handlers.show_fleet, JSON_OUT),)},
    "/fleet/{uuid}": {"GET": (Route(mv.MIN, handlers.show_host, JSON_OUT),)},
    "/metrics": {"GET": (Route(mv.MIN, handlers.show_metrics, NONE),)},
    "/hosts": {"GET": (Route(mv.MIN, handlers.list_hosts, JSON_OUT),)},
    "/hosts/candidates": {"GET": (Route(mv.SAME_SUBTREE, handlers.list_host_candidates, JSON_OUT),)},
    "/hosts/{uuid}/note": {"PUT": (Route(mv.MIN, handlers.put_note, JSON_IN),)},
}


def find_route(method: str, path: str, minor: int) -> tuple[Route, dict[str, str]]:
    """The route of a decoded path without query string, and the values of the path's variable parts.

    Raises RequestRefused: 404, or 405 with the allowed methods.
    """
    parts = _parts(path)
    names, methods = _BY_SHAPE.get(_shape(parts), ([], None))
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
    if JSON_OUT in route.content:
        # Whether the Accept header, if there is one, allows JSON (RFC 9110, section 12.5.1).
        accept = headers.get("accept", "")
        best: tuple[int, bool] = (-1, not accept.strip())
        for media_range in accept.split(","):
            name, *parameters = (part.strip().lower() for part in media_range.split(";"))
            if name in _JSON_RANGES:
                barred = any(re.fullmatch(r"q=0(\.0*)?", parameter) for parameter in parameters)
                best = max(best, (_JSON_RANGES.index(name), not barred))
        if not best[1]:
            raise RequestRefused(NOT_ACCEPTABLE, "Only application/json is provided.")
    if JSON_IN in route.content and "content-type" in headers:
        given = headers["content-type"].partition(";")[0].strip().lower()
        if given != "application/json":
            raise RequestRefused(
                UNSUPPORTED_MEDIA_TYPE,
                f"The media type {given or None} is not supported, use application/json.",
            )


def _shape(parts: list[str]) -> tuple[str | int, ...]:
    """The key of a route: the number of parts and the fixed parts, which alternate with the variable ones."""
    return (len(parts), *parts[::2])


def _parts(path: str) -> list[str]:
    return path.split("/")[1:] if path not in ("", "/") else []


_BY_SHAPE: Mapping[tuple[str | int, ...], tuple[list[str], Methods]] = {
    _shape(_parts(pattern)): ([part.strip("{}") for part in _parts(pattern)[1::2]], methods)
    for pattern, methods in ROUTES.items()
}
"""{the key of a route: the names of its variable parts, its methods}"""


class Core:
    """A complete Placement over one state directory. Any thread may call `request`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._home = store.home
        self.notes = HostNotes()

    @classmethod
    def open(cls, state_dir: Path, *, clock: HostClock | None = None, wait_s: float = WAIT_S) -> Core:
        """Lock the directory, migrate and load placement.db; a write waits `wait_s` seconds for the disk.

        Raises DatabaseError, typed by cause (see agent/durable/errors.py); the file stays unchanged.
        """
        return cls(Store(SqliteHome.at(state_dir), clock, wait_s=wait_s))

    @property
    def in_doubt(self) -> bool:
        """Whether the outcome of a write is unknown: its caller waits no longer, and it may still be done."""
        return self._store.in_doubt

    @classmethod
    def open_shared(
        cls,
        journal: str,
        address: str,
        *,
        accept_loss: bool = False,
        state_dir: Path | None = None,
        leads: Callable[[], bool] = lambda: True,
    ) -> Core:
        """Load the journal of the PostgreSQL database, and follow its writers until this server is one.

        Clients reach it at `address`. `accept_loss`: go on where the database has less than this server has
        seen, of which the `state_dir` tells after a restart. `leads` says whether it may be the active one by
        now. Raises DatabaseError where the database cannot
        have a journal, ImportError without psycopg.
        """
        from agent.placement.embedded.postgres import PostgresHome

        home = PostgresHome(journal, address, accept_loss=accept_loss, state_dir=state_dir, leads=leads)
        return cls(Store(home))

    @property
    def place(self) -> Path:
        """The state directory, or the database."""
        return self._home.place

    @property
    def takes_writes(self) -> bool:
        """Whether writes are done here now: not by another server, while no earlier one hangs."""
        return self._home.is_active and self._home.busy_s < HANGS_AFTER_S and not self.in_doubt

    def close(self) -> None:
        """Finish the current writes, close the file and release the lock."""
        self._store.close()

    def submit_whole(
        self, run: Callable[[], T], tell: Callable[[], None], key: str | None
    ) -> WholeRequest[T] | None:
        """Have the writer's thread `run` what calls `request` once, with that key; see `Store.submit_whole`.

        None where the core is closed, as `request` tells.
        """
        try:
            return self._store.submit_whole(run, tell, key)
        except DatabaseClosed:
            return None

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
        failure: Exception | None = None,
        binding: Binding | None = None,
    ) -> CoreResponse:
        """Answer one request as the Placement API does. A write is on disk when the call returns.

        `path` may have a query string; `body` is the Python object of the JSON. `microversion` is "1.N" or
        "latest"; by default the header openstack-api-version decides, and without it 1.0. `admit` is called
        before the body is checked; an HTTP server raises RequestRefused in it if the caller's role does not
        allow the request. `key` is the idempotency key of a write (by default the header Idempotency-Key):
        the same request with the same key is not executed twice, but answered with what became of the first.
        `failure` is what became of the write, where `submit_whole` ran it before. `binding` limits the write
        to the tree of one host.

        Errors are responses too: 4xx, 503 if the disk failed (nothing has changed), 500. The response to a
        write whose outcome is unknown, because the disk does not answer, is a 504 without a request id.
        """
        request_id: str | None = new_request_id()
        minor: int | None = None
        try:
            lower_headers = {name.lower(): value for name, value in headers.items()} if headers else {}
            header = mv.from_header(lower_headers.get(mv.HEADER))
            minor = mv.parse(header if microversion is None else microversion)
            bare_path, _, query = path.partition("?")
            route, args = find_route(method, unquote(bare_path), minor)
            check_media_types(route, lower_headers)
            if admit is not None:
                admit()
            if failure is None and method not in READS:
                self._home.admit()  # a standby must not refuse it either, because what it knows may be old
            key = key or lower_headers.get(KEY_HEADER)
            asked = (minor, method, args, Query(query), body)
            request = Request(self._store, self.notes, *asked, key, failure, binding)
            answer = route.handler(request)
        except RequestRefused as refusal:
            answer = error_response(refusal, minor, request_id)
        except DatabaseTimeout as error:
            LOG.error("%s %s: %s", method, path, error)
            # The id says that an answer is final, which this one is not.
            request_id = None if error.begun else request_id
            problem = UNKNOWN_OUTCOME if error.begun else UNAVAILABLE
            answer = error_response(RequestRefused(problem, str(error)), minor, request_id)
        except DatabaseError as error:
            level = logging.DEBUG if isinstance(error, NotActive) else logging.ERROR
            LOG.log(level, "%s %s changed nothing: %s", method, path, error)
            answer = error_response(RequestRefused(UNAVAILABLE, str(error)), minor, request_id)
        except Exception as error:
            LOG.exception("%s %s failed", method, path)
            answer = error_response(RequestRefused(INTERNAL_ERROR, repr(error)), minor, request_id)
        if minor is not None:
            answer.headers[mv.HEADER] = f"{mv.SERVICE} {mv.text(minor)}"
            answer.headers["vary"] = mv.HEADER
        if request_id is not None:
            answer.headers[REQUEST_ID] = request_id
        epoch, seq = self._store.newest
        answer.headers.update(self._home.told, **{SEEN_HEADER: f"{epoch}.{seq}"})
        if not self._home.is_active:
            self.notes.forget()
            active = self._home.active_server
            answer.headers.update({STALE_HEADER: "true"} | ({ACTIVE_HEADER: active} if active else {}))
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
