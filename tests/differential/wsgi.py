"""A request as a WSGI application takes it, and its answer."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from typing import Any

from .exchange import Answer, Request

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def ask_wsgi(application: Application, request: Request) -> Answer:
    """Ask as `noauth2` wants it, with every role."""
    started: dict[str, Any] = {}

    def start_response(status: str, headers: list[tuple[str, str]], _exc: Any = None) -> None:
        started["status"] = int(status.split()[0])
        started["headers"] = {name.lower(): value for name, value in headers}

    raw = b"".join(application(_environ(request), start_response))
    return Answer(started["status"], started["headers"], _parsed(raw))


def _environ(request: Request) -> dict[str, Any]:
    path, _, query = request.path.partition("?")
    raw = b"" if request.body is None else json.dumps(request.body).encode()
    if request.text is not None:
        raw = request.text.encode()
    environ = {
        "REQUEST_METHOD": request.method,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "SCRIPT_NAME": "",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_LENGTH": str(len(raw)),
        "HTTP_X_AUTH_TOKEN": "admin",
        "HTTP_X_ROLES": "admin,member,reader,service",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(raw),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": False,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    if request.body is not None:
        environ["CONTENT_TYPE"] = "application/json"
    if request.microversion is not None:
        environ["HTTP_OPENSTACK_API_VERSION"] = f"placement {request.microversion}"
    for name, value in request.headers.items():
        key = name.upper().replace("-", "_")
        environ[key if key == "CONTENT_TYPE" else f"HTTP_{key}"] = value
    return environ


def _parsed(raw: bytes) -> Any:
    if not raw:
        return None
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode()
