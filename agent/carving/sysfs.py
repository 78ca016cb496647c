"""Reading and writing below /sys; what is not there, or not readable, is nothing.

The agent's folders cannot use the driver's reader (drivers.host), which is for callers without privileges.
"""

import os
from pathlib import Path

from agent.carving.names import NUMBER

SIZE_MAX = 65536


def read_text(path: Path) -> str | None:
    """At most SIZE_MAX characters of the file, without blanks around them; None where it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(SIZE_MAX).strip()
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """The number in the file; None where there is none."""
    text = read_text(path) or ""
    return int(text) if NUMBER.fullmatch(text) else None


def read_link(path: Path) -> str:
    """The last part of what the link names; empty where it is no link."""
    try:
        return path.readlink().name
    except OSError:
        return ""


def entries_of(path: Path) -> list[Path]:
    """What is in the directory, by name; nothing where it cannot be read."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def write_text(path: Path, text: str) -> None:
    """One write of the whole text, as the kernel wants it. Never creates the file. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, f"{text}\n".encode("ascii"))
    finally:
        os.close(descriptor)
