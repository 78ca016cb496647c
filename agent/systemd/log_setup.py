"""Sends the process's log to the journal's socket, or to standard error."""

import logging
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

from agent.log import Formatter
from agent.systemd.journald import SOCKET, JournalHandler


def under_journal(stream: IO[str], environment: Mapping[str, str]) -> bool:
    """Does `stream` go to the journal? $JOURNAL_STREAM names its device and inode (systemd.exec(5))."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def configure(
    level: str,
    style: str,
    secrets: Iterable[str] = (),
    stream: IO[str] | None = None,
    *,
    journal: Path = SOCKET,
) -> None:
    """Write the process's log to `stream` (standard error) from now on; may be called again.

    In the style journald each record goes to the socket `journal`, field by field; to the stream, in the
    style journal, if nobody listens there.
    """
    stream = stream or sys.stderr
    if style == "auto":
        style = "journald" if under_journal(stream, os.environ) else "logfmt"
    root = logging.getLogger()
    before = root.handlers[:]
    root.handlers[:] = [_handler(style, tuple(secrets), stream, journal)]
    for old in before:
        if isinstance(old, JournalHandler):
            old.close()
    root.setLevel(level.upper())
    for chatty in ("apscheduler", "urllib3", "keystoneauth", "cheroot"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _handler(style: str, secrets: Iterable[str], stream: IO[str], journal: Path) -> logging.Handler:
    lines = logging.StreamHandler(stream)
    lines.setFormatter(Formatter("journal" if style == "journald" else style, secrets))
    if style != "journald":
        return lines
    try:
        handler = JournalHandler(lines, journal)
    except OSError:
        return lines
    handler.setFormatter(lines.formatter)
    return handler
