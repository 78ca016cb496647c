"""The client side of HTTP over a Unix socket: one deadline for the connection, the request and the answer."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from agent.http.unix_connection import UnixConnection

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
                time.sleep(0.05)

    started = time.monotonic()
    with serving(path, trickle), closing(UnixConnection(str(path), 0.3)) as connection:
        connection.request("GET", "/")
        with pytest.raises(TimeoutError):
            connection.getresponse()
        connection.close()
        assert time.monotonic() - started < 1


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
