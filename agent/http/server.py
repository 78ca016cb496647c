"""A bounded HTTP server over cheroot: no client can hold a thread, or memory, for longer than the limits say.

Source: https://cheroot.cherrypy.dev/en/latest/pkg/cheroot.server/
"""

import json
import logging
import os
import queue
import socket
import ssl
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cheroot import server as cheroot_server
from cheroot import wsgi

from agent import log
from agent.http import unix_socket
from agent.http.errors import BodyTooLarge, Busy, LengthRequired, ListenError, TooSlow, error_body
from agent.http.tls import TlsAdapter

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

LOG = log.get(__name__)

QUEUE_TIMEOUT_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one server spends on its clients.

    `threads` requests are answered at the same time, `waiting` connections wait for a thread (None: any
    number), and the server answers 503 to further ones. `kept_alive` idle connections stay open. A request
    has `request_timeout_s` to arrive completely (None: only each read and each write is bounded, by
    `io_timeout_s`). cheroot reads `body_bytes` = 0 as no limit.
    """

    threads: int
    backlog: int
    header_bytes: int
    body_bytes: int
    kept_alive: int
    waiting: int | None = None
    io_timeout_s: int = 10
    request_timeout_s: float | None = None
    stop_timeout_s: int = 5
    idle_check_interval_s: float = 1.0


class _Request(cheroot_server.HTTPRequest):
    def read_request_headers(self) -> bool:
        if not super().read_request_headers():  # type: ignore[no-untyped-call]
            return False
        if self.chunked_read:
            # Without a length in advance, a body cannot be held to its limit.
            self.simple_response("411 Length Required", "The body must come with a Content-Length.")
            return False
        return True

    def send_headers(self) -> None:
        """Read the rest of the body first, so that its sender sees the response, but do not wait for it."""
        unread = getattr(self.rfile, "remaining", 0)
        if unread and not self.close_connection:
            try:
                self.rfile.read(unread)
            except OSError:
                self.close_connection = True
        super().send_headers()

    def simple_response(self, status: str, msg: str = "") -> None:
        """Answer a request that cheroot itself refuses, as JSON unless the server leaves that to cheroot."""
        if not self.server.json_errors:
            super().simple_response(status, msg)
            return
        number, _, phrase = str(status).partition(" ")
        code = _CODES.get(number, f"plimsoll.api.http_{number}")
        body = json.dumps(error_body(code, msg or phrase)).encode() + b"\n"
        head = (
            f"{self.server.protocol} {status}\r\nContent-Length: {len(body)}\r\n"
            "Content-Type: application/json\r\nConnection: close\r\n\r\n"
        )
        self.close_connection = True
        with suppress(BrokenPipeError, ConnectionResetError):
            self.conn.wfile.write(head.encode("latin-1") + body)


_CODES = {str(kind.http_status): kind.code for kind in (TooSlow, LengthRequired, BodyTooLarge, Busy)}


class _ServerSocket(socket.socket):
    """A connection whose request must have arrived by `read_until` (of the monotonic clock).

    A timeout for each read alone lets a client that sends one byte at a time keep a thread for ever.
    """

    read_until = 0.0
    io_timeout_s = 0.0

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        left_s = self.read_until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self.settimeout(left_s)
        try:
            return super().recv_into(*args, **kwargs)
        finally:
            self.settimeout(self.io_timeout_s)


class _Connection(cheroot_server.HTTPConnection):
    RequestHandlerClass = _Request

    def __init__(self, server: "BoundedServer", sock: socket.socket, makefile: Any) -> None:
        if server.limits.request_timeout_s is not None and not isinstance(sock, ssl.SSLSocket):
            sock = _ServerSocket(fileno=sock.detach())
            sock.io_timeout_s = server.limits.io_timeout_s
        super().__init__(server, sock, makefile)

    def communicate(self) -> bool:
        """Answer one request; True if another one may follow on this connection."""
        if isinstance(self.socket, _ServerSocket):
            self.socket.read_until = time.monotonic() + self.server.limits.request_timeout_s
        if isinstance(self.socket, ssl.SSLSocket) and self.socket.version() is None:
            try:
                self.socket.do_handshake()
            except OSError as error:  # SSLError is an OSError
                LOG.info("No TLS handshake with %s: %s.", self.remote_addr, error)
                return False
        return bool(super().communicate())  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close the connection, and drop what its client did not take.

        cheroot leaves the writer open, which sends the rest to the closed socket when Python collects it.
        """
        self.wfile.raw.close()
        super().close()


class BoundedServer(wsgi.Server):
    """Serves a WSGI application at a Unix socket (a `Path`) or at (IP address, port).

    `json_errors`: requests that do not reach the application are answered with the agent's JSON error, else
    with cheroot's plain text. `wait_for_first_byte`: a new connection gets a thread when its first byte
    arrives, so that silent clients keep none. With `peer_credentials`, the application finds the caller's ids
    by `agent.http.peer`. With `tls`, a TCP address speaks TLS only.
    """

    ConnectionClass = _Connection

    def __init__(
        self,
        address: Path | tuple[str, int],
        application: "WSGIApplication",
        limits: Limits,
        *,
        name: str = "plimsoll",
        json_errors: bool = True,
        wait_for_first_byte: bool = False,
        peer_credentials: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(
            str(address) if isinstance(address, Path) else address,
            application,
            numthreads=limits.threads,
            max=limits.threads,
            server_name=name,
            request_queue_size=limits.backlog,
            timeout=limits.io_timeout_s,
            shutdown_timeout=limits.stop_timeout_s,
            accepted_queue_size=-1 if limits.waiting is None else limits.waiting,
            accepted_queue_timeout=QUEUE_TIMEOUT_S,
            peercreds_enabled=peer_credentials,
        )
        self.limits = limits
        self.json_errors = json_errors
        self._wait_for_first_byte = wait_for_first_byte
        self.expiration_interval = limits.idle_check_interval_s
        self.keep_alive_conn_limit = limits.kept_alive
        self.max_request_body_size = limits.body_bytes
        self.max_request_header_size = limits.header_bytes
        if tls is not None:
            self.ssl_adapter = TlsAdapter(tls)

    def prepare(self) -> None:
        """Listen. Raises ListenError."""
        # If the environment names this process, cheroot takes descriptor 3 for its socket.
        os.environ.pop("LISTEN_PID", None)
        try:
            super().prepare()
        except OSError as error:
            raise ListenError(str(error.strerror or error)) from error

    def process_conn(self, conn: _Connection) -> None:
        """Hand a connection to the threads, or answer 503 if too many wait for them already."""
        if self._wait_for_first_byte and conn.last_used is None:
            self.put_conn(conn)
            return
        try:
            self.requests.put(conn)
        except queue.Full:
            LOG.warning("Too many connections wait for an answer; one was turned away.")
            with suppress(OSError), closing(conn):
                _Request(self, conn).simple_response("503 Service Unavailable", Busy.SENTENCE)

    def bind_unix_socket(self, bind_addr: str) -> socket.socket:
        """Listen at a socket file; see `agent.http.unix_socket.listen`. Raises ListenError."""
        self.socket = listening = unix_socket.listen(Path(bind_addr), self.limits.backlog)
        return listening

    @staticmethod
    def bind_socket(socket_: socket.socket, bind_addr: tuple[str, int]) -> socket.socket:
        """Bind, and close the socket if that fails, which cheroot does not do."""
        try:
            socket_.bind(bind_addr)
        except OSError:
            socket_.close()
            raise
        return socket_

    def error_log(self, msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
        """Write cheroot's messages to the agent's log."""
        LOG.log(level, "%s", msg, exc_info=traceback)
