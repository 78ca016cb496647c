"""A bounded HTTP server over cheroot: no client can hold a thread, or memory, for longer than the limits say.

    accept -> handshake -> head and body, as they arrive -> a thread -> what the client did not take at once

A request gets one of the threads once all of it is here, and keeps it for its answer alone: one more thread,
which waits for no client and for no place in the queue, does the rest. So any number of slow clients keep no
thread. What a greedy client sends before it has its answer waits for those that have no answer yet. A
`Listener` runs a server on a thread of its own, and stops it.

Source: https://cheroot.cherrypy.dev/en/latest/pkg/cheroot.server/
"""

import errno
import json
import logging
import os
import queue
import re
import resource
import select
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from io import DEFAULT_BUFFER_SIZE, BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cheroot import connections, errors, wsgi
from cheroot import server as cheroot_server
from cheroot.makefile import StreamReader, StreamWriter
from cheroot.ssl import Adapter
from cheroot.workers.threadpool import ThreadPool

from agent import log
from agent.errors import MORE_DESCRIPTORS, NO_DESCRIPTORS
from agent.http import unix_socket
from agent.http.errors import BodyTooLarge, Busy, LengthRequired, TooSlow, error_body

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

LOG = log.get(__name__)

LEAST_BYTES_S = 64 * 1024
"""A long request or answer has a second more for each so many of its bytes."""
ARRIVING_BODIES = 4
"""Requests that still arrive may take the memory of so many of the longest bodies."""
ANSWERS_BYTES_MAX = 64 * 1024 * 1024
"""Answers that their clients have not taken may take so much memory."""

TELL_INTERVAL_S = 60.0

