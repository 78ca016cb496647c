"""Serves an embedded core over HTTP, at one or more addresses, to callers with the roles for it.

    with Server(core, ["unix:/run/plimsoll/placement.sock", "127.0.0.1:8778"]) as server:
        ...

or, until a signal ends it, `serve(state_dir, ["127.0.0.1:8778"])`. The addresses:

    127.0.0.1:8778      noauth, as on any loopback address
    unix:/run/x.sock    noauth; the file's mode (0660) limits who can connect
    [2001:db8::7]:8778  anything else needs bearer tokens and TLS

What the roles of a caller allow are OpenStack Placement's defaults: `admin` and `service` may send
everything, but POST /reshaper needs `service`; a `reader` of a project may read that project's usages. A
token file may also grant the role `reader` without a project, which may send any GET.

The core decides what Placement itself decides (routes, microversions, media types, bodies).
`WsgiApplication` adds what HTTP requires, with text, lengths and callers outside and Python objects inside:
authentication, the length of the body, JSON, absolute locations, HEAD, and errors for clients that do not
accept JSON.

Source: https://docs.openstack.org/placement/latest/configuration/policy.html.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import hashlib
import html
import ipaddress
import itertools
import json
import logging
import os
import re
import signal
import socket
import ssl
import stat
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote

from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from agent.durable.files import check_accepts_files
from agent.errors import MORE_DESCRIPTORS
from agent.http import unix_socket
from agent.http.errors import AddressInUse, ListenError, NotASocket, OutOfDescriptors
from agent.http.process import consume, long_computation, without_collection
from agent.http.server import FAILURE, BoundedServer, Limits, Listener, stop_all
from agent.placement.embedded import fleet
from agent.placement.embedded.core import ACTIVE_HEADER, STALE_HEADER, Core
from agent.placement.embedded.handlers import REQUEST_ID, new_request_id
from agent.placement.embedded.problems import (
    BAD_REQUEST,
    FORBIDDEN,
    TITLES,
    TOO_LARGE,
    ProblemType,
    RequestRefused,
)
from agent.placement.embedded.rules import Binding
from agent.placement.embedded.store import FILE_NAME, WholeRequest
from agent.placement.embedded.validation import is_loose_uuid

ROLES = ("admin", "service", "reader")
TOKEN_CHARACTERS_MIN = 16
FILE_BYTES_MAX = 1 << 20

Environ = Mapping[str, Any]
"""A WSGI environ (PEP 3333)."""


class ServeError(Exception):
    """The core cannot be served like this; the sentence says why and what to do."""


class TokenUser(NamedTuple):
    """The caller. `project_id` is None for a token without a project.

    `host` is the uuid or the name of the root provider that the token is bound to: it reads everything, and
    writes what `rules.check_bound` allows.
    """

    name: str
    project_id: str | None
    roles: frozenset[str]
    host: str | None = None


class Unauthenticated(Exception):
    """The request does not identify its caller; the sentence goes to the client."""


Authenticator = Callable[[Environ], TokenUser]
"""Returns the caller of a request. Raises Unauthenticated where the request does not identify it."""


def noauth(environ: Environ) -> TokenUser:
    """The caller as `noauth2` of OpenStack Placement reads it: `X-Auth-Token: USER[:PROJECT]`, without proof.

    USER "admin" has the role admin; `X-Roles: ROLE,ROLE` overrides. Use it only at addresses that no other
    machine reaches. Raises Unauthenticated without that header.
    """
    token = environ.get("HTTP_X_AUTH_TOKEN")
    if token is None:
        raise Unauthenticated("Say who is asking in X-Auth-Token, as USER or USER:PROJECT.")
    user, _, project = token.partition(":")
    given = environ.get("HTTP_X_ROLES")
    roles = {"admin"} if user == "admin" and given is None else _words(given or "")
    if environ.get("HTTP_OPENSTACK_SYSTEM_SCOPE"):
        roles = set()  # Placement accepts a system scope for no request
    return TokenUser(user, environ.get("HTTP_X_PROJECT_ID") or project or user, frozenset(roles))


class Tokens:
    """Bearer tokens, of which only the SHA-256 digests are stored."""

    def __init__(self, callers: Mapping[bytes, TokenUser]) -> None:
        self._callers = dict(callers)

    def __call__(self, environ: Environ) -> TokenUser:
        """The caller with the token in `Authorization: Bearer` or `X-Auth-Token`. Raises Unauthenticated."""
        scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() != "bearer":
            token = environ.get("HTTP_X_AUTH_TOKEN", "")
        digest = hashlib.sha256(token.strip().encode("latin-1", "replace")).digest()
        # How long the look-up takes depends on the digest, and tells nothing of a token.
        match = self._callers.get(digest)
        if match is None:
            raise Unauthenticated("The request needs a valid token in Authorization: Bearer or X-Auth-Token.")
        return match

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """Read a token file that only its owner may read, or a systemd credential.

        Each line is `NAME ROLE[,ROLE][@PROJECT] TOKEN [host=HOST]`, where TOKEN may be `sha256:HEX` (its
        digest); empty lines and lines that begin with # are skipped. An older version refuses a line that
        binds its token to a host, instead of giving that token every host.

        Raises ServeError where the file cannot be read, is readable by others, or is malformed.
        """
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                content = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise ServeError(f"The token file {path} cannot be read: {error.strerror}.") from error
        # Of a systemd credential (LoadCredential=) the group bits of the mode show an access list.
        directory = os.environ.get("CREDENTIALS_DIRECTORY")
        is_credential = directory and path.absolute().is_relative_to(Path(directory).absolute())
        if mode & (stat.S_IRWXG | stat.S_IRWXO) and not is_credential:
            raise ServeError(
                f"The token file {path} is open to others (mode {stat.S_IMODE(mode):04o}); chmod it to 0600."
            )
        if len(content) > FILE_BYTES_MAX:
            raise ServeError(
                f"The token file {path} has more than {FILE_BYTES_MAX} bytes; is it the right file?"
            )
        try:
            lines = content.decode("ascii").splitlines()
        except UnicodeDecodeError as error:
            raise ServeError(f"The token file {path} holds something other than ASCII text.") from error
        callers: dict[bytes, TokenUser] = {}
        for number, line in enumerate(map(str.strip, lines), start=1):
            if not line or line.startswith("#"):
                continue
            where = f"Line {number} of the token file {path}"
            digest, caller = _parse_line(where, line)
            for known, other in callers.items():
                if (known == digest or other.name == caller.name) and other.host != caller.host:
                    what = "token" if known == digest else "name"
                    hosts = " and ".join(each.host or "no host" for each in (other, caller))
                    raise ServeError(
                        f"{where} has the {what} of another line, and they are bound to {hosts}: give each "
                        "host a name and a token of its own."
                    )
            callers[digest] = caller
        if not callers:
            raise ServeError(
                f"The token file {path} holds no token; write lines of NAME ROLE[,ROLE][@PROJECT] TOKEN."
            )
        return cls(callers)


def permits(caller: TokenUser, method: str, path: str, query: str) -> bool:
    """Whether the caller's roles allow the request; `path` and `query` are as in a WSGI environ."""
    if "service" in caller.roles:
        return True
    if method == "POST" and path == "/reshaper":
        return False
    if "admin" in caller.roles:
        return True
    if "reader" not in caller.roles or method != "GET":
        return False
    if caller.project_id is None:
        return True
    return path == "/usages" and dict(parse_qsl(query)).get("project_id") == caller.project_id


