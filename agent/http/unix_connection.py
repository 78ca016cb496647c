"""The client side of HTTP over a Unix socket: one connection, bounded by one deadline."""

import http.client
import socket
import time
from typing import Any

CONNECT_PAUSE_S = 0.02


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection to the Unix socket at `path` that ends `timeout_s` seconds after it was made.

    Raises what `http.client` raises, and TimeoutError after the deadline.
    """

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost")
        self._path = path
        self._deadline = time.monotonic() + timeout_s
        self.connected = False
        """Whether the server accepted the connection, so that it may have received a request."""

    def connect(self) -> None:
        """Connect. Waits, up to the deadline, while the server's queue of connections is full."""
        sock = _DeadlineSocket(self._deadline)
        try:
            sock.connect_by_deadline(self._path)
        except OSError:
            sock.close()
            raise
        self.sock = sock
        self.connected = True


class _DeadlineSocket(socket.socket):
    """A socket whose timeout is the time left, so that a trickle of bytes cannot extend it."""

    def __init__(self, deadline: float) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._deadline = deadline

    def _left_s(self) -> float:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        return left_s

    def connect_by_deadline(self, path: str) -> None:
        while True:
            self.settimeout(self._left_s())
            try:
                return self.connect(path)
            except BlockingIOError:
                # The server's queue of connections is full, and the kernel reports that without waiting.
                time.sleep(min(CONNECT_PAUSE_S, self._left_s()))

    def sendall(self, *args: Any) -> None:
        self.settimeout(self._left_s())
        super().sendall(*args)

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self.settimeout(self._left_s())
        return super().recv_into(*args, **kwargs)
