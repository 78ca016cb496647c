"""Raw requests at the door and at cheroot, the server before it: the same verdicts, or a known reason.

A case is what one client sends: up to three requests. Half of the cases have no fault; in the others some are
odd, bytes are replaced, the end is cut off, or all is noise. The door gets them in parts of random lengths,
over a plain socket or TLS.
"""

from __future__ import annotations

import json
import random
import re
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from cheroot import server as cheroot_server
from cheroot import wsgi

from agent.http.server import BoundedServer, Limits, Listener
from kits.served_core_client import make_certificate

MAX_BYTES = 4096
PATIENCE_S = 20.0
SILENCE_S = 0.2
"""So long a TLS client, which cannot close one direction alone, waits for an answer before it leaves."""
CLIENTS = 8
LIMITS = Limits(
    threads=4,
    backlog=512,
    header_bytes=MAX_BYTES,
    body_bytes=MAX_BYTES,
    kept_alive=256,
    connections=512,
    request_timeout_s=PATIENCE_S,
)


_ENDS = "RFC 9112, 2.2: a CR or an LF alone"
_VERSION = "RFC 9112, 2.3: no version at all is malformed; it was an unknown one"
_TARGET = "RFC 9112, 3.2: a target with a fragment, a host, or what it has to escape"
_HEADER = "RFC 9112, 5.1: a space before a colon, or no name, or no colon"
_METHOD = "a method that is not registered; so reads what follows a body without a length"
_LENGTH = "RFC 9112, 6.3: two lengths, or a length that is no number of 64 bits"
_CODING = "RFC 9112, 6.3: a length beside an encoding, or one whose last is not chunked"
REASONS = {
    "A request has one Host header.": "RFC 9112, 3.2: HTTP/1.1 without a Host header, or two of them",
    "Invalid header token.": _HEADER,
    "Unexpected whitespace after header value.": "RFC 9112, 5.2: a header folded over two lines",
    "Unexpected space after start line.": "RFC 9112, 2.2: the first header begins with a space",
    "Invalid header value char.": "RFC 9110, 5.5: a control character in a value",
    "Missing expected LF after header value.": _ENDS,
    "Missing expected CR after header value.": _ENDS,
    "Expected CRLF after version.": _ENDS,
    "Expected CRLF.": _ENDS,
    "Expected LF after CR.": _ENDS,
    "Expected LF after headers.": _ENDS,
    "Missing expected LF after version.": _ENDS,
    "Missing expected CR after response line.": _ENDS,
    "Invalid method encountered.": _METHOD,
    "Expected space after method.": _METHOD,
    "Expected HTTP/2 Connection Preface.": _METHOD,
    "Expected dot.": _VERSION,
    "Expected HTTP/, RTSP/ or ICE/.": _VERSION,
    "Invalid HTTP version.": _VERSION,
    "Invalid major version.": _VERSION,
    "Invalid minor version.": _VERSION,
    "The server speaks HTTP/1.1.": "an old or new version is told before what else is wrong",
    "Invalid char in url path.": _TARGET,
    "Invalid characters in url.": _TARGET,
    "Unexpected char in url server.": _TARGET,
    "Invalid char in url query.": _TARGET,
    "Invalid char in url fragment start.": _TARGET,
    "Unexpected start char in url.": _TARGET,
    "Unexpected char in url schema.": _TARGET,
    "The target must be a path.": _TARGET,
    "Duplicate Content-Length.": _LENGTH,
    "Invalid character in Content-Length.": _LENGTH,
    "Content-Length overflow.": _LENGTH,
    "Empty Content-Length.": _LENGTH,
    "Content-Length can't be present with Transfer-Encoding.": _CODING,
    "Transfer-Encoding can't be present with Content-Length.": _CODING,
    "Invalid `Transfer-Encoding` header value.": _CODING,
    "Request has invalid `Transfer-Encoding`.": _CODING,
    "The body must come with a Content-Length.": "any encoding is 411, as chunked was; others were 501",
    "The head of the request is too long.": "a head that is too long is 431; it was 413, or 414",
    "The request ended within its head.": "the door says first that the head has no end",
}
"""The door's sentence: why it refuses what the server before it did not, or refused otherwise."""
NO_EXPECT = "the application is not told of Expect: the door deals with it"
NO_UNDERSCORE = "a header with an underscore could stand for one with a dash, and is dropped"
JOINED = "a header that comes twice has both values (RFC 9110, 5.2); it was the last one"
NO_UPGRADE = "behind a request that asks for an upgrade no further one is read"
CLOSE_WINS = "close in any Connection header closes; it was the last one that counted"
EMPTY_LINES = "empty lines before a request are skipped (RFC 9112, 2.2)"
AFTER_HEAD = "the connection goes on after HEAD, and ended before"
DECODED = "the path of OPTIONS is decoded, as that of any method"
HARMLESS = (NO_EXPECT, NO_UNDERSCORE, JOINED, DECODED)
ALL = (*REASONS.values(), *HARMLESS, NO_UPGRADE, CLOSE_WINS, EMPTY_LINES, AFTER_HEAD)
"""Also what a client may send that makes no mistake has these differences."""


