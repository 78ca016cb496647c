"""A bounded HTTP server: no client can hold a thread, or memory, for longer than the limits say.

    accept -> handshake -> head and body, as they arrive -> a thread -> what the client did not take at once

One event loop (asyncio) waits for all clients; llhttp reads what they send. A request gets one of the threads
once all of it is here, and keeps it for its answer alone. So any number of slow clients keep no thread. What
a greedy client sends before it has its answer waits for those that have no answer yet. An application may
take short requests to a thread of its own (`Whole`): their answers come together, and keep none of the
threads. A `Listener` runs a server on a thread of its own, and stops it.

Source: RFC 9112; https://docs.python.org/3/library/asyncio-protocol.html; https://peps.python.org/pep-3333/.
"""

import asyncio
import json
import re
import resource
import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache, partial
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast
from urllib.parse import unquote_to_bytes

import httptools

from agent import log
from agent.errors import MORE_DESCRIPTORS, NO_DESCRIPTORS
from agent.http import unix_socket
from agent.http.errors import BodyTooLarge, Busy, LengthRequired, ListenError, TooSlow, error_body

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication, WSGIEnvironment

LOG = log.get(__name__)

LEAST_BYTES_S = 64 * 1024
"""A long request or answer has a second more for each so many of its bytes."""
ARRIVING_BODIES = 4
"""Requests that still arrive may take the memory of so many of the longest bodies."""
ANSWERS_BYTES_MAX = 64 * 1024 * 1024
"""Answers that their clients have not taken may take so much memory."""

LINGER_S, LINGER_MAX_S = 2.0, 30.0
"""How long a client whose body is too long may pause, and may send, before it takes its answer."""

TELL_INTERVAL_S = 60.0

FAILURE = "door.failure"
"""In the environ of a request that a thread answers: why the application's own thread did not (`Whole`)."""

_CHUNK_BYTES = 64 * 1024
_CHUNKS = 4
_ACCEPTS = 64
_FULL_PAUSE_S = 0.2
_TARGET = re.compile(rb"/(?!/)[^#]*\Z")
_QUOTED_SLASH = re.compile(b"%2F", re.IGNORECASE)  # it separates no segments of the path


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one server spends on its clients.

    `threads` requests are answered at the same time, `waiting` requests wait for a thread (None: any
    number), and the server answers 503 to further ones. What a client sent ahead of its answers waits behind
    them, and is not counted. Up to `connections` are open beside those that have a thread; for a further one,
    the server closes one that has sent ahead, or else, of the client with the most, the one whose time is
    over first. `kept_alive` of them may stay open between requests, for `io_timeout_s`. The last `reserve`
    file descriptors of the process are left to its other parts: a client that gets one of them makes the
    server close another, as above. A request has `request_timeout_s` from its first byte to arrive
    completely, and a second more for each LEAST_BYTES_S of it; a TLS handshake has as long. So has the client
    to take the answer, with a second more for each LEAST_BYTES_S that it has taken of it.
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


class _Answer(NamedTuple):
    """An answer in parts, as the application made them: one that is long is never copied, since no other
    thread runs meanwhile. `close` (PEP 3333) tells the application that it is on its way.
    """

    parts: Sequence[bytes]
    is_last: bool
    close: Callable[[], None] | None = None


class Outcome(Protocol):
    """Of a request that the application's own thread runs."""

    @property
    def is_over(self) -> bool:
        """Whether `result` returns or raises at once."""

    def result(self) -> _Answer:
        """What `run` returned. Raises what goes into the environ as FAILURE."""


Whole = Callable[["WSGIEnvironment", Callable[[], _Answer], Callable[[], None]], Outcome | None]
"""Has a thread of the application call `run`, perhaps more than once, and `tell` when outcomes are over; None
where one of the server's threads is to run the request. `run` answers, and raises nothing. An outcome that is
over at once is given by the loop's own thread: a short one that waits for nothing."""


class _Request(NamedTuple):
    """A request that is here; `keeps`: its client may send another one on the same connection."""

    environ: "WSGIEnvironment"
    version: str
    keeps: bool


class _Refusal(NamedTuple):
    """What the server answers instead of the application, before it closes the connection."""

    status: HTTPStatus
    text: str


