"""One bounded server at a Unix socket or a TCP address: limits, refused requests, listening and stopping."""

import gc
import http.client
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from agent.http import unix_socket
from agent.http.errors import AddressInUse, ListenError
from agent.http.listener import Listener, stop_all
from agent.http.peer import PeerCredentials, peer_credentials
from agent.http.server import BoundedServer, Limits

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


def test_silent_clients_keep_no_thread_where_the_server_waits_for_a_first_byte() -> None:
    with listening(LOOPBACK, wait_for_first_byte=True) as listener:
        host, _, port = listener.address.rpartition(":")
        silent = [socket.create_connection((host, int(port)), 10) for _ in range(2 * LIMITS.threads)]
        client = http.client.HTTPConnection(host, int(port), timeout=5)
        client.request("GET", "/")
        assert client.getresponse().status == 200
        for connection in (*silent, client):
            connection.close()


def test_a_request_has_a_deadline_of_its_own() -> None:
    with listening(LOOPBACK, replace(LIMITS, request_timeout_s=0.2)) as listener:
        began = time.monotonic()
        assert answer_to(listener, b"GET / HT").startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - began < 2


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
    assert time.monotonic() - began < 2 and not any(listener.is_running for listener in listeners)
