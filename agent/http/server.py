"""An HTTP server on which nobody can keep a thread, or memory, for longer than its bounds say."""

import json
import logging
import queue
import socket
import time
from contextlib import suppress
from typing import Any

from cheroot import server as cheroot_server
from cheroot import wsgi

from agent import log
from agent.http.errors import BodyTooLarge, Busy, LengthRequired, TooSlow, error_body

LOG = log.get("agent.api")

IO_TIMEOUT_S = 10
REQUEST_TIMEOUT_S = 10.0


class _Request(cheroot_server.HTTPRequest):
    """Says what cheroot itself refuses in our one shape, too."""

    def read_request_headers(self) -> bool:
        if not super().read_request_headers():  # type: ignore[no-untyped-call]
            return False
        if self.chunked_read:
            # A length that is known beforehand is what keeps a body within its bound.
            self.simple_response("411 Length Required", "The body must come with a Content-Length")
            return False
        return True

    def send_headers(self) -> None:
        """Read what is left of the body first, so that its sender sees the answer; but do not wait for it."""
        left = getattr(self.rfile, "remaining", 0)
        if left and not self.close_connection:
            try:
                self.rfile.read(left)
            except OSError:
                self.close_connection = True
        super().send_headers()

    def simple_response(self, status: str, msg: str = "") -> None:
        number, _, name = str(status).partition(" ")
        code = _CODES.get(number, f"plimsoll.api.http_{number}")
        body = json.dumps(error_body(code, msg or name)).encode() + b"\n"
        head = (
            f"{self.server.protocol} {status}\r\nContent-Length: {len(body)}\r\n"
            "Content-Type: application/json\r\nConnection: close\r\n\r\n"
        )
        self.close_connection = True
        with suppress(BrokenPipeError, ConnectionResetError):
            self.conn.wfile.write(head.encode("latin-1") + body)


_CODES = {str(kind.http_status): kind.code for kind in (TooSlow, LengthRequired, BodyTooLarge, Busy)}


class _BoundedSocket(socket.socket):
    """A connection from which a request must have come by `read_until` (of the monotonic clock).

    A timeout for each read alone would let a trickle of bytes keep a thread for ever.
    """

    read_until = 0.0

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        left = self.read_until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.settimeout(left)
        try:
            return super().recv_into(*args, **kwargs)
        finally:
            self.settimeout(IO_TIMEOUT_S)


class _Connection(cheroot_server.HTTPConnection):
    RequestHandlerClass = _Request

    def __init__(self, server: "BoundedServer", sock: socket.socket, makefile: Any) -> None:
        super().__init__(server, _BoundedSocket(fileno=sock.detach()), makefile)

    def communicate(self) -> bool:
        """One request and its answer."""
        self.socket.read_until = time.monotonic() + self.server.request_timeout_s
        return bool(super().communicate())  # type: ignore[no-untyped-call]


class BoundedServer(wsgi.Server):
    """Answers each request within a bound, and turns connections away that would wait too long."""

    ConnectionClass = _Connection
    request_timeout_s = REQUEST_TIMEOUT_S

    def process_conn(self, conn: _Connection) -> None:
        """Hand a connection to the threads, or turn it away when too many wait for them already."""
        try:
            self.requests.put(conn)
        except queue.Full:
            LOG.warning("Too many connections wait for an answer; one was turned away")
            with suppress(OSError):
                _Request(self, conn).simple_response("503 Service Unavailable", Busy.SENTENCE)
                conn.close()

    def error_log(self, msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
        LOG.log(level, "%s", msg, exc_info=traceback)