def authorize(caller: TokenUser, method: str, path: str, query: str) -> None:
    """Raises RequestRefused (403) where `permits` is false."""
    if not permits(caller, method, path, query):
        roles = ", ".join(sorted(caller.roles)) or "none"
        raise RequestRefused(FORBIDDEN, f"The roles of {caller.name} ({roles}) do not allow {method} {path}.")


def _words(text: str) -> set[str]:
    return {word.strip().lower() for word in text.split(",") if word.strip()}


def _parse_line(where: str, line: str) -> tuple[bytes, TokenUser]:
    words = line.split()
    host = words.pop().removeprefix("host=") if len(words) == 4 and words[3].startswith("host=") else None
    if len(words) != 3 or host == "":
        raise ServeError(f"{where} must be NAME ROLE[,ROLE][@PROJECT] TOKEN [host=HOST].")
    name, grant, token = words
    roles_text, at, project = grant.partition("@")
    roles = _words(roles_text)
    unknown = roles.difference(ROLES)
    if unknown or not roles or (at and not project):
        raise ServeError(
            f"{where} must grant some of {', '.join(ROLES)} (and @PROJECT, if any), not {grant!r}."
        )
    if host is not None and (roles != {"service"} or at):
        raise ServeError(
            f"{where} binds {name} to the host {host}, so it must grant service alone, not {grant!r}; leave "
            "host= out for an operator or a reader."
        )
    if token.startswith("sha256:"):
        if not re.fullmatch(r"sha256:[0-9a-fA-F]{64}", token):
            raise ServeError(f"{where} must hold 64 hexadecimal digits after sha256:.")
        digest = bytes.fromhex(token.removeprefix("sha256:"))
    elif len(token) < TOKEN_CHARACTERS_MIN:
        raise ServeError(
            f"{where} holds a token of fewer than {TOKEN_CHARACTERS_MIN} characters; make a longer one."
        )
    else:
        digest = hashlib.sha256(token.encode("ascii")).digest()
    if is_loose_uuid(host):
        host = str(uuid.UUID(host))
    return digest, TokenUser(name, project or None, frozenset(roles), host)


