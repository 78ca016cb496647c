"""The embedded core behind HTTP, as any Placement to a client: when it opens, for whom, how it closes."""

import contextlib
import json
import logging
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
import requests
from keystoneauth1 import adapter, exceptions, session, token_endpoint
from kits.daemon_process import eventually
from kits.served_core_client import SERVICE, CurrentCore, DoorClient, door_client, make_certificate
from kits.stalling_disk import StallingDisk

from agent.config.settings import load
from agent.errors import SettingsError
from agent.placement.connect import open_transport
from agent.placement.embedded import Core
from agent.placement.embedded import core as core_module
from agent.placement.embedded.serve import LIMITS, ServeError, Server, serve
from agent.placement.embedded.store import Store

HOST = "4e8e5957-649f-477b-9e5b-f1f75b21c03c"


@pytest.fixture(scope="module")
def current() -> CurrentCore:
    return CurrentCore()


@pytest.fixture(scope="module")
def open_server(current: CurrentCore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    socket_path = tmp_path_factory.mktemp("door") / "door.sock"
    with Server(current, [f"unix:{socket_path}", "127.0.0.1:0"]) as server:
        yield server


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    core = Core.open(tmp_path / "state")
    yield core
    core.close()


@pytest.fixture
def server(open_server: Server, current: CurrentCore, core: Core) -> Server:
    """A running server over an empty core of the test's own; Unix socket first, then TCP."""
    current.core = core
    return open_server


@pytest.fixture(params=["unix", "tcp"])
def ask(request: pytest.FixtureRequest, server: Server) -> Iterator[DoorClient]:
    with door_client(server.addresses[0 if request.param == "unix" else 1]) as client:
        yield client


@pytest.fixture
def tcp(server: Server) -> Iterator[DoorClient]:
    with door_client(server.addresses[1]) as client:
        yield client


def add_host(ask: DoorClient, vcpu: int = 8) -> None:
    assert ask("POST", "/resource_providers", {"name": "host1", "uuid": HOST}).status == 200
    inventories = {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": vcpu}}}
    assert ask("PUT", f"/resource_providers/{HOST}/inventories", inventories).status == 200


def claim_of(vcpu: int) -> dict[str, object]:
    return {
        "allocations": {HOST: {"resources": {"VCPU": vcpu}}},
        "project_id": "p",
        "user_id": "u",
        "consumer_generation": None,
        "consumer_type": "INSTANCE",
    }


def test_a_claim_over_the_wire_is_seen_in_process_and_the_other_way_round(
    ask: DoorClient, core: Core
) -> None:
    add_host(ask)
    over_wire, in_process = str(uuid.uuid4()), str(uuid.uuid4())
    assert ask("PUT", f"/allocations/{over_wire}", claim_of(2)).status == 204
    assert core.request("PUT", f"/allocations/{in_process}", claim_of(3), microversion="1.39").status == 204
    assert (
        core.request("GET", f"/allocations/{over_wire}", microversion="1.39").body["consumer_generation"] == 1
    )
    assert ask("GET", f"/resource_providers/{HOST}/usages").body["usages"] == {"VCPU": 5}


def test_the_version_document_needs_no_caller(server: Server) -> None:
    with door_client(server.addresses[0], headers={}) as nobody:
        answer = nobody("GET", "/")
        assert answer.body["versions"][0]["max_version"] == "1.39"
        assert nobody("GET", "/resource_providers").status == 401


@pytest.mark.parametrize("path", ["/healthz", "/healthz/active"])
def test_a_balancer_asks_without_a_token_whether_it_serves_and_takes_writes(
    server: Server, core: Core, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    with door_client(server.addresses[1], headers={}, version=None) as balancer:
        answer = balancer("GET", path)
        assert (answer.status, answer.text, answer.headers["content-type"]) == (200, b"ok\n", "text/plain")
        assert (balancer("HEAD", path).status, balancer("HEAD", path).text) == (200, b"")
        assert balancer("POST", path).status == 401
        monkeypatch.setattr(Store, "in_doubt", True)  # a write still waits for the disk
        assert balancer("GET", path).status == (503 if path.endswith("active") else 200)


def test_a_request_without_caller_is_shaped_as_the_real_service_shapes_it(tcp: DoorClient) -> None:
    answer = tcp("GET", "/resource_providers", x_auth_token=None, openstack_api_version="placement 1.99")
    assert answer.status == 401
    assert sorted(answer.body) == ["code", "message", "title"]
    assert "openstack-api-version" not in answer.headers


@pytest.mark.parametrize(
    ("header", "status", "served"),
    [
        (None, 200, "placement 1.0"),
        ("placement latest", 200, "placement 1.39"),
        ("compute 2.1, placement 1.10", 200, "placement 1.10"),
        ("compute 2.1", 200, "placement 1.0"),
        ("placement 1.40", 406, None),
        ("placement one", 400, None),
    ],
)
def test_microversion_header(tcp: DoorClient, header: str | None, status: int, served: str | None) -> None:
    answer = tcp("GET", "/resource_providers", openstack_api_version=header)
    assert (answer.status, answer.headers.get("openstack-api-version")) == (status, served)
    if status == 406:
        assert (answer.error["min_version"], answer.error["max_version"]) == ("1.0", "1.39")


def test_a_created_provider_is_located_by_the_name_that_the_client_called(tcp: DoorClient) -> None:
    answer = tcp("POST", "/resource_providers", {"name": "a", "uuid": HOST}, host="placement.example:8778")
    assert answer.headers["location"] == f"http://placement.example:8778/resource_providers/{HOST}"


def test_body_and_type(tcp: DoorClient) -> None:
    assert tcp("POST", "/resource_providers", text=b'{"name": "a"}', content_type=None).status == 400
    assert tcp("POST", "/resource_providers", text=b'{"name": "a"}', content_type="text/plain").status == 415
    assert tcp("POST", "/resource_providers", content_type=None).status == 415
    with_charset = tcp(
        "POST", "/resource_providers", {"name": "a"}, content_type="application/json; charset=utf-8"
    )
    assert with_charset.status == 200


@pytest.mark.parametrize(
    "text", [b"", b'{"name":', b"\xff\xfe", b"[" * 100_000, b"1" * 5000, b'{"name": "a"} x']
)
def test_what_is_no_json_is_refused_and_changes_nothing(tcp: DoorClient, text: bytes) -> None:
    answer = tcp("POST", "/resource_providers", text=text)
    assert (answer.status, answer.error["code"]) == (400, "placement.undefined_code")
    assert tcp("GET", "/resource_providers").body == {"resource_providers": []}


def test_what_is_wrong_with_the_text_is_said(tcp: DoorClient) -> None:
    assert "line 1 column 9" in tcp("POST", "/resource_providers", text=b'{"name":').error["detail"]


def test_a_body_that_nobody_asked_for_is_ignored(tcp: DoorClient) -> None:
    assert tcp("PUT", "/traits/CUSTOM_A", text=b"{", content_type="text/plain").status == 201


def test_method_and_path_that_are_not_served(tcp: DoorClient) -> None:
    answer = tcp("PATCH", "/resource_providers", {})
    assert (answer.status, answer.headers["allow"]) == (405, "GET, POST")
    for path in ("/nothing", "/resource_providers/", "/resource_providers%3Fname=a"):
        assert tcp("GET", path).status == 404, path


def test_head_is_not_served_and_has_no_body(tcp: DoorClient) -> None:
    answer = tcp("HEAD", "/resource_providers")
    assert (answer.status, answer.text) == (405, b"")
    assert tcp("GET", "/").status == 200  # the connection is still in step


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (None, "application/json"),
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("text/html;q=0.5, application/json", "application/json"),
        ("text/html", "text/html; charset=UTF-8"),
        ("text/html, application/json", "text/html; charset=UTF-8"),
        ("image/png", "text/plain; charset=UTF-8"),
    ],
)
def test_errors_come_in_a_form_that_the_client_takes(tcp: DoorClient, accept: str | None, form: str) -> None:
    answer = tcp("GET", "/nothing", accept=accept)
    assert (answer.status, answer.headers["content-type"]) == (404, form)
    assert b"could not be found" in answer.text


def test_html_shows_what_the_client_sent_as_text(tcp: DoorClient) -> None:
    answer = tcp("PUT", "/traits/%3Cscript%3E", accept="text/html, application/json")
    assert answer.status == 400
    assert b"<script>" not in answer.text


def test_names_beyond_ascii_go_both_ways(ask: DoorClient) -> None:
    ask("POST", "/resource_providers", {"name": "hôte-日本"})
    found = ask("GET", "/resource_providers?name=h%C3%B4te-%E6%97%A5%E6%9C%AC").body["resource_providers"]
    assert [provider["name"] for provider in found] == ["hôte-日本"]


def test_many_connections_at_once_each_get_their_own_answer(server: Server) -> None:
    def add(number: int) -> int:
        with door_client(server.addresses[number % 2]) as client:
            return client("POST", "/resource_providers", {"name": f"host{number}"}).status

    with ThreadPoolExecutor(24) as pool:
        assert set(pool.map(add, range(48))) == {200}
    with door_client(server.addresses[0]) as client:
        assert len(client("GET", "/resource_providers").body["resource_providers"]) == 48


@pytest.mark.parametrize(
    ("length", "status"),
    [("Transfer-Encoding: chunked", 411), (f"Content-Length: {1 << 40}", 413), ("Content-Length: x", 400)],
)
def test_a_body_without_a_length_within_bounds_is_not_even_read(
    server: Server, length: str, status: int
) -> None:
    host, _, port = server.addresses[1].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(f"POST /resource_providers HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n".encode())
        assert sock.recv(4096).startswith(f"HTTP/1.1 {status} ".encode())


def test_keystoneauth_works_against_it(server: Server) -> None:
    """As a client of OpenStack has it: nova's report client and osc-placement both sit on this adapter."""
    auth = token_endpoint.Token(f"http://{server.addresses[1]}", "admin")
    with requests.Session() as http:
        client = adapter.Adapter(
            session.Session(auth=auth, session=http),
            service_type="placement",
            default_microversion="1.39",
            endpoint_override=f"http://{server.addresses[1]}",
        )
        data = client.get_endpoint_data()
        assert data is not None and data.max_microversion == (1, 39)
        created = client.post("/resource_providers", json={"name": "host1", "uuid": HOST})
        assert created.json()["generation"] == 0
        assert created.headers["location"] == f"http://{server.addresses[1]}/resource_providers/{HOST}"
        with pytest.raises(exceptions.Conflict) as refused:
            client.post("/resource_providers", json={"name": "host1"})
        assert refused.value.response is not None
        assert refused.value.response.json()["errors"][0]["code"] == "placement.duplicate_name"
        with pytest.raises(exceptions.Forbidden):
            client.post("/reshaper", json={"inventories": {}, "allocations": {}})
        old = client.get(f"/resource_providers/{HOST}", microversion="1.0")
        assert "parent_provider_uuid" not in old.json()
        assert client.delete(f"/resource_providers/{HOST}").status_code == 204


def test_the_reshaper_takes_the_service_role(server: Server) -> None:
    with door_client(server.addresses[0], headers=SERVICE) as service:
        add_host(service)
        body = {
            "inventories": {HOST: {"resource_provider_generation": 1, "inventories": {"VCPU": {"total": 4}}}},
            "allocations": {},
        }
        assert service("POST", "/reshaper", body, x_roles="admin").status == 403
        assert service("POST", "/reshaper", body).status == 204


def test_the_answer_is_json_text_of_what_the_core_says(ask: DoorClient, core: Core) -> None:
    add_host(ask)
    path = f"/resource_providers/{HOST}/inventories"
    answer = ask("GET", path)
    assert json.loads(answer.text) == core.request("GET", path, microversion="1.39").body
    assert int(answer.headers["content-length"]) == len(answer.text)


def test_who_wrote_what_is_logged_without_tokens(tcp: DoorClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "agent.placement.embedded.serve"):
        for method in ("GET", "HEAD", "TRACE", "OPTIONS"):
            tcp(method, "/traits")
        tcp("PUT", "/traits/CUSTOM_A%0Ax", x_auth_token="nova:service")
        tcp("PUT", "/traits/CUSTOM_A", x_auth_token="a-token-that-was-meant-for-somebody-else")
    first, second = caplog.messages
    assert first.startswith("PUT /traits/CUSTOM_A%0Ax: 403, for 'nova', req-")
    assert "a-token-that-was" in second and "somebody" not in second


WAIT_S = 0.25


@contextlib.contextmanager
def served_core(tmp_path: Path) -> Iterator[tuple[Core, str]]:
    """A core whose writes wait for the disk for WAIT_S, with the host, and the address of its server."""
    with (
        contextlib.closing(Core.open(tmp_path / "short", wait_s=30)) as core,
        Server(core, [f"unix:{tmp_path}/s"]) as server,
    ):
        with door_client(server.addresses[0]) as client:
            add_host(client)
        core._store._wait_s = WAIT_S
        yield core, server.addresses[0]


def claims_told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return sorted(re.findall(r"PUT /allocations/\S+: (\d+), for", caplog.text))


def claim_at(address: str, body: Any, text: bytes | None = None, **headers: str) -> Any:
    with door_client(address) as client:
        return client("PUT", f"/allocations/{uuid.uuid4()}", body, text=text, **headers)


def test_short_writes_run_on_the_writers_thread_and_all_else_on_one_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    request = Core.request

    def noted(self: Core, *args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        return request(self, *args, **options)

    with served_core(tmp_path) as (_, address), door_client(address) as ask:
        monkeypatch.setattr(Core, "request", noted)
        claim, one = claim_of(1), f"/allocations/{uuid.uuid4()}"
        assert [ask("PUT", one, claim).status, ask("DELETE", one).status] == [204, 204]
        assert ask("POST", "/allocations", {str(uuid.uuid4()): claim}).status == 204
        assert [ask("PUT", one, claim, idempotency_key="k").status for _ in range(2)] == [204, 204]
        created = ask("PUT", "/traits/CUSTOM_A")
        assert (created.status, "last-modified" in created.headers) == (201, True)
        assert threads == ["placement-writer"] * 6
        threads.clear()
        text = json.dumps(claim).encode() + b" " * 70_000
        assert claim_at(address, None, text).status == 204
        assert ask("GET", one).status == 200
        assert ask("PUT", f"/hosts/{HOST}/note", {"state": "ready", "version": "1"}).status == 204
        assert len(threads) == 3 and "placement-writer" not in threads


def test_a_claim_that_the_disk_does_not_answer_has_an_unknown_outcome_and_the_next_is_cancelled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "agent.placement.embedded.serve")
    with served_core(tmp_path) as (core, address), ThreadPoolExecutor() as pool:
        disk = StallingDisk(core._store.home)
        with disk.stalled():
            unknown = pool.submit(claim_at, address, claim_of(1))
            assert disk.stalling.wait(10)
            behind = pool.submit(claim_at, address, claim_of(1))
            malformed = pool.submit(claim_at, address, {})
            answers = [each.result() for each in (unknown, behind, malformed)]
            assert core.in_doubt
        assert [answer.status for answer in answers] == [504, 503, 400]
        assert ["x-openstack-request-id" in answer.headers for answer in answers] == [False, True, True]
        assert "within 0.25 s" in answers[0].error["detail"]
        assert claim_at(address, claim_of(1)).status == 204
        assert not core.in_doubt
        with door_client(address) as ask:
            usages = ask("GET", f"/resource_providers/{HOST}/usages").body["usages"]
        assert usages == {"VCPU": 2}, "what was cancelled holds nothing"
    assert claims_told(caplog) == ["204", "400", "503", "504"]


def test_a_claim_with_a_key_is_done_once_and_its_copies_are_told_what_became_of_it(tmp_path: Path) -> None:
    """The copies come while the first one waits for the disk, and after that."""
    with served_core(tmp_path) as (core, address), ThreadPoolExecutor() as pool, door_client(address) as ask:
        disk, path, claim = StallingDisk(core._store.home), f"/allocations/{uuid.uuid4()}", claim_of(1)

        def send(body: Any = claim, **headers: str) -> Any:
            with door_client(address) as client:
                return client("PUT", path, body, idempotency_key="k", **headers)

        assert send(x_auth_token=None).status == 401, "that one did not get as far as the key"
        assert send({}).status == 400
        with disk.stalled():
            first = pool.submit(send)
            assert disk.stalling.wait(10)
            copies = [pool.submit(send) for _ in range(4)]
            assert {each.result().status for each in (first, *copies)} == {504}
        core._store._wait_s = 30
        assert {send().status for _ in range(3)} == {204}
        assert send(claim_of(2)).status == 422
        assert ask("PUT", path, claim).status == 409, "without the key it is another claim"
        assert ask("GET", f"/resource_providers/{HOST}/usages").body["usages"] == {"VCPU": 1}


def test_a_request_that_is_refused_before_it_writes_leaves_no_key(tmp_path: Path) -> None:
    """Anybody may send one."""
    with served_core(tmp_path) as (core, address), door_client(address) as ask:
        path = f"/allocations/{uuid.uuid4()}"
        for number in range(20):
            assert (
                ask("PUT", path, claim_of(1), x_auth_token=None, idempotency_key=f"a{number}").status == 401
            )
            assert ask("PUT", path, {}, idempotency_key=f"b{number}").status == 400
            assert ask("PUT", path, claim_of(1), idempotency_key="c" * 60_000).status == 400
        assert core._store._keyed.bytes == 0


def test_a_disk_that_hangs_keeps_no_thread_from_a_balancer_or_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients repeat their claims with their keys, on new connections; others write something else."""
    monkeypatch.setattr(core_module, "HANGS_AFTER_S", 0.3)
    with (
        served_core(tmp_path) as (core, address),
        ThreadPoolExecutor(80) as pool,
        door_client(address) as ask,
    ):
        core._store._wait_s = 30
        disk, claims = StallingDisk(core._store.home), [f"/allocations/{uuid.uuid4()}" for _ in range(8)]

        def send(path: str) -> int:
            with door_client(address) as client:
                return client("PUT", path, claim_of(1), idempotency_key=path).status

        with disk.stalled():
            sent = [pool.submit(send, claims[0])]
            assert disk.stalling.wait(10)
            assert ask("GET", "/healthz/active").status == 200
            sent += [pool.submit(send, path) for path in claims * 6]
            eventually("the disk hangs", lambda: ask("GET", "/healthz/active").status == 503)
            traits = [
                pool.submit(ask_once, address, "PUT", f"/traits/CUSTOM_{number}") for number in range(20)
            ]
            time.sleep(0.5)
            begun = time.monotonic()
            assert ask("GET", "/healthz").status == 200
            assert ask("GET", f"/resource_providers/{HOST}/usages").body["usages"] == {"VCPU": 0}
            assert time.monotonic() - begun < 4
        assert {each.result() for each in sent} == {204} and {each.result() for each in traits} == {201}
        assert ask("GET", "/healthz/active").status == 200
        assert ask("GET", f"/resource_providers/{HOST}/usages").body["usages"] == {"VCPU": 8}


def test_a_note_waits_for_no_disk(tmp_path: Path) -> None:
    """The agents of all hosts leave one a minute: where the disk hangs, these would hold all threads."""
    with served_core(tmp_path) as (core, address), door_client(address) as ask, ThreadPoolExecutor() as pool:
        core._store._wait_s = 30
        disk = StallingDisk(core._store.home)
        with disk.stalled():
            claim = pool.submit(claim_at, address, claim_of(1))
            assert disk.stalling.wait(10)
            note = {"state": "ready", "version": "1"}
            begun = time.monotonic()
            assert ask("PUT", f"/hosts/{HOST}/note", note).status == 204
            assert ask("PUT", f"/hosts/{uuid.uuid4()}/note", note).status == 400
            assert time.monotonic() - begun < 5
            assert ask("GET", "/hosts").body["hosts"][0]["note"]["state"] == "ready"
        assert claim.result().status == 204


def ask_once(address: str, method: str, path: str) -> int:
    with door_client(address) as client:
        return client(method, path).status


def test_many_copies_at_once_are_one_claim(tmp_path: Path) -> None:
    with served_core(tmp_path) as (core, address), ThreadPoolExecutor(16) as pool:
        core._store._wait_s = 30
        for number in range(20):
            body, path = claim_of(1 if number % 2 else 99), f"/allocations/{uuid.uuid4()}"

            def send(text: bytes, path: str = path, key: str = f"{number}") -> int:
                with door_client(address) as client:
                    return client("PUT", path, None, text=text, idempotency_key=key).status

            short = json.dumps(body).encode()
            texts = [short, short + b" " * 70_000] * 4  # on the writer's thread, and on another
            assert len(set(pool.map(send, texts))) == 1
            with door_client(address) as ask:
                ask("DELETE", path)


def test_claims_whose_commit_fails_are_answered_and_logged_so_and_others_as_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "agent.placement.embedded.serve")
    with served_core(tmp_path) as (core, address), ThreadPoolExecutor() as pool:
        core._store._wait_s = 30
        disk = StallingDisk(core._store.home)
        with disk.stalled():
            first = pool.submit(claim_at, address, claim_of(1))
            assert disk.stalling.wait(10)
            # These are one group, whose commit fails.
            sent = [pool.submit(claim_at, address, body) for body in (claim_of(1), claim_of(99), {})]
            eventually("the claims wait", lambda: core._store.home._writer._queue.qsize() == 3)
            disk.fail_next()
            disk._failures += 1
        assert first.result().status == 503
        assert [each.result().status for each in sent] == [503, 503, 400]
        assert claim_at(address, claim_of(8)).status == 204, "nothing has changed"
    assert claims_told(caplog) == ["204", "400", "503", "503", "503"]


def test_on_a_full_disk_releases_go_on_and_claims_do_not(tmp_path: Path) -> None:
    with served_core(tmp_path) as (core, address), door_client(address) as ask:
        one, other = (f"/allocations/{uuid.uuid4()}" for _ in range(2))
        assert [ask("PUT", path, claim_of(1)).status for path in (one, other)] == [204, 204]
        disk = StallingDisk(core._store.home)
        disk.fail_next(name="SQLITE_FULL")
        assert ask("DELETE", one).status == 204
        refused = ask("PUT", one, claim_of(1))
        assert refused.status == 503 and "full" in refused.error["detail"]
        assert ask("PUT", other, claim_of(1) | {"allocations": {}, "consumer_generation": 1}).status == 204
        assert ask("GET", f"/resource_providers/{HOST}/usages").body["usages"] == {"VCPU": 0}


def test_after_the_core_is_closed_a_claim_is_a_503(tmp_path: Path) -> None:
    with served_core(tmp_path) as (core, address):
        core.close()
        assert claim_at(address, claim_of(1)).status == 503


def test_text_that_no_database_can_hold_is_refused(tcp: DoorClient) -> None:
    assert tcp("POST", "/resource_providers", text=b'{"name": "\\ud800"}').status == 400
    assert tcp("GET", "/resource_providers").body == {"resource_providers": []}


SERVICE_TOKEN = "service-token-0123456789"
READER_TOKEN = "reader-token-0123456789"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"nova service {SERVICE_TOKEN}\nmetrics reader {READER_TOKEN}\n")
    path.chmod(0o600)
    return path


def test_off_loopback_it_refuses_to_start_and_says_what_is_lacking(core: Core, tokens: Path) -> None:
    with pytest.raises(ServeError, match=r"a token file.* and a TLS certificate"):
        Server(core, ["127.0.0.1:0", "0.0.0.0:0"])
    with pytest.raises(ServeError, match="lacks a TLS certificate"):
        Server(core, ["0.0.0.0:0"], tokens_file=tokens)
    with pytest.raises(ServeError, match="both files"):
        Server(core, ["0.0.0.0:0"], tokens_file=tokens, tls_cert=tokens)
    with pytest.raises(ServeError, match="cannot be used"):
        Server(core, ["0.0.0.0:0"], tokens_file=tokens, tls_cert=tokens, tls_key=tokens)
    with pytest.raises(ServeError, match="over TLS only"):
        Server(core, ["127.0.0.1:0"], tls_client_ca=tokens)
    with pytest.raises(ServeError, match="at least one address"):
        Server(core, [])


def test_off_loopback_only_tokens_over_tls_open(core: Core, tokens: Path, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with Server(core, ["0.0.0.0:0"], tokens_file=tokens, tls_cert=certificate, tls_key=key) as server:
        address = server.addresses[0].replace("0.0.0.0", "127.0.0.1")
        bearer = {"Authorization": f"Bearer {SERVICE_TOKEN}"}
        with door_client(address, headers=bearer, ca=certificate) as nova:
            created = nova("POST", "/resource_providers", {"name": "a"})
            assert created.status == 200
            assert created.headers["location"].startswith("https://")
        with door_client(address, headers={"X-Auth-Token": READER_TOKEN}, ca=certificate) as metrics:
            assert metrics("GET", "/resource_providers").status == 200
            assert metrics("POST", "/resource_providers", {"name": "b"}).status == 403
        with door_client(address, ca=certificate) as nobody:
            assert nobody("GET", "/resource_providers").status == 401
            assert nobody("GET", "/").status == 200


def test_clients_show_a_certificate_where_their_authorities_are_named(
    core: Core, tokens: Path, tmp_path: Path
) -> None:
    certificate, key = make_certificate(tmp_path)
    (tmp_path / "of a stranger").mkdir()
    strange = make_certificate(tmp_path / "of a stranger")
    files = {"tokens_file": tokens, "tls_cert": certificate, "tls_key": key}
    with pytest.raises(ServeError, match="The authorities of clients"):
        Server(core, ["127.0.0.1:0"], **files, tls_client_ca=tokens)
    with Server(core, ["127.0.0.1:0"], **files, tls_client_ca=certificate) as server:
        host, _, port = server.addresses[0].removeprefix("https://").rpartition(":")

        def status(shown: tuple[Path, Path] | None) -> int | None:
            trust = ssl.create_default_context(cafile=certificate)
            if shown is not None:
                trust.load_cert_chain(*shown)
            with contextlib.closing(HTTPSConnection(host, int(port), timeout=10, context=trust)) as client:
                try:
                    client.request("GET", "/resource_providers", headers={"X-Auth-Token": READER_TOKEN})
                    return client.getresponse().status
                except OSError:
                    return None

        assert [status(each) for each in (None, strange, (certificate, key))] == [None, None, 200]


@pytest.mark.parametrize("with_tls", [False, True])
def test_clients_that_connect_and_say_nothing_keep_nobody_else_waiting(
    core: Core, tokens: Path, tmp_path: Path, with_tls: bool
) -> None:
    certificate, key = make_certificate(tmp_path) if with_tls else (None, None)
    with Server(core, ["127.0.0.1:0"], tokens_file=tokens, tls_cert=certificate, tls_key=key) as server:
        host, _, port = server.addresses[0].rpartition(":")
        with ExitStack() as silent:
            for _ in range(3 * LIMITS.threads):
                silent.enter_context(socket.create_connection((host, int(port))))
            begin = time.monotonic()
            with door_client(server.addresses[0], ca=certificate) as client:
                assert client("GET", "/").status == 200
            assert time.monotonic() - begin < 5


SLOW_HEAD = b"PUT /allocations/x HTTP/1.1\r\nHost: x\r\nX-"
SLOW_BODY = b"PUT /allocations/x HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n{"


@pytest.mark.parametrize("count", [64, 600])
@pytest.mark.parametrize(
    ("with_tls", "greets", "sent"),
    [
        (False, False, SLOW_HEAD),
        (False, False, SLOW_BODY),
        (True, True, SLOW_HEAD),
        (True, True, SLOW_BODY),
        (True, False, b"\x16\x03\x01"),
    ],
    ids=["head", "body", "head over TLS", "body over TLS", "handshake"],
)
def test_a_client_beside_slow_ones_is_answered_within_a_second(
    core: Core,
    tokens: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    with_tls: bool,
    greets: bool,
    sent: bytes,
    count: int,
) -> None:
    """The machine may stand still for a second now and then; the slow ones are there all the time."""
    waits_s = 60
    limits = replace(LIMITS, io_timeout_s=waits_s, request_timeout_s=waits_s)
    monkeypatch.setattr("agent.placement.embedded.serve.LIMITS", limits)
    certificate, key = make_certificate(tmp_path) if with_tls else (None, None)
    trust = ssl.create_default_context(cafile=certificate)
    with (
        Server(core, ["127.0.0.1:0"], tokens_file=tokens, tls_cert=certificate, tls_key=key) as server,
        ExitStack() as stack,
    ):
        host, _, port = server.addresses[0].rpartition(":")
        slow: list[socket.socket] = []
        until = time.monotonic() + waits_s
        for _ in range(count):
            sock = socket.create_connection((host, int(port)), 10)
            slow.append(trust.wrap_socket(sock, server_hostname=host) if greets else sock)
            stack.enter_context(slow[-1]).sendall(sent)
        for again in range(3):
            for sock in slow[again::40]:
                sock.sendall(b"x")
            took: list[float] = []
            while not took or (took[-1] >= 1 and len(took) < 5):
                begin = time.monotonic()
                headers = {"X-Auth-Token": SERVICE_TOKEN}
                with door_client(server.addresses[0], headers, certificate) as client:
                    assert client("GET", "/resource_providers").status == 200
                took.append(time.monotonic() - begin)
            assert took[-1] < 1, took
        assert time.monotonic() < until, "the server has dropped slow ones"


@pytest.mark.parametrize("bytes_sent", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00" * 300, b""])
def test_what_does_not_speak_tls_gets_no_answer_and_one_line_of_the_log(
    core: Core, tokens: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, bytes_sent: bytes
) -> None:
    certificate, key = make_certificate(tmp_path)
    with (
        caplog.at_level(logging.INFO, "agent"),
        Server(core, ["127.0.0.1:0"], tokens_file=tokens, tls_cert=certificate, tls_key=key) as server,
    ):
        host, _, port = server.addresses[0].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(bytes_sent)
            with contextlib.suppress(OSError):  # the server may have reset the connection already
                sock.shutdown(socket.SHUT_WR)
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                answer = sock.recv(4096)
            assert b"HTTP" not in answer
    (record,) = caplog.records
    assert record.getMessage().startswith("No TLS handshake with 127.0.0.1: ")
    assert (record.levelname, record.exc_info) == ("INFO", None)


def test_given_tokens_hold_on_loopback_too_but_not_on_the_socket(
    core: Core, tokens: Path, tmp_path: Path
) -> None:
    with Server(core, ["127.0.0.1:0", f"unix:{tmp_path}/s"], tokens_file=tokens) as server:
        with door_client(server.addresses[0]) as client:
            assert client("GET", "/resource_providers").status == 401
        with door_client(server.addresses[1]) as client:
            assert client("GET", "/resource_providers").status == 200


def test_the_socket_file_is_for_owner_and_group_and_goes_away(core: Core, tmp_path: Path) -> None:
    path = tmp_path / "door.sock"
    with Server(core, [f"unix:{path}"]):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with pytest.raises(ServeError, match="another server"):
            Server(core, [f"unix:{path}"]).start()
        assert path.exists()
    assert not path.exists()


def test_a_socket_left_over_is_taken_over_and_a_file_is_not(core: Core, tmp_path: Path) -> None:
    path = tmp_path / "door.sock"
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(path))
    with Server(core, [f"unix:{path}"]) as server, door_client(server.addresses[0]) as client:
        assert client("GET", "/").status == 200
    path.write_text("precious")
    with pytest.raises(ServeError, match="no socket"):
        Server(core, [f"unix:{path}"]).start()
    assert path.read_text() == "precious"


def test_where_one_address_cannot_be_had_none_is_opened(core: Core, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = Server(core, [f"unix:{tmp_path}/s", f"127.0.0.1:{taken.getsockname()[1]}"])
        with pytest.raises(ServeError, match="not in use"):
            server.start()
    assert not (tmp_path / "s").exists()


def test_a_directory_that_is_not_there_is_named(core: Core, tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="directory that exists"):
        Server(core, [f"unix:{tmp_path}/missing/s"]).start()


SERVE = """
import gc, sys
from pathlib import Path
from agent.placement.embedded.serve import serve
serve(Path(sys.argv[1]), sys.argv[2:])
assert gc.get_freeze_count() > 10_000, "what was loaded is searched for cycles"
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "s"
    arguments = [sys.executable, "-c", SERVE, str(tmp_path / "state"), f"unix:{path}"]
    with subprocess.Popen(arguments, env={**os.environ, "LISTEN_PID": "1"}) as process:
        deadline = time.monotonic() + 20
        while not path.exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        with door_client(f"unix:{path}") as client:
            assert client("POST", "/resource_providers", {"name": "kept"}).status == 200
        process.send_signal(number)
        assert process.wait(10) == 0
    assert not path.exists()
    with closing(Core.open(tmp_path / "state")) as core:
        found = core.request("GET", "/resource_providers").body["resource_providers"]
    assert [provider["name"] for provider in found] == ["kept"]


def test_what_is_served_is_said_in_one_way(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="--state-dir DIR, or --journal DSN"):
        serve(None, ["127.0.0.1:0"])
    Core.open(tmp_path).close()
    with pytest.raises(ServeError, match=r"has a placement\.db, which --journal would leave out"):
        serve(tmp_path, ["127.0.0.1:0"], journal="postgresql://nobody@/nowhere")
    for more in ({"accept_loss": True}, {"address": "http://one.example"}):
        with pytest.raises(ServeError, match="are for servers that share a --journal"):
            serve(tmp_path, ["127.0.0.1:0"], **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bind", "advertise", "said"),
    [
        ("unix:/nowhere/s", None, "reaches unix:/nowhere/s, which standbys would name"),
        ("0.0.0.0:8778", None, "with --advertise where clients reach this server"),
        ("[::]:8778", None, "with --advertise"),
        ("127.0.0.1:8778", "one.example:8778", "--advertise takes http://NAME:PORT or https://NAME:PORT"),
        ("127.0.0.1:8778", "http://one.example/\r\nFoo: bar", "--advertise takes http://NAME:PORT"),
        ("127.0.0.1:8778", "http://one example", "--advertise takes http://NAME:PORT"),
        ("127.0.0.1:8778", "https://user:secret@one.example", "--advertise takes http://NAME:PORT"),
    ],
)
def test_a_server_with_standbys_has_an_address_for_clients(
    bind: str, advertise: str | None, said: str
) -> None:
    with pytest.raises(ServeError, match=said):
        serve(None, [bind], journal="postgresql://nobody@/nowhere", address=advertise)


def test_the_agent_serves_its_placement_where_the_settings_say(tmp_path: Path) -> None:
    options = {"serve": [f"unix:{tmp_path}/s"]}
    transport = open_transport("embedded", state_dir=tmp_path / "state", options=options)
    with door_client(f"unix:{tmp_path}/s") as client:
        assert client("POST", "/resource_providers", {"name": "a"}).status == 200
    reply = transport.request("GET", "/resource_providers", microversion="1.39")
    assert [each["name"] for each in reply.body["resource_providers"]] == ["a"]
    transport.close()
    assert not (tmp_path / "s").exists()


def test_settings_that_would_open_the_door_too_wide_start_nothing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="serve: Refusing to listen"):
        open_transport("embedded", state_dir=tmp_path, options={"serve": ["0.0.0.0:0"]})
    Core.open(tmp_path).close()  # the lock was given back
    file = tmp_path / "plimsoll.conf"
    file.write_text(
        "[DEFAULT]\ncompute_driver = fake\n[placement]\nkind = remote\nserve = 127.0.0.1:8778\n"
        "auth_type = none\nendpoint_override = http://127.0.0.1:1\n"
    )
    with pytest.raises(SettingsError, match="is for kind = embedded"):
        load((file,), ())
