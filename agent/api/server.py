"""The local API on its Unix socket.

`Api` is the WSGI application: it checks the caller, finds the route, and shows errors as JSON. `ApiServer`
serves it.
"""

import fcntl
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from werkzeug.exceptions import ClientDisconnected, HTTPException, MethodNotAllowed
from werkzeug.routing import Map, Rule
from werkzeug.wrappers import Request

from agent import __version__, log
from agent.api.operations import Operations
from agent.api.routes import ROUTES, ApiRoute, Call
from agent.config.access import Access, ApiRole
from agent.config.check import check_api_socket, unusable_socket_directory
from agent.errors import (
    MORE_DESCRIPTORS,
    NO_DESCRIPTORS,
    Forbidden,
    PlimsollError,
    SettingsError,
    StateError,
    UsageError,
    counted,
)
from agent.http import unix_socket
from agent.http.errors import (
    AddressInUse,
    BodyTooLarge,
    LengthRequired,
    ListenError,
    OutOfDescriptors,
    TooSlow,
    error_body,
)
from agent.http.process import long_computation
from agent.http.server import BoundedServer, Limits, Listener
from agent.http.unix_socket import PeerCredentials, peer_credentials
from agent.state.identity import this_boot
from agent.state.operators import Caller, acting_for, check_caller_waits
from agent.status.web import WebResponse

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

LOG = log.get("agent.api")
BODY_BYTES_MAX = 1024 * 1024
PROGRAM_CHARS_MAX = 64
UNTIL = "Plimsoll-Until"
"""The header of how long the caller waits: the uuid of the boot, and seconds by its monotonic clock."""
NO_DESCRIPTOR = (
    "The agent has no file descriptor left, so this request was not done to its end: look at what it changed "
    f"(`plimsoll instances`), and send it again; if that goes on, {MORE_DESCRIPTORS}"
)


class NotFound(PlimsollError):
    """The API has no such path."""

    code = "plimsoll.api.not_found"
    http_status = 404


class WrongMethod(PlimsollError):
    """The path does not have this method; `allow` are the methods that it has."""

    code = "plimsoll.api.method_not_allowed"
    http_status = 405

    def __init__(self, message: str, allow: Iterable[str]) -> None:
        super().__init__(message, allow=sorted(allow))


class WrongMediaType(PlimsollError):
    """The body is not JSON."""

    code = "plimsoll.api.media_type"
    http_status = 415