LOG = logging.getLogger(__name__)
T = TypeVar("T")

WRITES = ("POST", "PUT", "PATCH", "DELETE")
BODY_BYTES_MAX = 64 * 1024 * 1024
PATH_SAFE = "/:@!$&'()*+,;=-._~"
JSON = "application/json"
NAME_SHOWN_MAX = 16
PIECE_MEMBERS = 64
LONG_ANSWERS = ("/allocation_candidates", "/hosts/candidates")
SHORT_BYTES_MAX = 64 * 1024
FLEET, METRICS = "/fleet", "/metrics"
NOTES = "/hosts/"
"""Each host sends one a minute, too much for a log."""
HTML = "text/html; charset=utf-8"
MISDIRECTED = ProblemType(421)
HEALTH = ("/healthz", "/healthz/active")
"""What each client may ask, without a token; no path of Placement's API."""

StartResponse = Callable[[str, list[tuple[str, str]]], Any]


class Response(NamedTuple):
    """`tell` logs what was answered, once the answer is final."""

    status: int
    headers: list[tuple[str, str]]
    body: list[bytes]
    tell: Callable[[], None] = lambda: None


class _Payload(list[bytes]):
    """The answer's body; the server calls `close` when it is final."""

    close: Callable[[], None]


class NoJson:
    """Stands for a body that is not JSON. No schema accepts it, and its representation says why it is not."""

    def __init__(self, error: str) -> None:
        self._error = error

    def __repr__(self) -> str:
        return f"malformed JSON ({self._error})"


@dataclass(frozen=True)
class _AtOnce(Generic[T]):
    """The outcome of a request that waits for nothing."""

    result: Callable[[], T]
    is_over = True


