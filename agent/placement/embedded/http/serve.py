"""Serves an embedded core over HTTP, at one or more addresses.

    with Server(core, ["unix:/run/plimsoll/placement.sock", "127.0.0.1:8778"]) as server:
        ...

or, until a signal ends it, `serve(state_dir, ["127.0.0.1:8778"])`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import DEFAULT_BUFFER_SIZE
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from cheroot import server as cheroot_server
from cheroot import wsgi
from cheroot.makefile import StreamReader, StreamWriter
from cheroot.ssl import Adapter

from agent.placement.embedded.core import Core
from agent.placement.embedded.http.auth import Authenticator, ServeError, Tokens, noauth
from agent.placement.embedded.http.listeners import BACKLOG, Bind, tls_context, unix_socket
from agent.placement.embedded.http.wsgi import BODY_BYTES_MAX, CoreService, WsgiApplication

LOG = logging.getLogger(__name__)

THREADS = 16
KEPT_ALIVE_MAX = 512
HEADER_BYTES_MAX = 64 * 1024
IO_TIMEOUT_S = 10
STOP_TIMEOUT_S = 5
SIGNAL_LOOK_S = 1.0


class Server:
    """The HTTP servers of one core; the core itself stays the caller's to close."""

    def __init__(
        self,
        core: CoreService,
        binds: Sequence[str],
        *,
        tokens_file: Path | None = None,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        threads: int = THREADS,
    ) -> None:
        """Check everything that can be checked before a socket is opened.

        Tokens and TLS, where given, hold for every TCP address, on loopback too. `threads` is the number of
        requests that are answered at once at each address.

        :raises DoorError: an address off loopback lacks tokens or TLS, or a file or an address cannot be used
        """
        parsed = [Bind.parse(text) for text in binds]
        if not parsed:
            raise ServeError("Nothing to listen at: give at least one address, HOST:PORT or unix:PATH.")
        if (tls_cert is None) != (tls_key is None):
            raise ServeError("TLS needs both files, the certificate and its key.")
        for bind in parsed:
            _check_guarded(bind, tokens_file, tls_cert)
        authenticate = noauth if tokens_file is None else Tokens.read(tokens_file)
        context = None if tls_cert is None or tls_key is None else tls_context(tls_cert, tls_key)
        self._listeners = [_Listener(core, bind, authenticate, context, threads) for bind in parsed]

    def start(self) -> None:
        """Listen at every address, or at none; when this returns, requests are answered.

        :raises DoorError: an address cannot be had
        """
        # cheroot would take descriptor 3 for its socket if this were left over from whoever started us.
        os.environ.pop("LISTEN_PID", None)
        try:
            for listener in self._listeners:
                listener.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Let requests under way end, close, and take the socket files away; idempotent."""
        with ThreadPoolExecutor(len(self._listeners)) as pool:  # each takes up to half a second to notice
            for stopped in [pool.submit(listener.stop) for listener in self._listeners]:
                stopped.result()

    @property
    def addresses(self) -> list[str]:
        """Where it listens, in the form of the binds; a port 0 shows as the port that was given."""
        return [listener.address for listener in self._listeners]

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def serve(
    state_dir: Path,
    binds: Sequence[str],
    *,
    tokens_file: Path | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    threads: int = THREADS,
    on_ready: Callable[[list[str]], None] | None = None,
) -> None:
    """Open the state directory and serve it until SIGTERM or SIGINT. To be called on the main thread.

    `on_ready` is told the addresses, once requests are answered there.

    :raises DoorError: see Server
    :raises DatabaseError: the state directory cannot be used, see Core.open
    """
    ended: SimpleQueue[int] = SimpleQueue()
    with _on_signals(ended), contextlib.closing(Core.open(state_dir)) as core:
        server = Server(
            core, binds, tokens_file=tokens_file, tls_cert=tls_cert, tls_key=tls_key, threads=threads
        )
        with server:
            LOG.info("Serving placement from %s at %s.", state_dir, ", ".join(server.addresses))
            if on_ready is not None:
                on_ready(server.addresses)
            _wait(ended)
            LOG.info("Stopping.")


def _wait(ended: SimpleQueue[int]) -> None:
    """Until a signal came; bounded looks, for one that comes just before the wait is seen after it."""
    while True:
        with contextlib.suppress(Empty):
            ended.get(timeout=SIGNAL_LOOK_S)
            return


@contextlib.contextmanager
def _on_signals(ended: SimpleQueue[int]) -> Iterator[None]:
    """An Event's lock is not for handlers: a second signal inside the first one would wait for itself."""
    before = {
        number: signal.signal(number, lambda which, _: ended.put(which))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check_guarded(bind: Bind, tokens_file: Path | None, tls_cert: Path | None) -> None:
    if bind.is_local:
        return
    lacking = [
        what
        for what, given in (
            ("a token file, so that it is known who asks", tokens_file),
            ("a TLS certificate and key, so that tokens do not travel in the clear", tls_cert),
        )
        if given is None
    ]
    if lacking:
        raise ServeError(
            f"Refusing to listen at {bind.text}: others than this machine can reach it, and it lacks "
            f"{' and '.join(lacking)}. Give what is lacking, or listen at 127.0.0.1 or at unix:PATH."
        )


class _Listener:
    """One cheroot server at one address."""

    def __init__(
        self,
        core: CoreService,
        bind: Bind,
        authenticate: Authenticator,
        context: ssl.SSLContext | None,
        threads: int,
    ) -> None:
        self._bind = bind
        self._server = _HttpServer(
            (bind.host, bind.port) if bind.path is None else str(bind.path),
            WsgiApplication(core, authenticate if bind.path is None else noauth),
            numthreads=threads,
            max=threads,
            server_name="placement",
            request_queue_size=BACKLOG,
            timeout=IO_TIMEOUT_S,
            shutdown_timeout=STOP_TIMEOUT_S,
        )
        if context is not None and bind.path is None:
            self._server.ssl_adapter = _Tls(context)
        self._thread: threading.Thread | None = None
        self._inode: tuple[int, int] | None = None

    def start(self) -> None:
        try:
            self._server.prepare()
        except OSError as error:
            raise ServeError(
                f"Cannot listen at {self._bind.text}: {error.strerror or error}; choose an address of this "
                "machine that is not in use."
            ) from error
        if self._bind.path is not None:
            self._inode = _inode(self._bind.path)
        self._thread = threading.Thread(
            target=self._server.serve, name=f"door {self._bind.text}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        if self._thread is None:
            return
        self._server.stop()
        self._thread.join(STOP_TIMEOUT_S)
        self._thread = None
        if self._bind.path is not None:
            with contextlib.suppress(FileNotFoundError):
                if _inode(self._bind.path) == self._inode:  # not a successor's
                    self._bind.path.unlink()

    @property
    def address(self) -> str:
        if self._bind.path is not None:
            return self._bind.text
        host, port = self._server.bind_addr[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _inode(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


class _Tls(Adapter):
    """TLS whose handshake is made by the thread that answers, not by the one that accepts for all."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context

    def bind(self, sock: socket.socket) -> socket.socket:
        return sock

    def wrap(self, sock: socket.socket) -> tuple[ssl.SSLSocket, dict[str, str]]:
        wrapped = self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        return wrapped, self.get_environ()

    def get_environ(self) -> dict[str, str]:
        return {"wsgi.url_scheme": "https", "HTTPS": "on"}

    def makefile(self, sock: socket.socket, mode: str = "r", bufsize: int = DEFAULT_BUFFER_SIZE) -> Any:
        return (StreamReader if "r" in mode else StreamWriter)(sock, mode, bufsize)


class _Request(cheroot_server.HTTPRequest):
    def read_request_headers(self) -> bool:
        if not super().read_request_headers():  # type: ignore[no-untyped-call]
            return False
        if self.chunked_read:
            # A length that is known beforehand is what keeps a body within its bound.
            self.simple_response("411 Length Required", "The body must come with a Content-Length.")
            return False
        return True


class _Connection(cheroot_server.HTTPConnection):
    RequestHandlerClass = _Request

    def communicate(self) -> bool:
        """Answer one request; whether more may follow on this connection."""
        if isinstance(self.socket, ssl.SSLSocket) and self.socket.version() is None:
            try:
                self.socket.do_handshake()
            except OSError as error:  # which an SSLError is
                LOG.info("No TLS handshake with %s: %s.", self.remote_addr, error)
                return False
        return bool(super().communicate())  # type: ignore[no-untyped-call]


class _HttpServer(wsgi.Server):
    ConnectionClass = _Connection
    keep_alive_conn_limit = KEPT_ALIVE_MAX
    max_request_body_size = BODY_BYTES_MAX
    max_request_header_size = HEADER_BYTES_MAX

    def process_conn(self, conn: Any) -> None:
        if conn.last_used is None:
            # A new connection gets a thread once it says something; silent ones keep nobody else waiting.
            self.put_conn(conn)
        else:
            super().process_conn(conn)

    def bind_unix_socket(self, bind_addr: str) -> socket.socket:
        self.socket = bound = unix_socket(Path(bind_addr))
        return bound

    @staticmethod
    def bind_socket(socket_: socket.socket, bind_addr: tuple[str, int]) -> socket.socket:
        try:
            socket_.bind(bind_addr)
        except OSError:
            socket_.close()
            raise
        return socket_

    def error_log(self, msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
        LOG.log(level, "%s", msg, exc_info=traceback)
