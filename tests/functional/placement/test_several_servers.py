"""A client of several servers of one Placement: which of them it asks, and what it never asks twice."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kits.agent_process import Agent
from kits.daemon_process import eventually
from kits.embedded_api import Api
from kits.served_core_client import make_certificate
from kits.served_process import ServedCore, served_process

from agent.cli.main import main
from agent.errors import ExitCode, PlacementError, PlacementUnavailable
from agent.placement import transport_http
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.connect import ping
from agent.placement.embedded import Core
from agent.placement.embedded.serve import Server
from agent.placement.embedded.store import NotActive, SqliteHome, Store
from agent.placement.transport import WriteDone, WriteRefused, WriteUnknown
from agent.placement.transport_http import HttpTransport

CLOSED = "http://127.0.0.1:1"
OK = (200, {})
CUT = (0, {})
"""The connection is closed without an answer."""


def standby(active: str | None = None) -> tuple[int, dict[str, str]]:
    return 503, {} if active is None else {"Plimsoll-Active": active}


def stale(active: str | None = None) -> tuple[int, dict[str, str]]:
    return 200, {"Plimsoll-Stale": "true", **standby(active)[1]}


class Stub:
    """A server that answers each request by `says`, called with the method."""

    def __init__(
        self,
        says: Callable[[str], tuple[int, dict[str, str]]] = lambda _: OK,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.says = says
        self.heard: list[str] = []
        self.keys: list[str | None] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                stub.heard.append(f"{self.command} {self.path}")
                stub.keys.append(self.headers["Idempotency-Key"])
                status, headers = stub.says(self.command)
                if not status:
                    self.close_connection = True
                    return
                body = json.dumps({"allocations": {}, "errors": [{"detail": "standby"}]}).encode()
                self.send_response(status)
                shown = {"x-openstack-request-id": "req-1", "Content-Length": str(len(body)), **headers}
                for name, value in shown.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_POST = answer

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_port}"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def stubs() -> Iterator[tuple[Stub, Stub, Stub]]:
    made = (Stub(), Stub(), Stub())
    yield made
    for stub in made:
        stub.close()


@pytest.fixture(autouse=True)
def short_takeover(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_http, "TAKEOVER_S", 0.3)
    monkeypatch.setattr(transport_http, "TAKEOVER_PAUSE_S", 0.05)
    monkeypatch.setattr(transport_http, "PATIENCE_S", 0.2)


@pytest.fixture
def connect() -> Iterator[Callable[..., HttpTransport]]:
    with ExitStack() as stack:

        def transport(*addresses: str, timeout: float = 5) -> HttpTransport:
            options = {"auth_type": "none", "endpoint_override": " , ".join(addresses), "timeout": timeout}
            return stack.enter_context(closing(HttpTransport.from_options(options)))

        yield transport


Connect = Callable[..., HttpTransport]
Stubs = tuple[Stub, Stub, Stub]
WRITE = ConsumerAllocations("00000001-1111-4111-8111-111111111111", {"p": {"VCPU": 1}})


def ask(transport: HttpTransport, method: str = "GET") -> int:
    return transport.request(method, "/traits", {} if method == "PUT" else None, microversion="1.39").status


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_refused_connection_goes_on_to_the_next_address_and_stays_there(
    connect: Connect, stubs: Stubs, method: str
) -> None:
    transport = connect(CLOSED, stubs[0].url, stubs[1].url)
    assert transport.address() == CLOSED
    assert [ask(transport, method), ask(transport, method)] == [200, 200]
    assert (stubs[0].heard, stubs[1].heard) == ([f"{method} /traits"] * 2, [])
    assert transport.address() == stubs[0].url


def test_where_all_connections_are_refused_the_error_comes_at_once(connect: Connect) -> None:
    transport = connect(CLOSED, "http://127.0.0.1:2")
    begun = time.monotonic()
    with pytest.raises(PlacementUnavailable, match="connection refused") as raised:
        ask(transport, "PUT")
    assert not raised.value.sent and time.monotonic() - begun < transport_http.TAKEOVER_S
    assert isinstance(PlacementClient(transport).send_allocations(WRITE), WriteRefused)


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_the_error_has_the_reason_of_each_address(connect: Connect, stubs: Stubs, method: str) -> None:
    standing_by, _, _ = stubs
    nowhere = "http://nowhere.invalid:8778"
    with pytest.raises(PlacementUnavailable) as raised:
        ask(connect(CLOSED, nowhere), method)
    for message in (str(raised.value), raised.value.message):
        assert message == (
            f"Placement did not answer to {method} /traits: {CLOSED}: connection refused; "
            f"{nowhere}: the name of the host is not known."
        )
    standing_by.says = lambda _: stale() if method == "GET" else standby()
    others = f"Of the others: {CLOSED}: connection refused"
    transport = connect(CLOSED, standing_by.url)
    if method == "GET":
        with pytest.raises(PlacementUnavailable, match=f"answers as the active one. {others}.$") as raised:
            ask(transport, method)
        assert not raised.value.sent
    else:
        reply = transport.request("PUT", "/traits", {}, microversion="1.39")
        assert reply.body["errors"][0]["detail"] == f"standby {others}."


def test_an_error_that_has_many_addresses_has_an_end(connect: Connect) -> None:
    with pytest.raises(PlacementUnavailable) as raised:
        ask(connect(*(f"http://127.0.0.1:{port}/{'x' * 900}" for port in range(1, 30))))
    assert "and 24 more" in str(raised.value) and len(str(raised.value)) < 1500


@pytest.mark.parametrize("form", ["{}", "{}/", "http://{}"])
def test_a_standby_sends_a_write_to_the_active_one_that_it_names(
    connect: Connect, stubs: Stubs, form: str
) -> None:
    first, _, active = stubs
    first.says = lambda _: standby(form.format(active.url.removeprefix("http://")))
    transport = connect(*(stub.url for stub in stubs))
    assert [ask(transport, "PUT"), ask(transport, "PUT")] == [200, 200]
    assert [len(stub.heard) for stub in stubs] == [1, 0, 2]


def test_an_address_that_no_operator_wrote_gets_no_request(connect: Connect, stubs: Stubs) -> None:
    first, second, elsewhere = stubs
    first.says = second.says = lambda _: standby(elsewhere.url)
    assert ask(connect(first.url, second.url), "PUT") == 503
    assert elsewhere.heard == []


def test_while_none_is_active_a_write_waits_for_the_takeover(connect: Connect, stubs: Stubs) -> None:
    first, second, _ = stubs
    first.says = lambda _: standby()
    second.says = lambda _: OK if len(second.heard) > 2 else standby()
    assert ask(connect(first.url, second.url, CLOSED), "PUT") == 200
    assert (len(first.heard), len(second.heard)) == (3, 3)


def test_the_wait_for_a_takeover_has_an_end(connect: Connect, stubs: Stubs) -> None:
    first, second, _ = stubs
    first.says = second.says = lambda _: standby(CLOSED)
    client = PlacementClient(connect(first.url, second.url, CLOSED))
    begun = time.monotonic()
    outcome = client.send_allocations(WRITE)
    assert isinstance(outcome, WriteRefused) and "standby" in outcome.error.message
    assert time.monotonic() - begun < 10 * transport_http.TAKEOVER_S
    assert len(first.heard) < 12


def test_a_write_whose_answer_is_lost_is_unknown_and_sent_to_nobody_else(
    connect: Connect, stubs: Stubs
) -> None:
    first, second, _ = stubs
    first.says = lambda _: CUT
    client = PlacementClient(connect(first.url, second.url))
    outcome = client.send_allocations(WRITE)
    assert isinstance(outcome, WriteUnknown) and outcome.late
    assert (len(first.heard), second.heard) == (1, [])
    assert client.allocations_of(WRITE.consumer).allocations == {}  # the read that tells asks the next one
    assert (len(first.heard), len(second.heard)) == (1, 1)


def test_a_write_that_times_out_is_unknown(connect: Connect, stubs: Stubs) -> None:
    first, second, _ = stubs
    first.says = lambda _: (time.sleep(1), OK)[1]
    client = PlacementClient(connect(first.url, second.url, timeout=0.3))
    assert isinstance(client.send_allocations(WRITE), WriteUnknown)
    assert second.heard == []
    assert isinstance(client.send_allocations(WRITE), WriteDone)
    assert (len(first.heard), len(second.heard)) == (1, 1)


def test_a_read_whose_answer_is_lost_asks_the_next_one(connect: Connect, stubs: Stubs) -> None:
    first, second, _ = stubs
    first.says = lambda _: CUT
    assert ask(connect(first.url, second.url)) == 200
    assert len(second.heard) == 1


def test_an_answer_that_may_be_old_is_not_taken_where_the_active_one_answers(
    connect: Connect, stubs: Stubs
) -> None:
    first, _, active = stubs
    first.says = lambda _: stale(active.url)
    transport = connect(*(stub.url for stub in stubs))
    assert [ask(transport), ask(transport)] == [200, 200]
    assert [len(stub.heard) for stub in stubs] == [1, 0, 2]


def test_an_answer_that_may_be_old_is_never_taken_for_what_is(connect: Connect, stubs: Stubs) -> None:
    """The agent reads to know what became of a write."""
    first, second, _ = stubs
    first.says = second.says = lambda _: stale()
    with pytest.raises(PlacementUnavailable, match="only a standby did") as raised:
        ask(connect(first.url, second.url, CLOSED))
    assert not raised.value.sent


@pytest.mark.parametrize(("status", "heard"), [(204, 0), (500, 0), (404, 1)])
def test_a_write_goes_on_only_where_a_standby_refused_it(
    connect: Connect, stubs: Stubs, status: int, heard: int
) -> None:
    """The server may have done it, and have become a standby since."""
    first, second, _ = stubs
    first.says = lambda _: (status, {"Plimsoll-Stale": "true"})
    assert ask(connect(first.url, second.url), "PUT") == (200 if heard else status)
    assert (len(first.heard), len(second.heard)) == (1, heard)


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_clients_certificate_goes_to_the_server_that_took_over_as_well(tmp_path: Path, method: str) -> None:
    """Balancers may ask for one; without it neither server hears a word."""
    certificate, key = make_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    tls.load_verify_locations(certificate)
    tls.verify_mode = ssl.CERT_REQUIRED
    first, second = (Stub(lambda _: (200, {"Connection": "close"}), tls=tls) for _ in range(2))
    options = {
        "auth_type": "none",
        "endpoint_override": f"{first.url},{second.url}",
        "cafile": str(certificate),
        "timeout": 5,
    }
    with closing(second), closing(HttpTransport.from_options(options)) as stranger:
        with pytest.raises(PlacementUnavailable):
            ask(stranger, method)
        own = {"certfile": str(certificate), "keyfile": str(key)}
        with closing(HttpTransport.from_options({**options, **own})) as transport:
            assert ask(transport, method) == 200
            first.close()
            assert ask(transport, method) == 200
    assert (len(first.heard), len(second.heard)) == (1, 1)


# Servers that share a journal, and so the keys of writes

KEYS = {"Plimsoll-Keys": "120"}


def shared(connect: Connect, *stubs: Stub | str, timeout: float = 5) -> PlacementClient:
    """A client that has had an answer of the first one, which says that it shares its journal."""
    client = PlacementClient(connect(*(getattr(one, "url", one) for one in stubs), timeout=timeout))
    first = stubs[0]
    assert isinstance(first, Stub)
    first.says = lambda _: (200, KEYS)
    client.allocations_of(WRITE.consumer)
    first.heard.clear()
    return client


@pytest.mark.parametrize("lost", [lambda: CUT, lambda: (time.sleep(4), OK)[1], lambda: (502, {})])
def test_a_write_whose_answer_is_lost_is_repeated_with_its_key(
    connect: Connect, stubs: Stubs, lost: Callable[[], tuple[int, dict[str, str]]]
) -> None:
    """The third one answers as a proxy: without a request id."""
    first, second, _ = stubs
    client = shared(connect, first, second)
    first.says = lambda _: (lost()[0], {"x-openstack-request-id": ""})
    begun = time.monotonic()
    assert isinstance(client.send_allocations(WRITE), WriteDone)
    assert time.monotonic() - begun < 3
    assert (len(first.heard), len(second.heard)) == (1, 1)
    assert first.keys[-1] and first.keys[-1] == second.keys[-1]
    assert isinstance(client.send_allocations(WRITE), WriteDone)
    assert second.keys[0] != second.keys[1], "another write has another key"
    assert first.keys[0] is None, "a read has none"


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_key_that_the_server_may_have_forgotten_is_made_anew(
    connect: Connect, stubs: Stubs, is_alone: bool
) -> None:
    """A key tells which row was known; an agent that was idle for long has an old one."""
    first, second, _ = stubs
    client = shared(connect, *((first,) if is_alone else (first, second)))

    def says(heard: Any) -> tuple[int, dict[str, str]]:
        return (OK[0], {}) if (first.keys[-1] or "").endswith("@3.70") else (412, {"Plimsoll-Seen": "3.70"})

    first.says = says
    assert isinstance(client.send_allocations(WRITE), WriteDone)
    assert len(set(first.keys[1:])) == 2 and second.heard == []
    first.says = lambda _: (412, {"Plimsoll-Seen": "3.71"})
    assert isinstance(client.send_allocations(WRITE), WriteRefused), "not without an end"
    assert len(first.heard) == 4


def test_a_copy_that_is_too_old_does_not_tell_what_became_of_the_first(
    connect: Connect, stubs: Stubs
) -> None:
    first, second, _ = stubs
    client = shared(connect, first, second)
    first.says = lambda _: CUT
    second.says = lambda _: (412, {"Plimsoll-Seen": "3.70"})
    assert isinstance(client.send_allocations(WRITE), WriteUnknown)
    assert len(set(second.keys)) == 1


def test_a_read_waits_no_longer_for_a_silent_server(connect: Connect, stubs: Stubs) -> None:
    first, second, _ = stubs
    client = shared(connect, first, second)
    first.says = lambda _: (time.sleep(4), OK)[1]
    begun = time.monotonic()
    assert client.allocations_of(WRITE.consumer).allocations == {}
    assert time.monotonic() - begun < 3


@pytest.mark.parametrize("other", [CLOSED, "standby"])
def test_a_server_that_is_merely_slow_is_waited_for_with_one_key(
    connect: Connect, stubs: Stubs, other: str
) -> None:
    """It answers the repeated request when the first one is done, as a served core does."""
    first, second, _ = stubs
    second.says = lambda _: standby(first.url)
    client, begun = shared(connect, first, second if other == "standby" else CLOSED), time.monotonic()
    first.says = lambda _: (time.sleep(max(0.0, begun + 1.5 - time.monotonic())), OK)[1]
    assert isinstance(client.send_allocations(WRITE), WriteDone)
    assert len(first.heard) in (3, 4) and len(set(first.keys[1:])) == 1


@pytest.mark.parametrize("then", [standby(), (401, {}), (403, {}), CUT])
def test_what_became_of_a_lost_write_only_the_active_server_tells(
    connect: Connect, stubs: Stubs, then: tuple[int, dict[str, str]]
) -> None:
    first, second, _ = stubs
    client = shared(connect, first, second)
    first.says, second.says = lambda _: CUT if len(first.heard) == 1 else then, lambda _: then
    begun = time.monotonic()
    outcome = client.send_allocations(WRITE)
    assert isinstance(outcome, WriteUnknown) and outcome.late
    assert time.monotonic() - begun < 10 * transport_http.TAKEOVER_S + 1


def test_a_lost_write_is_repeated_for_the_timeout_at_most(connect: Connect, stubs: Stubs) -> None:
    first, second, _ = stubs
    client = shared(connect, first, second, timeout=0.8)
    first.says = second.says = lambda _: (time.sleep(4), OK)[1]
    begun = time.monotonic()
    assert isinstance(client.send_allocations(WRITE), WriteUnknown)
    assert time.monotonic() - begun < 3


@pytest.mark.parametrize("method", ["GET", "PUT"])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_redirect_carries_the_token_to_another_address(
    connect: Connect, stubs: Stubs, method: str, status: int
) -> None:
    first, other, _ = stubs
    first.says = lambda _: (status, {"Location": f"{other.url}/", "x-openstack-request-id": ""})
    with pytest.raises(PlacementError, match=f"sends the agent on to {other.url}/, which gets no token"):
        ask(connect(first.url), method)
    assert not other.heard


ELSEWHERE = (302, {"Location": "http://127.0.0.1:9/", "x-openstack-request-id": ""})
UNKNOWN_TOKEN: tuple[int, dict[str, str]] = (401, {})


@pytest.mark.parametrize("method", ["GET", "PUT"])
@pytest.mark.parametrize("says", [UNKNOWN_TOKEN, ELSEWHERE])
def test_a_server_that_lets_the_agent_not_in_does_not_keep_it_from_the_active_one(
    connect: Connect, stubs: Stubs, says: tuple[int, dict[str, str]], method: str
) -> None:
    first, second, active = stubs
    first.says, second.says = lambda _: says, lambda _: standby() if method == "PUT" else stale()
    transport = connect(CLOSED, first.url, second.url, active.url)
    assert [ask(transport, method), ask(transport, method)] == [200, 200]
    assert [len(stub.heard) for stub in stubs] == [1, 1, 2]


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_where_each_server_refuses_the_token_the_error_says_so_and_names_them(
    connect: Connect, stubs: Stubs, method: str
) -> None:
    first, second, _ = stubs
    first.says = second.says = lambda _: UNKNOWN_TOKEN
    refused = (
        "it does not accept the token (standby): check it, or the credentials in [placement] (status 401)"
    )
    with pytest.raises(PlacementError) as raised:
        ask(connect(first.url, second.url), method)
    assert (
        str(raised.value)
        == raised.value.message
        == (f"Placement did not answer {method} /traits: {first.url}: {refused}; {second.url}: {refused}.")
    )
    assert not isinstance(raised.value, PlacementUnavailable) and raised.value.status == 401
    assert isinstance(PlacementClient(connect(first.url, second.url)).send_allocations(WRITE), WriteRefused)
    second.says = lambda _: ELSEWHERE
    with pytest.raises(PlacementUnavailable) as away:  # the active one may be the one that is away
        ask(connect(first.url, second.url, CLOSED), method)
    assert not away.value.sent
    assert away.value.message == (
        f"Placement did not answer to {method} /traits: {first.url}: {refused}; {second.url}: it sends the "
        "agent on to http://127.0.0.1:9/, which gets no token: set endpoint_override in [placement] to the "
        f"address that answers itself; {CLOSED}: connection refused."
    )


def test_a_remedy_of_several_addresses_is_said_once_and_whole(connect: Connect, stubs: Stubs) -> None:
    first, second, third = stubs
    for stub in stubs:
        stub.says = lambda _: (502, {"x-openstack-request-id": ""})
    with pytest.raises(PlacementUnavailable) as raised:
        ask(connect(first.url, second.url, third.url))
    reasons, remedy, end = raised.value.message.rpartition(" If all answers lack it, check the address, ")
    assert remedy and end == "and let a proxy pass it on."
    assert reasons.count("or there is no Placement at that address") == 3 and "If" not in reasons


@pytest.mark.parametrize("addresses", [1, 2])
def test_a_ping_with_a_wrong_token_names_each_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], connect: Connect, stubs: Stubs, addresses: int
) -> None:
    """A list of versions needs no token."""
    asked = stubs[:addresses]
    for stub in asked:
        stub.says = lambda _: UNKNOWN_TOKEN
    with pytest.raises(PlacementError) as raised:
        ping(connect(*(stub.url for stub in asked)), "here")
    assert all(f"{stub.url}: " in raised.value.message for stub in asked)
    assert "does not accept the token" in raised.value.message and "None" not in raised.value.message


def test_one_address_is_asked_once(connect: Connect, stubs: Stubs) -> None:
    stubs[0].says = lambda _: standby()
    assert ask(connect(stubs[0].url), "PUT") == 503
    assert len(stubs[0].heard) == 1


# Commands at a standby


class StandbyHome(SqliteHome):
    """That of a server whose journal another one writes to."""

    is_active, is_shared, active_server = False, True, "http://one:8778"

    def admit(self) -> None:
        raise NotActive(self.path, "standby")


@pytest.fixture
def at_standby(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str]]]:
    """Runs a `plimsoll placement` at a standby with one provider; returns its exit code and what it says."""
    with closing(Core.open(tmp_path)) as core:
        Api(core).provider("host", {"VCPU": 4})
    url = f"unix:{tmp_path}/s"
    with closing(Core(Store(StandbyHome.at(tmp_path)))) as core, Server(core, [url]):

        def run(*words: str) -> tuple[int, str]:
            code = main(["placement", *words, "--url", url])
            said = capsys.readouterr()
            return code, said.out + said.err

        yield run


STANDBY = "it is a standby, whose answers may be old: the active one is at http://one:8778"


@pytest.mark.parametrize("words", [["export"], ["export", "--root", "host"], ["check"]])
def test_a_command_that_reads_at_a_standby_says_so(
    at_standby: Callable[..., tuple[int, str]], words: list[str]
) -> None:
    code, said = at_standby(*words)
    assert code == 0 and said.endswith(f"/s: {STANDBY}.\n"), said


def test_a_ping_of_a_standby_names_the_active_server(at_standby: Callable[..., tuple[int, str]]) -> None:
    code, said = at_standby("ping")
    assert code == ExitCode.DRIFT_FOUND
    assert f"lacking     writes: {STANDBY}" in said and "role" not in said


@pytest.mark.parametrize("verb", ["import", "remove"])
def test_a_command_that_writes_is_refused_at_a_standby_before_it_writes(
    at_standby: Callable[..., tuple[int, str]], tmp_path: Path, verb: str
) -> None:
    file = str(tmp_path / "document.json")
    assert at_standby("export", file)[0] == 0
    code, said = at_standby(verb, file)
    assert code == ExitCode.FAILED
    assert f"{STANDBY}. Nothing was written" in said and "are done" not in said
    assert STANDBY in at_standby(verb, file, "--dry-run")[1]


TOKEN = "token-of-the-only-host"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[ServedCore, ServedCore]]:
    """A server, and one that can serve the same records once the first is gone."""
    with served_process(tmp_path / "served", f"agent service {TOKEN} host=node1\n") as first:
        second = ServedCore(tmp_path / "second", f"agent service {TOKEN} host=node1\n", like=first)
        yield first, second
        second.stop()


def test_an_agent_goes_on_with_the_server_that_took_over(
    pair: tuple[ServedCore, ServedCore], tmp_path: Path
) -> None:
    """Both are processes; the first is killed, and later the second, whose place the first takes again."""
    first, second = pair
    (tmp_path / "agent").mkdir()
    section = (
        f"[placement]\nkind = remote\nauth_type = admin_token\ntoken = {TOKEN}\ntimeout = 5\n"
        f"endpoint_override = {first.url},{second.url}\ncafile = {first.certificate}\n"
    )
    agent = Agent(tmp_path / "agent", more=section)
    agent.start()
    try:
        claimed: list[Any] = []
        for dies, takes_over in ((first, second), (second, first)):
            claimed.append(json.loads(agent("claim", "--resources", "VCPU=1", "-o", "json").stdout))
            dies.kill()
            assert agent("claim", "--resources", "VCPU=1").returncode != 0
            takes_over.start()
            eventually("a claim", lambda: agent("claim", "--resources", "VCPU=1").returncode == 0)
        audit = agent("audit", "-o", "json")
        assert audit.returncode == 0, audit.stdout
    finally:
        assert agent.stop() == 0
