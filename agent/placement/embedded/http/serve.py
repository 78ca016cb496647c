"""Serves an embedded core over HTTP, at one or more addresses.

    with Server(core, ["unix:/run/plimsoll/placement.sock", "127.0.0.1:8778"]) as server:
        ...

or, until a signal ends it, `serve(state_dir, ["127.0.0.1:8778"])`.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType

from agent.durable.files import check_accepts_files
from agent.errors import MORE_DESCRIPTORS
from agent.http import unix_socket
from agent.http.errors import AddressInUse, ListenError, NotASocket, OutOfDescriptors
from agent.http.fair_threads import share_the_interpreter
from agent.http.listener import Listener, stop_all
from agent.http.server import BoundedServer, Limits
from agent.placement.embedded.core import Core
from agent.placement.embedded.http.auth import Authenticator, ServeError, Tokens, noauth
from agent.placement.embedded.http.bind import Bind, tls_context
from agent.placement.embedded.http.wsgi import BODY_BYTES_MAX, CoreService, WsgiApplication

LOG = logging.getLogger(__name__)

THREADS = 16
LIMITS = Limits(
    threads=THREADS,
    backlog=512,
    connections=640,
    kept_alive=512,
    header_bytes=64 * 1024,
    body_bytes=BODY_BYTES_MAX,
    reserve=24,  # for the local API of the agent in the same process, and for the database
    idle_check_interval_s=0.5,
)
SIGNAL_POLL_S = 1.0


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
        """Check the addresses and files; open no socket yet.

        Tokens and TLS, if given, apply to every TCP address, including loopback. `threads` is the number of
        requests that each address answers at the same time. Raises ServeError where an address off loopback
        lacks tokens or TLS, or where a file or an address cannot be used.
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
        self._binds = parsed
        self._listeners = [_listener(core, bind, authenticate, context, threads) for bind in parsed]

    def check_places(self, to_be_made: Path | None = None) -> None:
        """Check that the socket files can be made, without making any. Raises ServeError.

        `to_be_made` is a directory that may be missing, because the caller makes it before `start`. Whether
        another server listens is seen by `start` only.
        """
        for bind in self._binds:
            if bind.path is None:
                continue
            try:
                unix_socket.is_there(bind.path)
                if bind.path.parent != to_be_made or to_be_made.exists():
                    check_accepts_files(bind.path.parent)
            except ListenError as error:
                raise _not_there(bind, error) from error
            except OSError as error:
                raise _not_there(bind, ListenError(error.strerror)) from error

    def start(self) -> None:
        """Listen at every address; when this returns, requests are answered.

        Raises ServeError where one address cannot be used; then nothing is served.
        """
        try:
            for listener, bind in zip(self._listeners, self._binds, strict=True):
                _start(listener, bind)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Finish the requests under way, close, and remove the socket files; idempotent."""
        stop_all(self._listeners)

    @property
    def addresses(self) -> list[str]:
        """The addresses in the form of the binds; a configured port 0 is shown as the real port."""
        return [
            listener.address if bind.path is None else bind.text
            for listener, bind in zip(self._listeners, self._binds, strict=True)
        ]

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
    """Open the state directory and serve it until SIGTERM or SIGINT. Call this on the main thread.

    `on_ready` is called with the addresses when requests are answered there. Raises ServeError as `Server`
    does, and DatabaseError as `Core.open` does.
    """
    ended: SimpleQueue[int] = SimpleQueue()
    share_the_interpreter()
    with _on_signals(ended), contextlib.closing(Core.open(state_dir)) as core:
        server = Server(
            core, binds, tokens_file=tokens_file, tls_cert=tls_cert, tls_key=tls_key, threads=threads
        )
        with server:
            LOG.info("Serving Placement from %s at %s.", state_dir, ", ".join(server.addresses))
            if on_ready is not None:
                on_ready(server.addresses)
            _wait(ended)
            LOG.info("Stopping.")


def _wait(ended: SimpleQueue[int]) -> None:
    """Wait for a signal. The wait is bounded: a signal just before `get` does not interrupt it."""
    while True:
        with contextlib.suppress(Empty):
            ended.get(timeout=SIGNAL_POLL_S)
            return


@contextlib.contextmanager
def _on_signals(ended: SimpleQueue[int]) -> Iterator[None]:
    """Put signals into `ended`. An Event does not fit: a second signal within its handler would deadlock."""
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
            ("a token file, which identifies callers", tokens_file),
            ("a TLS certificate and key, which keep tokens secret on the network", tls_cert),
        )
        if given is None
    ]
    if lacking:
        raise ServeError(
            f"Refusing to listen at {bind.text}: other machines can reach it, and it lacks "
            f"{' and '.join(lacking)}. Configure that, or listen at 127.0.0.1 or at unix:PATH."
        )


def _listener(
    core: CoreService,
    bind: Bind,
    authenticate: Authenticator,
    context: ssl.SSLContext | None,
    threads: int,
) -> Listener:
    is_tcp = bind.path is None
    server = BoundedServer(
        bind.path or (bind.host, bind.port),
        WsgiApplication(core, authenticate if is_tcp else noauth),
        replace(LIMITS, threads=threads),
        name="placement",
        json_errors=False,
        tls=context if is_tcp else None,
    )
    return Listener(server, f"placement at {bind.text}")


def _start(listener: Listener, bind: Bind) -> None:
    try:
        listener.start()
    except ListenError as error:
        raise _not_there(bind, error) from error


def _not_there(bind: Bind, error: ListenError) -> ServeError:
    if isinstance(error, AddressInUse):
        remedy = "stop it or choose another path"
    elif isinstance(error, OutOfDescriptors):
        remedy = MORE_DESCRIPTORS
    elif isinstance(error, NotASocket):
        remedy = "move it away or choose another path"
    elif bind.path is None:
        remedy = "choose an address of this machine that is not in use"
    else:
        remedy = "choose a path in a directory that exists and that this user may write"
    return ServeError(f"Cannot listen at {bind.path or bind.text}: {error}; {remedy}.")
