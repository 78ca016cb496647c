"""Logs in the journal's native protocol: one datagram per record, with fields to search for.

    journalctl CONSUMER=5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69
    journalctl MESSAGE_ID=34a86d1bba3f415a8c30a5439c901f2b

Source: https://systemd.io/JOURNAL_NATIVE_PROTOCOL/
"""

import logging
import os
import re
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from agent.log import PRIORITIES, Formatter

SOCKET = Path("/run/systemd/journal/socket")
IDENTIFIER = "plimsoll"
SEND_TIMEOUT_S = 1.0
FIELD_BYTES_MAX = 48 * 1024
"""A record with its fields stays below the default limit of a datagram (net.core.wmem_default)."""
FIELDS_MAX = 32

MESSAGE_IDS = {
    "ready": "7c35dd1af6bb440fbd1c7ffc6986e314",
    "degraded": "34a86d1bba3f415a8c30a5439c901f2b",
    "claim": "aed29213c10842cfbe3ee7ba31ec9f4f",
    "release": "199c002c86d94ca59f343564dd3beb6b",
    "move": "7234572d3316498ea543c936b9f750e6",
    "gate": "36ef4d1a39ee42b5911599a57829b6fa",
    "reshape": "90ef2f51013d4b51a54d785e87467fb4",
    "finding": "518f8b405a5c4b7695fb5ee5f8a5dbfa",
    "healed": "2e5bd2649c314391ae1f33bc31b6f4f7",
}
"""{event: MESSAGE_ID}; docs/seeing.md lists them."""

_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,62}")


class JournalHandler(logging.Handler):
    """Sends each record to the journal, or to `fallback` if that fails.

    `formatter` must be an `agent.log.Formatter`, which masks secrets.
    """

    def __init__(self, fallback: logging.Handler, path: Path = SOCKET) -> None:
        """Connect to the journal's socket at `path`. Raises OSError where no journal listens."""
        super().__init__()
        self._path = str(path)
        self._fallback = fallback
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(SEND_TIMEOUT_S)
        try:
            self._socket.connect(self._path)
        except OSError:
            self._socket.close()
            raise

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record; waits at most SEND_TIMEOUT_S for the journal (logging.Handler)."""
        message, given = self.formatter.masked(record)  # type: ignore[union-attr]
        exception = given.pop("exception", None)
        fields: list[tuple[str, Any]] = [
            ("MESSAGE", f"{message}\n{exception}" if exception else message),
            ("PRIORITY", PRIORITIES.get(record.levelname, 6)),
            ("SYSLOG_IDENTIFIER", IDENTIFIER),
            ("LOGGER", record.name),
            ("CODE_FILE", record.pathname),
            ("CODE_LINE", record.lineno),
            ("CODE_FUNC", record.funcName),
        ]
        if given.get("event") in MESSAGE_IDS:
            fields.append(("MESSAGE_ID", MESSAGE_IDS[given["event"]]))
        # The fields of the log call: CONSUMER, PROVIDER, UID, ...
        for name, value in list(given.items())[:FIELDS_MAX]:
            upper = name.upper()
            if value is not None and _NAME.fullmatch(upper) and upper not in RESERVED_FIELDS:
                fields.append((upper, str(value).lower() if isinstance(value, bool) else value))
        data = encode(fields)
        try:
            self._socket.send(data)
        except ConnectionError:  # the journal may have been restarted
            try:
                self._socket.connect(self._path)
                self._socket.send(data)
            except OSError:
                self._fallback.handle(record)
        except OSError:
            self._fallback.handle(record)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        super().close()


RESERVED_FIELDS = frozenset(
    {
        "MESSAGE",
        "MESSAGE_ID",
        "PRIORITY",
        "SYSLOG_IDENTIFIER",
        "LOGGER",
        "CODE_FILE",
        "CODE_LINE",
        "CODE_FUNC",
    }
)


def encode(fields: Iterable[tuple[str, Any]]) -> bytes:
    """One datagram. A value that contains a newline follows its length."""
    parts = []
    for name, value in fields:
        text = str(value).encode("utf-8", "backslashreplace")
        if len(text) > FIELD_BYTES_MAX:
            text = text[:FIELD_BYTES_MAX].decode("utf-8", "ignore").encode()
        if b"\n" in text:
            parts.append(name.encode() + b"\n" + len(text).to_bytes(8, "little") + text + b"\n")
        else:
            parts.append(name.encode() + b"=" + text + b"\n")
    return b"".join(parts)


def under_journal(stream: IO[str], environment: Mapping[str, str]) -> bool:
    """True if `stream` is the journal's: $JOURNAL_STREAM is its device and inode (systemd.exec(5))."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def configure(
    level: str,
    style: str,
    secrets: Iterable[str] = (),
    stream: IO[str] | None = None,
    *,
    journal: Path = SOCKET,
) -> None:
    """Write the process's log to `stream` (standard error). A further call replaces the configuration.

    In the style journald, records go to the socket `journal` with their fields. If no journal listens there,
    they go to the stream in the style journal.
    """
    stream = stream or sys.stderr
    if style == "auto":
        style = "journald" if under_journal(stream, os.environ) else "logfmt"
    lines = logging.StreamHandler(stream)
    lines.setFormatter(Formatter("journal" if style == "journald" else style, secrets))
    handler: logging.Handler = lines
    if style == "journald":
        with suppress(OSError):
            handler = JournalHandler(lines, journal)
            handler.setFormatter(lines.formatter)
    root = logging.getLogger()
    replaced = root.handlers[:]
    root.handlers[:] = [handler]
    for former in replaced:
        if isinstance(former, JournalHandler):
            former.close()
    root.setLevel(level.upper())
    for library in ("apscheduler", "urllib3", "keystoneauth", "asyncio"):
        logging.getLogger(library).setLevel(logging.WARNING)
    # stevedore warns of a name that it does not know; the agent's error says the same, with the known names.
    logging.getLogger("stevedore").setLevel(logging.ERROR)