_CHUNK_BYTES = 64 * 1024  # at least a TLS record, so that nothing read stays within OpenSSL
_CHUNKS = 16
_ACCEPTS = 64
_FULL_PAUSE_S = 0.2
_HEAD_END = re.compile(rb"\r\n\r\n|(?<!\r)\n")  # cheroot refuses a line that ends with LF alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one server spends on its clients.

    `threads` requests are answered at the same time, `waiting` requests wait for a thread (None: any
    number), and the server answers 503 to further ones. What a client sent ahead of its answers waits behind
    them, and is not counted. Up to `connections` are open beside those that have a thread; for a further one,
    the server closes one that has sent ahead, or else the one whose time is over first. `kept_alive` of them
    may stay open between requests, for `io_timeout_s`. The last `reserve` file descriptors of the process are
    left to its other parts: a client that gets one of them makes the server close another, as above. A
    request has `request_timeout_s` from its first byte to arrive completely, and a second more for each
    LEAST_BYTES_S of it; a TLS handshake has as long. So has the client to take the answer, with a second more
    for each LEAST_BYTES_S that the kernel has taken of it. cheroot reads `body_bytes` = 0 as no limit.
    """

    threads: int
    backlog: int
    header_bytes: int
    body_bytes: int
    kept_alive: int
    waiting: int | None = None
    connections: int = 128
    reserve: int = 0
    io_timeout_s: int = 10
    request_timeout_s: float = 10.0
    stop_timeout_s: int = 5
    idle_check_interval_s: float = 1.0


class _HeaderReader(cheroot_server.DropUnderscoreHeaderReader):
    def _allow_header(self, key_name: bytes) -> bool:
        """Hide the expectation of a "100 Continue": the connection has sent it already."""
        return key_name != b"Expect"


class _Request(cheroot_server.HTTPRequest):
    header_reader = _HeaderReader()

    def read_request_headers(self) -> bool:
        if not super().read_request_headers():  # type: ignore[no-untyped-call]
            return False
        if not self.inheaders.get(b"Content-Length", b"0").isdigit():
            self.simple_response("400 Bad Request", "Content-Length must be a number of bytes.")
            return False
        if self.chunked_read:
            # Without a length in advance, a body cannot be held to its limit.
            self.simple_response("411 Length Required", "The body must come with a Content-Length.")
            return False
        return True

    def send_headers(self) -> None:
        """Read the rest of the body first, so that the next request begins behind it."""
        unread = getattr(self.rfile, "remaining", 0)
        if unread:
            self.rfile.read(unread)
        super().send_headers()

    def simple_response(self, status: str, msg: str = "") -> None:
        """Answer a request that cheroot itself refuses, as JSON unless the server leaves that to cheroot."""
        LOG.info("A request of %s was refused: %s. %s", self.conn.peer, status, msg)
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


class _Socket(socket.socket):
    """A connection from which a thread reads a request that is here already, and then the end of the file.

    What it writes waits in `unsent` if the client does not take it now.
    """

    request: "memoryview[int]" = memoryview(b"")
    unsent: bytearray

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        size = min(len(self.request), nbytes or len(buffer))
        buffer[:size], self.request = self.request[:size], self.request[size:]
        return size

    def send(self, data: Any, flags: int = 0) -> int:
        """Send, or keep, all of it. Raises ConnectionResetError where the client left."""
        self.unsent += data
        self.send_unsent()
        return len(data)

    def send_unsent(self) -> int:
        """Send what the client takes now; returns what to wait for then. Raises ConnectionResetError.

        A client that left does not get the rest later either.
        """
        try:
            for _ in range(_CHUNKS):
                if not self.unsent:
                    break
                del self.unsent[: super().send(bytes(self.unsent[:_CHUNK_BYTES]))]
        except ssl.SSLWantReadError:
            return selectors.EVENT_READ
        except (BlockingIOError, ssl.SSLWantWriteError):
            pass
        except OSError as error:  # cheroot tells TLS's own with a traceback
            self.unsent.clear()
            raise ConnectionResetError(errno.ECONNRESET, str(error)) from error
        return selectors.EVENT_WRITE


class _TlsSocket(_Socket, ssl.SSLSocket):  # type: ignore[misc]
    pass


class _Connection(cheroot_server.HTTPConnection):
    """One client. Of `received`, the request under way is `length` bytes, once its head is here.

    `began` is when its first byte arrived, or the handshake began (of the monotonic clock); None between
    requests. `events` are what the connection waits for; `ended`: its client sends nothing more. `answered`
    is when a thread left an answer that its client has not taken in full, of `size` bytes then; `is_last`:
    no request follows. `is_ahead`: the client sent the request before it had the answer to the last one.
    """

    RequestHandlerClass = _Request

    def __init__(self, server: "BoundedServer", sock: socket.socket, makefile: Any) -> None:
        self.in_handshake = isinstance(sock, ssl.SSLSocket)
        super().__init__(server, sock if self.in_handshake else _Socket(fileno=sock.detach()), makefile)
        self.received = bytearray()
        self.length: int | None = None
        self.events = selectors.EVENT_READ
        self.ended = False
        self.idle_since = time.monotonic()
        self.began = self.idle_since if self.in_handshake else None
        self.answered: float | None = None
        self.size = 0
        self.is_last = False
        self.is_ahead = False
        self.socket.unsent = bytearray()
        self._searched = 0

    @property
    def peer(self) -> str:
        """The client for the log."""
        return str(self.remote_addr or "a client of the Unix socket")

    @property
    def doing(self) -> str:
        """For the log: at which stage the client is lost."""
        if self.in_handshake:
            return "No TLS handshake with"
        return "Lost, within its answer," if self.answered is not None else "Lost, within its request,"

    @property
    def due(self) -> float:
        """When the time of the connection is over."""
        limits = self.server.limits
        if self.answered is not None:
            sent = self.size - len(self.socket.unsent)
            return float(self.answered + limits.request_timeout_s + sent / LEAST_BYTES_S)
        if self.began is None:
            return float(self.idle_since + limits.io_timeout_s)
        return float(self.began + limits.request_timeout_s + len(self.received) / LEAST_BYTES_S)

    def receive(self) -> bool:
        """Take what has arrived, without a wait; returns whether there is a request to answer.

        What ends within a request is answered too: the client may still listen. Raises OSError where the
        connection is lost.
        """
        self.socket.settimeout(0)
        self.events = selectors.EVENT_READ
        try:
            if self.in_handshake:
                self.socket.do_handshake()
                self.in_handshake, self.began, self.idle_since = False, None, time.monotonic()
            for _ in range(_CHUNKS):
                if self._is_whole() or self.ended:
                    break
                chunk = self.socket.recv(_CHUNK_BYTES)
                if chunk and self.began is None:
                    self.began = time.monotonic()
                self.ended = not chunk
                self.received += chunk
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except ssl.SSLWantWriteError:
            self.events = selectors.EVENT_WRITE
            return False
        return self._is_whole() or (self.ended and bool(self.received))

    def _is_whole(self) -> bool:
        if self.length is None:
            end = _HEAD_END.search(self.received, self._searched)
            self._searched = max(0, len(self.received) - 3)
            if end is not None:
                self.length = end.end() + self._body_length(bytes(self.received[: end.end()]))
            elif len(self.received) > self.server.limits.header_bytes:
                self.length = len(self.received)  # cheroot refuses it
        return self.length is not None and len(self.received) >= self.length

    def _body_length(self, head: bytes) -> int:
        """The bytes to wait for behind the head; none where cheroot refuses the request for its head."""
        lines = BytesIO(head)
        if lines.readline() == b"\r\n":
            lines.readline()
        try:
            headers = cheroot_server.HeaderReader()(lines)
        except ValueError:
            return 0
        text, most = headers.get(b"Content-Length", b"0"), self.server.limits.body_bytes
        if b"Transfer-Encoding" in headers or not text.isdigit() or len(text) > 18:
            return 0
        length = int(text)
        if most and length > most:
            return 0
        if headers.get(b"Expect") == b"100-continue" and len(self.received) < len(head) + length:
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return length

    def take_request(self) -> None:
        """Give the request that has arrived to the thread that reads it next."""
        length = len(self.received) if self.length is None else self.length
        rest = self.received[length:]
        del self.received[length:]
        self.socket.request, self.received = memoryview(self.received), rest
        self.length, self._searched = None, 0
        self.began = time.monotonic() if rest else None

    def communicate(self) -> bool:
        """Answer one request; True if another one may follow, or the client has not taken all."""
        keep = bool(super().communicate())  # type: ignore[no-untyped-call]
        self.idle_since = time.monotonic()
        if not self.socket.unsent:
            return keep
        self.answered, self.size, self.is_last = self.idle_since, len(self.socket.unsent), not keep
        return True

    def go_on(self) -> bool:
        """Send more of the answer, without a wait; returns whether it was all.

        Raises ConnectionResetError where the client left.
        """
        self.events = self.socket.send_unsent()
        if self.socket.unsent:
            return False
        self.answered, self.idle_since = None, time.monotonic()
        return True

    def finish(self, within_s: float) -> None:
        """Give the client so many seconds for the rest of its answer, and close the connection."""
        end = time.monotonic() + within_s
        with suppress(OSError):
            while self.socket.unsent and (left_s := end - time.monotonic()) > 0:
                self.socket.settimeout(left_s)
                self.socket.send_unsent()
        self.close()

    def give_up(self, why: str) -> None:
        """Close a connection whose time is over; a request that has begun is answered with a 408."""
        if self.in_handshake or self.answered is not None:
            LOG.info("%s %s: %s.", self.doing, self.peer, why)
        elif self.received:
            with suppress(OSError):
                _Request(self.server, self).simple_response("408 Request Timeout")
        self.close()

    def close(self) -> None:
        """Close the connection, and drop what its client did not take.

        cheroot leaves the writer open, which sends the rest to the closed socket when Python collects it.
        """
        self.wfile.raw.close()
        super().close()


class _TlsAdapter(Adapter):
    """Wraps accepted connections, which make their handshakes later.

    Source: https://cheroot.cherrypy.dev/en/latest/pkg/cheroot.ssl/
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        context.sslsocket_class = _TlsSocket
        self.context = context

    def bind(self, sock: socket.socket) -> socket.socket:
        return sock

    def wrap(self, sock: socket.socket) -> tuple[ssl.SSLSocket, dict[str, str]]:
        """The connection before its handshake, and what its requests' WSGI environment gets."""
        try:
            wrapped = self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except OSError as error:  # the client has left already
            sock.close()
            raise errors.FatalSSLAlert(*error.args) from error
        return wrapped, self.get_environ()

    def get_environ(self) -> dict[str, str]:
        return {"wsgi.url_scheme": "https", "HTTPS": "on"}

    def makefile(self, sock: socket.socket, mode: str = "r", bufsize: int = DEFAULT_BUFFER_SIZE) -> Any:
        return (StreamReader if "r" in mode else StreamWriter)(sock, mode, bufsize)


