"""One bounded server at a Unix socket or a TCP address: limits, refused requests, listening and stopping."""

import gc
import http.client
import itertools
import json
import logging
import os
import queue
import resource
import socket
import ssl
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from kits.daemon_process import eventually
from kits.served_core_client import make_certificate

from agent.http import server, unix_socket
from agent.http.errors import AddressInUse, ListenError
from agent.http.server import FAILURE, BoundedServer, Limits, Listener, stop_all
from agent.http.unix_connection import UnixConnection
from agent.http.unix_socket import PeerCredentials, peer_credentials

LIMITS = Limits(threads=2, backlog=8, kept_alive=4, header_bytes=4096, body_bytes=4096)
LOOPBACK = ("127.0.0.1", 0)


def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    text = repr(peer_credentials(environ)).encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
    return [text]


@contextmanager
def listening(address: Path | tuple[str, int], limits: Limits = LIMITS, **options: Any) -> Iterator[Listener]:
    listener = Listener(BoundedServer(address, application, limits, **options), "the test")
    listener.start()
    try:
        yield listener
    finally:
        listener.stop()


def answer_to(listener: Listener, sent: bytes) -> bytes:
    """All bytes that the server answers with before it closes."""
    host, _, port = listener.address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        return exchange(connection, sent)


def exchange(connection: socket.socket, sent: bytes) -> bytes:
    connection.sendall(sent)
    received = b""
    while chunk := connection.recv(65536):
        received += chunk
    return received


def test_a_tcp_address_shows_its_real_port_and_is_free_after_the_stop() -> None:
    with listening(LOOPBACK) as listener:
        assert listener.is_running and not listener.address.endswith(":0")
        reply = answer_to(listener, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 200 ") and reply.endswith(b"None")
        host, _, port = listener.address.rpartition(":")
    assert not listener.is_running
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 1)


def test_a_tcp_address_in_use_is_an_error_with_a_reason() -> None:
    with listening(LOOPBACK) as listener:
        host, _, port = listener.address.rpartition(":")
        second = Listener(BoundedServer((host, int(port)), application, LIMITS), "the second")
        with pytest.raises(ListenError, match="Address already in use"):
            second.start()
        second.stop()


