"""The local API over a real socket: every route, each kind of error, the socket, and who is let in."""

import errno
import http.client
import json
import logging
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from kits.api_client import NOBODY, ROOT_NEEDED, ask, check, is_root, public_directory, raw, serving
from kits.served_agent import served_agent
from kits.status import FORGOTTEN, HOST, MDEVS, Sight, guest, uuid_of
from kits.threads import at_once

from agent.api.routes import ROUTES
from agent.api.server import Api, ApiServer
from agent.config.access import Access, Principals
from agent.errors import SettingsError, StateError
from agent.http.process import SWITCH_INTERVAL_S

CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
JSON_HEAD = b"POST /v1/claims HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
NOBODY_KNOWN = "00000000-0000-4000-8000-000000000000"


def wanted(consumer: str = CONSUMER, **resources: int) -> dict[str, object]:
    return {
        "consumer": consumer,
        "name": "web1",
        "groups": [{"resources": resources or {"VCPU": 2, "VGPU": 1}}],
    }


@pytest.mark.parametrize(
    "url",
    [
        "/v1/status",
        "/v1/tree",
        "/v1/instances",
        "/v1/plan",
        "/v1/config",
        "/v1/overview",
        "/v1/history",
        "/healthz",
        "/livez",
    ],
)
def test_what_can_be_read_is_as_described(host: Sight, path: Path, url: str) -> None:
    drift = partial(host.world.driver.change, traits=frozenset({"CUSTOM_SHINY"}))
    closed = partial(host.world.operations.tracker.admission.close, "it is asleep")
    for situation in (lambda: None, drift, closed):
        situation()
        reply = ask(path, "GET", url)
        assert reply.status == 200
        check("GET", url, reply)


def test_the_document_describes_itself(path: Path) -> None:
    reply = ask(path, "GET", "/v1/openapi.json")
    assert reply.body["openapi"] == "3.1.0"
    check("GET", "/v1/openapi.json", reply)


def test_the_tree_comes_parents_first_with_what_is_used(host: Sight, path: Path) -> None:
    ask(path, "POST", "/v1/claims", wanted())
    host.world.driver.change(flat_devices=False)
    host.world.agent.reconcile("the reshape")
    providers = ask(path, "GET", "/v1/tree").body["resource_providers"]
    below = ["net_enp65s0f0", "pci_0000:42:00.0", "pci_0000:83:00.0"]
    assert [each["name"] for each in providers] == [HOST, *(f"{HOST}_{name}" for name in below)]
    assert {each["root_provider_uuid"] for each in providers} == {providers[0]["uuid"]}
    assert providers[0]["inventories"]["VCPU"]["capacity"] == 128
    assert providers[0]["usages"] == {"DISK_GB": 0, "MEMORY_MB": 0, "VCPU": 2}
    assert providers[2]["usages"] == {"VGPU": 1}


def test_a_claim_from_its_birth_to_its_end(host: Sight, path: Path) -> None:
    root = host.world.operations.identity.uuid
    host.world.driver.add_guest(guest(FORGOTTEN, VCPU=1))
    host.world.agent.reconcile("an event")
    made = ask(path, "POST", "/v1/claims", wanted())
    assert (made.status, made.headers["Location"]) == (201, f"/v1/claims/{CONSUMER}")
    assert made.body["allocations"] == {root: {"resources": {"VCPU": 2, "VGPU": 1}}}
    assert made.body["units"] == {root: {"VGPU": [MDEVS[0]]}}
    check("POST", "/v1/claims", made)

    again = ask(path, "POST", "/v1/claims", wanted())
    assert again.body == made.body

    shown = ask(path, "GET", f"/v1/claims/{CONSUMER.upper()}")
    assert (shown.status, shown.body) == (200, made.body)
    check("GET", "/v1/claims/{consumer}", shown)
    instances = ask(path, "GET", "/v1/instances").body["instances"]
    assert [(each["uuid"], bool(each["guest"]), bool(each["claim"])) for each in instances] == [
        (CONSUMER, False, True),
        (uuid_of(FORGOTTEN), True, False),
    ]

    gone = ask(path, "DELETE", f"/v1/claims/{CONSUMER}")
    assert (gone.status, gone.body) == (200, {"consumer": CONSUMER, "released": True})
    check("DELETE", "/v1/claims/{consumer}", gone)
    for method in ("GET", "DELETE"):
        missing = ask(path, method, f"/v1/claims/{CONSUMER}")
        assert (missing.status, missing.body["error"]["code"]) == (404, "plimsoll.consumer.unknown")
        check(method, "/v1/claims/{consumer}", missing)