class _Arriving:
    """The request that arrives, as llhttp tells of it."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.head_bytes = 0
        self.body = bytearray()
        self.head_is_here = False
        self.waits_for_word = False

    def values(self, name: bytes) -> list[bytes]:
        """What the client sent of this header, whose name is in lower case."""
        return [value for each, value in self.headers if each == name]


class _Connection(asyncio.BufferedProtocol):
    """One client.

    `began` is when the first byte of the request under way arrived, or the handshake began (of the monotonic
    clock); None between requests. `requests` are here and wait for their turn. `is_busy`: one of them waits
    for a thread, or has it. `ended`: nothing more is read. Of the last answer, which a thread
    left when it was `answered`, and which has `size` bytes, the connection keeps what is `unsent`. `is_last`:
    no request follows. `lingers`: the client sends a body that the server drops, and then takes its answer.
    """

    def __init__(self, server: "BoundedServer", sock: socket.socket, address: Any) -> None:
        self.server = server
        self.sock = sock
        self.remote = address[:2] if isinstance(address, tuple) else ("", "")
        self.handshake: asyncio.Future[Any] | None = None
        self.transport: asyncio.Transport | None = None
        self.idle_since = time.monotonic()
        self.began: float | None = self.idle_since
        self.received = 0
        self.arriving = _Arriving()
        self.requests: deque[_Request] = deque()
        self.refusal: _Refusal | None = None
        self.is_busy = self.ended = self.is_last = self.is_lost = self.lingers = False
        self.answered: float | None = None
        self.size = 0
        self.unsent: deque[memoryview] = deque()
        self._takes_more = True
        self._ignores_upgrade = False
        self._parser: Any = httptools.HttpRequestParser(self)

    @property
    def peer(self) -> str:
        """The client for the log."""
        return str(self.remote[0] or "a client of the Unix socket")

    @property
    def doing(self) -> str:
        """For the log: at which stage the client is lost."""
        if self.transport is None:
            return "No TLS handshake with"
        return "Lost, within its answer," if self.kept else "Lost, within its request,"

    @property
    def kept(self) -> int:
        """How many bytes of the answer the client has not taken."""
        if self.transport is None or self.is_lost:
            return 0
        return self.unsent_bytes + self.transport.get_write_buffer_size()

    @property
    def unsent_bytes(self) -> int:
        """How many bytes of the answer the connection keeps."""
        return sum(map(len, self.unsent))

    @property
    def due(self) -> float:
        """When the time of the connection is over."""
        limits = self.server.limits
        if self.lingers and self.answered is not None:
            return min(self.idle_since + LINGER_S, self.answered + LINGER_MAX_S)
        if self.answered is not None and (self.is_last or self.kept):
            return self.answered + limits.request_timeout_s + (self.size - self.kept) / LEAST_BYTES_S
        if self.began is None:
            return self.idle_since + limits.io_timeout_s
        return self.began + limits.request_timeout_s + self.received / LEAST_BYTES_S

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is accepted, and its handshake done."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_CHUNK_BYTES, low=0)
        self.began, self.idle_since = None, time.monotonic()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: all connections take theirs out of it at once."""
        return self.server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """More of a request, or the next ones, are here."""
        if self.ended or self.refusal:
            self.idle_since = time.monotonic()
            return
        self.began = self.began or time.monotonic()
        self.received += nbytes
        data = self.server.buffer[:nbytes]
        try:
            if self._ignores_upgrade:
                self._fill(data)
            else:
                self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignores_upgrade = True
            self._fill(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError:
            raise
        except httptools.HttpParserError as error:
            if not (self.requests and not self.requests[-1].keeps):  # nothing is read behind the last one
                self._refuse(HTTPStatus.BAD_REQUEST, f"{error}.")
        if not self.arriving.head_is_here and self.received > self.server.limits.header_bytes:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _LONG_HEAD)
        self.go_on(ahead=False)
        self.server.bound_bodies(self)

    def _fill(self, data: memoryview) -> None:
        """Take the body of a request that asks for an upgrade: llhttp leaves what follows its head to others.

        The application speaks HTTP alone, so there is no upgrade, and no request behind this one.
        """
        length = int((self.arriving.values(b"content-length") or [b"0"])[0])
        self.arriving.body += data[: length - len(self.arriving.body)]
        if len(self.arriving.body) == length:
            self.end()

    def eof_received(self) -> bool:
        """Answer what is here: the client may still listen. TLS ends in both directions at once."""
        self.lingers = False
        self.end()
        self.go_on(ahead=False)
        return self.server.tls is None

    def pause_writing(self) -> None:
        """The client does not take what it is sent."""
        self._takes_more = False

    def resume_writing(self) -> None:
        """The client has taken all that it was sent."""
        self._takes_more = True
        # asyncio goes on with the transport behind this call, and must not find it closed.
        self.server.loop.call_soon(self._send_more)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, by the client or by the server."""
        if exc is not None and not self.is_last and (self.unsent or self.began is not None):
            LOG.info("%s %s: %s.", self.doing, self.peer, exc)
        self._forget()
        self.server.connections.discard(self)

    def _forget(self) -> None:
        """Keep nothing of what was read or is unsent; the parser and the connection name each other."""
        self.ended = self.is_last = self.is_lost = True
        self.arriving, self._parser = _Arriving(), None
        self.unsent.clear()
        self.requests.clear()

    # What llhttp calls

    def on_message_begin(self) -> None:
        """Another request begins."""
        self.arriving, self.began = _Arriving(), time.monotonic()

    def on_url(self, part: bytes) -> None:
        """A part of the target is here."""
        self.arriving.url += part
        self._count(len(part))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header is here."""
        self.arriving.headers.append((name.lower(), value))
        self._count(len(name) + len(value) + 4)

    def _count(self, size: int) -> None:
        self.arriving.head_bytes += size
        if self.arriving.head_bytes > self.server.limits.header_bytes:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _LONG_HEAD)

    def on_headers_complete(self) -> None:
        """The head of the request is here."""
        arriving, method, version = self.arriving, self._parser.get_method(), self._parser.get_http_version()
        arriving.head_is_here = True
        if version not in ("1.0", "1.1"):
            self._refuse(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "The server speaks HTTP/1.1.")
        elif len(arriving.values(b"host")) not in ((1,) if version == "1.1" else (0, 1)):
            self._refuse(HTTPStatus.BAD_REQUEST, "A request has one Host header.")
        elif method == b"CONNECT":
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "The server is no proxy.")
        elif not _TARGET.match(arriving.url) and (method, arriving.url) != (b"OPTIONS", b"*"):
            self._refuse(HTTPStatus.BAD_REQUEST, "The target must be a path.")
        elif arriving.values(b"transfer-encoding"):
            # Without a length in advance, a body cannot be held to its limit.
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "The body must come with a Content-Length.")
        elif int((arriving.values(b"content-length") or [b"0"])[0]) > self.server.limits.body_bytes:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The body is longer than the server takes.")
        arriving.waits_for_word = b"100-continue" in arriving.values(b"expect")

    def on_body(self, part: bytes) -> None:
        """A part of the body is here."""
        if self.refusal is None:
            self.arriving.body += part

    def on_message_complete(self) -> None:
        """All of the request is here, or the head of one that asks for an upgrade."""
        if self.refusal is None and not self._parser.should_upgrade():
            self._enqueue()

    # What becomes of the requests

    def _enqueue(self) -> None:
        environ = self.server.environ_of(self, self._parser.get_method().decode(), self.arriving)
        keeps = self._parser.should_keep_alive() and not self.ended
        self.requests.append(_Request(environ, self._parser.get_http_version(), keeps))
        self.arriving, self.received, self.began = _Arriving(), 0, None

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self.refusal = self.refusal or _Refusal(status, text)

    def end(self) -> None:
        """Read nothing more. Of a request whose body ends too early, the application tells the client."""
        if self.ended:
            return
        self.ended = True
        if self.arriving.head_is_here and self.refusal is None:
            self._enqueue()
        elif self.began is not None:
            self._refuse(HTTPStatus.BAD_REQUEST, "The request ended within its head.")

    def go_on(self, *, ahead: bool) -> None:
        """Take the next request to the threads, once the client has its answer to the last one.

        `ahead`: it was sent before that.
        """
        if self.transport is None or self.transport.is_closing():
            return
        if self.is_busy or self.unsent:
            if self.requests or self.received:
                self.transport.pause_reading()
        elif self.requests:
            self.is_busy = True
            self.server.begin(self, self.requests.popleft(), ahead=ahead)
        elif self.refusal is not None:
            self._answer_refusal(self.refusal)
        elif self.is_last or self.ended:
            self.close()
        else:
            self.transport.resume_reading()
            if self.arriving.waits_for_word:
                self.arriving.waits_for_word = False
                self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def answer(self, parts: Sequence[bytes], is_last: bool) -> None:
        """Send what a thread has answered, and go on."""
        self.is_busy = False
        if self.is_lost:
            return
        self.answered = self.idle_since = time.monotonic()
        if self.began is not None:
            self.began = self.answered  # what was sent ahead had not to be here sooner
        if is_last:
            self.is_last = True
            self.requests.clear()
            self.refusal = None
        self._write(*parts)
        self.go_on(ahead=True)

    def _write(self, *parts: bytes) -> None:
        self.unsent = deque(memoryview(part) for part in parts)
        self.size = self.unsent_bytes
        self._send()

    def _send(self) -> None:
        """Give the transport as much of the answer as the client takes now, some chunks in each turn."""
        assert self.transport is not None
        for _ in range(_CHUNKS):
            if not (self.unsent and self._takes_more) or self.transport.is_closing():
                return
            part = self.unsent.popleft()
            if len(part) > _CHUNK_BYTES:
                self.unsent.appendleft(part[_CHUNK_BYTES:])
            self.transport.write(part[:_CHUNK_BYTES])
        if self.unsent:
            self.server.loop.call_soon(self._send_more)

    def _send_more(self) -> None:
        if not self.is_lost:
            self._send()
            self.go_on(ahead=True)

    def _answer_refusal(self, refusal: _Refusal) -> None:
        status, text = refusal
        LOG.info("A request of %s was refused: %d %s. %s", self.peer, status, status.phrase, text)
        self.refusal, self.ended, self.answered = None, True, time.monotonic()
        # A connection that is closed while its client sends is reset, and its answer lost.
        self.lingers, self.idle_since = status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE, time.monotonic()
        self._write(self.server.refusal(status, text))
        self.close()

    def turn_away(self) -> None:
        """Answer 503, as far as the client takes it now, and close the connection."""
        self.is_busy = False
        self.requests.clear()
        self._answer_refusal(_Refusal(HTTPStatus.SERVICE_UNAVAILABLE, Busy.SENTENCE))
        self.abort()

    def close(self) -> None:
        """Close the connection when the client has its answer, or at least say that no more comes."""
        self.is_last = True
        if self.transport is None or self.unsent or self.transport.is_closing():
            return
        if not self.lingers:
            self.transport.close()
        elif self.transport.can_write_eof():
            self.transport.write_eof()

    def give_up(self, why: str) -> None:
        """Close a connection whose time is over; a request that has begun is answered with a 408."""
        if self.transport is None or self.kept:
            LOG.info("%s %s: %s.", self.doing, self.peer, why)
        elif self.began is not None and not self.is_last:
            self._answer_refusal(_Refusal(HTTPStatus.REQUEST_TIMEOUT, f"The request is not here: {why}."))
        self.abort()

    def abort(self) -> None:
        """Close the connection now. TLS's goodbye takes a round trip: there is no time for it."""
        self._forget()
        if self.handshake is not None:
            self.handshake.cancel()
        if self.transport is not None:
            self.transport.abort()


