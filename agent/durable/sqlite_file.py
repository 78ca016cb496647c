"""A durable SQLite file: one owning process, every acknowledged write on disk, typed errors.

    file = SqliteFile.open(path, application_id=0x504C4D31, migrations=("CREATE TABLE t (a INTEGER) STRICT",))
    file.run(lambda tx: tx.execute("INSERT INTO t VALUES (?)", (1,)))
    file.read("SELECT a FROM t")
    file.close()

`migrations[n]` is the script that brings schema n to n + 1 (`PRAGMA user_version`). It runs in one
transaction, after a backup of the file, of which the newest two stay beside it. Other files beside it are
`*.lock` (the owner's pid), `*.ballast` and SQLite's own `*-wal` and `*-shm`.

The owning process locks the file itself, too, so that no second process opens it, also after a program or an
operator removed the files beside it. Other programs (`sqlite3`, the doctor) still read it: that lock does not
meet SQLite's own ones.

If the disk is full, the ballast beside the file is dropped: without it, a full disk prevents releases as
well, since a deletion also writes to the journal. What the agent gave back in this way another program may
take first, so two reserves stay in the database's own files:

- the write-ahead log keeps its blocks, from one start to the next, and is written anew from its beginning;
- the table `ballast` has pages that a release may use; no other space is needed where the file cannot grow.

In-place writes need no space on ext4 and XFS; on file systems that copy on write the ballast alone helps.
From then on, only jobs submitted with `releases=True` run, and all others get `DiskFull`, until the ballast
fits on the disk again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

from agent.durable.errors import (
    DatabaseClosed,
    DatabaseDamaged,
    DatabaseError,
    DatabaseForeign,
    DatabaseLocked,
    DatabaseNewer,
    DatabaseOfAnother,
    DatabaseTimeout,
    DatabaseUnwritable,
    DiskFull,
    typed,
    unwritable,
)
from agent.durable.files import (
    NO_SPACE,
    LockHeld,
    lock_file_itself,
    make_directory,
    make_file,
    owner_beside_root,
    sync_directory,
    sync_file,
    take_lock,
)
from agent.durable.group_commit import GroupWriter, Job, Parameters, Participant, Ticket, Transaction

LOG = logging.getLogger(__name__)


class Ballast:
    """A file of `size_bytes` at `path`, if the disk has that much space."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes

    def load(self) -> bool:
        """Create the ballast if it is missing. Returns False if the disk lacks the space.

        After any other error there is no ballast; the log has the reason.
        """
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(descriptor).st_blocks * 512 < self._size_bytes:
                    os.posix_fallocate(descriptor, 0, self._size_bytes)
            finally:
                os.close(descriptor)
        except OSError as error:
            # A partial ballast is worse than none: it occupies the last free space.
            self.drop()
            if error.errno in NO_SPACE:
                return False
            LOG.warning(
                "Cannot create %s, so a full disk will prevent releases as well: %s", self._path, error
            )
        return True

    def drop(self) -> None:
        """Free the space."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            LOG.warning("Cannot remove %s to free its space: %s", self._path, error)


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
        if isinstance(error, OSError):
            is_full = error.errno in NO_SPACE
        else:
            is_full = error.sqlite_errorname == "SQLITE_FULL"
        if not is_full:
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


def _log(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _kept(path: Path) -> Path:
    return path.with_name(path.name + "-wal.kept")


T = TypeVar("T")

BACKUPS_KEPT = 2
SCHEMA_AT = 60
"""Where the header has `PRAGMA user_version` (https://www.sqlite.org/fileformat2.html)."""
BALLAST_BYTES = 1 << 20
BALLAST_RETRY_S = 1.0
BUSY_TIMEOUT_MS = 5000
SYNCHRONOUS_FULL = 2


class SqliteFile:
    """A durable SQLite file; see the module. Any thread may call."""

    def __init__(
        self, path: Path, descriptor: int, locks: ExitStack, connection: sqlite3.Connection, name: str
    ) -> None:
        self.path = path
        self._descriptor = descriptor
        self._locks = locks
        self._connection = connection
        self._transaction = Transaction(connection)
        self._participants: list[Participant] = []
        self._ballast = Ballast(path.with_name(path.name + ".ballast"), BALLAST_BYTES)
        self._ballast_tried_at = time.monotonic()
        self._disk_full = not self._has_reserves()
        if self._disk_full:
            self._free_reserve()
        restart_log(connection)
        self._stale_frames = False
        self._memory_error: DatabaseError | None = None
        self._gate = threading.Lock()
        self._closed = False
        self.committed: Callable[[float], None] = lambda seconds: None
        """Called on the writer's thread with the seconds that each commit took."""
        self._writer = GroupWriter(name, self._run_group)

    @classmethod
    def open(
        cls, path: Path, *, application_id: int, migrations: Sequence[str], name: str = "sqlite"
    ) -> Self:
        """Lock the file, check it, bring its schema up to `len(migrations)`, and start the writer.

        A missing file is created with mode 0600, a missing directory with mode 0700. `name` is a part of the
        writer thread's name. Raises DatabaseLocked where another process owns the file; DatabaseDamaged,
        DatabaseForeign and DatabaseNewer, without changing it; DatabaseOfAnother where root would write into
        another user's directory; DatabaseUnwritable.
        """
        with ExitStack() as locks, _typed_errors(path):
            make_directory(path.parent)
            owner = owner_beside_root(path.parent)
            if owner is not None:
                raise DatabaseOfAnother(path, owner)
            locks.callback(os.close, take_lock(path.with_name(path.name + ".lock")))
            if not path.exists():
                _check_empty(path)
                make_file(path)
            descriptor = lock_file_itself(path)
            locks.callback(os.close, descriptor)
            after_close(path)
            locks.callback(after_close, path)
            connection = _connect(path, application_id, migrations)
            locks.callback(connection.close)
            locks.callback(before_close, path)
            fill_log(path)
            return cls(path, descriptor, locks.pop_all(), connection, name)

    def join(self, participant: Participant) -> None:
        """Let in-memory state take part in all later groups."""
        self._participants.append(participant)

    def submit(
        self, job: Job[T], *, releases: bool = False, tell: Callable[[], None] | None = None
    ) -> Ticket[T]:
        """Queue `job`; its ticket is answered after the commit that makes it durable.

        `releases` marks a job that frees resources, and therefore runs on a full disk as well. A job may run
        twice, if its first commit meets a full disk, so it must keep no state outside the transaction and the
        participants. `tell` is called on the writer's thread when the ticket is answered, see Ticket. Raises
        DatabaseClosed.
        """
        ticket = Ticket(
            job, releases, lambda timeout_s, begun: DatabaseTimeout(self.path, timeout_s, begun=begun), tell
        )
        with self._gate:  # a ticket behind the end mark would never be answered
            if self._closed:
                raise DatabaseClosed(self.path)
            self._writer.put(ticket)
        return ticket

    def run(self, job: Job[T], *, releases: bool = False, timeout_s: float = 60.0) -> T:
        """`submit` the job and wait for its result."""
        return self.submit(job, releases=releases).result(timeout_s)

    def read(
        self, sql: str, parameters: Parameters = (), *, timeout_s: float = 60.0
    ) -> list[tuple[Any, ...]]:
        """The rows of a reading statement, all of them on disk. Works on a full disk as well."""
        return self.run(
            lambda transaction: transaction.query(sql, parameters), releases=True, timeout_s=timeout_s
        )

    @property
    def transaction(self) -> Transaction:
        """That of the group under way, for the jobs and participants on the writer's thread."""
        return self._transaction

    @property
    def busy_s(self) -> float:
        """For how long the disk has had the group of writes that it has now, 0 for none."""
        return self._writer.busy_s

    @property
    def disk_full(self) -> bool:
        """True while the disk is full, so that only releases run."""
        return self._disk_full

    def close(self, timeout_s: float = 30.0) -> None:
        """Run the queued jobs, close the file and release the lock; idempotent.

        Raises DatabaseTimeout where the writer hangs in the disk; then file and lock stay.
        """
        with self._gate:
            if self._closed:
                return
            self._closed = True
        if not self._writer.stop(timeout_s):
            raise DatabaseTimeout(self.path, timeout_s)
        with _typed_errors(self.path):
            self._locks.close()

    # -- on the writer thread --

    def _run_group(self, tickets: list[Ticket[Any]]) -> None:
        if self._disk_full and time.monotonic() - self._ballast_tried_at >= BALLAST_RETRY_S:
            self._ballast_tried_at = time.monotonic()
            with contextlib.suppress(sqlite3.Error):  # the next try, or the next commit, shows it again
                self._disk_full = not self._has_reserves()
        if self._disk_full:
            tickets = self._only_releases(tickets)
        error = self._try_group(tickets)
        if isinstance(error, DiskFull):
            self._disk_full = True
            self._ballast.drop()
            self._free_reserve()
            tickets = self._only_releases(tickets)
            error = self._try_group(tickets)
        for ticket in tickets:
            if error is None:
                ticket.answer()
            else:
                ticket.fail(error)
        if self._disk_full:
            restart_log(self._connection)

    def _only_releases(self, tickets: list[Ticket[Any]]) -> list[Ticket[Any]]:
        """Fail all tickets but the releases with DiskFull; returns the releases."""
        for ticket in tickets:
            if not ticket.releases:
                ticket.fail(DiskFull(self.path))
        return [ticket for ticket in tickets if ticket.releases]

    def _try_group(self, tickets: list[Ticket[Any]]) -> DatabaseError | None:
        """Run the tickets in one transaction and commit it. After an error, nothing has changed."""
        if not tickets or self._memory_error:
            return self._memory_error
        try:
            self._overwrite_stale_frames()
            for ticket in tickets:
                ticket.run(self._transaction)
            for participant in self._participants:
                participant.flush(self._transaction)
            if self._connection.in_transaction:
                began = time.perf_counter()
                grow_file(self._descriptor, self._connection)
                self._connection.execute("COMMIT")
                self.committed(time.perf_counter() - began)
        except sqlite3.Error as error:
            self._abandon()
            failure = typed(error, self.path)
            failure.__cause__ = error
            return failure
        except OSError as error:
            self._abandon()
            full = error.errno in NO_SPACE
            failure = DiskFull(self.path) if full else unwritable(error, self.path)
            failure.__cause__ = error
            return failure
        except Exception as error:  # noqa: BLE001 - a mistake in a participant must not end the writer thread
            self._abandon()
            failure = DatabaseError(self.path, f"{self.path}: the write failed unexpectedly ({error!r}).")
            failure.__cause__ = error
            return failure
        try:
            for participant in self._participants:
                participant.publish()
        except Exception as error:  # noqa: BLE001 - a mistake in a participant must not end the writer thread
            # Memory and disk differ now; any further job would start from a wrong state.
            self._memory_error = DatabaseError(
                self.path,
                f"{self.path} has changes that memory does not have ({error!r}); restart the agent.",
            )
            self._memory_error.__cause__ = error
        return self._memory_error

    def _abandon(self) -> None:
        for participant in self._participants:
            participant.discard()
        self._stale_frames = True
        if self._connection.in_transaction:
            # If even this fails, every BEGIN fails as well until the disk works again.
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
        with contextlib.suppress(sqlite3.Error):  # the next group tries again
            self._overwrite_stale_frames()

    def _overwrite_stale_frames(self) -> None:
        """Overwrite the frames that a failed commit left in the write-ahead log, before any other write.

        A failed sync may still have reached the disk. If the process were killed now, recovery would find a
        complete transaction in the log, and apply changes whose jobs got an error.
        """
        if self._stale_frames:
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
            self._connection.execute(f"PRAGMA user_version = {version}")
            self._stale_frames = False

    def _has_reserves(self) -> bool:
        """Make what is missing of the ballast and the reserve.

        False: the disk is full, there is no ballast, and the pages that releases use are as they were.
        """
        # The ballast first: a disk without space for it needs the spare pages free.
        if self._ballast.load():
            if fill_pages(self._descriptor, self._connection):
                return True
            self._ballast.drop()
        return False

    def _free_reserve(self) -> None:
        """Let releases use the reserve, without giving the disk any of it."""
        restart_log(self._connection)
        with contextlib.suppress(sqlite3.Error):  # the next commit shows whether there is space
            free_pages(self._connection)
        restart_log(self._connection)


def copy_of_older(path: Path, schema: int, folder: Path) -> bool:
    """Copy a file of an older schema into the folder, where it is read without a migration of the original.

    Returns whether it is older. Raises DatabaseError as `SqliteFile.open`; nothing is changed in any case.
    """
    with ExitStack() as locks, _typed_errors(path):
        with path.open("rb") as file:
            number = int.from_bytes(file.read(SCHEMA_AT + 4)[SCHEMA_AT:])
        if not 0 < number < schema:
            return False
        owner = owner_beside_root(path.parent)
        if owner is not None:
            raise DatabaseOfAnother(path, owner)
        locks.callback(os.close, take_lock(path.with_name(path.name + ".lock")))
        locks.callback(os.close, lock_file_itself(path))
        for one in (path, _log(path), path.with_name(path.name + "-journal")):
            if one.exists():
                shutil.copy(one, folder / one.name)
        return True


@contextlib.contextmanager
def _typed_errors(path: Path) -> Iterator[None]:
    """Raise the errors of the block as DatabaseError."""
    try:
        yield
    except LockHeld as held:
        raise DatabaseLocked(path, held.pid) from None
    except sqlite3.Error as error:
        raise typed(error, path) from error
    except OSError as error:
        raise unwritable(error, path) from error


def _connect(path: Path, application_id: int, migrations: Sequence[str]) -> sqlite3.Connection:
    try:
        version = 0
        if path.stat().st_size == 0:
            _check_empty(path)
        else:
            # A crash before the file has a write-ahead log leaves a rollback journal, which only a connection
            # with write access can roll back.
            mode = "rw" if path.with_name(path.name + "-journal").exists() else "ro"
            with contextlib.closing(_opened(path, mode)) as inspecting:
                version = _inspect(inspecting, path, application_id, len(migrations))
        connection = _opened(path, "rw")
    except sqlite3.OperationalError:
        if not is_disk_full(path):
            raise
        return _connect_on_a_full_disk(path, application_id, migrations)
    try:
        _set_up(connection, path, application_id)
        if 0 < version < len(migrations):
            _back_up(connection, path, version)
        for number, script in enumerate(migrations[version:], start=version + 1):
            try:
                connection.executescript(
                    f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT;"
                )
            except sqlite3.Error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.OperationalError) and is_disk_full(path):
            return _connect_on_a_full_disk(path, application_id, migrations)
        raise
    return connection