class Api:
    """The API as a WSGI callable, safe to call from many threads."""

    def __init__(self, operations: Operations, access: Access) -> None:
        self._operations = operations
        self._access = access
        self._routes = Map(
            [Rule(route.rule, methods=[route.method], endpoint=route) for route in ROUTES],
            strict_slashes=True,
            merge_slashes=False,
            redirect_defaults=False,
        ).bind("plimsoll")

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        request = Request(environ)
        try:
            answer = self._answer(request)
        except PlimsollError as error:
            if error.http_status >= 500:
                LOG.warning("%s %s: %s", request.method, request.path, error.message)
            allow = {"Allow": ", ".join(error.details["allow"])} if isinstance(error, WrongMethod) else {}
            body = error_body(error.code, error.message, error.details)
            answer = WebResponse(error.http_status, body, allow)
        except HTTPException as error:
            code = f"plimsoll.api.http_{error.code or 400}"
            body = error_body(code, error.description or error.name)
            answer = WebResponse(error.code or 400, body)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:
                LOG.warning("%s %s: %s.", request.method, request.path, error.strerror)
                answer = WebResponse(503, error_body("plimsoll.internal", NO_DESCRIPTOR))
            else:
                # The caller gets the id of the error, the log gets the traceback.
                name = uuid4().hex[:12]
                told = "error %s in %s %s", name, request.method, request.path
                LOG.exception(*told, fields={"error_id": name})
                message = f"The agent failed in an unexpected way; its log tells more under error {name}"
                answer = WebResponse(500, error_body("plimsoll.internal", message, {"id": name}))
        return answer.send(start_response, _OF_ALL)

    def _answer(self, request: Request) -> WebResponse:
        caller = peer_credentials(request.environ)
        if caller is None:
            raise Forbidden("The kernel did not name the caller's user, so nothing is allowed")
        role = self._access.role_of(caller.uid, caller.gid)
        try:
            route, path = self._route(request)
        except PlimsollError:
            if role is ApiRole.NONE:
                raise _forbidden(request, caller, role, ApiRole.READER) from None
            raise
        if role < route.role:
            raise _forbidden(request, caller, role, route.role)
        query: dict[str, str] = {}
        for name, values in request.args.lists():
            if name not in route.query:
                raise UsageError(f"{request.path} has no query parameter {name!r}", parameter=name)
            if len(values) != 1:
                raise UsageError(
                    f"The query parameter {name} is given {counted(len(values), 'time')}", parameter=name
                )
            query[name] = values[0]
        if not route.has_body and request.content_length:
            raise UsageError(f"{request.method} {request.path} takes no body")
        body = _json(request) if route.has_body else None
        has_gone = request.environ.get("X_HAS_GONE", lambda: False)
        with acting_for(Caller(caller.uid, caller.pid, _program(request), _until(request), has_gone)):
            try:
                if route.method != "GET":
                    check_caller_waits()
                with long_computation() if route.role is ApiRole.READER else nullcontext():
                    return route.answer(Call(self._operations, caller, path, query), body)
            except PlimsollError as error:
                # A failed request may have changed something, so the log names its caller.
                if route.method != "GET":
                    told = request.method, request.path, caller, error.message
                    LOG.info(
                        "%s %s, asked for by %s: %s", *told, fields={"code": error.code, **caller.fields}
                    )
                raise

    def _route(self, request: Request) -> tuple[ApiRoute, Mapping[str, str]]:
        try:
            route, path = self._routes.match(request.path, request.method)
        except MethodNotAllowed as error:
            allow = error.valid_methods or ()
            known = ", ".join(sorted(allow))
            raise WrongMethod(f"{request.path} allows {known}, not {request.method}", allow) from None
        except HTTPException:
            raise NotFound(
                f"There is nothing at {request.path}; GET /v1/openapi.json lists all paths"
            ) from None
        return route, path


def _forbidden(request: Request, caller: PeerCredentials, role: ApiRole, needed: ApiRole) -> Forbidden:
    has, needs, asked = role.name.lower(), needed.name.lower(), f"{request.method} {request.path}"
    LOG.warning(
        "%s refused: %s has the role %s, and needs %s", asked, caller, has, needs, fields=caller.fields
    )
    return Forbidden(
        f"Uid {caller.uid} may not {asked}: that needs the role {needs}, and its role is {has}; "
        f"[api] {needs}s in the agent's settings gives it",
        uid=caller.uid,
        role=has,
        needed=needs,
    )


def _program(request: Request) -> str:
    """What the caller calls itself: the comment of the package's User-Agent, else the product of another."""
    product, _, comment = request.headers.get("User-Agent", "").partition(" ")
    name = comment[1:-1] if product.startswith("plimsoll/") and comment else product
    return name[:PROGRAM_CHARS_MAX] if name.isprintable() else ""


def _until(request: Request) -> float:
    """How long the caller waits, by the clock of this boot; a caller on another host has another clock."""
    boot, _, seconds = request.headers.get(UNTIL, "").partition(" ")
    try:
        if seconds and boot == this_boot():
            return float(seconds)
    except (OSError, ValueError):
        LOG.debug("The moment until which a caller waits cannot be read: %r", seconds)
    return math.inf


