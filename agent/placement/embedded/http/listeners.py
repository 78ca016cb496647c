"""The addresses that the embedded core is served at, and the sockets behind them.

127.0.0.1:8778      noauth, as on any loopback address
unix:/run/x.sock    noauth; the file's mode (0660) says who reaches it
[2001:db8::7]:8778  anything else needs tokens and TLS
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import ssl
import stat
from pathlib import Path
from typing import NamedTuple

from agent.placement.embedded.http.auth import ServeError

SOCKET_MODE = 0o660
BACKLOG = 128
PROBE_TIMEOUT_S = 1.0
PORT_MAX = 65535


class Bind(NamedTuple):
    """One address: a socket file (`path`), or `host` (an IP address) and `port`."""

    text: str
    path: Path | None = None
    host: str = ""
    port: int = 0

    @property
    def is_loopback(self) -> bool:
        return self.path is None and ipaddress.ip_address(self.host.partition("%")[0]).is_loopback

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.path is not None or self.is_loopback

    @classmethod
    def parse(cls, text: str) -> Bind:
        """`unix:PATH`, `HOST:PORT` or `[IPV6]:PORT`; a host name is looked up now, and once.

        :raises DoorError: it is none of these
        """
        if text.startswith("unix:"):
            path = Path(text.removeprefix("unix:"))
            if not path.is_absolute():
                raise ServeError(
                    f"Cannot listen at {text}: give the socket's absolute path, as unix:/run/NAME.sock."
                )
            return cls(text, path=path)
        host, colon, port_text = text.rpartition(":")
        if not colon or not (port_text.isascii() and port_text.isdigit()) or int(port_text) > PORT_MAX:
            raise ServeError(f"Cannot listen at {text!r}: an address is HOST:PORT, [IPV6]:PORT or unix:PATH.")
        return cls(text, host=_looked_up(text, host.removeprefix("[").removesuffix("]")), port=int(port_text))


def _looked_up(text: str, host: str) -> str:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ServeError(
            f"Cannot listen at {text}: the host {host!r} cannot be looked up ({error})."
        ) from error
    return str(found[0][4][0])


def unix_socket(path: Path) -> socket.socket:
    """A listening socket at `path`, never wider than 0660, and never in the place of a living one.

    :raises DoorError: something else is there, or the directory does not take it
    """
    _clear_stale(path)
    draft = path.with_name(path.name + "~")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        draft.unlink(missing_ok=True)
        # The descriptor's mode, less the umask, becomes the file's: no moment in which it is wider.
        os.fchmod(sock.fileno(), SOCKET_MODE)
        sock.bind(str(draft))
        draft.chmod(SOCKET_MODE)
        sock.listen(BACKLOG)
        draft.rename(path)  # whoever sees the path can connect
    except OSError as error:
        sock.close()
        raise ServeError(
            f"Cannot listen at {path}: {error.strerror or error}; choose a path in a directory that exists "
            "and that this user may write."
        ) from error
    return sock


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 or newer, with a PEM certificate (and its chain) and its key.

    :raises DoorError: the files cannot be used
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ServeError(
            f"The TLS files {certificate} and {key} cannot be used ({reason}); give a PEM certificate and "
            "its key without a passphrase, readable by this user."
        ) from error
    return context


def _no_password() -> str:
    raise ValueError("the key has a passphrase")


def _clear_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ServeError(f"Cannot listen at {path}: {error.strerror}.") from error
    if not stat.S_ISSOCK(mode):
        raise ServeError(
            f"Cannot listen at {path}: it is there and is no socket; move it away or choose another path."
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        outcome = probe.connect_ex(str(path))
    if outcome == errno.ECONNREFUSED:
        path.unlink(missing_ok=True)
    elif outcome != errno.ENOENT:
        raise ServeError(f"Cannot listen at {path}: another server does; stop it or choose another path.")