def descriptor_limit() -> int:
    """How many descriptors this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class _Connections(connections.ConnectionManager):
    """The connections that no thread answers just now, with their deadlines by the monotonic clock."""

    _selector: Any
    _stop_requested: bool
    _num_connections: int
    _from_server_socket: Any
    _remove_invalid_sockets: Any
    _tells_again_at = 0.0

    def put(self, conn: _Connection) -> None:
        """Go on with a connection that was answered: its next request may be here already."""
        if conn.answered is not None:
            conn.events = selectors.EVENT_WRITE
            self.wait_for(conn)
        elif conn.received:
            conn.began = time.monotonic()  # nothing was read meanwhile
            conn.is_ahead = True
            self.server.process_conn(conn)
        else:
            self.wait_for(conn)

    def wait_for(self, conn: _Connection) -> None:
        """Wait until more arrives of the connection's request, or more can be sent of its answer."""
        conn.is_ahead = False
        self._selector.register(conn.socket.fileno(), conn.events, data=conn)

    def _run(self, expiration_interval: float) -> None:
        checked = time.monotonic()
        while not self._stop_requested:
            try:
                ready = list(self._selector.select(timeout=expiration_interval))
            except OSError:
                self._remove_invalid_sockets()
                continue
            for fd, conn in ready:
                if conn is self.server:
                    self._accept()
                elif conn.socket.fileno() == fd:  # it was not closed just now to make place for another
                    self._selector.unregister(fd)
                    self.server.process_conn(conn)
                    self._bound_memory(conn)
            if time.monotonic() - checked >= expiration_interval:
                checked = time.monotonic()
                for conn in self._waiting():
                    if conn.due <= checked:
                        self._give_up(conn, "it took too long")
                self._bound_answers()

    def _waiting(self) -> list[_Connection]:
        return [conn for _, conn in self._selector.connections if conn is not self.server]

    def _give_up(self, conn: _Connection, why: str) -> None:
        self._selector.unregister(conn.socket.fileno())
        conn.give_up(why)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                conn = self._from_server_socket(self.server.socket)
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:
                    raise
                # accept(2) looks for a free descriptor before it looks for a client: is one waiting?
                listening = select.poll()
                listening.register(self.server.socket, select.POLLIN)
                if listening.poll(0):
                    self._tell_lack()
                    if not self._make_place():
                        time.sleep(_FULL_PAUSE_S)  # the threads have all others
                return
            if conn is None:
                return
            if not self.server.ready:  # the connection that wakes this loop for the stop
                conn.close()
                return
            if self._num_connections + self.server.requests.waiting >= self.server.limits.connections:
                if not self._make_place():
                    self.server.turn_away(conn)
                    continue
            elif conn.socket.fileno() >= descriptor_limit() - self.server.limits.reserve:
                self._tell_lack()
                self._make_place()  # unless it is the only one
            self.server.process_conn(conn)

    def _tell_lack(self) -> None:
        """Log once in TELL_INTERVAL_S, for all clients together, that the process runs out of descriptors."""
        now = time.monotonic()
        if now < self._tells_again_at:
            return
        self._tells_again_at = now + TELL_INTERVAL_S
        LOG.warning(
            "File descriptors run out (the limit is %d), so the slowest clients at %s are turned away: look "
            "who keeps so many connections open, or %s.",
            descriptor_limit(),
            self.server.bind_addr,
            MORE_DESCRIPTORS,
        )

    def _make_place(self) -> bool:
        """Close a connection that has sent ahead of its answers, or else the one whose time is over first.

        False where there is none.
        """
        if (greedy := self.server.requests.take_ahead()) is not None:
            self.server.turn_away(greedy)
        elif waiting := self._waiting():
            self._give_up(min(waiting, key=lambda each: each.due), "others connect, and it is the slowest")
        else:
            return False
        return True

    def _bound_memory(self, conn: _Connection) -> None:
        limits = self.server.limits
        if len(conn.received) <= _CHUNK_BYTES or not limits.body_bytes:
            return
        large = [each for each in self._waiting() if len(each.received) > _CHUNK_BYTES]
        if sum(len(each.received) for each in large) > ARRIVING_BODIES * max(limits.body_bytes, _CHUNK_BYTES):
            self._give_up(
                min(large, key=lambda each: each.began or 0.0), "others send, and it is the slowest"
            )

    def _bound_answers(self) -> None:
        kept = sorted((each for each in self._waiting() if each.socket.unsent), key=lambda each: each.due)
        total = sum(len(each.socket.unsent) for each in kept)
        for conn in kept[:-1]:
            if total <= ANSWERS_BYTES_MAX:
                return
            total -= len(conn.socket.unsent)
            self._give_up(conn, "others wait for theirs, and it is the slowest")

    def close(self) -> None:
        """Close all connections; before, those that wait for the rest of an answer get it if they take it."""
        for conn in self._waiting():
            if not conn.socket.unsent:
                self._selector.unregister(conn.socket.fileno())
                conn.close()
        end = time.monotonic() + self.server.limits.stop_timeout_s
        while self._waiting() and time.monotonic() < end:
            for fd, conn in list(self._selector.select(timeout=_FULL_PAUSE_S)):
                if conn is not self.server:
                    self._selector.unregister(fd)
                    self.server.process_conn(conn)
        super().close()


