"""Who is let in: the kernel's word counts, and nothing that a caller writes."""

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.api_client import NOBODY, ROOT_NEEDED, ask, is_root, public_directory, serving
from kits.api_host import SmallHost

from agent.api.routes import ROUTES
from agent.api.server import Api
from agent.config.access import Access, Principals

NOBODY_UID = Principals(frozenset({NOBODY}))
BODY = {"consumer": "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69", "groups": [{"resources": {"VCPU": 1}}]}


@pytest.fixture
def public_path() -> Iterator[Path]:
    with public_directory() as path:
        yield path


# Asks as another user: drops its groups and uid, sends one request, prints the status and the error's code.
AS_ANOTHER = """
import http.client, json, os, socket, sys
uid, path, method, url, body = int(sys.argv[1]), *sys.argv[2:]
os.setgroups([]); os.setgid(uid); os.setuid(uid)
connection = http.client.HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(path)
headers = {"Content-Type": "application/json"} if body else {}
lies = {"X-Remote-Uid": "0", "X_REMOTE_UID": "0", "Remote-User": "root"}
connection.request(method, url, body or None, {**headers, **lies})
reply = connection.getresponse()
answer = json.loads(reply.read())
print(json.dumps([reply.status, answer.get("error", {}).get("code")]))
"""


def as_another(path: Path, method: str, url: str, body: object = None) -> tuple[int, str | None]:
    command = [sys.executable, "-I", "-c", AS_ANOTHER, str(NOBODY), str(path), method, url]
    done = subprocess.run(
        [*command, json.dumps(body) if body else ""], capture_output=True, text=True, timeout=20, check=True
    )
    status, code = json.loads(done.stdout)
    return status, code


@pytest.mark.skipif(not is_root(), reason=ROOT_NEEDED)
@pytest.mark.parametrize(
    ("access", "reads", "claims"),
    [
        (Access(), 403, 403),
        (Access(readers=NOBODY_UID), 200, 403),
        (Access(claimers=NOBODY_UID), 200, 201),
        (Access(admins=NOBODY_UID), 200, 201),
        (Access(readers=Principals(gids=frozenset({NOBODY}))), 200, 403),
    ],
)
def test_another_user_may_do_what_its_role_says(
    public_path: Path, access: Access, reads: int, claims: int
) -> None:
    path = public_path / "api.sock"
    with serving(SmallHost(), path, access):
        path.chmod(0o666)
        assert as_another(path, "GET", "/v1/tree")[0] == reads
        assert as_another(path, "POST", "/v1/claims", BODY)[0] == claims
        assert as_another(path, "GET", "/nowhere")[0] == (404 if reads == 200 else 403)


@pytest.mark.skipif(not is_root(), reason=ROOT_NEEDED)
def test_the_sockets_mode_keeps_strangers_out(public_path: Path) -> None:
    path = public_path / "api.sock"
    shut_out = pytest.raises(subprocess.CalledProcessError)
    with serving(SmallHost(), path, Access(admins=NOBODY_UID)), shut_out as caught:
        as_another(path, "GET", "/v1/tree")
    assert "PermissionError" in caught.value.stderr


def test_the_agents_own_user_is_admin(tmp_path: Path) -> None:
    with serving(SmallHost(), tmp_path / "s"):
        assert ask(tmp_path / "s", "POST", "/v1/claims", BODY).status == 201


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.rule}")
def test_without_a_role_no_route_answers(tmp_path: Path, route: object) -> None:
    rule = route.rule.replace("<consumer>", str(BODY["consumer"]))  # type: ignore[attr-defined]
    with serving(SmallHost(), tmp_path / "s", Access()):
        reply = ask(tmp_path / "s", route.method, rule, BODY if route.has_body else None)  # type: ignore[attr-defined]
    assert (reply.status, reply.body["error"]["code"]) == (403, "plimsoll.forbidden")


def test_when_the_kernel_says_nothing_nobody_is_let_in() -> None:
    statuses: list[str] = []
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/healthz",
        "SERVER_NAME": "x",
        "SERVER_PORT": "",
        "HTTP_X_REMOTE_UID": "0",
    }
    body = Api(SmallHost(), Access.parse([], [], []))(environ, lambda status, _: statuses.append(status))
    assert statuses == ["403 FORBIDDEN"]
    assert b"plimsoll.forbidden" in b"".join(body)


def test_a_connection_keeps_who_opened_it(tmp_path: Path) -> None:
    with serving(SmallHost(), tmp_path / "s"):
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(tmp_path / "s"))
        for _ in range(3):
            connection.request("GET", "/healthz")
            reply = connection.getresponse()
            assert (reply.status, json.loads(reply.read())["state"]) == (200, "ready")
        connection.close()
