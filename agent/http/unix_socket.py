"""Unix sockets of the agent's HTTP servers: mode 0660, and never in the place of a socket in use.

The kernel knows the process at the other end of a connection (SO_PEERCRED, unix(7)).
"""

import os
import select
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple

from agent import log
from agent.errors import NO_DESCRIPTORS
from agent.http.errors import AddressInUse, ListenError, NotASocket, OutOfDescriptors

LOG = log.get(__name__)

SOCKET_MODE = 0o660
CONNECT_TIMEOUT_S = 1.0
ACCEPTS = 0x10000
"""The flag of /proc/net/unix for a socket that listens (__SO_ACCEPTCON in Linux' linux/net.h)."""


def listen(path: Path, backlog: int) -> socket.socket:
    """A socket that listens at `path`. A file that a crashed server left there is replaced.

    Raises AddressInUse, NotASocket, OutOfDescriptors, and ListenError where the directory does not accept the
    file.
    """
    try:
        remove_stale(path)
        # No longer than the path: a socket's has 107 bytes at most.
        draft = path.with_name(path.name[:-1] + "~")
        draft.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            # The file gets the descriptor's mode without the umask's bits: it is never wider than 0660.
            os.fchmod(listener.fileno(), SOCKET_MODE)
            listener.bind(str(draft))
            draft.chmod(SOCKET_MODE)
            listener.listen(backlog)
            draft.rename(path)  # a client that sees the path can connect
        except OSError:
            listener.close()
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        return listener
    except OSError as error:
        raise listen_error(error) from error


def listen_error(error: OSError) -> ListenError:
    """The error of this room for one of the kernel."""
    return OutOfDescriptors() if error.errno in NO_DESCRIPTORS else ListenError(str(error.strerror or error))


def sockets_of(pid: int) -> Iterator[Path]:
    """The files at which the process with this id listens, as far as this user may see; see proc(5).

    The kernel knows the name of the draft, so another server's file that differs in its last character alone
    comes, too.
    """
    own: set[str] = set()
    try:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # a connection that ended meanwhile
                own.add(str(file.readlink()))
        lines = Path(f"/proc/{pid}/net/unix").read_text(encoding="utf-8").splitlines()[1:]
    except OSError:
        return
    # Num RefCount Protocol Flags Type St Inode Path
    for fields in (line.split(maxsplit=7) for line in lines):
        if len(fields) == 8 and int(fields[3], 16) & ACCEPTS and f"socket:[{fields[6]}]" in own:
            bound = Path(fields[7])
            yield from (file for file in bound.parent.glob(f"{escape(bound.name[:-1])}?") if file.is_socket())


def is_there(path: Path) -> bool:
    """Whether there is a socket file. Raises NotASocket where the file is of another kind, OSError."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode):
        raise NotASocket("the file there is no socket")
    return True


def remove_stale(path: Path) -> None:
    """Remove the socket file of a server that no longer runs.

    Raises AddressInUse where a server answers or may be there, NotASocket, OSError.
    """
    if not is_there(path):
        return
    check_unused(path)
    LOG.info("Removing the socket %s: the server that made it did not stop cleanly.", path)
    path.unlink(missing_ok=True)


def check_unused(path: Path) -> None:
    """Raises AddressInUse where a server answers at the socket, or may be there."""
    try:
        connect(path).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return
    except OSError as error:
        # Its queue is full, or this user may not open it: a server is there.
        LOG.info("The socket %s is in use: %s.", path, error)
    raise AddressInUse("another server listens there")


def connect(path: Path) -> socket.socket:
    """A connection to the server at `path`. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(CONNECT_TIMEOUT_S)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


class PeerCredentials(NamedTuple):
    """The ids of a client's process when it connected."""

    uid: int
    gid: int
    pid: int

    def __str__(self) -> str:
        return f"uid {self.uid} (pid {self.pid})"

    @property
    def fields(self) -> dict[str, int]:
        """The same as fields of a log record."""
        return {"uid": self.uid, "pid": self.pid}


def has_gone(sock: socket.socket) -> bool:
    """Whether the client has closed its end, or the server this one; a client that still listens has not."""
    if sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock, 0)  # POLLHUP is always told
    return bool(poll.poll(0))


def peer_credentials(environ: Mapping[str, Any]) -> PeerCredentials | None:
    """The caller of a WSGI request, None if the kernel did not tell.

    `agent.http.server` asks the kernel (SO_PEERCRED); a client's header would arrive as HTTP_X_REMOTE_UID.
    """
    try:
        return PeerCredentials(*(int(environ[f"X_REMOTE_{name}"]) for name in ("UID", "GID", "PID")))
    except KeyError:
        return None
