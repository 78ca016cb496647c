"""Read single files, links and folders of sysfs and /proc. What is missing or cannot be read has no value."""

from pathlib import Path

SIZE_MAX = 65536


def entries(path: Path) -> list[Path]:
    """What the folder has, sorted; empty where it is missing."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def link_name(path: Path) -> str | None:
    """The last part of what the link leads to; None where it is no link."""
    try:
        return path.readlink().name
    except OSError:
        return None


def read_text(path: Path) -> str | None:
    """The file's text without white space around it; None where it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(SIZE_MAX).strip()
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """The whole number in the file; None where it has none."""
    text = read_text(path) or ""
    return int(text) if text.isdecimal() else None


def read_bytes(path: Path, size: int) -> bytes | None:
    """The first bytes of the file, unbuffered: so many and no more are asked of the kernel."""
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(size)
    except OSError:
        return None
