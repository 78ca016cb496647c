"""One HTTP request on one connection to the agent's Unix socket, within a deadline; and the way there by ssh.

`exchange` waits in the thread, `exchange_async` in the event loop; all else is the same for both.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from plimsoll.errors import BadAnswer, Forbidden, InvalidRequest, OutcomeUnknown, PlimsollError, Unavailable
from plimsoll.version import __version__

if TYPE_CHECKING:
    import subprocess
    import tempfile

SOCKET_DEFAULT = "/run/plimsoll/plimsoll.sock"
SOCKET_VARIABLE = "PLIMSOLL_SOCKET"
PATH_BYTES_MAX = 107
REPLY_BYTES_MAX = 256 * 1024 * 1024
MADE_BY_CHARS_MAX = 64
CONNECT_PAUSE_S = 0.02
CLOSE_S = 2.0
LIMIT_MAX_S = 1e6
"""Eleven days, which is no limit; the kernel takes not many more."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CHUNK = 256 * 1024
_HOST = re.compile(r"[A-Za-z0-9_.:][A-Za-z0-9_.:%-]*")


class Words(NamedTuple):
    """How a sentence calls what names the socket, and what names the time to wait."""

    socket: str = f"Agent(PATH) or {SOCKET_VARIABLE}"
    timeout: str = "timeout="