class _Threads:
    """The threads that answer, and the requests that wait for one.

    Those that were sent ahead of an answer come last. Of the others, a limited number may wait.
    """

    def __init__(self, server: "BoundedServer", limits: Limits) -> None:
        self._server = server
        self._limits = limits
        self._changed = threading.Condition()
        self._first: deque[tuple[_Connection, _Request]] = deque()
        self._ahead: deque[tuple[_Connection, _Request]] = deque()
        self._are_ended = False
        self.answering = 0
        """How many of them answer a request now."""
        self._threads: list[threading.Thread] = []

    def start(self, name: str) -> None:
        """Let the threads wait for requests."""
        self._threads = [
            threading.Thread(target=self._run, name=f"{name} {number}", daemon=True)
            for number in range(self._limits.threads)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let each thread end once no request waits."""
        with self._changed:
            self._are_ended = True
            self._changed.notify_all()

    def join(self, within_s: float) -> bool:
        """Wait for their end; returns whether all have ended."""
        end = time.monotonic() + within_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def offer(self, conn: _Connection, request: _Request, *, ahead: bool) -> bool:
        """Have a thread answer the request; False where too many wait."""
        with self._changed:
            most = self._limits.waiting
            if not ahead and most is not None and len(self._first) >= most:
                return False
            (self._ahead if ahead else self._first).append((conn, request))
            self._changed.notify()
        return True

    def take_ahead(self) -> _Connection | None:
        """Take one back that sent ahead of its answers; None where none waits."""
        with self._changed:
            return self._ahead.pop()[0] if self._ahead else None

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._first or self._ahead):
                    if self._are_ended:
                        return
                    self._changed.wait()
                conn, request = (self._first or self._ahead).popleft()
                self.answering += 1
            self._server.respond(conn, request)
            del conn, request  # a thread that waits keeps no body
            with self._changed:
                self.answering -= 1


class BoundedServer:
    """Serves a WSGI application at a Unix socket (a `Path`) or at (IP address, port).

    `json_errors`: requests that do not reach the application are answered with the agent's JSON error, else
    with plain text. With `peer_credentials`, the application finds the caller's ids by
    `agent.http.unix_socket`. With `tls`, a TCP address speaks TLS only. `whole` may take requests from the
    threads; what was sent ahead of an answer stays with them.
    """

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
        whole: Whole | None = None,
    ) -> None:
        self.address = address
        self.limits = limits
        self.tls = tls
        self.threads = _Threads(self, limits)
        self.connections: set[_Connection] = set()
        self.buffer = memoryview(bytearray(_CHUNK_BYTES))
        self._application = application
        self._name = name
        self._json_errors = json_errors
        self._peer_credentials = peer_credentials
        self._whole = whole
        self._begun: list[tuple[_Connection, _Request]] = []
        self._outcomes: deque[tuple[_Connection, _Request, Outcome]] = deque()
        self._stop = asyncio.Event()
        self._tells_again_at = 0.0

    # Its life

    def listen(self) -> None:
        """Listen; after that `address` has the real port. Raises ListenError."""
        try:
            self.loop = asyncio.new_event_loop()
        except OSError as error:
            raise unix_socket.listen_error(error) from error
        try:
            if isinstance(self.address, Path):
                self._socket = unix_socket.listen(self.address, self.limits.backlog)
            else:
                self._socket = _listen_at(self.address, self.limits.backlog)
                self.address = self._socket.getsockname()[:2]
        except (ListenError, OSError) as error:
            self.loop.close()
            raise (error if isinstance(error, ListenError) else unix_socket.listen_error(error)) from error
        self._socket.setblocking(False)

    def serve(self) -> None:
        """Answer requests, until another thread calls `stop`."""
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._serve())

    def stop(self) -> None:
        """Have `serve` finish the requests under way, and return."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._stop.set)

    async def _serve(self) -> None:
        self.loop.set_exception_handler(_tell_of_exception)
        self.threads.start(self._name)
        self.loop.add_reader(self._socket, self._accept)
        while not self._stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), self.limits.idle_check_interval_s)
            now = time.monotonic()
            for conn in self._waiting():
                if conn.due <= now:
                    self._give_up(conn, "it took too long")
            self._bound_answers()
            self._give_answers()
        self.loop.remove_reader(self._socket)
        self._socket.close()
        await self._finish()

    async def _finish(self) -> None:
        """Answer what is here, send what was answered, and close all connections, each within its time."""
        self.threads.end()
        for conn in tuple(self.connections):
            if not (conn.is_busy or conn.kept):
                conn.close()
        await self._until(lambda: not any(conn.is_busy for conn in self.connections))
        await self._until(lambda: not any(conn.kept for conn in self.connections))
        for conn in tuple(self.connections):
            conn.abort()
        await self._until(lambda: not self.connections)
        await asyncio.sleep(0)  # what was closed gives its descriptor back

    async def _until(self, is_done: Callable[[], bool]) -> None:
        end = time.monotonic() + self.limits.stop_timeout_s
        while not is_done() and time.monotonic() < end:
            await asyncio.sleep(_STOP_POLL_S)

    # Its connections

    def _accept(self) -> None:
        """Accept the clients that wait, as far as there is place for them."""
        for _ in range(_ACCEPTS):
            try:
                sock, address = self._socket.accept()
            except OSError as error:
                if error.errno in NO_DESCRIPTORS:
                    self._lack_descriptor()
                return  # or none waits any more
            sock.setblocking(False)
            conn = _Connection(self, sock, address)
            if len(self.connections) - self.threads.answering >= self.limits.connections:
                if not self._make_place():
                    LOG.warning(_TOO_MANY)
                    # Send the client off with a 503, as far as it takes that now.
                    with suppress(OSError), closing(sock):
                        if self.tls is None:
                            sock.send(self.refusal(HTTPStatus.SERVICE_UNAVAILABLE, Busy.SENTENCE))
                    continue
            elif sock.fileno() >= descriptor_limit() - self.limits.reserve:
                self._tell_lack()
                self._make_place()  # unless it is the only one
            self.connections.add(conn)
            self._connect(conn)

    def _connect(self, conn: _Connection) -> None:
        """Give the client its transport, over TLS after the handshake."""
        timeout_s = self.limits.stop_timeout_s if self.tls else None
        accepted = self.loop.connect_accepted_socket(
            lambda: conn, conn.sock, ssl=self.tls, ssl_shutdown_timeout=timeout_s
        )
        conn.handshake = self.loop.create_task(accepted)
        conn.handshake.add_done_callback(partial(self._connected, conn))

    def _connected(self, conn: _Connection, handshake: "asyncio.Future[Any]") -> None:
        """The client has its transport, or it left before the handshake was done."""
        conn.handshake = None
        if handshake.cancelled() or handshake.exception() is not None:
            if not conn.is_last:
                reason = "" if handshake.cancelled() else str(handshake.exception())
                LOG.info("%s %s: %s.", conn.doing, conn.peer, reason or "the client has left")
            self.connections.discard(conn)
            conn.sock.close()

    def turn_away(self, conn: _Connection) -> None:
        """Answer 503 to a request that finds no thread or no place, and close its connection."""
        LOG.warning(_TOO_MANY)
        conn.turn_away()

    def _waiting(self) -> list[_Connection]:
        """The connections that no thread answers, and whose requests do not wait for one."""
        return [conn for conn in self.connections if not conn.is_busy]

    def _lack_descriptor(self) -> None:
        """Make place for a client that waits; where that cannot be, pause, as the threads have all others."""
        # accept(2) looks for a free descriptor before it looks for a client: is one waiting?
        listening = select.poll()
        listening.register(self._socket, select.POLLIN)
        if not listening.poll(0):
            return
        self._tell_lack()
        if not self._make_place():
            self.loop.remove_reader(self._socket)
            self.loop.call_later(_FULL_PAUSE_S, self._accept_again)

    def _accept_again(self) -> None:
        if not self._stop.is_set():
            self.loop.add_reader(self._socket, self._accept)

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
            self.address,
            MORE_DESCRIPTORS,
        )

    def _make_place(self) -> bool:
        """Close a connection that has sent ahead of its answers, or else one of the client with the most.

        Of that client's, the one whose time is over first. False where there is none.
        """
        if (greedy := self.threads.take_ahead()) is not None:
            self.turn_away(greedy)
        elif waiting := self._waiting():
            number = Counter(conn.remote[0] for conn in self.connections)
            one = min(waiting, key=lambda each: (-number[each.remote[0]], each.due))
            self._give_up(one, "others connect, and it is the slowest")
        else:
            return False
        return True

    def _give_up(self, conn: _Connection, why: str) -> None:
        conn.give_up(why)
        self.connections.discard(conn)

    def bound_bodies(self, conn: _Connection) -> None:
        """Give up the slowest of the requests that arrive, where their bodies take too much memory."""
        if conn.received <= _CHUNK_BYTES:
            return
        large = [each for each in self._waiting() if each.received > _CHUNK_BYTES]
        most = ARRIVING_BODIES * max(self.limits.body_bytes, _CHUNK_BYTES)
        if sum(each.received for each in large) > most:
            self._give_up(
                min(large, key=lambda each: each.began or 0.0), "others send, and it is the slowest"
            )

    def _bound_answers(self) -> None:
        kept = sorted((each for each in self._waiting() if each.unsent), key=lambda each: each.due)
        total = sum(each.unsent_bytes for each in kept)
        for conn in kept[:-1]:
            if total <= ANSWERS_BYTES_MAX:
                return
            total -= conn.unsent_bytes
            self._give_up(conn, "others wait for theirs, and it is the slowest")

    # Its requests and answers

    def environ_of(self, conn: _Connection, method: str, arriving: _Arriving) -> "WSGIEnvironment":
        """The WSGI environ of a request (PEP 3333)."""
        path, _, query = arriving.url.partition(b"?")
        segments = map(unquote_to_bytes, _QUOTED_SLASH.split(path))
        environ: WSGIEnvironment = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": "",
            "PATH_INFO": b"%2F".join(segments).decode("latin-1"),
            "QUERY_STRING": query.decode("latin-1"),
            "SERVER_NAME": self._name,
            "SERVER_PORT": "" if isinstance(self.address, Path) else str(self.address[1]),
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": str(conn.remote[0]),
            "REMOTE_PORT": str(conn.remote[1]),
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http" if self.tls is None else "https",
            "wsgi.input": BytesIO(arriving.body),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        if self._peer_credentials:
            told = conn.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid, uid, gid = _CREDENTIALS.unpack(told)
            environ |= {"X_REMOTE_PID": str(pid), "X_REMOTE_UID": str(uid), "X_REMOTE_GID": str(gid)}
            environ["X_HAS_GONE"] = partial(unix_socket.has_gone, conn.sock)
        for name, value in arriving.headers:
            if b"_" in name or name == b"expect":  # one could stand for a header with "-"; the other is done
                continue
            key = name.decode("latin-1").upper().replace("-", "_")
            key = key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"
            text = value.decode("latin-1").strip(" \t")
            environ[key] = f"{environ[key]}, {text}" if key in environ else text
        return environ

    def begin(self, conn: _Connection, request: _Request, *, ahead: bool) -> None:
        """Have the application's own thread, or one of the server's threads, answer the request."""
        if self._whole is not None and not ahead:
            if not self._begun:
                self.loop.call_soon(self._hand_over)  # with the others that have arrived by now
            self._begun.append((conn, request))
        elif not self.threads.offer(conn, request, ahead=ahead):
            self.turn_away(conn)

    def _hand_over(self) -> None:
        """Offer what has arrived to the application's own thread, which makes one write of it."""
        assert self._whole is not None
        begun, self._begun = self._begun, []
        for conn, request in begun:
            outcome = self._whole(request.environ, partial(self._run, request), self._wake)
            if outcome is not None and outcome.is_over:
                self._give(conn, request, outcome)
            elif outcome is not None:
                self._outcomes.append((conn, request, outcome))
            elif not self.threads.offer(conn, request, ahead=False):
                self.turn_away(conn)

    def _wake(self) -> None:
        """Outcomes are over; called by the application's own thread."""
        with suppress(RuntimeError):  # the loop is closed: the request took longer than the stop waits
            self.loop.call_soon_threadsafe(self._give_answers)

    def _give_answers(self) -> None:
        """Send the answers that the application's own thread has made. It makes them in their order."""
        while self._outcomes and self._outcomes[0][2].is_over:
            self._give(*self._outcomes.popleft())

    def _give(self, conn: _Connection, request: _Request, outcome: Outcome) -> None:
        try:
            answer = outcome.result()
        except Exception as error:  # noqa: BLE001 - of any kind: the application tells what it means
            request.environ[FAILURE] = error
            self.threads.offer(conn, request, ahead=True)
        else:
            self._close(answer)
            conn.answer(answer.parts, answer.is_last)

    def respond(self, conn: _Connection, request: _Request) -> None:
        """Have the application answer the request, on this thread."""
        answer = self._run(request)
        self._close(answer)
        with suppress(RuntimeError):  # the loop is closed: the request took longer than the stop waits
            self.loop.call_soon_threadsafe(conn.answer, answer.parts, answer.is_last)

    def _close(self, answer: _Answer) -> None:
        try:
            if answer.close is not None:
                answer.close()
        except Exception:
            LOG.exception("The application failed after its answer.")

    def _run(self, request: _Request) -> _Answer:
        """Have the application answer the request, perhaps not for the first time."""
        environ, parts, started = request.environ, list[bytes](), list[Any]()
        close: Callable[[], None] | None = None

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            started[:] = (status, headers)
            return parts.append

        try:
            environ["wsgi.input"].seek(0)
            iterable: Iterable[bytes] = self._application(environ, start_response)
            close = getattr(iterable, "close", None)
            parts.extend(iterable)
            status, headers = started
            size = sum(map(len, parts))
            keeps = request.keeps and not self._stop.is_set()
            keeps = keeps and len(self.connections) - self.threads.answering < self.limits.kept_alive
            parts.insert(0, self._head(status, headers, size, request, keeps=keeps))
            if environ["REQUEST_METHOD"] == "HEAD":
                del parts[1:]
            elif size < _CHUNK_BYTES:
                parts = [b"".join(parts)]
        except Exception:  # of any kind: the next requests need this thread
            LOG.exception("A request was not answered: the application failed.")
            parts, keeps = [self.refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "")], False
        return _Answer(parts, not keeps, close)

    def _head(
        self, status: str, headers: list[tuple[str, str]], size: int, request: _Request, *, keeps: bool
    ) -> bytes:
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers)]
        names = {name.lower() for name, _ in headers}
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("A header has a line break.")
        if "content-length" not in names and status[:3] not in ("204", "304"):
            lines.append(f"Content-Length: {size}")
        if not keeps:
            lines.append("Connection: close")
        elif request.version == "1.0":
            lines.append("Connection: keep-alive")
        lines += [f"Date: {_date(int(time.time()))}", f"Server: {self._name}", "", ""]
        return "\r\n".join(lines).encode("latin-1")

    def refusal(self, status: HTTPStatus, text: str) -> bytes:
        """The answer to a request that does not reach the application."""
        kind, content = "text/plain", text
        if self._json_errors:
            number = status.value
            code = _CODES.get(number, f"plimsoll.api.http_{number}")
            kind, content = "application/json", json.dumps(error_body(code, text or status.phrase)) + "\n"
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Length: {len(content.encode())}\r\n"
            f"Content-Type: {kind}\r\nConnection: close\r\n\r\n"
        )
        return head.encode("latin-1") + content.encode()


