"""Space inside of a database's own files, for writes on a full disk beside which something else writes on.

Space that the agent gave back to a full disk, as the ballast, may be gone before the agent uses it. So two
reserves stay in the database's files:

- the write-ahead log keeps its blocks, from one start to the next, and is written anew from its beginning;
- the table `ballast` has pages that a release may use; no other space is needed where the file cannot grow.

In-place writes need no space on ext4 and XFS; on file systems that copy on write the ballast alone helps.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from agent.durable.files import NO_SPACE

LOG_BYTES = 1 << 20
PAGES_BYTES = 256 << 10
PAGE_BYTES = 4096
WAL_HEADER_BYTES = 32
OPEN_BYTES = 64 << 10


def fill_pages(descriptor: int, connection: sqlite3.Connection) -> bool:
    """Have the table of spare pages, outside of the migrations: every version ignores it.

    `descriptor` is that of the database's file. False: the disk has no space, and nothing was changed: pages
    that are free already stay free.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE IF NOT EXISTS ballast (space BLOB NOT NULL) STRICT")
        if not connection.execute("SELECT count(*) FROM ballast").fetchone()[0]:
            connection.execute("INSERT INTO ballast VALUES (zeroblob(?))", (PAGES_BYTES,))
        # Committed without their blocks, the pages could not be copied out of the log, nor given back.
        grow_file(descriptor, connection)
        connection.execute("COMMIT")
    except (sqlite3.OperationalError, OSError) as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if not _says_full(error):
            raise
        return False
    return True


def free_pages(connection: sqlite3.Connection) -> None:
    """Let later transactions use the spare pages."""
    connection.execute("DELETE FROM ballast")


def fill_log(path: Path) -> None:
    """Give the write-ahead log of the open database at `path` its blocks, as far as the disk has them."""
    with contextlib.suppress(OSError):
        descriptor = os.open(_log(path), os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, LOG_BYTES)
        finally:
            os.close(descriptor)


def restart_log(connection: sqlite3.Connection) -> None:
    """Copy the log into the database, so that the next transaction is at its beginning; it keeps its size."""
    with contextlib.suppress(sqlite3.Error):  # best effort: the next commit shows whether there is space
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()


def grow_file(descriptor: int, connection: sqlite3.Connection) -> None:
    """Give the database the blocks of all its pages before a commit: then the log can be copied into it.

    Raises OSError where the disk has no space.
    """
    size_bytes = int(connection.execute("PRAGMA page_count").fetchone()[0]) * PAGE_BYTES
    if size_bytes > os.fstat(descriptor).st_size:
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
        except OSError as error:
            if error.errno in NO_SPACE:  # else the file system cannot do it
                raise


def before_close(path: Path) -> None:
    """Keep the log's blocks under another name: SQLite removes the log with the last connection."""
    with contextlib.suppress(OSError):
        _kept(path).unlink(missing_ok=True)
        os.link(_log(path), _kept(path))


def after_close(path: Path) -> None:
    """Put the blocks back as an empty log, for the next start; also after a crash within a close."""
    kept = _kept(path)
    if not kept.exists():
        return
    if _log(path).exists():  # SQLite did not remove it: it still has transactions
        kept.unlink()
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(kept, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, bytes(WAL_HEADER_BYTES), 0)  # without its header the log is empty
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        kept.rename(_log(path))


def is_disk_full(path: Path) -> bool:
    """Whether the disk lacks the space that SQLite needs to open the file, with its shared memory."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize < OPEN_BYTES


def _says_full(error: sqlite3.OperationalError | OSError) -> bool:
    if isinstance(error, OSError):
        return error.errno in NO_SPACE
    return error.sqlite_errorname == "SQLITE_FULL"


def _log(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _kept(path: Path) -> Path:
    return path.with_name(path.name + "-wal.kept")
