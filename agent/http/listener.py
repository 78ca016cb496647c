"""Runs a `BoundedServer` on a thread of its own, and stops it."""

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from agent import log
from agent.http import unix_socket
from agent.http.server import BoundedServer

LOG = log.get(__name__)

WAKE_AFTER_S = 0.02


class Listener:
    """One server at one address; `name` is its thread's, and stands for it in the log."""

    def __init__(self, server: BoundedServer, name: str) -> None:
        self._server = server
        self._name = name
        self._thread: threading.Thread | None = None
        self._inode: tuple[int, int] | None = None

    @property
    def address(self) -> str:
        """The socket's path, or `127.0.0.1:9464` or `[::1]:9464`; after `start`, port 0 is the real one."""
        if self._path is not None:
            return str(self._path)
        host, port = self._server.bind_addr[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def is_running(self) -> bool:
        """True between `start` and `stop`."""
        return self._thread is not None

    @property
    def _path(self) -> Path | None:
        address = self._server.bind_addr
        return Path(address) if isinstance(address, str) else None

    def start(self) -> None:
        """Listen; when this returns, requests are answered. Raises ListenError."""
        self._server.prepare()
        if self._path is not None:
            self._inode = _inode(self._path)
        self._thread = threading.Thread(target=self._server.serve, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish the requests under way, close, and remove the socket file; idempotent.

        Requests that take longer than twice the server's `stop_timeout_s` are abandoned.
        """
        if self._thread is None:
            return
        stopper = threading.Thread(target=self._server.stop, name=f"{self._name} stop", daemon=True)
        stopper.start()
        stopper.join(WAKE_AFTER_S)
        self._wake()
        patience_s = 2 * self._server.limits.stop_timeout_s
        stopper.join(patience_s)
        if stopper.is_alive():
            LOG.warning("Requests are still under way %d s after %s was closed.", patience_s, self._name)
        self._thread = None
        if self._path is not None:
            with suppress(FileNotFoundError):
                if _inode(self._path) == self._inode:  # a successor's file stays
                    self._path.unlink()

    def _wake(self) -> None:
        """Connect once: cheroot notices a stop when a connection arrives, or after its idle interval."""
        with suppress(OSError):
            if self._path is not None:
                unix_socket.connect(self._path).close()
            else:
                socket.create_connection(self._server.bind_addr[:2], unix_socket.CONNECT_TIMEOUT_S).close()


def stop_all(listeners: Sequence[Listener]) -> None:
    """Stop all listeners at the same time; idempotent."""
    stoppers = [threading.Thread(target=listener.stop, daemon=True) for listener in listeners]
    for stopper in stoppers:
        stopper.start()
    for stopper in stoppers:
        stopper.join()


def _inode(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino
