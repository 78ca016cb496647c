"""Who may do what, and in which order requests are refused: the same through both WSGI doors."""

from __future__ import annotations

import importlib
import io
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from agent.placement.embedded import Core
from agent.placement.embedded.serve import WsgiApplication

pytestmark = pytest.mark.filterwarnings("ignore")

CALLERS: tuple[dict[str, str], ...] = (
    {},
    {"X_AUTH_TOKEN": ""},
    {"X_AUTH_TOKEN": "admin"},
    {"X_AUTH_TOKEN": "admin:p"},
    {"X_AUTH_TOKEN": "admin", "X_ROLES": ""},
    {"X_AUTH_TOKEN": "bob:p"},
    {"X_AUTH_TOKEN": "bob", "X_ROLES": "reader"},
    {"X_AUTH_TOKEN": "bob:p", "X_ROLES": "member, reader"},
    {"X_AUTH_TOKEN": "bob:", "X_ROLES": "READER"},
    {"X_AUTH_TOKEN": "bob:q", "X_ROLES": "reader", "X_PROJECT_ID": "p"},
    {"X_AUTH_TOKEN": "bob:p", "X_ROLES": "service"},
    {"X_AUTH_TOKEN": "bob:p", "X_ROLES": "Admin"},
    {"X_AUTH_TOKEN": "bob:p", "X_ROLES": "admin,service"},
    {"X_AUTH_TOKEN": "admin", "OPENSTACK_SYSTEM_SCOPE": "all"},
)
REQUESTS = (
    ("GET", "/", "", None, None),
    ("POST", "/", "", None, None),
    ("GET", "/nothing", "", None, None),
    ("PATCH", "/traits", "", None, None),
    ("HEAD", "/traits", "", None, None),
    ("GET", "/resource_providers", "", None, None),
    ("GET", "/resource_providers/nosuch", "", None, None),
    ("GET", "/usages", "project_id=p", None, None),
    ("GET", "/usages", "project_id=bob", None, None),
    ("GET", "/usages", "project_id=q&project_id=p", None, None),
    ("GET", "/usages", "project_id=p&no=1", None, None),
    ("GET", "/usages", "", None, None),
    ("POST", "/resource_providers", "", "application/json", b"{"),
    ("POST", "/resource_providers", "", "text/plain", b"{}"),
    ("POST", "/resource_providers", "", None, b"{}"),
    ("POST", "/resource_providers", "", None, None),
    ("DELETE", "/resource_providers/nosuch", "", None, b"x"),
    ("PUT", "/allocations/nosuch", "", "application/json", b"{}"),
    ("POST", "/reshaper", "", "application/json", b'{"inventories": {}, "allocations": {}}'),
    ("POST", "/reshaper", "", "application/json", b"nonsense"),
    ("GET", "/reshaper", "", None, None),
)
ACCEPTS = (None, "text/plain", "text/html, application/json", "application/json;q=0.1, text/html;q=0.2")
VERSIONS = ("placement 1.39", "placement 1.1", "placement 1.40", "placement x", "compute 2.1")


@pytest.fixture(scope="module")
def theirs() -> Any:
    reference = importlib.import_module(".reference", __package__).Reference()
    return type(reference)._application


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WsgiApplication]:
    core = Core.open(tmp_path_factory.mktemp("callers"))
    yield WsgiApplication(core)
    core.close()


def answer(
    application: Any, environ: dict[str, Any], body: bytes | None
) -> tuple[int, str, str | None, bool]:
    """Status, form of the body, microversion served, and whether the answer has a body."""
    started: dict[str, Any] = {}

    def start_response(status: str, headers: list[tuple[str, str]], _: Any = None) -> None:
        started["status"] = int(status.split()[0])
        started["headers"] = {name.lower(): value for name, value in headers}

    fixed = {"wsgi.input": io.BytesIO(body or b""), "wsgi.errors": io.StringIO()}
    text = b"".join(application({**environ, **fixed}, start_response))
    headers = started["headers"]
    form = headers.get("content-type", "").partition(";")[0] if text else ""
    return started["status"], form, headers.get("openstack-api-version"), bool(text)


@pytest.mark.parametrize(("method", "path", "query", "kind", "body"), REQUESTS)
def test_every_caller_is_answered_alike(
    theirs: Any,
    ours: WsgiApplication,
    method: str,
    path: str,
    query: str,
    kind: str | None,
    body: bytes | None,
) -> None:
    for caller, accept, version in itertools.product(CALLERS, ACCEPTS, VERSIONS):
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "SCRIPT_NAME": "",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "HTTP_OPENSTACK_API_VERSION": version,
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.multithread": False,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        environ |= {f"HTTP_{name}": value for name, value in caller.items()}
        environ |= {"HTTP_ACCEPT": accept} if accept is not None else {}
        environ |= {"CONTENT_TYPE": kind} if kind is not None else {}
        environ |= {"CONTENT_LENGTH": str(len(body))} if body is not None else {}
        assert answer(ours, environ, body) == answer(theirs, environ, body), (caller, accept, version)