class WsgiApplication:
    """A WSGI application (PEP 3333) over a core; `authenticate` identifies callers."""

    def __init__(self, core: Core, authenticate: Authenticator = noauth) -> None:
        self._core = core
        self._authenticate = authenticate

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] in HEALTH and environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            # For a balancer: /healthz while this process serves, /healthz/active while it also takes writes.
            is_well = environ["PATH_INFO"] == HEALTH[0] or self._core.takes_writes
            word = b"ok\n" if is_well else b"not active\n"
            shown = [("content-type", "text/plain"), ("content-length", str(len(word)))]
            start_response("200 OK" if is_well else f"503 {TITLES[503]}", shown)
            return (word if environ["REQUEST_METHOD"] == "GET" else b"",)
        is_page = "text/html" in environ.get("HTTP_ACCEPT", "") and environ["PATH_INFO"].startswith(FLEET)
        if (is_page or environ["PATH_INFO"] == METRICS) and environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            with long_computation():
                return self._page(dict(environ), start_response)
        try:
            with without_collection() if environ["PATH_INFO"] in LONG_ANSWERS else nullcontext():
                response = self._response(environ)
        except Unauthenticated as error:
            # In the form of OpenStack Placement's authentication middleware, which answers it there.
            body = {"message": str(error), "code": "401 Unauthorized", "title": TITLES[401]}
            sent = [("content-type", JSON), ("www-authenticate", "Bearer"), (REQUEST_ID, new_request_id())]
            response = Response(401, sent, [json.dumps(body).encode()])
        status, headers, payload, tell = response
        accept = environ.get("HTTP_ACCEPT")
        form = JSON
        if status >= 400 and payload and accept not in (None, "", "*/*", JSON):
            forms = parse_accept_header(accept, MIMEAccept)
            form = forms.best_match(("text/html", JSON), default="text/plain")
        if form != JSON:
            # The error as HTML or plain text, which the client prefers to JSON.
            content, title = json.loads(b"".join(payload)), f"{status} {TITLES[status]}"
            detail = content["errors"][0]["detail"] if "errors" in content else content["message"]
            text = f"{title}\n\n{detail}"
            if form == "text/html":
                page = f"<html>\n <head>\n  <title>{title}</title>\n </head>\n <body>\n  <h1>{title}</h1>\n  "
                text = f"{page}{html.escape(detail)}\n </body>\n</html>"
            headers = [(name, value) for name, value in headers if name != "content-type"]
            headers.append(("content-type", f"{form}; charset=UTF-8"))
            payload = [text.encode()]
        if environ["REQUEST_METHOD"] == "HEAD":
            payload = []
        headers.append(("content-length", str(sum(map(len, payload)))))
        start_response(f"{status} {TITLES.get(status) or HTTPStatus(status).phrase}", headers)
        answer = _Payload(payload)
        answer.close = tell
        return answer

    def _page(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """The page of the fleet, or of a host, for a browser; or the metrics.

        A browser asks its user for a name and a token (the password of Basic authentication), for that alone.
        Where callers are trusted it has none to send, and must name this machine as this machine does: else
        any web page could have it read the fleet under a name of its own (DNS rebinding).
        """
        scheme, _, given = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() == "basic":
            with contextlib.suppress(ValueError):
                environ["HTTP_X_AUTH_TOKEN"] = base64.b64decode(given).decode("latin-1").partition(":")[2]
            del environ["HTTP_AUTHORIZATION"]
        elif self._authenticate is noauth:
            environ.setdefault("HTTP_X_AUTH_TOKEN", "admin")
        is_head, query = environ["REQUEST_METHOD"] == "HEAD", environ.get("QUERY_STRING", "")
        environ |= {"REQUEST_METHOD": "GET", "HTTP_ACCEPT": JSON, "QUERY_STRING": f"{query}&every=1"}
        headers = [("content-type", HTML)]
        try:
            from agent.http.page import is_loopback

            if self._authenticate is noauth and not is_loopback(environ.get("HTTP_HOST", "")):
                raise RequestRefused(MISDIRECTED, "Without tokens this page is for localhost alone.")
            answer = self._response(environ)
            shown, sent = json.loads(b"".join(answer.body)), dict(answer.headers)
            if answer.status >= 400:
                raise RequestRefused(ProblemType(answer.status), shown["errors"][0]["detail"])
            standby_of = sent.get(ACTIVE_HEADER, "") if STALE_HEADER in sent else None
            status = 200
            if environ["PATH_INFO"] == METRICS:
                headers, text = [("content-type", fleet.METRICS_TYPE)], shown["text"]
            else:
                text = fleet.render(shown, query, standby_of)
        except (Unauthenticated, RequestRefused) as error:
            status = error.problem.status if isinstance(error, RequestRefused) else 401
            headers = [("content-type", "text/plain; charset=utf-8")]
            headers += [("www-authenticate", 'Basic realm="Plimsoll: any name, and a token"')] * (
                status == 401
            )
            text = f"{error}\n"
        content = text.encode()
        headers += [*fleet.page().headers.items(), ("content-length", str(len(content)))]
        start_response(f"{status} {TITLES.get(status) or HTTPStatus(status).phrase}", headers)
        return () if is_head else (content,)

    def whole(
        self, environ: Environ, run: Callable[[], T], tell: Callable[[], None]
    ) -> WholeRequest[T] | _AtOnce[T] | None:
        """Have the writer's thread run a write (`agent.http.server.Whole`).

        A balancer's question has its answer at once, also where each thread waits for a disk that hangs.

        That is two changes of threads less than if it waited for the writer on a thread of its own, and none
        has to wait for a disk that hangs. A long body has one, so that no other write waits while it is
        checked; so has a host's note, which waits for no disk.
        """
        if environ["PATH_INFO"] in HEALTH and environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return _AtOnce(run)
        is_write = environ["REQUEST_METHOD"] in WRITES and not environ["PATH_INFO"].startswith(NOTES)
        if not is_write or int(environ.get("CONTENT_LENGTH") or 0) > SHORT_BYTES_MAX:
            return None
        return self._core.submit_whole(run, tell, environ.get("HTTP_IDEMPOTENCY_KEY"))

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
        binding = Binding(caller.name, caller.host) if caller and caller.host else None
        answer = self._core.request(
            method,
            f"{target}?{query}" if query else target,
            body,
            headers=sent,
            admit=admit,
            failure=environ.get(FAILURE),
            binding=binding,
        )
        # Log a write with its caller. The name is cut, because under noauth it may be a token by mistake.
        level = logging.INFO if method in WRITES and not path.startswith(NOTES) else logging.DEBUG
        who = f"{caller.name[:NAME_SHOWN_MAX]!r}" if caller else "-"
        request_id = answer.headers.get(REQUEST_ID, "-")

        def tell() -> None:
            LOG.log(level, "%s %s: %d, for %s, %s", method, target, answer.status, who, request_id)

        headers = list(answer.headers.items())
        if "location" in answer.headers:
            host = environ.get("HTTP_HOST") or f"{environ['SERVER_NAME']}:{environ['SERVER_PORT']}"
            origin = f"{environ['wsgi.url_scheme']}://{host}{environ.get('SCRIPT_NAME', '')}"
            headers = [(name, f"{origin}{value}" if name == "location" else value) for name, value in headers]
        if answer.body is None:
            return Response(answer.status, headers, [], tell)
        return Response(answer.status, headers, list(in_pieces(answer.body)), tell)


def in_pieces(body: Any) -> Iterator[bytes]:
    """The JSON of the body, whose long members are empty then.

    While `json.dumps` runs no other thread does, nor while a long value is copied or given back to the
    memory: so it is dumped, and given back, in pieces.
    """
    if not (isinstance(body, dict) and any(map(_is_long, body.values()))):
        yield json.dumps(body).encode()
        return
    before = "{"
    for name, value in body.items():
        yield f"{before}{json.dumps(name)}: ".encode()
        yield from _long(value) if _is_long(value) else (json.dumps(value).encode(),)
        before = ", "
    yield b"}"


def _is_long(value: Any) -> bool:
    return isinstance(value, dict | list) and len(value) > PIECE_MEMBERS


def _long(value: Any) -> Iterator[bytes]:
    kind, members = type(value), list(value.items() if isinstance(value, dict) else value)
    value.clear()
    each = consume(members)
    before = "[" if kind is list else "{"
    while members:
        yield (before + json.dumps(kind(itertools.islice(each, PIECE_MEMBERS)))[1:-1]).encode()
        before = ", "
    yield b"]" if kind is list else b"}"


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


PORT_MAX = 65535
LIMITS = Limits(
    threads=16,  # so many requests each address answers at the same time
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


def tls_context(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """TLS 1.2 or newer, with a PEM certificate (and its chain) and its key.

    With `client_ca`, only for clients whose certificate one of its authorities issued. Raises ServeError.
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
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(client_ca)
        except OSError as error:
            raise ServeError(
                f"The authorities of clients in {client_ca} cannot be used ({error.strerror or error}); give "
                "PEM certificates, readable by this user."
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
        tls_client_ca: Path | None = None,
    ) -> None:
        """Check the addresses and files; open no socket yet.

        Tokens and TLS, if given, apply to every TCP address, including loopback. Raises ServeError where an
        address off loopback lacks tokens or TLS, or where a file or an address cannot be used.
        """
        parsed = [Bind.parse(text) for text in binds]
        if not parsed:
            raise ServeError("Nothing to listen at: give at least one address, HOST:PORT or unix:PATH.")
        if (tls_cert is None) != (tls_key is None):
            raise ServeError("TLS needs both files, the certificate and its key.")
        if tls_client_ca is not None and tls_cert is None:
            raise ServeError("Clients show certificates over TLS only: give this server's, and its key.")
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
        context = None
        if tls_cert is not None and tls_key is not None:
            context = tls_context(tls_cert, tls_key, tls_client_ca)
        self._binds = parsed
        self._listeners = []
        for bind in parsed:
            is_tcp = bind.path is None
            application = WsgiApplication(core, authenticate if is_tcp else noauth)
            server = BoundedServer(
                bind.path or (bind.host, bind.port),
                application,
                LIMITS,
                name="placement",
                json_errors=False,
                tls=context if is_tcp else None,
                whole=application.whole,
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


_ADDRESS = re.compile(r"https?://[A-Za-z0-9._\-\[\]:%]+/?", re.ASCII)
"""What a server may name as its address: no user, no path, nothing that does not fit into a header."""


def serve(
    state_dir: Path | None,
    binds: Sequence[str],
    *,
    journal: str | None = None,
    address: str | None = None,
    accept_loss: bool = False,
    flavors: Mapping[str, str] | None = None,
    on_ready: Callable[[list[str]], None] | None = None,
    **files: Path | None,
) -> None:
    """Open the state directory and serve it until SIGTERM or SIGINT. Call this on the main thread.

    A string in its place is the DSN for `Core.open_shared`, and `address` is where clients reach this server:
    by default the first bind. `flavors` {name: query for candidates} are those of GET /fleet. `on_ready` is
    called with the addresses when requests are answered there. `files` are those that `Server` takes.
    Raises ServeError as `Server` does, and DatabaseError as `Core.open` does.
    """
    listens = threading.Event()  # clients reach it: it may be the active one
    # Signals come into a queue. An Event does not fit: a second signal within its handler would deadlock.
    ended: SimpleQueue[int] = SimpleQueue()
    before = {
        number: signal.signal(number, lambda which, _: ended.put(which))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        if journal is not None:
            if state_dir is not None and (state_dir / FILE_NAME).exists():
                raise ServeError(
                    f"{state_dir} has a {FILE_NAME}, which --journal would leave out: export it and import "
                    "it at these servers, and give another --state-dir."
                )
            first = Bind.parse(binds[0])
            if address is None and (first.path or ipaddress.ip_address(first.host).is_unspecified):
                raise ServeError(
                    f"No client on another machine reaches {first.text}, which standbys would name to it: "
                    "say with --advertise where clients reach this server, as https://NAME:PORT."
                )
            address = address or f"http{'s' if files.get('tls_cert') else ''}://{first.text}"
            if not _ADDRESS.fullmatch(address):
                raise ServeError(f"--advertise takes http://NAME:PORT or https://NAME:PORT, not {address!r}.")
            opened = Core.open_shared(
                journal, address, accept_loss=accept_loss, state_dir=state_dir, leads=listens.is_set
            )
        elif address is not None or accept_loss:
            raise ServeError(
                "--advertise and --accept-loss are for servers that share a --journal; this one has none."
            )
        elif state_dir is not None:
            opened = Core.open(state_dir)
        else:
            raise ServeError("Say what to serve: --state-dir DIR, or --journal DSN.")
        with (
            contextlib.closing(opened) as core,
            Server(core, binds, **files) as server,
        ):
            core.notes.flavors = flavors or {}
            gc.freeze()  # what is loaded has no cycles, and is too much to be searched for them
            listens.set()
            LOG.info("Serving Placement from %s at %s.", core.place, ", ".join(server.addresses))
            if on_ready is not None:
                on_ready(server.addresses)
            while True:  # the wait is bounded: a signal just before `get` does not interrupt it
                with contextlib.suppress(Empty):
                    ended.get(timeout=SIGNAL_POLL_S)
                    break
            LOG.info("Stopping.")
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
