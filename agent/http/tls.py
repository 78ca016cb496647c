"""TLS for `agent.http.server`. The thread that answers makes the handshake, not the one that accepts."""

import socket
import ssl
from io import DEFAULT_BUFFER_SIZE
from typing import Any

from cheroot.makefile import StreamReader, StreamWriter
from cheroot.ssl import Adapter


class TlsAdapter(Adapter):
    """Wraps accepted connections; `BoundedServer` makes the handshake later.

    Source: https://cheroot.cherrypy.dev/en/latest/pkg/cheroot.ssl/
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context

    def bind(self, sock: socket.socket) -> socket.socket:
        """The listening socket, which stays as it is."""
        return sock

    def wrap(self, sock: socket.socket) -> tuple[ssl.SSLSocket, dict[str, str]]:
        """The connection, before its handshake, and what its requests' WSGI environment gets."""
        wrapped = self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        return wrapped, self.get_environ()

    def get_environ(self) -> dict[str, str]:
        """The WSGI variables of a request over TLS."""
        return {"wsgi.url_scheme": "https", "HTTPS": "on"}

    def makefile(self, sock: socket.socket, mode: str = "r", bufsize: int = DEFAULT_BUFFER_SIZE) -> Any:
        """A buffered reader or writer of the connection."""
        return (StreamReader if "r" in mode else StreamWriter)(sock, mode, bufsize)