def test_a_unix_socket_tells_who_calls(tmp_path: Path) -> None:
    with (
        listening(tmp_path / "s", peer_credentials=True) as listener,
        unix_socket.connect(Path(listener.address)) as connection,
    ):
        reply = exchange(connection, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert reply.endswith(repr(PeerCredentials(os.getuid(), os.getgid(), os.getpid())).encode())


def test_a_unix_socket_may_have_the_longest_path_there_is(tmp_path: Path) -> None:
    with TemporaryDirectory() as name:
        path = Path(name) / ("s" * (106 - len(name)))
        with listening(path) as listener:
            assert listener.address == str(path) and len(bytes(path)) == 107


def test_a_unix_socket_in_use_is_told_apart(tmp_path: Path) -> None:
    with listening(tmp_path / "s"), pytest.raises(AddressInUse):
        unix_socket.listen(tmp_path / "s", 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("json_errors", "kind"), [(True, b"application/json"), (False, b"text/plain")])
def test_a_refusal_has_the_form_that_the_server_asks_for(json_errors: bool, kind: bytes) -> None:
    with listening(LOOPBACK, json_errors=json_errors) as listener:
        sent = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        reply = answer_to(listener, sent)
    assert reply.startswith(b"HTTP/1.1 411 ") and b"Content-Type: " + kind in reply
    if json_errors:
        body = json.loads(reply.partition(b"\r\n\r\n")[2])
        assert body["error"]["code"] == "plimsoll.api.length_required"


def test_silent_clients_keep_no_thread() -> None:
    with listening(LOOPBACK) as listener:
        host, _, port = listener.address.rpartition(":")
        silent = [socket.create_connection((host, int(port)), 10) for _ in range(2 * LIMITS.threads)]
        client = http.client.HTTPConnection(host, int(port), timeout=5)
        client.request("GET", "/")
        assert client.getresponse().status == 200
        for connection in (*silent, client):
            connection.close()


class Door:
    """A server of two threads at a TCP address, plain or over TLS, and connections to it."""

    def __init__(
        self, directory: Path, with_tls: bool, application: Any = None, whole: Any = None, **limits: Any
    ) -> None:
        context = None
        self._trust: ssl.SSLContext | None = None
        if with_tls:
            certificate, key = make_certificate(directory)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            self._trust = ssl.create_default_context(cafile=str(certificate))
        limits = {"request_timeout_s": 0.3, "idle_check_interval_s": 0.05, "body_bytes": 10**8, **limits}
        self.server = BoundedServer(
            LOOPBACK, application or echo, replace(LIMITS, **limits), tls=context, whole=whole
        )
        self.listener = Listener(self.server, "the test")
        self.listener.start()
        host, _, port = self.listener.address.rpartition(":")
        self.address = (host, int(port))

    def connect(self) -> socket.socket:
        sock = socket.create_connection(self.address, 10)
        return sock if self._trust is None else self._trust.wrap_socket(sock, server_hostname="127.0.0.1")

    def is_answered(self) -> bool:
        with self.connect() as connection:
            return exchange(connection, CLOSING).startswith(b"HTTP/1.1 200 ")


def echo(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """What the client sends, and as many bytes more as its query says."""
    text = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    text += bytes(int(environ["QUERY_STRING"] or 0))
    start_response("200 OK", [("Content-Length", str(len(text)))])
    return [text]


CLOSING = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
LARGE = b"GET /?%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
LONG = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def open_door(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Door]]:
    doors: list[Door] = []

    def open_it(**limits: Any) -> Door:
        doors.append(Door(tmp_path, request.param, **limits))
        return doors[-1]

    yield open_it
    for door in doors:
        door.listener.stop()


@pytest.mark.parametrize("sent", [b"GET /ab", LONG % 99 + b"{", b"GET / HTTP/1.1\r\nHost: x"])
def test_a_request_has_a_deadline_of_its_own(open_door: Callable[..., Door], sent: bytes) -> None:
    """Bytes that trickle do not extend it."""
    with open_door().connect() as slow:
        began, said = time.monotonic(), b""
        slow.sendall(sent)
        slow.settimeout(0.05)
        while not said:
            assert time.monotonic() - began < 10
            try:
                said = slow.recv(65536)
            except TimeoutError:
                slow.sendall(b"x")
        assert said.startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - began > 0.25


def test_a_client_that_says_nothing_or_nothing_more_is_closed(open_door: Callable[..., Door]) -> None:
    """Before its first byte, over TLS also before its handshake, and after an answer."""
    door = open_door(io_timeout_s=0.3)
    with door.connect() as silent, door.connect() as idle, socket.create_connection(door.address, 10) as bare:
        idle.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert exchange(idle, b"").startswith(b"HTTP/1.1 200 OK")
        assert [exchange(connection, b"") for connection in (silent, bare)] == [b"", b""]


def test_so_many_connections_stay_open_between_requests_and_no_more(open_door: Callable[..., Door]) -> None:
    door = open_door(kept_alive=2, io_timeout_s=30)
    with ExitStack() as stack:
        told = []
        for _ in range(3):
            client = stack.enter_context(door.connect())
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            told.append(b"\r\nConnection: close\r\n" in client.recv(65536))
            eventually("its thread is free", lambda: door.listener._server.threads.answering == 0)
        assert told == [False, False, True]


def in_turn(door: Door) -> tuple[bool, int]:
    """Whether nothing waits for the thread, and how many requests wait for it or have it."""
    told = door.listener._server
    return not told.threads._first, sum(each.is_busy for each in told.connections)


@pytest.mark.parametrize("with_tls", [False, True])
def test_who_comes_while_all_connections_wait_for_their_answers_is_sent_off(
    tmp_path: Path, with_tls: bool
) -> None:
    """Over TLS without a word: there is no time for a handshake."""
    goes_on = threading.Event()

    def waits(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        assert goes_on.wait(30)
        return echo(environ, start_response)

    door = Door(tmp_path, with_tls, waits, threads=1, connections=1, request_timeout_s=30)
    with ExitStack() as stack:
        stack.callback(door.listener.stop)
        stack.callback(goes_on.set)
        first = stack.enter_context(door.connect())
        first.sendall(CLOSING)
        eventually("it has the thread", lambda: in_turn(door) == (True, 1))
        second = stack.enter_context(door.connect())
        second.sendall(CLOSING)
        eventually("it waits", lambda: in_turn(door) == (False, 2))
        other = stack.enter_context(socket.create_connection(door.address, 10))
        said = other.recv(65536)
        assert said == b"" if with_tls else said.startswith(b"HTTP/1.1 503 ")
        goes_on.set()
        assert all(exchange(client, b"").startswith(b"HTTP/1.1 200 ") for client in (first, second))


def test_a_long_body_may_take_longer_at_a_least_rate(open_door: Callable[..., Door]) -> None:
    door, body = open_door(), os.urandom(256 * 1024)
    with door.connect() as connection:
        connection.sendall(LONG % len(body) + body[:65536])
        for part in range(1, 4):
            time.sleep(0.25)
            connection.sendall(body[65536 * part :][:65536])
        assert exchange(connection, b"").endswith(body)


SIZE = 5 * 10**6
"""More than the kernel keeps for a client that takes nothing."""


def test_clients_that_do_not_take_their_answers_keep_no_thread(open_door: Callable[..., Door]) -> None:
    door = open_door(request_timeout_s=30)
    with ExitStack() as stack:
        for _ in range(3 * LIMITS.threads):
            stack.enter_context(door.connect()).sendall(LARGE % SIZE)
        began = time.monotonic()
        assert door.is_answered() and time.monotonic() - began < 10


def test_an_answer_has_a_deadline_and_a_least_rate(
    open_door: Callable[..., Door], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "agent.http")
    monkeypatch.setattr(server, "LEAST_BYTES_S", SIZE)
    door = open_door()
    with door.connect() as deaf, door.connect() as slow:
        for connection in (deaf, slow):
            connection.sendall(LARGE % SIZE)
        time.sleep(0.4)
        assert len(exchange(slow, b"")) > SIZE
        time.sleep(1.3)
        with suppress(ConnectionResetError):
            assert len(exchange(deaf, b"")) < SIZE
    (record,) = caplog.records
    assert record.getMessage() == "Lost, within its answer, 127.0.0.1: it took too long."


def test_the_next_request_waits_until_its_client_has_taken_the_answer(open_door: Callable[..., Door]) -> None:
    """Else one client could have the server keep any number of answers."""
    door = open_door(request_timeout_s=30)
    with door.connect() as connection:
        connection.sendall(3 * (LARGE % SIZE).replace(b"Connection: close\r\n", b"") + CLOSING)
        time.sleep(0.3)
        (conn,) = door.listener._server.connections
        assert 0 < conn.kept < SIZE + 200
        replies = exchange(connection, b"")
    assert replies.count(bytes(SIZE)) == 3 and replies.count(b"HTTP/1.1 200 OK") == 4


def test_one_answer_makes_place_where_too_much_is_kept(
    open_door: Callable[..., Door], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "agent.http")
    monkeypatch.setattr(server, "ANSWERS_BYTES_MAX", 1)
    door, taken = open_door(request_timeout_s=30), []
    with door.connect() as first, door.connect() as second:
        for connection in (first, second):
            connection.sendall(LARGE % (2 * SIZE))
        eventually("one is dropped", lambda: caplog.records)
        for connection in (first, second):
            with suppress(ConnectionResetError):
                taken.append(len(exchange(connection, b"")))
    assert sum(size > 2 * SIZE for size in taken) == 1
    (record,) = caplog.records
    assert record.getMessage().startswith("Lost, within its answer, 127.0.0.1: others wait for theirs")


def test_an_answer_that_is_under_way_at_the_stop_arrives(open_door: Callable[..., Door]) -> None:
    door = open_door(request_timeout_s=30, stop_timeout_s=2)
    with door.connect() as slow, door.connect() as deaf:
        for connection in (slow, deaf):
            connection.sendall(LARGE % SIZE)
        time.sleep(0.3)
        stopper = threading.Thread(target=door.listener.stop)
        began = time.monotonic()
        stopper.start()
        time.sleep(0.3)
        assert len(exchange(slow, b"")) > SIZE
        stopper.join()
    assert time.monotonic() - began < 10


def test_requests_that_arrive_at_once_are_answered_in_turn(open_door: Callable[..., Door]) -> None:
    """Over TLS they are one record, of which the selector sees nothing after the first."""
    asked = b"".join(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n%02d" % n for n in range(20))
    with open_door().connect() as connection:
        replies = exchange(connection, asked + CLOSING)
    assert [part[-2:] for part in replies.split(b"HTTP/1.1 200 OK")[1:-1]] == [b"%02d" % n for n in range(20)]


def test_a_body_that_waits_for_a_word_is_asked_for_once(open_door: Callable[..., Door]) -> None:
    head = (LONG % 4).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
    with open_door().connect() as connection:
        connection.sendall(head)
        assert connection.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert exchange(connection, b"body").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("count", "with_tls", "waiting"), [(64, False, 16), (64, True, 16), (600, False, None)]
)
def test_a_client_does_not_wait_for_what_greedy_ones_sent_ahead(
    tmp_path: Path, count: int, with_tls: bool, waiting: int | None
) -> None:
    """Counted, not timed: the machine may stand still, and then all stand still alike."""
    answered = itertools.count()

    def takes_a_while(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        time.sleep(0.004)
        next(answered)
        return echo(environ, start_response)

    limits = {"waiting": waiting, "connections": 640, "kept_alive": 640, "backlog": 512}
    door = Door(tmp_path, with_tls, takes_a_while, request_timeout_s=30, **limits)
    with ExitStack() as stack:
        stack.callback(door.listener.stop)
        greedy = [stack.enter_context(door.connect()) for _ in range(count)]
        for connection in greedy:
            connection.sendall(300 * CLOSING.replace(b"Connection: close\r\n", b""))
            if waiting is not None:  # so that the queue has place for the first of each
                assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        for connection in greedy if waiting is None else ():
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        for _ in range(3):
            before = next(answered)
            assert door.is_answered()
            assert next(answered) - before < 100  # 0.2 s of two threads; all of them take 360 s


@pytest.mark.parametrize("with_tls", [False, True])
def test_who_finds_the_queue_full_is_told_so_at_once(tmp_path: Path, with_tls: bool) -> None:
    goes_on = threading.Event()

    def waits(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        assert goes_on.wait(10)
        return echo(environ, start_response)

    door = Door(tmp_path, with_tls, waits, threads=1, waiting=1, request_timeout_s=30)
    with ExitStack() as stack:
        stack.callback(door.listener.stop)
        stack.callback(goes_on.set)
        first, second, *others = [stack.enter_context(door.connect()) for _ in range(7)]
        first.sendall(CLOSING)
        time.sleep(0.1)
        second.sendall(CLOSING)
        time.sleep(0.1)
        began = time.monotonic()
        for connection in others:
            connection.sendall(CLOSING)
        replies = [exchange(connection, b"") for connection in others]
        assert time.monotonic() - began < 10
        assert all(reply.startswith(b"HTTP/1.1 503 ") for reply in replies)
        goes_on.set()
        assert all(exchange(each, b"").startswith(b"HTTP/1.1 200 ") for each in (first, second))


def test_a_greedy_client_makes_place_before_one_that_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that wait for a thread count as connections; of what they sent ahead they lose the rest."""
    goes_on = threading.Semaphore(0)

    def waits(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        assert goes_on.acquire(timeout=10)
        return echo(environ, start_response)

    door = Door(tmp_path, False, waits, threads=1, connections=3, request_timeout_s=30, io_timeout_s=30)
    with ExitStack() as stack:
        stack.callback(door.listener.stop)
        stack.callback(lambda: goes_on.release(100))
        greedy = stack.enter_context(door.connect())
        greedy.sendall(2 * CLOSING.replace(b"Connection: close\r\n", b""))
        waiting = [stack.enter_context(door.connect()) for _ in range(2)]
        time.sleep(0.1)
        waiting[0].sendall(CLOSING)
        time.sleep(0.1)
        goes_on.release()  # one of `waiting` has the thread, the rest of the greedy one's waits for it
        time.sleep(0.1)
        waiting += [stack.enter_context(door.connect()) for _ in range(2)]
        replies = exchange(greedy, b"")
        assert replies.count(b"HTTP/1.1 200 ") == 1 and replies.count(b"HTTP/1.1 503 ") == 1
        goes_on.release(100)
        waiting[1].sendall(CLOSING)
        assert all(exchange(each, b"").startswith(b"HTTP/1.1 200 ") for each in waiting[:2])


@pytest.mark.parametrize("length", [b"-5", b"+5", b"1_0", b"9" * 5000])
def test_a_length_that_is_none_costs_one_line(
    open_door: Callable[..., Door], caplog: pytest.LogCaptureFixture, length: bytes
) -> None:
    caplog.set_level(logging.INFO, "agent.http")
    door = open_door(header_bytes=16384)
    with door.connect() as connection:
        reply = exchange(
            connection, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + length + b"\r\n\r\n12345"
        )
    assert reply.startswith(b"HTTP/1.1 400 ")
    (record,) = caplog.records
    assert record.exc_info is None and "127.0.0.1" in record.getMessage()


HOST = b"Host: x\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\n X: y\r\n" + HOST, 400),  # it once ended the server
        (b"GET / HTTP/1.1\r\nX: y\r\n z\r\n" + HOST, 400),
        (b"GET / HTTP/1.1\r\nX : y\r\n" + HOST, 400),
        (b"GET / HTTP/1.1\r\nHost: y\r\n" + HOST, 400),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n", 400),
        (b"GET / HTTP/1.0\r\n", 200),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n" + HOST, 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n" + HOST, 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + HOST, 411),
        (b"POST / HTTP/1.1\r\nContent-Length: 4097\r\n" + HOST, 413),
        (b"GET / HTTP/1.1\r\nX: " + bytes(4096).replace(b"\0", b"y") + b"\r\n" + HOST, 431),
        (b"GET /" + bytes(4096).replace(b"\0", b"y") + b" HTTP/1.1\r\n" + HOST, 431),
        (b"GET http://x/ HTTP/1.1\r\n" + HOST, 400),
        (b"GET //x HTTP/1.1\r\n" + HOST, 400),
        (b"GET /#x HTTP/1.1\r\n" + HOST, 400),
        (b"GET * HTTP/1.1\r\n" + HOST, 400),
        (b"OPTIONS * HTTP/1.1\r\n" + HOST, 200),
        (b"CONNECT x:1 HTTP/1.1\r\n" + HOST, 405),
        (b"GET / HTTP/2.0\r\n" + HOST, 505),
        (b"GET / HTTP/1.1\n" + HOST, 400),
        (b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nHost: x\r\nConnection: upgrade\r\n", 200),
    ],
)
def test_a_request_that_is_none_gets_its_verdict(
    open_door: Callable[..., Door], sent: bytes, status: int
) -> None:
    """RFC 9112; and the server answers the next client."""
    door = open_door(body_bytes=4096)
    with door.connect() as connection:
        reply = exchange(connection, sent + b"\r\n")
    assert reply.startswith(b"HTTP/1.1 %d " % status), reply
    assert door.is_answered()


def test_a_client_that_sends_a_body_that_is_too_long_gets_its_answer(open_door: Callable[..., Door]) -> None:
    """Also one that looks for an answer only when it has sent all, as most libraries do."""
    door = open_door(body_bytes=4096)
    size = 16 << 20
    head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode()
    with door.connect() as connection:
        connection.sendall(head)
        time.sleep(0.1)
        connection.sendall(bytes(size))
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    assert door.is_answered()


def test_a_client_that_sends_a_long_body_without_an_end_is_closed(
    open_door: Callable[..., Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.http.server.LINGER_S", 0.2)
    monkeypatch.setattr("agent.http.server.LINGER_MAX_S", 0.6)
    door = open_door(body_bytes=4096, idle_check_interval_s=0.05)
    for pause_s, most_s in ((0.1, 2), (1.0, 2)):  # it sends without a pause, and with a long one
        with door.connect() as connection:
            connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n")
            begun = time.monotonic()
            with pytest.raises(OSError):
                while time.monotonic() < begun + 10:
                    connection.sendall(b"x")
                    time.sleep(pause_s)
            assert time.monotonic() - begun < most_s + pause_s


@pytest.mark.parametrize("cuts", [(), (70,), (100,)])
def test_an_upgrade_that_is_asked_for_is_none_and_the_body_arrives(
    open_door: Callable[..., Door], cuts: tuple[int, ...]
) -> None:
    """RFC 9110, 7.8. So asks `curl --http2`."""
    sent = (
        b"POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\nhello"
    )
    with open_door().connect() as connection:
        for start, end in zip((0, *cuts), (*cuts, None), strict=True):
            connection.sendall(sent[start:end])
            time.sleep(0.05)
        said = exchange(connection, b"")
    assert said.startswith(b"HTTP/1.1 200 ") and said.endswith(b"\r\n\r\nhello")


def test_a_head_that_came_with_the_request_before_it_and_does_not_end_is_told_so(tmp_path: Path) -> None:
    door = Door(tmp_path, False)
    for ends in (True, False):
        with door.connect() as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HT")
            if ends:
                connection.shutdown(socket.SHUT_WR)
            said = connection.makefile("rb").read()
        assert said.startswith(b"HTTP/1.1 200 ")
        assert (b"HTTP/1.1 400 " if ends else b"HTTP/1.1 408 ") in said
    door.listener.stop()


@pytest.mark.parametrize("endless", [b"GET /", b"GET / HTTP/1.1\r\nX", b"GET / HTTP/1.1\r\nX: "])
def test_a_head_that_does_not_end_is_too_long(open_door: Callable[..., Door], endless: bytes) -> None:
    with open_door(request_timeout_s=30).connect() as connection:
        assert exchange(connection, endless + 8192 * b"y").startswith(b"HTTP/1.1 431 ")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("whole", [True, False])
def test_bodies_of_the_past_keep_no_memory(open_door: Callable[..., Door], whole: bool) -> None:
    """Without a search for reference cycles, which an idle server may not come to."""
    door, size = open_door(request_timeout_s=30, connections=4), 10_000_000
    gc.collect()
    gc.disable()
    try:
        before = resident_bytes()
        with ExitStack() as stack:
            for _ in range(16):
                connection = stack.enter_context(door.connect())
                with suppress(ConnectionError, ssl.SSLError):
                    connection.sendall(LONG % size + bytes(size if whole else size - 1))
                    if whole:
                        exchange(connection, b"")
        assert door.is_answered()
        assert resident_bytes() - before < 12 * size, "those of four connections, and what the test sends"
    finally:
        gc.enable()


class Witness:
    """Stands in an environ, and dies with it."""


def test_a_request_is_forgotten_as_soon_as_it_is_answered(tmp_path: Path) -> None:
    """By the thread that waits for the next one, and by the connection, which stays open."""
    seen: list[weakref.ref[Witness]] = []

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["witness"] = witness = Witness()
        seen.append(weakref.ref(witness))
        return echo(environ, start_response)

    door = Door(tmp_path, False, answer, request_timeout_s=30)
    gc.disable()
    try:
        with door.connect() as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
            eventually("the request is forgotten", lambda: [each() for each in seen] == [None])
    finally:
        gc.enable()
        door.listener.stop()


def test_a_lost_connection_keeps_nothing_of_its_request(tmp_path: Path) -> None:
    """The parser and the connection name each other: a search for such cycles may come late."""
    door = Door(tmp_path, False, request_timeout_s=30)
    gc.disable()
    try:
        with door.connect() as connection:
            connection.sendall(LONG % 9 + b"half")
            connections = door.server.connections
            eventually("half is here", lambda: [each.arriving.body for each in connections] == [b"half"])
            (lost,) = (weakref.ref(each.arriving) for each in connections)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        eventually("what was read is forgotten", lambda: lost() is None)
    finally:
        gc.enable()
        door.listener.stop()


def test_a_header_with_an_underscore_stands_for_no_other(tmp_path: Path) -> None:
    """Behind a proxy that sets X-Remote-Uid, X_Remote_Uid would arrive as the same."""

    def tell(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        text = repr(sorted(name for name in environ if name.startswith("HTTP_X"))).encode()
        start_response("200 OK", [])
        return [text]

    door = Door(tmp_path, False, tell)
    with door.connect() as connection:
        reply = exchange(connection, b"GET / HTTP/1.1\r\nX_A: b\r\nX-C: d\r\n" + HOST + b"\r\n")
    door.listener.stop()
    assert reply.endswith(b"['HTTP_X_C']")


class OwnThread:
    """An application whose own thread runs all requests, and answers when `goes_on` is set."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.closed = 0
        self.fails = False
        self.jobs: queue.Queue[Any] = queue.Queue()

    def whole(self, environ: dict[str, Any], run: Any, tell: Any) -> Any:
        outcome = SimpleNamespace(is_over=False)
        self.jobs.put((outcome, run, tell))
        return outcome

    def work(self, count: int) -> None:
        """Answer `count` requests at once."""
        outcomes = [self.jobs.get(timeout=10) for _ in range(count)]
        answers = [run() for _, run, _ in outcomes]
        for (outcome, _, _), answer in zip(outcomes, answers, strict=True):
            outcome.result = partial(self.told, answer)
            outcome.is_over = True
        assert self.closed == 0
        outcomes[0][2]()

    def told(self, answer: Any) -> Any:
        if self.fails:
            raise TimeoutError
        return answer

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        self.threads.append(threading.current_thread().name)
        text = environ["wsgi.input"].read() + repr(environ.get(FAILURE)).encode()
        start_response("200 OK", [])
        answer = Closing([text])
        answer.close = self.close
        return answer

    def close(self) -> None:
        self.closed += 1


class Closing(list[bytes]):
    close: Any


@pytest.mark.parametrize("fails", [False, True])
def test_requests_that_the_application_runs_itself_are_answered_together(tmp_path: Path, fails: bool) -> None:
    app = OwnThread()
    app.fails = fails
    door = Door(tmp_path, False, app, whole=app.whole)
    clients = [door.connect() for _ in range(3)]
    for client in clients:
        client.sendall(LONG % 2 + b"ab")
    app.work(3)
    for client in clients:
        with client:
            said = client.makefile("rb").read()
            assert said.endswith(b"abTimeoutError()" if fails else b"abNone")
    own, others = app.threads[:3], app.threads[3:]
    assert set(own) == {threading.current_thread().name} and app.closed == 3
    assert len(others) == (3 if fails else 0) and not set(own) & set(others)
    door.listener.stop()


def test_what_is_sent_ahead_of_an_answer_stays_with_the_threads(tmp_path: Path) -> None:
    app = OwnThread()
    door = Door(tmp_path, False, app, whole=app.whole)
    with door.connect() as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + CLOSING)
        app.work(1)
        assert client.makefile("rb").read().count(b"HTTP/1.1 200 OK") == 2
    assert len(app.threads) == 2 and app.jobs.empty()
    door.listener.stop()


def test_an_application_that_fails_keeps_no_thread(tmp_path: Path) -> None:
    def fails(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/split":
            start_response("200 OK", [("X", "a\r\nb")])
            return []
        raise ZeroDivisionError

    door = Door(tmp_path, False, fails)
    for path in (b"/", b"/split") * LIMITS.threads * 2:
        with door.connect() as connection:
            reply = exchange(connection, b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n")
        assert reply.startswith(b"HTTP/1.1 500 ")
    door.listener.stop()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", LONG % 99 + b"{", LONG % 10**7 + bytes(10**7)])
@pytest.mark.parametrize("resets", [False, True])
def test_a_client_that_leaves_costs_at_most_one_line(
    open_door: Callable[..., Door], caplog: pytest.LogCaptureFixture, sent: bytes, resets: bool
) -> None:
    caplog.set_level(logging.INFO, "agent.http")
    door = open_door()
    with door.connect() as connection:
        connection.sendall(sent)
        time.sleep(0.05)
        if resets:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(connection.detach())  # without a goodbye of TLS
    assert door.is_answered()
    time.sleep(0.4)
    assert all(record.exc_info is None for record in caplog.records)
    assert len(caplog.records) <= 1, [record.getMessage() for record in caplog.records]


def test_a_client_without_the_certificate_that_is_asked_for_gets_no_answer_and_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "agent.http")
    certificate, key = make_certificate(tmp_path)
    asks = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    asks.load_cert_chain(certificate, key)
    asks.load_verify_locations(certificate)
    asks.verify_mode = ssl.CERT_REQUIRED
    with listening(LOOPBACK, tls=asks) as listener:
        host, _, port = listener.address.rpartition(":")
        for has_one in (False, True):
            trust = ssl.create_default_context(cafile=str(certificate))
            if has_one:
                trust.load_cert_chain(certificate, key)
            answer = b""
            with (
                suppress(ssl.SSLError, ConnectionError) if not has_one else nullcontext(),
                socket.create_connection((host, int(port)), 10) as sock,
                trust.wrap_socket(sock, server_hostname=host) as connection,
            ):
                answer = exchange(connection, CLOSING)
            assert answer.startswith(b"HTTP/1.1 200 ") == has_one
    (record,) = caplog.records
    assert record.getMessage().startswith("No TLS handshake with 127.0.0.1: ") and record.exc_info is None


def test_the_slowest_makes_place_where_too_many_connect_or_send(
    open_door: Callable[..., Door],
) -> None:
    door = open_door(connections=8, body_bytes=200_000, request_timeout_s=30, io_timeout_s=30)
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(slow := door.connect())
            slow.sendall(b"GET / HT")
        assert door.is_answered()
        for _ in range(7):
            stack.enter_context(slow := door.connect())
            slow.sendall(LONG % 190_000 + bytes(180_000))
        assert door.is_answered()


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has answered and closed, or only closed, what began a request."""
    connection.setblocking(False)
    try:
        connection.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except ConnectionResetError:  # the server has not read what the client sent
        pass
    return True


def test_a_client_with_many_connections_makes_place_before_one_with_few(
    open_door: Callable[..., Door],
) -> None:
    """The others came later, so the first one would be the slowest."""
    door = open_door(connections=4, io_timeout_s=30)
    with ExitStack() as stack:
        first = stack.enter_context(door.connect())
        for _ in range(8):
            other = socket.create_connection(door.address, 10, ("127.0.0.2", 0))
            stack.enter_context(other)
        eventually("they are there", lambda: len(door.listener._server.connections) == 4)
        assert exchange(first, CLOSING).startswith(b"HTTP/1.1 200 ")


def test_a_server_leaves_the_last_descriptors_to_others(
    open_door: Callable[..., Door], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Slow clients at one address keep no other one from its clients; one line says what to do."""
    door = open_door(request_timeout_s=30, io_timeout_s=30, reserve=4)
    monkeypatch.setattr("agent.http.server.descriptor_limit", lambda: 5)  # each client has a higher number
    with ExitStack() as stack:
        slow = [stack.enter_context(door.connect()) for _ in range(6)]
        for connection in slow:
            connection.sendall(b"GET / HT")
        assert door.is_answered()
        assert all(is_closed(connection) for connection in slow[:-1])
    (line,) = (record.message for record in caplog.records if record.levelno == logging.WARNING)
    assert "descriptors run out" in line and "LimitNOFILE" in line


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_server_without_a_descriptor_left_closes_the_slowest(open_door: Callable[..., Door]) -> None:
    door = open_door(request_timeout_s=30, io_timeout_s=30)
    descriptors = open_descriptors()
    with ExitStack() as stack:
        slow = [stack.enter_context(door.connect()) for _ in range(4)]
        for connection in slow:
            connection.sendall(b"GET / HT")
        assert door.is_answered(), "and the slow ones are accepted"
        eventually("it is closed", lambda: open_descriptors() == descriptors + 2 * len(slow))
        client = stack.enter_context(socket.socket())
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
        taken = [os.open("/dev/null", os.O_RDONLY)]
        while taken[-1] < highest:
            taken.append(os.open("/dev/null", os.O_RDONLY))
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1, hard))
        try:
            client.settimeout(10)
            client.connect(door.address)
            if door._trust is not None:
                client = stack.enter_context(door._trust.wrap_socket(client, server_hostname="127.0.0.1"))
            assert exchange(client, CLOSING).startswith(b"HTTP/1.1 200 ")
            assert sum(is_closed(connection) for connection in slow) == 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for number in taken:
                os.close(number)


def test_a_client_that_leaves_before_its_answer_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, left = threading.Event(), threading.Event()

    def slow(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        asked.set()
        assert left.wait(10)
        return application(environ, start_response)

    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    listener = Listener(BoundedServer(tmp_path / "s", slow, LIMITS), "the test")
    listener.start()
    try:
        with unix_socket.connect(tmp_path / "s") as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert asked.wait(10)
        left.set()
    finally:
        listener.stop()
    gc.collect()
    assert lost == []


def test_several_listeners_stop_at_the_same_time_and_soon(tmp_path: Path) -> None:
    servers = [
        BoundedServer(address, application, LIMITS) for address in (LOOPBACK, LOOPBACK, tmp_path / "s")
    ]
    listeners = [Listener(server, "the test") for server in servers]
    for listener in listeners:
        listener.start()
    began = time.monotonic()
    stop_all(listeners)
    stop_all(listeners)
    assert time.monotonic() - began < 10 and not any(listener.is_running for listener in listeners)


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


@contextmanager
def serving(path: Path, answer: Callable[[socket.socket], None], *, backlog: int = 5) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(backlog)

        def serve() -> None:
            with suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_an_answer_is_read(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with (
        serving(path, lambda sock: sock.sendall(ANSWER)),
        closing(UnixConnection(str(path), 5)) as connection,
    ):
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"hi"
        assert connection.connected


def test_a_missing_socket_is_an_error_and_no_connection(tmp_path: Path) -> None:
    connection = UnixConnection(str(tmp_path / "none"), 5)
    with pytest.raises(FileNotFoundError):
        connection.request("GET", "/")
    assert not connection.connected


def test_a_trickle_of_bytes_does_not_extend_the_deadline(tmp_path: Path) -> None:
    path = tmp_path / "socket"

    def trickle(sock: socket.socket) -> None:
        with suppress(OSError):
            for byte in ANSWER:
                sock.sendall(bytes((byte,)))
                time.sleep(0.2)

    started = time.monotonic()
    with serving(path, trickle), closing(UnixConnection(str(path), 0.3)) as connection:
        connection.request("GET", "/")
        with pytest.raises(TimeoutError):
            connection.getresponse()
        connection.close()
        assert time.monotonic() - started < 4


def test_a_full_queue_of_connections_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(0)
        with closing(UnixConnection(str(path), 5)) as first:
            first.connect()
            started = time.monotonic()
            with pytest.raises(TimeoutError):
                UnixConnection(str(path), 0.2).connect()
            assert time.monotonic() - started >= 0.2
