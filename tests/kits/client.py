"""Both clients of the package as one: `Waiting` calls the asynchronous one as programs call the other."""

import asyncio
import inspect
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import plimsoll


class Waiting:
    """An AsyncAgent whose methods wait, each in an event loop of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._agent = plimsoll.AsyncAgent(*args, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._agent, name)

        def call(*args: Any, **options: Any) -> Any:
            return asyncio.run(method(*args, **options))

        assert inspect.iscoroutinefunction(method)
        return call


CLIENTS: dict[str, Callable[..., plimsoll.Agent]] = {"Agent": plimsoll.Agent, "AsyncAgent": Waiting}  # type: ignore[dict-item]


@contextmanager
def answering(path: Path, *answers: bytes | None) -> Iterator[list[bytes]]:
    """A server that answers each connection by the next of these bytes, the last one from then on.

    None: it closes without an answer. Yields the requests that it got.
    """
    got: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            left = list(answers)
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    answer = left.pop(0) if len(left) > 1 else left[0]
                    got.append(connection.recv(65536))
                    if answer is not None:
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield got
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def answer(status: str, body: bytes, *headers: str) -> bytes:
    """An answer as the agent sends it."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body