def test_a_release_that_is_delivered_later_says_so(host: Sight, path: Path) -> None:
    ask(path, "POST", "/v1/claims", wanted())
    host.world.wire.cut = True
    reply = ask(path, "DELETE", f"/v1/claims/{CONSUMER}")
    assert (reply.status, reply.body["released"]) == (202, False)
    check("DELETE", "/v1/claims/{consumer}", reply)


def test_a_refusal_names_asked_free_and_provider(host: Sight, path: Path) -> None:
    reply = ask(path, "POST", "/v1/claims", wanted(VGPU=9))
    assert (reply.status, reply.body["error"]["code"]) == (409, "plimsoll.claim.does_not_fit")
    (short,) = reply.body["error"]["details"]["shortfalls"]
    assert (short["asked"], short["free"], short["provider"]) == (9, 8, HOST)
    check("POST", "/v1/claims", reply)
    host.world.operations.tracker.admission.close("it is asleep")
    closed = ask(path, "POST", "/v1/claims", wanted())
    assert (closed.status, closed.body["error"]["code"]) == (503, "plimsoll.claim.closed")


@pytest.mark.parametrize(("amount", "fits"), [(8, True), (9, False)])
def test_a_dry_run_explains_and_changes_nothing(path: Path, amount: int, fits: bool) -> None:
    reply = ask(path, "POST", "/v1/claims?dry_run=true", wanted(VGPU=amount, VCPU=1))
    assert (reply.status, reply.body["fits"]) == (200, fits)
    assert reply.body["asked"] == {"VCPU": 1, "VGPU": amount}
    check("POST", "/v1/claims", reply)
    assert ask(path, "GET", f"/v1/claims/{CONSUMER}").status == 404
    assert ask(path, "POST", "/v1/claims?dry_run=false", wanted()).status == 201


@pytest.mark.parametrize(
    ("method", "url", "status", "code"),
    [
        ("GET", "/", 404, "plimsoll.api.not_found"),
        ("GET", "/v1/status/", 404, "plimsoll.api.not_found"),
        ("GET", "/v1//status", 404, "plimsoll.api.not_found"),
        ("GET", "/v1/claims/a/b", 404, "plimsoll.api.not_found"),
        ("GET", "/v1/claims/a%2Fb", 400, "plimsoll.usage"),
        ("DELETE", "/v1/claims/web1", 400, "plimsoll.usage"),
        ("GET", "/v1/status?verbose=1", 400, "plimsoll.usage"),
        ("POST", "/v1/claims?dry_run=maybe", 400, "plimsoll.usage"),
        ("POST", "/v1/claims?dry_run=true&dry_run=true", 400, "plimsoll.usage"),
        ("GET", "/v1/claims", 405, "plimsoll.api.method_not_allowed"),
        ("PATCH", "/v1/status", 405, "plimsoll.api.method_not_allowed"),
        ("OPTIONS", "/v1/status", 405, "plimsoll.api.method_not_allowed"),
    ],
)
def test_a_request_that_makes_no_sense(path: Path, method: str, url: str, status: int, code: str) -> None:
    reply = ask(path, method, url, wanted() if method == "POST" else None)
    assert (reply.status, reply.body["error"]["code"]) == (status, code)
    assert reply.body["error"]["message"]


def test_a_wrong_method_is_told_the_right_ones(path: Path) -> None:
    reply = ask(path, "PUT", f"/v1/claims/{CONSUMER}")
    assert reply.headers["Allow"] == "DELETE, GET, HEAD"
    assert reply.body["error"]["details"]["allow"] == ["DELETE", "GET", "HEAD"]


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"{}", None, 415),
        (b"{}", "text/plain", 415),
        (b"{}", "application/json-patch+json", 415),
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"null", "application/json", 400),
        (b"\xff\xfe{}", "application/json", 400),
        (b'{"consumer": NaN}', "application/json", 400),
        (b'{"name": "\\ud800"}', "application/json", 400),
        (b'{"name": "a", "name": "b"}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"9" * 100_000, "application/json", 400),
    ],
)
def test_a_body_that_cannot_be_used(path: Path, body: bytes, content_type: str | None, status: int) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    reply = ask(path, "POST", "/v1/claims", body, headers)
    assert reply.status == status
    check("POST", "/v1/claims", reply)


def test_a_body_where_none_belongs(path: Path) -> None:
    assert ask(path, "DELETE", f"/v1/claims/{NOBODY_KNOWN}", {"force": True}).status == 400