def _json(request: Request) -> Any:
    if request.mimetype != "application/json":
        raise WrongMediaType(
            f"The body must be application/json, not {request.mimetype or 'of no type'}",
            media_type=request.mimetype,
        )
    if request.content_length is None:
        raise LengthRequired("The body must come with a Content-Length")
    if request.content_length > BODY_BYTES_MAX:
        raise BodyTooLarge(
            f"The body has {counted(request.content_length, 'byte')}; at most {BODY_BYTES_MAX} are allowed",
            max_bytes=BODY_BYTES_MAX,
        )
    try:
        text = request.get_data(cache=False).decode("utf-8")
        parsed = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
        if _SURROGATE.search(text):
            json.dumps(parsed, ensure_ascii=False).encode("utf-8")  # half a character alone is none
    except (OSError, ClientDisconnected) as error:
        raise TooSlow("The whole body did not arrive in time") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The body is not valid JSON: {error}") from error
    return parsed


_SURROGATE = re.compile(r"\\u[dD]")


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    known = dict(pairs)
    if len(known) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"{', '.join(map(repr, twice))} is given twice")
    return known


_OF_ALL = {"Cache-Control": "no-store", "Plimsoll-Version": __version__}


DIRECTORY_MODE = 0o750
THREADS = 16
WAITING_MAX = 64
REQUEST_TIMEOUT_S = 10.0
LIMITS = Limits(
    threads=THREADS,
    backlog=128,
    waiting=WAITING_MAX,
    kept_alive=64,
    header_bytes=16 * 1024,
    body_bytes=BODY_BYTES_MAX,
    reserve=8,
)


class ApiServer:
    """Serves `operations` at `socket_path` to the users that `access` names."""

    def __init__(
        self,
        operations: Operations,
        access: Access,
        socket_path: Path,
        *,
        threads: int = THREADS,
        waiting_max: int = WAITING_MAX,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self._path = Path(socket_path)
        limits = replace(LIMITS, threads=threads, waiting=waiting_max, request_timeout_s=request_timeout_s)
        server = BoundedServer(self._path, Api(operations, access), limits, peer_credentials=True)
        self._listener = Listener(server, "the local API")

    def start(self) -> None:
        """Listen; when this returns, requests are answered.

        Raises SettingsError where the socket cannot be made at this path, StateError where another agent
        listens there.
        """
        check_api_socket(self._path)
        with _locked_directory(self._path.parent):
            try:
                self._listener.start()
            except ListenError as error:
                raise _start_error(self._path, error) from error

    def stop(self) -> None:
        """Finish the requests under way, close, and remove the socket file; idempotent."""
        self._listener.stop()


def prepare_place(path: Path) -> None:
    """Make the socket's directory if it is missing, and check that no agent listens there.

    So an agent that cannot listen ends before it writes to Placement. Raises as `ApiServer.start` does.
    """
    check_api_socket(path)
    _make_directory(path.parent)
    try:
        unix_socket.check_unused(path)
    except ListenError as error:
        raise _start_error(path, error) from error


def _start_error(path: Path, error: ListenError) -> PlimsollError:
    if isinstance(error, AddressInUse):
        return StateError(
            f"Another agent listens at {path}; stop it, or give this one another [api] socket",
            socket=str(path),
        )
    if isinstance(error, OutOfDescriptors):
        return StateError(f"Cannot listen at {path}: {error}; {MORE_DESCRIPTORS}", socket=str(path))
    return SettingsError(
        f"Cannot listen at {path}: {error}; set [api] socket to a path in a directory that the agent may "
        "write",
        socket=str(path),
    )


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    except OSError as error:
        raise unusable_socket_directory(path, error) from error


@contextmanager
def _locked_directory(path: Path) -> Iterator[None]:
    """Lock the socket's directory, which is made with mode 0750 if it is missing.

    Raises SettingsError where that fails, StateError where another agent has locked it.

    Without the lock, two agents that start at the same time could each remove the other's new socket.
    """
    _make_directory(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise unusable_socket_directory(path, error) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateError(f"Another agent is starting in {path}; stop one of them") from None
        yield
    finally:
        os.close(fd)
