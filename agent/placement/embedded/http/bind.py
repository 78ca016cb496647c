"""The addresses that the embedded core is served at.

127.0.0.1:8778      noauth, as on any loopback address
unix:/run/x.sock    noauth; the file's mode (0660) limits who can connect
[2001:db8::7]:8778  anything else needs tokens and TLS
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from pathlib import Path
from typing import NamedTuple

from agent.placement.embedded.http.auth import ServeError

PORT_MAX = 65535


class Bind(NamedTuple):
    """One address: a socket file (`path`), or `host` (an IP address) and `port`."""

    text: str
    path: Path | None = None
    host: str = ""
    port: int = 0

    @property
    def is_loopback(self) -> bool:
        """True for a TCP address that only this machine can reach."""
        return self.path is None and ipaddress.ip_address(self.host.partition("%")[0]).is_loopback

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach it."""
        return self.path is not None or self.is_loopback

    @classmethod
    def parse(cls, text: str) -> Bind:
        """From `unix:PATH`, `HOST:PORT` or `[IPV6]:PORT`; a host name is looked up now, once.

        Raises ServeError where the text is none of these.
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
        return cls(
            text, host=_resolve_host(text, host.removeprefix("[").removesuffix("]")), port=int(port_text)
        )


def _resolve_host(text: str, host: str) -> str:
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ServeError(
            f"Cannot listen at {text}: the host {host!r} cannot be looked up ({error})."
        ) from error
    return str(addresses[0][4][0])


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 or newer, with a PEM certificate (and its chain) and its key. Raises ServeError."""
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