_CODES = {kind.http_status: kind.code for kind in (TooSlow, LengthRequired, BodyTooLarge, Busy)}
_LONG_HEAD = "The head of the request is too long."
_TOO_MANY = "Too many connections wait for an answer; one was turned away."
_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
_STOP_POLL_S = 0.01


@lru_cache(maxsize=1)
def _date(now: int) -> str:
    return formatdate(now, usegmt=True)


def descriptor_limit() -> int:
    """How many descriptors this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _listen_at(address: tuple[str, int], backlog: int) -> socket.socket:
    """A socket that listens at (IP address, port); at `::`, for IPv4 as well. Raises OSError."""
    host, port = address
    family, kind, protocol, _, where = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICHOST
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and host == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(where)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def _tell_of_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what asyncio could not give to anyone: of the network's errors the sentence alone."""
    error = context.get("exception")
    LOG.warning("%s: %s", context["message"], error, exc_info=None if isinstance(error, OSError) else error)


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
        if isinstance(self._server.address, Path):
            return str(self._server.address)
        host, port = self._server.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def is_running(self) -> bool:
        """True between `start` and `stop`."""
        return self._thread is not None

    def start(self) -> None:
        """Listen; when this returns, requests are answered. Raises ListenError."""
        self._server.listen()
        if isinstance(self._server.address, Path):
            self._inode = _inode(self._server.address)
        self._thread = threading.Thread(target=self._server.serve, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish the requests under way, close, and remove the socket file; idempotent.

        Requests that take longer than twice the server's `stop_timeout_s` are abandoned.
        """
        if self._thread is None:
            return
        patience_s = 2 * self._server.limits.stop_timeout_s
        end = time.monotonic() + patience_s
        self._server.stop()
        self._thread.join(patience_s)
        if not self._server.threads.join(end - time.monotonic()):
            LOG.warning("Requests are still under way %d s after %s was closed.", patience_s, self._name)
        self._thread = None
        path = self._server.address
        if isinstance(path, Path):
            with suppress(FileNotFoundError):
                if _inode(path) == self._inode:  # a successor's file stays
                    path.unlink()


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
