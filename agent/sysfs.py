"""Reads the small files of the kernel, below /sys and /proc."""

from pathlib import Path

SIZE_MAX = 65536


def read_text(path: Path) -> str | None:
    """At most SIZE_MAX characters of the file, without blanks around them; None where it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(SIZE_MAX).strip()
    except OSError:
        return None
