"""Serves an embedded core over HTTP, at one or more addresses.

    with Server(core, ["unix:/run/plimsoll/placement.sock", "127.0.0.1:8778"]) as server:
        ...

or, until a signal ends it, `serve(state_dir, ["127.0.0.1:8778"])`. The addresses:

    127.0.0.1:8778      noauth, as on any loopback address
    unix:/run/x.sock    noauth; the file's mode (0660) limits who can connect
    [2001:db8::7]:8778  anything else needs tokens and TLS

The core decides what Placement itself decides (routes, microversions, media types, bodies). `WsgiApplication`
adds what HTTP requires, with text, lengths and callers outside and Python objects inside: authentication, the
length of the body, JSON, absolute locations, HEAD, and errors for clients that do not accept JSON.
"""

from __future__ import annotations

import contextlib
import html
import ipaddress
import itertools
import json
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import quote

from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from agent.durable.files import check_accepts_files
from agent.errors import MORE_DESCRIPTORS
from agent.http import unix_socket
from agent.http.errors import AddressInUse, ListenError, NotASocket, OutOfDescriptors
from agent.http.fair_threads import share_the_interpreter, without_collection
from agent.http.server import BoundedServer, Limits, Listener, stop_all
from agent.placement.embedded.core import Core
from agent.placement.embedded.http.auth import (
    Authenticator,
    Environ,
    ServeError,
    Tokens,
    Unauthenticated,
    authorize,
    noauth,
)
from agent.placement.embedded.messages import REQUEST_ID, new_request_id
from agent.placement.embedded.problems import BAD_REQUEST, TITLES, TOO_LARGE, RequestRefused

LOG = logging.getLogger(__name__)

BODY_BYTES_MAX = 64 * 1024 * 1024
PATH_SAFE = "/:@!$&'()*+,;=-._~"
JSON = "application/json"
NAME_SHOWN_MAX = 16
PIECE_MEMBERS = 256
LONG_ANSWERS = "/allocation_candidates"

