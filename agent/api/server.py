"""The Unix socket that the local API listens on, and the threads that answer."""

import fcntl
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent import log
from agent.api.app import BODY_BYTES_MAX, Api
from agent.api.operations import Operations
from agent.config.access import Access
from agent.errors import SettingsError, StateError
from agent.http.server import IO_TIMEOUT_S, REQUEST_TIMEOUT_S, BoundedServer

LOG = log.get("agent.api")

SOCKET_MODE = 0o660
DIRECTORY_MODE = 0o750
HEADER_BYTES_MAX = 16 * 1024
THREADS = 16
BACKLOG = 128
WAITING_MAX = 64
KEPT_CONNECTIONS_MAX = 64
WAITING_TIMEOUT_S = 1
STOP_TIMEOUT_S = 5
PROBE_TIMEOUT_S = 1.0
IDLE_WAKE_S = 1.0
WAKE_AFTER_S = 0.02


class ApiServer:
    """Serves `operations` at `socket_path` to those whom `access` lets in."""

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
        self._server = _UnixServer(
            str(self._path),
            Api(operations, access),
            numthreads=threads,
            max=threads,
            server_name="plimsoll",
            request_queue_size=BACKLOG,
            timeout=IO_TIMEOUT_S,
            shutdown_timeout=STOP_TIMEOUT_S,
            accepted_queue_size=waiting_max,
            accepted_queue_timeout=WAITING_TIMEOUT_S,
            peercreds_enabled=True,
        )
        self._server.request_timeout_s = request_timeout_s
        # How often cheroot looks for idle connections, and for a stop that did not wake it.
        self._server.expiration_interval = IDLE_WAKE_S
        self._server.keep_alive_conn_limit = KEPT_CONNECTIONS_MAX
        self._server.max_request_body_size = BODY_BYTES_MAX
        self._server.max_request_header_size = HEADER_BYTES_MAX
        self._thread: threading.Thread | None = None
        self._inode: tuple[int, int] | None = None

    def start(self) -> None:
        """Listen; when this returns, requests are answered.

        Raises SettingsError when the socket cannot be made at this path, StateError when another agent
        listens there.
        """
        # cheroot would take descriptor 3 for its socket if this were left over from whoever started us.
        os.environ.pop("LISTEN_PID", None)
        with _directory(self._path.parent):
            try:
                self._server.prepare()
            except OSError as error:
                raise SettingsError(
                    f"Cannot listen at {self._path}: {error.strerror or error}; set [api] socket to a path "
                    "in a directory that the agent may write",
                    socket=str(self._path),
                ) from error
            found = self._path.stat()
        self._inode = (found.st_dev, found.st_ino)
        self._thread = threading.Thread(target=self._server.serve, name="api", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let requests under way end, close, and take the socket file away; idempotent.

        Requests that take longer than twice STOP_TIMEOUT_S seconds are left to themselves.
        """
        if self._thread is None:
            return
        stopper = threading.Thread(target=self._server.stop, name="api-stop", daemon=True)
        stopper.start()
        stopper.join(WAKE_AFTER_S)
        with suppress(OSError):
            _connect(self._path).close()
        stopper.join(2 * STOP_TIMEOUT_S)
        if stopper.is_alive():
            LOG.warning(
                "requests are still under way %d s after the local API was closed", 2 * STOP_TIMEOUT_S
            )
        self._thread = None
        with suppress(FileNotFoundError):
            found = self._path.stat()
            if (found.st_dev, found.st_ino) == self._inode:
                self._path.unlink()


class _UnixServer(BoundedServer):
    def bind_unix_socket(self, bind_addr: str) -> socket.socket:
        """Bind so that the file is never wider than 0660, and never takes the place of a living socket."""
        _clear_stale(Path(bind_addr))
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            # The descriptor's mode, less the umask, becomes the file's: no process-wide umask to change.
            os.fchmod(sock.fileno(), SOCKET_MODE)
            sock.bind(bind_addr)
            Path(bind_addr).chmod(SOCKET_MODE)
        except OSError:
            sock.close()
            raise
        self.socket = sock
        return sock


def _clear_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SettingsError(f"{path} is there and is no socket; move it away or set another [api] socket")
    try:
        _connect(path).close()
    except ConnectionRefusedError:
        LOG.info("removing %s, left over from an agent that did not stop cleanly", path)
        path.unlink(missing_ok=True)
        return
    except FileNotFoundError:
        return
    except OSError as error:
        # A full queue, or a socket that we may not open: somebody is there.
        LOG.info("%s: %s", path, error)
    raise StateError(
        f"Another agent listens at {path}; stop it, or give this one another [api] socket", socket=str(path)
    )


def _connect(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(PROBE_TIMEOUT_S)
    try:
        sock.connect(str(path))
    except OSError:
        sock.close()
        raise
    return sock


@contextmanager
def _directory(path: Path) -> Iterator[None]:
    """Hold the socket's directory: made 0750 if missing, refused if others may write to it.

    The lock keeps two agents that start together from each taking the other's fresh socket for a stale one.
    """
    try:
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise SettingsError(
            f"The socket's directory {path} cannot be used: {error.strerror}; make it (mode 0750, owned by "
            "the agent's user) or set another [api] socket",
            directory=str(path),
        ) from error
    try:
        mode = os.fstat(fd).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise SettingsError(
                f"Anybody may write to {path} and put another socket in the place of the agent's; "
                "chmod it to 0750",
                directory=str(path),
            )
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateError(f"Another agent is just starting in {path}; stop one of them") from None
        yield
    finally:
        os.close(fd)