def test_bounds_hold_before_anything_is_read(path: Path) -> None:
    too_large = raw(path, JSON_HEAD + b"Content-Length: 1048577\r\n\r\n")
    assert too_large.startswith(b"HTTP/1.1 413 ") and b"plimsoll.api.body_too_large" in too_large
    chunked = raw(path, JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    assert chunked.startswith(b"HTTP/1.1 411 ") and b"plimsoll.api.length_required" in chunked
    header = raw(path, b"GET /v1/status HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 20_000 + b"\r\n\r\n")
    assert header.startswith(b"HTTP/1.1 431 ") and b'"error"' in header
    nonsense = raw(path, b"hello\r\n\r\n")
    assert b"400 Bad Request" in nonsense and b'"error"' in nonsense


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_without_a_descriptor_the_agent_says_so_and_logs_no_traceback(
    host: Sight,
    path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    fault = Mock(side_effect=OSError(number, "Too many open files"))
    monkeypatch.setattr(host.world.operations, "tree", fault)
    reply = ask(path, "GET", "/v1/tree")
    assert reply.status == 503 and "no file descriptor left" in reply.body["error"]["message"]
    check("GET", "/v1/tree", reply)
    assert not [record for record in caplog.records if record.exc_info]


def test_an_unexpected_failure_shows_an_id_and_no_traceback(
    host: Sight, path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Mock(side_effect=ZeroDivisionError("the secret inside"))
    monkeypatch.setattr(host.world.operations, "tree", fault)
    reply = ask(path, "GET", "/v1/tree")
    assert (reply.status, reply.body["error"]["code"]) == (500, "plimsoll.internal")
    check("GET", "/v1/tree", reply)
    assert "secret" not in json.dumps(reply.body)
    (record,) = [record for record in caplog.records if record.exc_info]
    assert reply.body["error"]["details"]["id"] in record.getMessage()


def test_a_typed_failure_keeps_its_status_and_details(host: Sight, path: Path) -> None:
    host.world.wire.cut = True
    reply = ask(path, "GET", "/v1/plan")
    assert (reply.status, reply.body["error"]["code"]) == (503, "plimsoll.placement.unavailable")
    assert reply.body["error"]["details"] == {"status": 0, "placement_code": ""}


def test_every_change_is_logged_with_uid_and_pid(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agent.api")
    ask(path, "POST", "/v1/claims?dry_run=true", wanted())
    ask(path, "GET", "/v1/tree")
    assert not caplog.records
    ask(path, "POST", "/v1/claims", wanted())
    ask(path, "DELETE", f"/v1/claims/{CONSUMER}")
    words = f"asked for by uid {os.geteuid()} (pid {os.getpid()})"
    assert [record.getMessage() for record in caplog.records] == [
        f"claim of {CONSUMER} granted, {words}",
        f"release of {CONSUMER} done, {words}",
    ]


def test_who_asked_for_what_failed_is_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agent.api")
    reply = ask(path, "DELETE", f"/v1/claims/{CONSUMER}")
    (record,) = caplog.records
    told = f"DELETE /v1/claims/{CONSUMER}, asked for by uid {os.geteuid()} (pid {os.getpid()}): "
    assert record.getMessage() == told + reply.body["error"]["message"]
    assert record.__dict__["fields"]["code"] == reply.body["error"]["code"]


def test_sixteen_clients_get_no_more_than_there_is(path: Path) -> None:
    def client(number: int) -> int:
        consumer = f"5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a{number:02x}"
        return ask(path, "POST", "/v1/claims", wanted(consumer, VGPU=1)).status

    statuses = at_once(*(partial(client, number) for number in range(16)))
    assert sorted(statuses) == [201] * 8 + [409] * 8


def test_the_threads_are_bounded(host: Sight, tmp_path: Path) -> None:
    before = threading.active_count()
    with serving(host.world.operations, tmp_path / "s", threads=3):
        for _ in range(10):
            ask(tmp_path / "s", "GET", "/healthz")
        assert threading.active_count() - before <= 3 + 2
    assert threading.active_count() == before


@pytest.mark.parametrize(
    "sent",
    [b"GET /v1/st", JSON_HEAD + b"Content-Length: 99\r\n\r\n", JSON_HEAD + b"Content-Length: 99\r\n\r\n{"],
)
def test_a_request_that_trickles_is_given_up(host: Sight, tmp_path: Path, sent: bytes) -> None:
    """Nor does it keep the only thread from others for longer."""
    path = tmp_path / "s"
    with (
        serving(host.world.operations, path, threads=1, request_timeout_s=0.3),
        socket.socket(socket.AF_UNIX) as slow,
    ):
        slow.connect(str(path))
        slow.settimeout(0.05)
        slow.sendall(sent)
        began, said = time.monotonic(), b""
        while b"too_slow" not in said and time.monotonic() - began < 10:
            try:
                said += slow.recv(65536)
            except TimeoutError:
                with suppress(BrokenPipeError):  # it has just closed; what it said is there to be read
                    slow.sendall(b"x")
        assert said.startswith(b"HTTP/1.1 408 ")
        assert ask(path, "GET", "/healthz").status == 200


def test_who_would_wait_too_long_is_turned_away(
    host: Sight, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, turned_away, health = tmp_path / "s", threading.Event(), host.host_status.health()

    def client() -> str | None:
        code: str | None = ask(path, "GET", "/healthz").body.get("error", {}).get("code")
        if code == "plimsoll.api.busy":
            turned_away.set()
        return code

    monkeypatch.setattr(host.host_status, "health", lambda: turned_away.wait(10) and health)
    with serving(host.world.operations, path, threads=1, waiting_max=1):
        codes = at_once(*[client] * 4)
        assert ask(path, "GET", "/healthz").status == 200
    assert {None, "plimsoll.api.busy"} == set(codes)


def test_the_socket_is_for_owner_and_group_only(host: Sight, tmp_path: Path) -> None:
    path = tmp_path / "run" / "api.sock"
    umask = os.umask(0o077)
    try:
        with serving(host.world.operations, path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
    finally:
        os.umask(umask)
    assert not path.exists()


def test_a_directory_that_is_missing_is_made_for_owner_and_group(host: Sight, tmp_path: Path) -> None:
    with serving(host.world.operations, tmp_path / "run" / "api.sock"):
        assert stat.S_IMODE((tmp_path / "run").stat().st_mode) & 0o027 == 0


def test_a_second_agent_does_not_take_the_socket(host: Sight, path: Path) -> None:
    second = ApiServer(host.world.operations, Access.parse([], [], []), path)
    with pytest.raises(StateError, match="Another agent listens"):
        second.start()
    second.stop()
    assert ask(path, "GET", "/healthz").status == 200


def test_a_socket_that_was_left_over_is_replaced(host: Sight, tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    with serving(host.world.operations, path):
        assert ask(path, "GET", "/healthz").status == 200


def test_what_is_no_socket_is_left_alone(host: Sight, tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    path.write_text("precious")
    with pytest.raises(SettingsError, match="is no socket"):
        ApiServer(host.world.operations, Access.parse([], [], []), path).start()
    assert path.read_text() == "precious"


def test_a_directory_that_anybody_may_write_is_refused(host: Sight, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(SettingsError, match="Every user may write"):
        ApiServer(host.world.operations, Access.parse([], [], []), tmp_path / "api.sock").start()


def test_a_place_that_cannot_be_made_is_named(host: Sight, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be used"):
        ApiServer(host.world.operations, Access.parse([], [], []), tmp_path / "a" / "b" / "api.sock").start()


def test_stopping_leaves_another_agents_socket_alone(host: Sight, tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with serving(host.world.operations, path):
        path.unlink()
        path.write_text("another's")
    assert path.exists()


def test_words_without_effect_are_told_in_each_answer(tmp_path: Path) -> None:
    specs = {"numa_nodes": "2", "foo:bar": "x", "hw:cpu_policy": "shared"}
    flavor = {"flavor": {"vcpus": 1, "memory_mb": 512, "extra_specs": specs}, "image": {"colour": "red"}}
    request = {"consumer": CONSUMER, "name": "web1", **flavor}
    xml = "<domain type='kvm'><name>web2</name><memory>524288</memory><vcpu>1</vcpu></domain>"
    move = {"migration": NOBODY_KNOWN, "kind": "same_host_resize", "request": request}
    with served_agent(tmp_path) as agent:
        agent.world.agent.reconcile("the start")
        for url, body in (
            ("/v1/claims?dry_run=true", request),
            ("/v1/claims", request),
            ("/v1/capacity", request),
            ("/v1/defrag", request),
            ("/v1/domains?dry_run=true", {"xml": xml, "request": flavor}),
            ("/v1/domains", {"xml": xml, "request": flavor}),
            ("/v1/moves", move),
        ):
            reply = ask(agent.socket, "POST", url, body)
            check("post", url.partition("?")[0], reply)
            assert reply.body["notes"] == [
                "numa_nodes has no effect: it is no extra spec of nova",
                "foo:bar has no effect: it is no extra spec of nova",
                "image colour has no effect: it is no image property of nova",
            ], url


def test_a_claim_without_a_consumer_is_for_the_instance_of_its_name(tmp_path: Path) -> None:
    body = {"name": "web1", "groups": [{"resources": {"VCPU": 1}}]}
    with served_agent(tmp_path) as agent:
        agent.world.agent.reconcile("the start")
        made = [ask(agent.socket, "POST", "/v1/claims", body).body["consumer"] for _ in range(2)]
        assert made[0] == made[1]
        for nameless in ({**body, "name": ""}, {"groups": body["groups"]}):
            reply = ask(agent.socket, "POST", "/v1/claims", nameless)
            assert (reply.status, reply.body["error"]["code"]) == (400, "plimsoll.usage")
            assert "consumer: missing" in reply.body["error"]["message"]


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
    host: Sight, public_path: Path, access: Access, reads: int, claims: int
) -> None:
    path = public_path / "api.sock"
    with serving(host.world.operations, path, access):
        path.chmod(0o666)
        assert as_another(path, "GET", "/v1/tree")[0] == reads
        assert as_another(path, "POST", "/v1/claims", BODY)[0] == claims
        assert as_another(path, "GET", "/nowhere")[0] == (404 if reads == 200 else 403)


@pytest.mark.skipif(not is_root(), reason=ROOT_NEEDED)
def test_the_sockets_mode_keeps_strangers_out(host: Sight, public_path: Path) -> None:
    path = public_path / "api.sock"
    shut_out = pytest.raises(subprocess.CalledProcessError)
    with serving(host.world.operations, path, Access(admins=NOBODY_UID)), shut_out as caught:
        as_another(path, "GET", "/v1/tree")
    assert "PermissionError" in caught.value.stderr


def test_the_agents_own_user_is_admin(host: Sight, tmp_path: Path) -> None:
    with serving(host.world.operations, tmp_path / "s"):
        assert ask(tmp_path / "s", "POST", "/v1/claims", BODY).status == 201


def test_without_a_role_no_route_answers(host: Sight, tmp_path: Path) -> None:
    with serving(host.world.operations, tmp_path / "s", Access()):
        for route in ROUTES:
            rule = route.rule.replace("<consumer>", str(BODY["consumer"]))
            reply = ask(tmp_path / "s", route.method, rule, BODY if route.has_body else None)
            assert (reply.status, reply.body["error"]["code"]) == (403, "plimsoll.forbidden"), rule
            needed = route.role.name.lower()
            told = f"needs the role {needed}, and its role is none; [api] {needed}s"
            assert told in reply.body["error"]["message"], rule


def test_an_answer_to_a_reader_lets_others_run_more_often_than_a_claim(
    host: Sight, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be long, as that of a large host's tree is; and claims under way wait for nothing longer."""
    intervals: dict[str, float] = {}
    operations, plain = host.world.operations, sys.getswitchinterval()
    health, release = operations.host_status.health, operations.release

    def seen(name: str, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        intervals[name] = sys.getswitchinterval()
        return function(*args, **more)

    monkeypatch.setattr(operations.host_status, "health", partial(seen, "read", health))
    monkeypatch.setattr(operations, "release", partial(seen, "release", release))
    path = tmp_path / "s"
    with serving(operations, path):
        ask(path, "GET", "/livez")
        ask(path, "DELETE", f"/v1/claims/{uuid_of('web1')}")
    assert intervals == pytest.approx({"read": SWITCH_INTERVAL_S, "release": plain})
    assert sys.getswitchinterval() == plain > SWITCH_INTERVAL_S


def test_when_the_kernel_says_nothing_nobody_is_let_in(host: Sight) -> None:
    statuses: list[str] = []
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/healthz",
        "SERVER_NAME": "x",
        "SERVER_PORT": "",
        "HTTP_X_REMOTE_UID": "0",
    }
    api = Api(host.world.operations, Access.parse([], [], []))
    body = api(environ, lambda status, _: statuses.append(status))
    assert statuses == ["403 Forbidden"]
    assert b"plimsoll.forbidden" in b"".join(body)


def test_a_connection_keeps_who_opened_it(host: Sight, tmp_path: Path) -> None:
    with serving(host.world.operations, tmp_path / "s"):
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(tmp_path / "s"))
        for _ in range(3):
            connection.request("GET", "/healthz")
            reply = connection.getresponse()
            assert (reply.status, json.loads(reply.read())["state"]) == (200, "ready")
        connection.close()