StartResponse = Callable[[str, list[tuple[str, str]]], Any]
Response = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers, body."""


class NoJson:
    """Stands for a body that is not JSON. No schema accepts it, and its representation says why it is not."""

    def __init__(self, error: str) -> None:
        self._error = error

    def __repr__(self) -> str:
        return f"malformed JSON ({self._error})"


class WsgiApplication:
    """A WSGI application (PEP 3333) over a core; `authenticate` identifies callers."""

    def __init__(self, core: Core, authenticate: Authenticator = noauth) -> None:
        self._core = core
        self._authenticate = authenticate

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        try:
            with without_collection() if environ["PATH_INFO"] == LONG_ANSWERS else nullcontext():
                response = self._response(environ)
        except Unauthenticated as error:
            # In the form of OpenStack Placement's authentication middleware, which answers it there.
            body = {"message": str(error), "code": "401 Unauthorized", "title": TITLES[401]}
            sent = [("content-type", JSON), ("www-authenticate", "Bearer"), (REQUEST_ID, new_request_id())]
            response = 401, sent, json.dumps(body).encode()
        if response[0] >= 400:
            response = _in_accepted_form(environ, response)
        status, headers, payload = response
        if environ["REQUEST_METHOD"] == "HEAD":
            payload = b""
        headers.append(("content-length", str(len(payload))))
        start_response(f"{status} {TITLES.get(status) or HTTPStatus(status).phrase}", headers)
        return (payload,)

    def _response(self, environ: Environ) -> Response:
        method, path, query = environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", "")
        caller = None if path == "/" else self._authenticate(environ)
        body, problem = _body(environ)
        # The headers that the core reads; content-type is always present, empty if the client sent none.
        sent = {"content-type": environ.get("CONTENT_TYPE", "")}
        for header in ("accept", "openstack-api-version", "idempotency-key"):
            content = environ.get("HTTP_" + header.upper().replace("-", "_"))
            if content is not None:
                sent[header] = content
        if problem is not None:
            del sent["content-type"]  # the refusal for the body precedes the one for its media type

        def admit() -> None:
            if problem is not None:
                raise problem
            if caller is not None:
                authorize(caller, method, path, query)

        target = quote(path.encode("latin-1"), safe=PATH_SAFE)
        answer = self._core.request(
            method, f"{target}?{query}" if query else target, body, headers=sent, admit=admit
        )
        # Log a write with its caller. The name is cut, because under noauth it may be a token by mistake.
        level = logging.DEBUG if method == "GET" else logging.INFO
        if LOG.isEnabledFor(level):
            who = f"{caller.name[:NAME_SHOWN_MAX]!r}" if caller else "-"
            request_id = answer.headers.get(REQUEST_ID, "-")
            LOG.log(level, "%s %s: %d, for %s, %s", method, target, answer.status, who, request_id)
        headers = list(answer.headers.items())
        if "location" in answer.headers:
            host = environ.get("HTTP_HOST") or f"{environ['SERVER_NAME']}:{environ['SERVER_PORT']}"
            origin = f"{environ['wsgi.url_scheme']}://{host}{environ.get('SCRIPT_NAME', '')}"
            headers = [(name, f"{origin}{value}" if name == "location" else value) for name, value in headers]
        if answer.body is None:
            return answer.status, headers, b""
        return answer.status, headers, in_pieces(answer.body).encode()


def in_pieces(body: Any) -> str:
    """The JSON of the body. While `json.dumps` runs no other thread does: a long body is dumped in pieces."""
    if not isinstance(body, dict):
        return json.dumps(body)
    return "{" + ", ".join(f"{json.dumps(name)}: {_long(value)}" for name, value in body.items()) + "}"


def _long(value: Any) -> str:
    if not isinstance(value, dict | list) or len(value) <= PIECE_MEMBERS:
        return json.dumps(value)
    members = iter(value.items() if isinstance(value, dict) else value)
    pieces = iter(lambda: type(value)(itertools.islice(members, PIECE_MEMBERS)), type(value)())
    inside = ", ".join(json.dumps(piece)[1:-1] for piece in pieces)
    return f"{{{inside}}}" if isinstance(value, dict) else f"[{inside}]"


def _body(environ: Environ) -> tuple[Any, RequestRefused | None]:
    """The body as a Python object, and the refusal for its length or type, if there is one.

    The object is None for an empty body and NoJson for a body that is not JSON.
    """
    try:
        length_text = environ.get("CONTENT_LENGTH") or "0"
        if not (length_text.isascii() and length_text.isdigit()):
            raise RequestRefused(
                BAD_REQUEST, f"Content-Length must be a number of bytes, not {length_text!r}."
            )
        length = int(length_text)
        if length > BODY_BYTES_MAX:
            raise RequestRefused(
                TOO_LARGE, f"The body may have at most {BODY_BYTES_MAX} bytes; send it in parts."
            )
        text: bytes = environ["wsgi.input"].read(length) if length else b""
        if len(text) < length:
            raise RequestRefused(BAD_REQUEST, f"The body ended after {len(text)} of {length} bytes.")
    except RequestRefused as refusal:
        return None, refusal
    if not text:
        return None, None
    if not environ.get("CONTENT_TYPE"):
        return None, RequestRefused(BAD_REQUEST, "A body needs a Content-Type header.")
    try:
        return json.loads(text), None
    except (ValueError, RecursionError) as error:
        return NoJson(str(error)), None


def _in_accepted_form(environ: Environ, response: Response) -> Response:
    """The error as HTML or plain text, where the client's Accept header prefers that to JSON."""
    status, headers, payload = response
    accept = environ.get("HTTP_ACCEPT")
    if not payload or accept in (None, "", "*/*", JSON):
        return response
    best = parse_accept_header(accept, MIMEAccept).best_match(("text/html", JSON), default="text/plain")
    if best == JSON:
        return response
    content = json.loads(payload)
    title = f"{status} {TITLES[status]}"
    detail = content["errors"][0]["detail"] if "errors" in content else content["message"]
    if best == "text/html":
        page = f"<html>\n <head>\n  <title>{title}</title>\n </head>\n <body>\n  <h1>{title}</h1>\n  "
        text = f"{page}{html.escape(detail)}\n </body>\n</html>"
    else:
        text = f"{title}\n\n{detail}"
    others = [(name, value) for name, value in headers if name != "content-type"]
    return status, [*others, ("content-type", f"{best}; charset=UTF-8")], text.encode()


PORT_MAX = 65535
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
        host = host.removeprefix("[").removesuffix("]")
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            raise ServeError(
                f"Cannot listen at {text}: the host {host!r} cannot be looked up ({error})."
            ) from error
        return cls(text, host=str(found[0][4][0]), port=int(port_text))


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


class Server:
    """The HTTP servers of one core; the core itself stays the caller's to close."""

    def __init__(
        self,
        core: Core,
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
        lacking = [
            what
            for what, given in (
                ("a token file, which identifies callers", tokens_file),
                ("a TLS certificate and key, which keep tokens secret on the network", tls_cert),
            )
            if given is None
        ]
        for bind in parsed:
            if lacking and not bind.is_local:
                raise ServeError(
                    f"Refusing to listen at {bind.text}: other machines can reach it, and it lacks "
                    f"{' and '.join(lacking)}. Configure that, or listen at 127.0.0.1 or at unix:PATH."
                )
        authenticate = noauth if tokens_file is None else Tokens.read(tokens_file)
        context = None if tls_cert is None or tls_key is None else tls_context(tls_cert, tls_key)
        self._binds = parsed
        self._listeners = []
        for bind in parsed:
            is_tcp = bind.path is None
            server = BoundedServer(
                bind.path or (bind.host, bind.port),
                WsgiApplication(core, authenticate if is_tcp else noauth),
                replace(LIMITS, threads=threads),
                name="placement",
                json_errors=False,
                tls=context if is_tcp else None,
            )
            self._listeners.append(Listener(server, f"placement at {bind.text}"))

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
                try:
                    listener.start()
                except ListenError as error:
                    raise _not_there(bind, error) from error
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
            while True:  # the wait is bounded: a signal just before `get` does not interrupt it
                with contextlib.suppress(Empty):
                    ended.get(timeout=SIGNAL_POLL_S)
                    break
            LOG.info("Stopping.")


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
