"""The WSGI application: it checks the caller, finds the route, and shows errors as JSON."""

import encodings.idna  # noqa: F401 - werkzeug needs it in each request, when no descriptor may be left to load it
import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from werkzeug.exceptions import ClientDisconnected, HTTPException, MethodNotAllowed
from werkzeug.routing import Map, Rule
from werkzeug.wrappers import Request, Response

from agent import log
from agent.api.handlers import ApiResponse, Call
from agent.api.operations import Operations
from agent.api.routes import ROUTES, ApiRoute
from agent.config.access import Access, ApiRole
from agent.errors import MORE_DESCRIPTORS, NO_DESCRIPTORS, Forbidden, PlimsollError, UsageError, counted
from agent.http.errors import BodyTooLarge, LengthRequired, TooSlow, error_body
from agent.http.peer import PeerCredentials, peer_credentials
from agent.state.caller import acting_for

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

LOG = log.get("agent.api")
BODY_BYTES_MAX = 1024 * 1024
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


def _error_id() -> str:
    return uuid4().hex[:12]


class Api:
    """The API as a WSGI callable, safe to call from many threads."""

    def __init__(
        self, operations: Operations, access: Access, *, error_id: Callable[[], str] = _error_id
    ) -> None:
        self._operations = operations
        self._access = access
        self._error_id = error_id
        self._routes = Map(
            [Rule(route.rule, methods=[route.method], endpoint=route) for route in ROUTES],
            strict_slashes=True,
            merge_slashes=False,
            redirect_defaults=False,
        )

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        return self._respond(Request(environ))(environ, start_response)

    def _respond(self, request: Request) -> Response:
        try:
            return _response(self._answer(request))
        except PlimsollError as error:
            if error.http_status >= 500:
                LOG.warning("%s %s: %s", request.method, request.path, error.message)
            return _failure(error)
        except HTTPException as error:
            code = f"plimsoll.api.http_{error.code or 400}"
            return _response(
                ApiResponse(error.code or 400, error_body(code, error.description or error.name))
            )
        except Exception as error:
            if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:
                LOG.warning("%s %s: %s.", request.method, request.path, error.strerror)
                return _response(ApiResponse(503, error_body("plimsoll.internal", NO_DESCRIPTOR)))
            # The caller gets the id of the error, the log gets the traceback.
            name = self._error_id()
            LOG.exception("error %s in %s %s", name, request.method, request.path, fields={"error_id": name})
            message = f"The agent failed in an unexpected way; its log tells more under error {name}"
            return _response(ApiResponse(500, error_body("plimsoll.internal", message, {"id": name})))

    def _answer(self, request: Request) -> ApiResponse:
        caller = _caller(request)
        role = self._access.role_of(caller.uid, caller.gid)
        if role is ApiRole.NONE:
            raise _forbidden(request, caller, role, ApiRole.READER)
        route, path = self._route(request)
        if role < route.role:
            raise _forbidden(request, caller, role, route.role)
        query = _query(request, route)
        if not route.has_body:
            _refuse_body(request)
        body = _json(request) if route.has_body else None
        with acting_for(caller.uid, caller.pid):
            return _handled(route, Call(self._operations, caller, path, query, body), request)

    def _route(self, request: Request) -> tuple[ApiRoute, Mapping[str, str]]:
        try:
            route, path = self._routes.bind_to_environ(request.environ).match()
        except MethodNotAllowed as error:
            allow = error.valid_methods or ()
            known = ", ".join(sorted(allow))
            raise WrongMethod(f"{request.path} allows {known}, not {request.method}", allow) from None
        except HTTPException:
            raise NotFound(
                f"There is nothing at {request.path}; GET /v1/openapi.json lists all paths"
            ) from None
        return route, path


def _handled(route: ApiRoute, call: Call, request: Request) -> ApiResponse:
    """The handler's response. A failed request may have changed something, so the log names its caller."""
    try:
        return route.handle(call)
    except PlimsollError as error:
        if route.method != "GET":
            LOG.info(
                "%s %s, asked for by uid %d (pid %d): %s",
                request.method,
                request.path,
                call.caller.uid,
                call.caller.pid,
                error.message,
                fields={"code": error.code, "uid": call.caller.uid, "pid": call.caller.pid},
            )
        raise


def _caller(request: Request) -> PeerCredentials:
    caller = peer_credentials(request.environ)
    if caller is None:
        raise Forbidden("The kernel did not name the caller's user, so nothing is allowed")
    return caller


def _forbidden(request: Request, caller: PeerCredentials, role: ApiRole, needed: ApiRole) -> Forbidden:
    LOG.warning(
        "%s %s refused: uid %d (pid %d) has the role %s, and needs %s",
        request.method,
        request.path,
        caller.uid,
        caller.pid,
        role.name.lower(),
        needed.name.lower(),
        fields={"uid": caller.uid, "pid": caller.pid},
    )
    return Forbidden(
        f"Uid {caller.uid} may not {request.method} {request.path}: that needs the role "
        f"{needed.name.lower()}, and its role is {role.name.lower()}; [api] {needed.name.lower()}s "
        "in the agent's settings gives it",
        uid=caller.uid,
        role=role.name.lower(),
        needed=needed.name.lower(),
    )


def _query(request: Request, route: ApiRoute) -> dict[str, str]:
    query: dict[str, str] = {}
    for name, values in request.args.lists():
        if name not in route.query:
            raise UsageError(f"{request.path} has no query parameter {name!r}", parameter=name)
        if len(values) != 1:
            raise UsageError(
                f"The query parameter {name} is given {counted(len(values), 'time')}", parameter=name
            )
        query[name] = values[0]
    return query


def _refuse_body(request: Request) -> None:
    if request.content_length:
        raise UsageError(f"{request.method} {request.path} takes no body")


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
        json.dumps(parsed, ensure_ascii=False).encode("utf-8")
    except (OSError, ClientDisconnected) as error:
        raise TooSlow("The whole body did not arrive in time") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The body is not valid JSON: {error}") from error
    return parsed


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    known = dict(pairs)
    if len(known) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"{', '.join(map(repr, twice))} is given twice")
    return known


def _failure(error: PlimsollError) -> Response:
    headers = {"Allow": ", ".join(error.details["allow"])} if isinstance(error, WrongMethod) else {}
    return _response(
        ApiResponse(error.http_status, error_body(error.code, error.message, error.details), headers)
    )


def _response(answer: ApiResponse) -> Response:
    text = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body) + "\n"
    response = Response(text, answer.status, content_type=answer.kind)
    response.headers.extend(answer.headers)
    response.headers["Cache-Control"] = "no-store"
    return response
