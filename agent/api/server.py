"""The Unix socket of the local API."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from agent.api.app import BODY_BYTES_MAX, Api
from agent.api.operations import Operations
from agent.config.access import Access
from agent.config.places import check_api_socket, unusable_socket_directory
from agent.errors import MORE_DESCRIPTORS, PlimsollError, SettingsError, StateError
from agent.http import unix_socket
from agent.http.errors import AddressInUse, ListenError, OutOfDescriptors
from agent.http.listener import Listener
from agent.http.server import BoundedServer, Limits

DIRECTORY_MODE = 0o750
THREADS = 16
WAITING_MAX = 64
REQUEST_TIMEOUT_S = 10.0
LIMITS = Limits(
    threads=THREADS,
    backlog=128,
    waiting=WAITING_MAX,
    kept_alive=64,
    header_bytes=16 * 1024,
    body_bytes=BODY_BYTES_MAX,
    reserve=8,
)


class ApiServer:
    """Serves `operations` at `socket_path` to the users that `access` names."""

    def __init__(
        self,
        operations: Operations,
        access: Access,
        socket_path: Path,
        *,
        threads: int = THREADS,
        waiting_max: int = WAITING_MAX,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self._path = Path(socket_path)
        limits = replace(LIMITS, threads=threads, waiting=waiting_max, request_timeout_s=request_timeout_s)
        server = BoundedServer(self._path, Api(operations, access), limits, peer_credentials=True)
        self._listener = Listener(server, "the local API")

    def start(self) -> None:
        """Listen; when this returns, requests are answered.

        Raises SettingsError where the socket cannot be made at this path, StateError where another agent
        listens there.
        """
        check_api_socket(self._path)
        with _locked_directory(self._path.parent):
            try:
                self._listener.start()
            except ListenError as error:
                raise _start_error(self._path, error) from error

    def stop(self) -> None:
        """Finish the requests under way, close, and remove the socket file; idempotent."""
        self._listener.stop()


def prepare_place(path: Path) -> None:
    """Make the socket's directory if it is missing, and check that no agent listens there.

    So an agent that cannot listen ends before it writes to Placement. Raises as `ApiServer.start` does.
    """
    check_api_socket(path)
    _make_directory(path.parent)
    try:
        unix_socket.check_unused(path)
    except ListenError as error:
        raise _start_error(path, error) from error


def _start_error(path: Path, error: ListenError) -> PlimsollError:
    if isinstance(error, AddressInUse):
        return StateError(
            f"Another agent listens at {path}; stop it, or give this one another [api] socket",
            socket=str(path),
        )
    if isinstance(error, OutOfDescriptors):
        return StateError(f"Cannot listen at {path}: {error}; {MORE_DESCRIPTORS}", socket=str(path))
    return SettingsError(
        f"Cannot listen at {path}: {error}; set [api] socket to a path in a directory that the agent may "
        "write",
        socket=str(path),
    )


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    except OSError as error:
        raise unusable_socket_directory(path, error) from error


@contextmanager
def _locked_directory(path: Path) -> Iterator[None]:
    """Lock the socket's directory, which is made with mode 0750 if it is missing.

    Raises SettingsError where that fails, StateError where another agent has locked it.

    Without the lock, two agents that start at the same time could each remove the other's new socket.
    """
    _make_directory(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise unusable_socket_directory(path, error) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateError(f"Another agent is starting in {path}; stop one of them") from None
        yield
    finally:
        os.close(fd)
