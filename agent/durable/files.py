"""Files and directories whose existence is on disk, and a lock that tells who holds it."""

from __future__ import annotations

import fcntl
import os
import pwd
from pathlib import Path

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700


class LockHeld(Exception):
    """Another process holds the lock; `pid` is None where the lock file does not tell which."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(pid)
        self.pid = pid


def make_directory(path: Path) -> None:
    """Make the directory and what is missing above it, mode 0700, each one synced into its parent.

    :raises OSError: it could not be made
    """
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        sync_directory(path.parent)


def owner_beside_root(path: Path) -> str | None:
    """Where this process is root and the directory another user's: that one's name, or uid if it has none.

    :raises OSError: it could not be looked at
    """
    uid = path.stat().st_uid
    if os.geteuid() != 0 or uid == 0:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def make_file(path: Path) -> None:
    """Make the empty file, mode 0600, if there is none, and sync it into its directory."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
    sync_directory(path.parent)


def take_lock(path: Path) -> int:
    """Lock the file at `path`, made if need be, and write our pid into it; answers the descriptor.

    The lock ends with the process, however that ends, or when the descriptor is closed.

    :raises LockHeld: another process was faster
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise LockHeld(int(text) if text.isdigit() else None) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def sync_file(path: Path) -> None:
    _sync(path, os.O_RDWR)


def sync_directory(path: Path) -> None:
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
