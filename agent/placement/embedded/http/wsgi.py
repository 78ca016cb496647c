"""The WSGI door of the embedded core: text, lengths and callers outside; requests in objects inside.

What Placement itself decides (routes, microversions, media types, bodies) is the core's. Here stands only
what text adds: who asks, how long the body is, JSON, absolute locations, HEAD, and errors for clients that do
not take JSON.
"""

from __future__ import annotations

import html
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import quote

from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from agent.placement.embedded.http.auth import (
    Authenticator,
    Environ,
    TokenUser,
    Unauthenticated,
    authorize,
    noauth,
)
from agent.placement.embedded.problems import BAD_REQUEST, TITLES, TOO_LARGE, RequestRefused

LOG = logging.getLogger(__name__)

BODY_BYTES_MAX = 64 * 1024 * 1024
PATH_SAFE = "/:@!$&'()*+,;=-._~"
JSON = "application/json"
NAME_SHOWN_MAX = 16

StartResponse = Callable[[str, list[tuple[str, str]]], Any]
Response = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers, body."""


class ServiceResponse(Protocol):
    """What the core answers with: header names are lower-case, `body` is None where there is none."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def body(self) -> Any: ...


class CoreService(Protocol):
    """What the door leads to: a Core, or something that answers like one."""

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        microversion: str | None = None,
        headers: Mapping[str, str] | None = None,
        admit: Callable[[], None] | None = None,
    ) -> ServiceResponse: ...


class NoJson:
    """Stands for a body that is not JSON; no schema takes it, and what is said about it says why."""

    def __init__(self, finding: str) -> None:
        self._finding = finding

    def __repr__(self) -> str:
        return f"malformed JSON ({self._finding})"


class WsgiApplication:
    """A WSGI application (PEP 3333) over a core; `authenticate` tells who asks."""

    def __init__(self, core: CoreService, authenticate: Authenticator = noauth) -> None:
        self._core = core
        self._authenticate = authenticate

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        try:
            response = self._response(environ)
        except Unauthenticated as error:
            response = _unauthorized(str(error))
        if response[0] >= 400:
            response = _in_taken_form(environ, response)
        status, headers, payload = response
        if environ["REQUEST_METHOD"] == "HEAD":
            payload = b""
        headers.append(("content-length", str(len(payload))))
        start_response(f"{status} {TITLES.get(status) or HTTPStatus(status).phrase}", headers)
        return (payload,)

    def _response(self, environ: Environ) -> Response:
        method, path, query = environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", "")
        caller = None if path == "/" else self._authenticate(environ)
        body, problem = _body(environ)
        told = _headers(environ)
        if problem is not None:
            del told["content-type"]  # what is wrong with the body goes before what is wrong with its type

        def admit() -> None:
            if problem is not None:
                raise problem
            if caller is not None:
                authorize(caller, method, path, query)

        target = quote(path.encode("latin-1"), safe=PATH_SAFE)
        answer = self._core.request(
            method, f"{target}?{query}" if query else target, body, headers=told, admit=admit
        )
        _log(method, target, answer, caller)
        headers = [
            (name, _absolute(environ, value) if name == "location" else value)
            for name, value in answer.headers.items()
        ]
        if answer.body is None:
            return answer.status, headers, b""
        return answer.status, headers, json.dumps(answer.body).encode()


def _log(method: str, target: str, answer: ServiceResponse, caller: TokenUser | None) -> None:
    """Say who wrote what. A name is cut short: where callers are believed, it may be a token by mistake."""
    level = logging.DEBUG if method == "GET" else logging.INFO
    if LOG.isEnabledFor(level):
        name = f"{caller.name[:NAME_SHOWN_MAX]!r}" if caller else "nobody"
        request_id = answer.headers.get("x-openstack-request-id", "-")
        LOG.log(level, "%s %s: %d, for %s, %s", method, target, answer.status, name, request_id)


def _headers(environ: Environ) -> dict[str, str]:
    """The headers that the core looks at; content-type is there even where the client sent none."""
    headers = {"content-type": environ.get("CONTENT_TYPE", "")}
    for name in ("accept", "openstack-api-version"):
        value = environ.get("HTTP_" + name.upper().replace("-", "_"))
        if value is not None:
            headers[name] = value
    return headers


def _body(environ: Environ) -> tuple[Any, RequestRefused | None]:
    """The request's body as JSON objects (None where there is none, NoJson where it is no JSON), and what is
    wrong with its length or type.
    """
    try:
        text = _read(environ)
    except RequestRefused as refusal:
        return None, refusal
    if not text:
        return None, None
    if not environ.get("CONTENT_TYPE"):
        return None, RequestRefused(BAD_REQUEST, "A body needs a Content-Type header.")
    try:
        return json.loads(text), None
    except (ValueError, RecursionError) as error:
        return NoJson(str(error)), None


def _read(environ: Environ) -> bytes:
    """:raises Refused: 400 or 413"""
    length_text = environ.get("CONTENT_LENGTH") or "0"
    if not (length_text.isascii() and length_text.isdigit()):
        raise RequestRefused(BAD_REQUEST, f"Content-Length must be a number of bytes, not {length_text!r}.")
    length = int(length_text)
    if length > BODY_BYTES_MAX:
        raise RequestRefused(
            TOO_LARGE, f"The body may have at most {BODY_BYTES_MAX} bytes; send it in parts."
        )
    text: bytes = environ["wsgi.input"].read(length) if length else b""
    if len(text) < length:
        raise RequestRefused(BAD_REQUEST, f"The body ended after {len(text)} of {length} bytes.")
    return text


def _absolute(environ: Environ, path: str) -> str:
    host = environ.get("HTTP_HOST") or f"{environ['SERVER_NAME']}:{environ['SERVER_PORT']}"
    return f"{environ['wsgi.url_scheme']}://{host}{environ.get('SCRIPT_NAME', '')}{path}"


def _unauthorized(sentence: str) -> Response:
    """Shaped as the real service does it, which answers this one before Placement proper is reached."""
    body = {"message": sentence, "code": "401 Unauthorized", "title": TITLES[401]}
    return 401, [("content-type", JSON), ("www-authenticate", "Bearer")], json.dumps(body).encode()


def _in_taken_form(environ: Environ, response: Response) -> Response:
    """The error as HTML or plain text, where the client's Accept header prefers that to JSON."""
    status, headers, payload = response
    accept = environ.get("HTTP_ACCEPT")
    if not payload or accept in (None, "", "*/*", JSON):
        return response
    best = parse_accept_header(accept, MIMEAccept).best_match(("text/html", JSON), default="text/plain")
    if best == JSON:
        return response
    content = json.loads(payload)
    title = f"{status} {TITLES[status]}"
    detail = content["errors"][0]["detail"] if "errors" in content else content["message"]
    if best == "text/html":
        page = f"<html>\n <head>\n  <title>{title}</title>\n </head>\n <body>\n  <h1>{title}</h1>\n  "
        text = f"{page}{html.escape(detail)}\n </body>\n</html>"
    else:
        text = f"{title}\n\n{detail}"
    kept = [(name, value) for name, value in headers if name != "content-type"]
    return status, [*kept, ("content-type", f"{best}; charset=UTF-8")], text.encode()