class _Waiting(queue.Queue[Any]):
    """The connections whose requests wait for a thread: those that sent ahead of their answers come last."""

    def _init(self, maxsize: int) -> None:
        self.first: deque[Any] = deque()
        self.ahead: deque[Any] = deque()

    def _qsize(self) -> int:
        return len(self.first) + len(self.ahead)

    def _put(self, item: Any) -> None:
        # cheroot's request that a thread ends goes behind all others
        (self.first if isinstance(item, _Connection) and not item.is_ahead else self.ahead).append(item)

    def _get(self) -> Any:
        return (self.first or self.ahead).popleft()


class _Threads(ThreadPool):
    """The threads that answer, and the queue before them. A full queue refuses a request at once."""

    def __init__(self, server: "BoundedServer", limits: Limits) -> None:
        super().__init__(server, min=limits.threads, max=limits.threads)
        self._most = limits.waiting
        self._queue = _Waiting()
        self.get = self._queue.get

    @property
    def waiting(self) -> int:
        """How many connections wait for a thread."""
        return self._queue.qsize()

    def offer(self, conn: _Connection) -> bool:
        """Have a thread answer the request that the connection has taken; False where too many wait."""
        if not conn.is_ahead and self._most is not None and len(self._queue.first) >= self._most:
            return False
        self._queue.put(conn)
        return True

    def take_ahead(self) -> _Connection | None:
        """Take one back that sent ahead of its answers; None where none waits."""
        with self._queue.mutex:
            ahead = self._queue.ahead
            # At the end, cheroot's requests that threads end wait there as well.
            return ahead.pop() if ahead and isinstance(ahead[-1], _Connection) else None


