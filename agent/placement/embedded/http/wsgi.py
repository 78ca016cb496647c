"""The WSGI application over the embedded core: text, lengths and callers outside, Python objects inside.

The core decides what Placement itself decides (routes, microversions, media types, bodies). This module adds
what HTTP requires: authentication, the length of the body, JSON, absolute locations, HEAD, and errors for
clients that do not accept JSON.
"""

from __future__ import annotations

import html
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import quote

from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from agent.http.fair_threads import without_collection
from agent.placement.embedded.http.auth import (
    Authenticator,
    Environ,
    TokenUser,
    Unauthenticated,
    authorize,
    noauth,
)
from agent.placement.embedded.messages import REQUEST_ID, new_request_id
from agent.placement.embedded.problems import BAD_REQUEST, TITLES, TOO_LARGE, RequestRefused

LOG = logging.getLogger(__name__)

BODY_BYTES_MAX = 64 * 1024 * 1024
PATH_SAFE = "/:@!$&'()*+,;=-._~"
JSON = "application/json"
NAME_SHOWN_MAX = 16
PIECE_MEMBERS = 256
LONG_ANSWERS = "/allocation_candidates"

StartResponse = Callable[[str, list[tuple[str, str]]], Any]
Response = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers, body."""


class ServiceResponse(Protocol):
    """The core's response: header names are lower-case, `body` is None for an empty one."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers."""
        ...

    @property
    def body(self) -> Any:
        """The Python object of the JSON."""
        ...


class CoreService(Protocol):
    """The interface of the core that the application uses; see `Core`."""

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        microversion: str | None = None,
        headers: Mapping[str, str] | None = None,
        admit: Callable[[], None] | None = None,
    ) -> ServiceResponse:
        """Answer one request; see `Core.request`."""
        ...


class NoJson:
    """Stands for a body that is not JSON. No schema accepts it, and its representation says why it is not."""

    def __init__(self, error: str) -> None:
        self._error = error

    def __repr__(self) -> str:
        return f"malformed JSON ({self._error})"


class WsgiApplication:
    """A WSGI application (PEP 3333) over a core; `authenticate` identifies callers."""

    def __init__(self, core: CoreService, authenticate: Authenticator = noauth) -> None:
        self._core = core
        self._authenticate = authenticate

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        try:
            with without_collection() if environ["PATH_INFO"] == LONG_ANSWERS else nullcontext():
                response = self._response(environ)
        except Unauthenticated as error:
            # In the form of OpenStack Placement's authentication middleware, which answers it there.
            body = {"message": str(error), "code": "401 Unauthorized", "title": TITLES[401]}
            sent = [("content-type", JSON), ("www-authenticate", "Bearer"), (REQUEST_ID, new_request_id())]
            response = 401, sent, json.dumps(body).encode()
        if response[0] >= 400:
            response = _in_accepted_form(environ, response)
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
        sent = _headers(environ)
        if problem is not None:
            del sent["content-type"]  # the refusal for the body precedes the one for its media type

        def admit() -> None:
            if problem is not None:
                raise problem
            if caller is not None:
                authorize(caller, method, path, query)

        target = quote(path.encode("latin-1"), safe=PATH_SAFE)
        answer = self._core.request(
            method, f"{target}?{query}" if query else target, body, headers=sent, admit=admit
        )
        _log(method, target, answer, caller)
        headers = list(answer.headers.items())
        if "location" in answer.headers:
            host = environ.get("HTTP_HOST") or f"{environ['SERVER_NAME']}:{environ['SERVER_PORT']}"
            origin = f"{environ['wsgi.url_scheme']}://{host}{environ.get('SCRIPT_NAME', '')}"
            headers = [(name, f"{origin}{value}" if name == "location" else value) for name, value in headers]
        if answer.body is None:
            return answer.status, headers, b""
        return answer.status, headers, in_pieces(answer.body).encode()


def in_pieces(body: Any) -> str:
    """The JSON of the body. While `json.dumps` runs no other thread does: a long body is dumped in pieces."""
    if not isinstance(body, dict):
        return json.dumps(body)
    return "{" + ", ".join(f"{json.dumps(name)}: {_long(value)}" for name, value in body.items()) + "}"


def _long(value: Any) -> str:
    if not isinstance(value, dict | list) or len(value) <= PIECE_MEMBERS:
        return json.dumps(value)
    members = iter(value.items() if isinstance(value, dict) else value)
    pieces = iter(lambda: type(value)(itertools.islice(members, PIECE_MEMBERS)), type(value)())
    inside = ", ".join(json.dumps(piece)[1:-1] for piece in pieces)
    return f"{{{inside}}}" if isinstance(value, dict) else f"[{inside}]"


def _log(method: str, target: str, answer: ServiceResponse, caller: TokenUser | None) -> None:
    """Log a write with its caller. The name is cut, because under noauth it may be a token by mistake."""
    level = logging.DEBUG if method == "GET" else logging.INFO
    if LOG.isEnabledFor(level):
        name = f"{caller.name[:NAME_SHOWN_MAX]!r}" if caller else "-"
        request_id = answer.headers.get(REQUEST_ID, "-")
        LOG.log(level, "%s %s: %d, for %s, %s", method, target, answer.status, name, request_id)


def _headers(environ: Environ) -> dict[str, str]:
    """The headers that the core reads; content-type is always present, empty if the client sent none."""
    headers = {"content-type": environ.get("CONTENT_TYPE", "")}
    for name in ("accept", "openstack-api-version", "idempotency-key"):
        value = environ.get("HTTP_" + name.upper().replace("-", "_"))
        if value is not None:
            headers[name] = value
    return headers


def _body(environ: Environ) -> tuple[Any, RequestRefused | None]:
    """The body as a Python object, and the refusal for its length or type, if there is one.

    The object is None for an empty body and NoJson for a body that is not JSON.
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
    """The bytes of the body. Raises RequestRefused: 400, 413."""
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


def _in_accepted_form(environ: Environ, response: Response) -> Response:
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
    others = [(name, value) for name, value in headers if name != "content-type"]
    return status, [*others, ("content-type", f"{best}; charset=UTF-8")], text.encode()