class Reply(NamedTuple):
    """A whole answer; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def agent_version(self) -> str:
        """Empty where the agent does not say it."""
        return self.headers.get("plimsoll-version", "")


class Broken(Exception):
    """No whole answer came; the cause says why. `asked`: the agent may have executed the request."""

    def __init__(self, cause: Exception, asked: bool) -> None:
        super().__init__(str(cause) or type(cause).__name__)
        self.cause = cause
        self.asked = asked


def request_text(method: str, path: str, body: Any, made_by: str, until: str = "") -> bytes:
    """The request as it is sent; `body` is JSON-ready, None: without one. `until` as of `Door.until`.

    Raises InvalidRequest where a line of it would end elsewhere, or the body cannot be JSON.
    """
    if not re.fullmatch(r"[A-Z]+ /[!-~]*", f"{method} {path}"):
        raise InvalidRequest(f"A request is a method and a path in printable ASCII, not {method!r} {path!r}.")
    agent = f"plimsoll/{__version__} ({made_by})" if made_by else f"plimsoll/{__version__}"
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"User-Agent: {agent}", "Connection: close"]
    head += [f"Plimsoll-Until: {until}"] if until else []
    payload = b""
    if body is not None:
        try:
            payload = json.dumps(body).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"What is asked for cannot be sent as JSON: {error}.") from error
        head += ["Content-Type: application/json", f"Content-Length: {len(payload)}"]
    return "\r\n".join([*head, "", ""]).encode("ascii") + payload


def checked_maker(made_by: str) -> str:
    """The name of the program that asks, as it goes into a header. Raises InvalidRequest."""
    if len(made_by) > MADE_BY_CHARS_MAX or not re.fullmatch(r"[ -'*-~]*", made_by):
        raise InvalidRequest(
            f"made_by has at most {MADE_BY_CHARS_MAX} letters of ASCII without parentheses, not {made_by!r}"
        )
    return made_by


def checked_limit(timeout: float) -> float:
    """How many seconds to wait; at most LIMIT_MAX_S. Raises InvalidRequest."""
    if not timeout >= 0:  # nor is nan
        raise InvalidRequest(f"timeout is a number of seconds from 0 on, not {timeout!r}")
    return min(timeout, LIMIT_MAX_S)


class _Answer:
    """An answer that comes in pieces."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._head: Mapping[str, str] | None = None
        self._status = self._begin = 0

    def take(self, chunk: bytes) -> Reply | None:
        """The whole answer, or None where more is to come; an empty chunk is the end.

        Raises ValueError where this is no such answer, ConnectionError where it is cut.
        """
        self._text += chunk
        if self._head is None:
            end = self._text.find(b"\r\n\r\n")
            if end >= 0:
                self._read_head(bytes(self._text[:end]).decode("latin-1"))
                self._begin = end + 4
        if self._head is not None:
            there = len(self._text) - self._begin
            size = int(self._head.get("content-length", there if not chunk else REPLY_BYTES_MAX))
            if there >= size:
                body = bytes(self._text[self._begin : self._begin + size])
                return Reply(self._status, self._head, body)
        if len(self._text) > REPLY_BYTES_MAX:
            raise ValueError("the answer has no end")
        if not chunk:
            raise ConnectionResetError(
                "the answer is cut" if self._text else "Remote end closed connection without response"
            )
        return None

    def _read_head(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise ValueError(first)
        self._status = int(rest[:3])
        pairs = (line.partition(":") for line in lines)
        self._head = {name.strip().lower(): value.strip() for name, _, value in pairs}


def exchange(path: str, request: bytes, deadline: float) -> Reply:
    """The answer to one request; `deadline` is of time.monotonic. Raises Broken."""
    asked = False
    try:
        with socket.socket(socket.AF_UNIX) as sock:

            def left_s() -> float:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError("timed out")
                sock.settimeout(left)
                return left

            while not asked:
                try:
                    left_s()
                    sock.connect(path)
                    asked = True
                except BlockingIOError:  # the agent's queue of connections is full
                    time.sleep(min(CONNECT_PAUSE_S, left_s()))
            answer = _Answer()
            # The agent may refuse a request before it has read all of it: then read its answer.
            with suppress(BrokenPipeError, ConnectionResetError):
                for at in range(0, len(request), _CHUNK):
                    left_s()
                    sock.sendall(request[at : at + _CHUNK])
            while True:
                left_s()
                reply = answer.take(sock.recv(_CHUNK))
                if reply is not None:
                    return reply
    except (OSError, ValueError) as error:
        raise Broken(error, asked) from error


async def exchange_async(path: str, request: bytes, deadline: float) -> Reply:
    """The same in the event loop."""
    import asyncio

    asked = False
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            loop = asyncio.get_running_loop()
            with socket.socket(socket.AF_UNIX) as sock:
                sock.setblocking(False)
                while not asked:
                    try:
                        sock.connect(path)  # to a Unix socket that waits for nothing
                        asked = True
                    except BlockingIOError:
                        await asyncio.sleep(CONNECT_PAUSE_S)
                answer = _Answer()
                with suppress(BrokenPipeError, ConnectionResetError):
                    await loop.sock_sendall(sock, request)
                while True:
                    reply = answer.take(await loop.sock_recv(sock, _CHUNK))
                    if reply is not None:
                        return reply
    except (OSError, ValueError) as error:
        raise Broken(error, asked) from error


sleep = time.sleep


async def sleep_async(seconds: float) -> None:
    """Wait in the event loop."""
    import asyncio

    await asyncio.sleep(seconds)


def parsed(reply: Reply, place: str, words: Words, key: str = "") -> Any:
    """The JSON of an answer, to a write where there is a key. Raises BadAnswer."""
    try:
        return json.loads(reply.body)
    except (ValueError, RecursionError) as error:
        unread = BadAnswer(
            f"The process at {place} does not answer like an agent (status {reply.status}, no JSON); "
            f"is {words.socket} right?"
        )
        raise told_done(unread, reply, key) from error


def told_done(error: PlimsollError, reply: Reply, key: str) -> PlimsollError:
    """The error of an answer that cannot be read; of a write it says that it is done, as the status does."""
    error.key = key
    if key and reply.status < 400:
        error.done = True
        error.message += f" By the status {reply.status} the write is done; its key is {key}."
    return error


class Door:
    """Where the agent listens: the path of a socket, or `ssh://[USER@]HOST[:PORT][/PATH/OF/SOCKET]`.

    By ssh, the system's `ssh` forwards the socket of the host to one in a directory of this user alone, from
    the first request until `close`. It asks for no password: the host's key and the user's must be known.
    """

    def __init__(self, address: str, words: Words) -> None:
        self.place = self.path = address
        self._lock = Lock()
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._ssh: subprocess.Popen[bytes] | None = None
        self._command: list[str] = []
        if address.startswith("ssh://"):
            parts, form = urlsplit(address), "ssh://[USER@]HOST[:PORT][/PATH/OF/SOCKET]"
            if parts.password is not None:
                raise InvalidRequest(
                    f"{form} has no password: ssh asks for none, so {parts.hostname} needs a key"
                )
            try:
                port = parts.port
            except ValueError as error:
                raise InvalidRequest(f"{form} names no port in {address!r}: {error}") from error
            if not parts.hostname or not _HOST.fullmatch(parts.hostname) or (parts.username or "")[:1] == "-":
                raise InvalidRequest(f"{form} names no host in {address!r}")
            self._command = ["ssh", "-N", "-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes"]
            self._command += ["-o", "ControlPath=none", "-p", str(port)] if port else []
            self._command += ["-l", parts.username] if parts.username else []
            self._remote, self._host = parts.path or SOCKET_DEFAULT, parts.hostname
        elif len(os.fsencode(address)) > PATH_BYTES_MAX:
            raise InvalidRequest(
                f"{words.socket}: {address} is too long; the path of a socket has at most "
                f"{PATH_BYTES_MAX} bytes"
            )

    def open(self) -> str | None:
        """The path of the socket to connect to; None: ask again in a moment. Raises Unavailable."""
        if not self._command:
            return self.path
        with self._lock:
            if self._ssh is None:
                self._start()
            assert self._ssh is not None
            ended = self._ssh.poll()
        if ended is not None:
            said = self.complaint()
            self.close()
            raise Unavailable(f"ssh to {self.place} ended with {ended}" + (f": {said}" if said else ""))
        return self.path if Path(self.path).exists() else None

    def until(self, deadline: float) -> str:
        """That deadline of time.monotonic for an agent of the same boot; empty where the agent is elsewhere.

        An agent begins nothing for a caller that waits no longer, and may have done something else since.
        """
        with suppress(OSError):
            if not self._command:
                return f"{BOOT_ID.read_text('ascii').strip()} {deadline:.6f}"
        return ""

    def complaint(self) -> str:
        """The last line that ssh wrote; empty where it wrote none, and for a path."""
        if self._directory is None:
            return ""
        lines = (Path(self._directory.name) / "log").read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _start(self) -> None:
        import subprocess
        import tempfile

        self._directory = tempfile.TemporaryDirectory(prefix="plimsoll-")
        self.path = f"{self._directory.name}/s"
        command = [*self._command, "-L", f"{self.path}:{self._remote}", "--", self._host]
        try:
            with Path(self._directory.name, "log").open("wb") as log:
                self._ssh = subprocess.Popen(  # noqa: S603 - no shell, and the host's name is checked
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            self._directory.cleanup()
            raise Unavailable(f"ssh cannot be started for {self.place}: {error}") from error
        self._end = weakref.finalize(self, self._ssh.terminate)

    def close(self) -> None:
        """End ssh; the next request starts it again."""
        with self._lock:
            if self._ssh is not None and self._directory is not None:
                import subprocess

                self._end.detach()
                self._ssh.terminate()
                try:
                    self._ssh.wait(CLOSE_S)
                except subprocess.TimeoutExpired:  # a signal may come too soon for it
                    self._ssh.kill()
                    self._ssh.wait()
                self._directory.cleanup()
                self._ssh = self._directory = None


def failure(broken: Broken, door: Door, timeout: float, words: Words, key: str = "") -> PlimsollError:
    """The error where no answer came; `key` is that of a write, which may be executed.

    `asked` among its details: the agent may have executed the request.
    """
    error, place = broken.cause, door.place
    service = f"is the service running (systemctl status plimsoll-agent)? Another path: {words.socket}"
    kind: type[PlimsollError] = Unavailable
    if isinstance(error, FileNotFoundError):
        sentence = f"no agent listens at {place}: the socket does not exist; {service}"
    elif isinstance(error, ConnectionRefusedError) and not Path(door.path).is_socket():
        sentence = (
            f"{place} is no socket; {words.socket} must name the agent's, "
            f"which is {SOCKET_DEFAULT} unless [api] socket names another"
        )
    elif isinstance(error, ConnectionRefusedError):
        sentence = f"no agent listens at {place}: the socket is left over from an agent that ended; {service}"
    elif isinstance(error, PermissionError):
        kind = Forbidden
        sentence = (
            f"this user may not open {place}; ask for membership in the group that owns the socket, "
            "or run the command as root"
        )
    elif isinstance(error, TimeoutError):
        sentence = (
            f"the agent at {place} did not answer within {timeout:g} s; it may still execute the request; "
            f"its log says what it is busy with, {words.timeout} waits longer"
        )
    else:
        kind = BadAnswer if broken.asked else Unavailable
        reason = f"{broken}; ssh: {said}" if (said := door.complaint()) else str(broken)
        sentence = f"the agent at {place} gave no usable answer ({reason}); {service}"
    kind = OutcomeUnknown if key and broken.asked else kind
    failed = kind(sentence, details={"asked": broken.asked}, key=key)
    failed.__cause__ = error
    return failed