class Answer(NamedTuple):
    """`said` is what the application was asked, or why the door did not ask it."""

    status: str
    said: str


def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """Says what it was asked, in a header."""
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    names = ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "CONTENT_TYPE", "CONTENT_LENGTH")
    asked = {name: text for name, text in environ.items() if name in names or name.startswith("HTTP_")}
    start_response("200 OK", [("X-Said", json.dumps((sorted(asked.items()), len(body), crc32(body))))])
    return []


class _Former(cheroot_server.HTTPRequest):
    """As the former door had it: a body must have a length."""

    def read_request_headers(self) -> bool:
        try:
            read = super().read_request_headers()
        except UnboundLocalError:  # it ended the server: the first header begins with a space
            self.simple_response("500 Internal Server Error")
            return False
        if read and self.chunked_read:
            self.simple_response("411 Length Required")
            return False
        return bool(read)


class _FormerConnection(cheroot_server.HTTPConnection):
    RequestHandlerClass = _Former


class Servers(NamedTuple):
    former: Path
    plain: Path
    over_tls: tuple[str, int]
    trust: ssl.SSLContext


@contextmanager
def servers(directory: Path) -> Iterator[Servers]:
    """The former server at a Unix socket; the door at another one, and over TLS."""
    certificate, key = make_certificate(directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    doors = [
        Listener(BoundedServer(directory / "door", application, LIMITS), "door"),
        Listener(BoundedServer(("127.0.0.1", 0), application, LIMITS, tls=context), "door over TLS"),
    ]
    former = wsgi.Server(
        str(directory / "former"), application, numthreads=2 * CLIENTS, request_queue_size=512, timeout=3
    )
    former.ConnectionClass = _FormerConnection
    former.error_log = lambda *_, **__: None
    former.max_request_header_size = former.max_request_body_size = MAX_BYTES
    former.prepare()
    thread = threading.Thread(target=former.serve, daemon=True)
    thread.start()
    for door in doors:
        door.start()
    host, _, port = doors[1].address.rpartition(":")
    trust = ssl.create_default_context(cafile=str(certificate))
    try:
        yield Servers(directory / "former", directory / "door", (host, int(port)), trust)
    finally:
        for door in doors:
            door.stop()
        former.stop()
        thread.join()


# What is sent

METHODS = (b"GET", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE")
ODD_METHODS = (b"HEAD", b"FOO", b"get", b"CONNECT", b"G ET", b"PRI", b"")
TARGETS = (b"/", b"/a/b?c=d", b"/%2F/%41", b"/%C3%A4", b"/;x=y?%2F", b"/" + b"a" * 3000)
ODD_TARGETS = (
    *(b"*", b"//x//y", b"http://h/x", b"/a b", b"/\xc3\xa4", b"/%", b"/%zz", b"x", b"/a?b?c#d", b"/\x01"),
    *(b"/a\tb", b"/\x7f", b"/" + b"a" * 5000),
)
VERSIONS = (b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.2", b"HTTP/1", b"http/1.1", b"", b"HTTP/11.1")
HEADERS = (
    *(
        b"Content-Type: application/json",
        b"X-A: b",
        b"x-a: C",
        b"X_A: b",
        b"X-R: \t v \t",
        b"X-B: \xff",
        b"X-E:",
    ),
    *(b"Connection: keep-alive", b"Expect: 100-continue", b"Expect: x", b"X-Long: " + b"a" * 500),
    *(b"Accept: a", b"Accept: b", b"Authorization: q", b"Cookie: a=b", b"Cookie: c=d"),
)
ODD_HEADERS = (
    *(b"Host: y", b"Host:", b"X-A : b", b" X-A: b", b"X-A:b\x00c", b"NoColon", b": empty", b"X-B: a\rb"),
    *(b"Connection: close", b"Connection: upgrade\r\nUpgrade: h2c", b"Transfer-Encoding: chunked"),
    *(b"Transfer-Encoding: identity", b"Transfer-Encoding: gzip, chunked", b"X-A: b\r\n folded"),
    *(b"X-Long: " + b"a" * 3000, b"X-Long: " + b"a" * 5000, b"Authorization: z"),
)
BODIES = (b"hello", b"0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"x" * 4096, b"x" * 4097, b"x" * 70_000)
LENGTHS = (b"-5", b"+5", b"0x5", b"5 5", b"", b"99999999999999999999", b"5,5", b"\xb2", b"1_0")


def valid_request(draw: random.Random) -> bytes:
    """One in which nothing is wrong, but for a body that may be too long."""
    body = draw.choice(BODIES) if draw.random() < 0.7 else b""
    headers = [b"Host: x", *draw.choices(HEADERS, k=draw.choice((0, 1, 1, 2, 3)))]
    if body or draw.random() < 0.5:
        headers.append(b"Content-Length: %d" % len(body))
    draw.shuffle(headers)
    first = draw.choice(METHODS) + b" " + draw.choice(TARGETS) + b" HTTP/1.1"
    return b"\r\n".join((first, *headers, b"", body))


def odd_request(draw: random.Random) -> bytes:
    """One in which something is wrong, or all is well by chance."""
    body = draw.choice(BODIES) if draw.random() < 0.7 else b""
    headers = [b"Host: x"] if draw.random() < 0.95 else []
    headers += draw.choices((*HEADERS, *ODD_HEADERS), k=draw.choice((0, 0, 1, 1, 2, 3)))
    if body and draw.random() < 0.85:
        right = b"%d" % (len(body) + draw.choice((0,) * 10 + (1, -1)))
        headers.append(b"Content-Length: " + (draw.choice(LENGTHS) if draw.random() < 0.1 else right))
    if draw.random() < 0.04:
        headers.append(b"Content-Length: %d" % len(body))
    draw.shuffle(headers)
    end = draw.choice((b"\n", b"\r", b"\n\r")) if draw.random() < 0.03 else b"\r\n"
    method = draw.choice(ODD_METHODS if draw.random() < 0.2 else METHODS)
    target = draw.choice(ODD_TARGETS if draw.random() < 0.2 else TARGETS)
    version = draw.choice(VERSIONS) if draw.random() < 0.1 else b"HTTP/1.1"
    first = (b"\r\n" if draw.random() < 0.03 else b"") + b" ".join((method, target, version))
    return end.join((first, *headers, b"", body))


def one_case(draw: random.Random, *, valid: bool) -> bytes:
    """What one client sends."""
    make = valid_request if valid else odd_request
    sent = bytearray(b"".join(make(draw) for _ in range(draw.choice((1, 1, 1, 1, 2, 3)))))
    kind = 1.0 if valid else draw.random()
    if kind < 0.1:
        del sent[draw.randrange(len(sent) + 1) :]
    elif kind < 0.2:
        for _ in range(draw.randrange(1, 4)):
            sent[draw.randrange(min(len(sent), 200))] = draw.randrange(256)
    elif kind < 0.23:
        sent[:] = draw.randbytes(draw.randrange(1, 100))
    return bytes(sent)


# What is answered


def ask(sock: socket.socket, parts: list[bytes]) -> tuple[Answer, ...]:
    """The answers until the server closes, or for a TLS client is silent."""
    is_tls = isinstance(sock, ssl.SSLSocket)
    sock.settimeout(PATIENCE_S)
    with suppress(OSError):
        for part in parts:
            sock.sendall(part)
        if not is_tls:
            sock.shutdown(socket.SHUT_WR)
    if is_tls:
        sock.settimeout(SILENCE_S)
    received = b""
    with suppress(OSError):
        while chunk := sock.recv(65536):
            received += chunk
    answers = []
    for status, rest in re.findall(
        rb"HTTP/1\.[01] (?!100)(\d\d\d) [^\r]*\r\n(.*?)(?=HTTP/1\.[01] \d\d\d |\Z)", received, re.DOTALL
    ):
        said = re.search(rb"^X-Said: ([^\r]*)", rest, re.MULTILINE) or re.search(
            rb'"message": "([^"]*)', rest
        )
        answers.append(Answer(status.decode(), said[1].decode() if said else ""))
    return tuple(answers)


def in_parts(sent: bytes, draw: random.Random) -> list[bytes]:
    """As the network may deliver it."""
    cuts = sorted(draw.randrange(len(sent) + 1) for _ in range(draw.choice((0, 1, 2, 5))))
    return [sent[start:end] for start, end in zip((0, *cuts), (*cuts, len(sent)), strict=True)]


NOTHING = Answer("", "")


class Comparison:
    """What came of many cases: how many differed for which reason, and those that differed for none."""

    def __init__(self) -> None:
        self.cases = 0
        self.same = 0
        self.reasons: Counter[str] = Counter()
        self.problems: list[str] = []

    def run(self, to: Servers, seed: int, count: int) -> None:
        """Compare so many cases more, of which every other one is valid."""
        with ThreadPoolExecutor(CLIENTS) as pool:
            for _ in pool.map(
                lambda number: self._one(to, f"{seed}/{number}", number % 2 == 0), range(count)
            ):
                pass

    def _one(self, to: Servers, seed: str, valid: bool) -> None:
        draw = random.Random(seed)
        sent = one_case(draw, valid=valid)
        parts = in_parts(sent, draw)
        with _connected(to.former) as sock:
            former = ask(sock, [sent])
        with _connected(to.plain) as sock:
            door = ask(sock, parts)
        self.cases += 1
        if draw.random() < 0.5:
            with (
                socket.create_connection(to.over_tls, PATIENCE_S) as plain,
                to.trust.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
            ):
                over_tls = ask(sock, parts)
            # What is both malformed and too long gets the word for what is read first.
            both = [pair for pair in zip(over_tls, door, strict=False) if _differ(*pair)]
            if len(over_tls) > len(door) or any(
                {tls.status, plain.status} != {"400", "431"} for tls, plain in both
            ):
                self.problems.append(f"{seed}: {over_tls} over TLS, {door} else: {sent[:300]!r}")
        pairs = zip((*former, NOTHING), (*door, NOTHING), strict=False)
        first = next((pair for pair in pairs if _differ(*pair)), None)
        if first is None:
            self.same += 1
            return
        reason = reason_of(sent, *first)
        if reason is None or (valid and reason not in HARMLESS):
            self.problems.append(f"{seed}: {first[0]} before, {first[1]} now: {sent[:300]!r}")
        else:
            self.reasons[reason] += 1


def _differ(former: Answer, door: Answer) -> bool:
    """Each has its own words for a refusal."""
    return former.status != door.status or (door.status == "200" and former != door)


def reason_of(sent: bytes, former: Answer, door: Answer) -> str | None:
    """Why the first answers that differ do so, where that is known."""
    asks_upgrade = re.search(rb"\nupgrade:", sent, re.IGNORECASE)
    if former.status == door.status == "200":
        (was, *was_body), (is_now, *body) = (json.loads(each.said) for each in (former, door))
        before, now = dict(was), dict(is_now)
        reasons = [_reason_of_value(sent, name, before.get(name), now.get(name)) for name in before | now]
        return None if None in reasons or was_body != body else next(filter(None, reasons))
    if door.said in REASONS and door.status != "200":
        return REASONS[door.said]
    if door == NOTHING and asks_upgrade:
        return NO_UPGRADE
    if door == NOTHING and re.search(rb"\nconnection: close", sent, re.IGNORECASE):
        return CLOSE_WINS
    if former == NOTHING and b"HEAD " in sent:
        return AFTER_HEAD
    if former.status == "400" and (door == NOTHING or re.search(rb"[^\r\n](\r\n)+[A-Z]* /", sent)):
        return EMPTY_LINES
    return None


def _reason_of_value(sent: bytes, name: str, before: str | None, now: str | None) -> str | None:
    """ "" where the value is the same, None where there is no reason."""
    if before == now:
        return ""
    if name == "HTTP_EXPECT" and now is None:
        return NO_EXPECT
    if name == "PATH_INFO" and b"OPTIONS " in sent:
        return DECODED
    if before is not None and now is not None and now.endswith(f", {before}"):
        return JOINED
    if re.search(rb"\n[^\r\n:]*_[^\r\n]*:", sent):
        return NO_UNDERSCORE
    return None


def _connected(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(PATIENCE_S)
    sock.connect(str(path))
    return sock
