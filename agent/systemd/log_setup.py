"""Configures the process's log: to the journal's socket, or to standard error."""

import logging
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

from agent.log import Formatter
from agent.systemd.journald import SOCKET, JournalHandler


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
    root = logging.getLogger()
    replaced = root.handlers[:]
    root.handlers[:] = [_handler(style, tuple(secrets), stream, journal)]
    for handler in replaced:
        if isinstance(handler, JournalHandler):
            handler.close()
    root.setLevel(level.upper())
    for library in ("apscheduler", "urllib3", "keystoneauth", "cheroot"):
        logging.getLogger(library).setLevel(logging.WARNING)
    # stevedore warns of a name that it does not know; the agent's error says the same, with the known names.
    logging.getLogger("stevedore").setLevel(logging.ERROR)


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