class BoundedServer(wsgi.Server):
    """Serves a WSGI application at a Unix socket (a `Path`) or at (IP address, port).

    `json_errors`: requests that do not reach the application are answered with the agent's JSON error, else
    with cheroot's plain text. With `peer_credentials`, the application finds the caller's ids by
    `agent.http.unix_socket`. With `tls`, a TCP address speaks TLS only.
    """

    ConnectionClass = _Connection
    _connections: Any

    def __init__(
        self,
        address: Path | tuple[str, int],
        application: "WSGIApplication",
        limits: Limits,
        *,
        name: str = "plimsoll",
        json_errors: bool = True,
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
            peercreds_enabled=peer_credentials,
        )
        self.limits = limits
        self.requests = _Threads(self, limits)
        self.json_errors = json_errors
        self.expiration_interval = limits.idle_check_interval_s
        self.keep_alive_conn_limit = limits.kept_alive
        self.max_request_body_size = limits.body_bytes
        self.max_request_header_size = limits.header_bytes
        if tls is not None:
            self.ssl_adapter = _TlsAdapter(tls)

    def prepare(self) -> None:
        """Listen. Raises ListenError."""
        # If the environment names this process, cheroot takes descriptor 3 for its socket.
        os.environ.pop("LISTEN_PID", None)
        try:
            super().prepare()
            self._connections.close()
            self._connections = _Connections(self)
        except OSError as error:
            raise unix_socket.listen_error(error) from error
        self.socket.settimeout(0)

    def put_conn(self, conn: _Connection) -> None:
        """Go on with a connection that was answered, in the loop; without one, on the caller's thread."""
        if self.ready:
            self._connections.put(conn)
        else:
            conn.finish(self.limits.stop_timeout_s)

    def process_conn(self, conn: _Connection) -> None:
        """Send more of an answer, or take what has arrived of a request, as far as both go without a wait.

        A whole request goes to the threads, or is answered with 503.
        """
        try:
            if conn.answered is not None:
                if not conn.go_on():
                    self._connections.wait_for(conn)
                elif conn.is_last or not self.ready:
                    conn.close()
                else:
                    self._connections.put(conn)
                return
            is_whole = conn.receive()
        except OSError as error:
            if conn.answered is not None or conn.began is not None:
                LOG.info("%s %s: %s.", conn.doing, conn.peer, error)
            conn.close()
            return
        if not is_whole:
            if conn.ended:
                conn.close()
            else:
                self._connections.wait_for(conn)
            return
        conn.take_request()
        if not self.requests.offer(conn):
            self.turn_away(conn)

    def turn_away(self, conn: _Connection) -> None:
        """Answer 503, as far as the client takes it now, and close the connection."""
        LOG.warning("Too many connections wait for an answer; one was turned away.")
        with suppress(OSError), closing(conn):
            conn.socket.settimeout(0)
            if not conn.in_handshake:
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
        # Connect once: cheroot notices a stop when a connection arrives, or after its idle interval.
        with suppress(OSError):
            if self._path is not None:
                unix_socket.connect(self._path).close()
            else:
                socket.create_connection(self._server.bind_addr[:2], unix_socket.CONNECT_TIMEOUT_S).close()
        patience_s = 2 * self._server.limits.stop_timeout_s
        stopper.join(patience_s)
        if stopper.is_alive():
            LOG.warning("Requests are still under way %d s after %s was closed.", patience_s, self._name)
        self._thread = None
        if self._path is not None:
            with suppress(FileNotFoundError):
                if _inode(self._path) == self._inode:  # a successor's file stays
                    self._path.unlink()


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