def _check_empty(path: Path) -> None:
    """Check that a database without content is a new one, as SQLite removes its log.

    Raises DatabaseDamaged.
    """
    try:
        begins = _log(path).read_bytes()[:WAL_HEADER_BYTES]
    except FileNotFoundError:
        return
    if any(begins):
        raise DatabaseDamaged(path, "it is missing or empty, and its -wal file is not")


def _connect_on_a_full_disk(path: Path, application_id: int, migrations: Sequence[str]) -> sqlite3.Connection:
    """A connection that needs no space: without the file of shared memory that SQLite makes at each start.

    No other program can read the file as long as it is open. Raises DiskFull where a migration is due.
    """
    LOG.warning("The disk of %s is full: no other program can read the file until the next start.", path)
    connection = _opened(path, "rw")
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchone()
        if _inspect(connection, path, application_id, len(migrations)) != len(migrations):
            raise DiskFull(path)
        _set_up(connection, path, application_id)
    except BaseException:
        connection.close()
        raise
    return connection


def _opened(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False
    )


def _inspect(connection: sqlite3.Connection, path: Path, application_id: int, supported: int) -> int:
    """Check the file without writing to it; returns its schema number."""
    found_id = connection.execute("PRAGMA application_id").fetchone()[0]
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if found_id != application_id and (found_id or version or tables):
        raise DatabaseForeign(path, found_id, application_id)
    if version > supported:
        raise DatabaseNewer(path, version, supported)
    findings = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
    if findings != ["ok"]:
        raise DatabaseDamaged(path, "; ".join(findings))
    return version


