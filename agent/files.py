"""Small files that are either the old one or the new one, whatever happens in between."""

import os
from pathlib import Path

OWNER_ONLY = 0o600


def write_atomically(path: Path, text: str) -> None:
    """Put `text` into `path` so that it survives a power cut once this returned. Raises OSError."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, OWNER_ONLY)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the directory's entries durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