def _set_up(connection: sqlite3.Connection, path: Path, application_id: int) -> None:
    """Set the PRAGMAs and read each one back: if one fails, SQLite returns the old value."""
    wanted = {
        "journal_mode": "wal",
        "synchronous": SYNCHRONOUS_FULL,
        "foreign_keys": 1,
        "busy_timeout": BUSY_TIMEOUT_MS,
        "application_id": application_id,
    }
    for pragma, value in wanted.items():
        current = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
        if current != value:
            connection.execute(f"PRAGMA {pragma} = {value}").fetchall()
            current = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
        if current != value:
            raise DatabaseUnwritable(path, f"PRAGMA {pragma} stays at {current} instead of {value}")


def _back_up(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Copy the file to `NAME.backup-SCHEMA-TIME` beside it, and remove all but this and the newest others."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    target = path.with_name(f"{path.name}.backup-{version}-{stamp}")
    draft = target.with_name(target.name + ".part")
    draft.unlink(missing_ok=True)
    make_file(draft)
    try:
        with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as copy:
            connection.backup(copy)
        sync_file(draft)
    except BaseException:
        draft.unlink()
        raise
    draft.rename(target)
    sync_directory(path.parent)
    others = set(path.parent.glob(f"{path.name}.backup-*Z")) - {target}
    for old in sorted(others, key=_made_at)[: 1 - BACKUPS_KEPT]:
        old.unlink()


def _made_at(backup: Path) -> tuple[int, str]:
    """Schemas only rise; the wall clock may have been set back."""
    _, schema, stamp = backup.name.rsplit("-", 2)
    return int(schema) if schema.isdigit() else 0, stamp
