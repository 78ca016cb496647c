"""A durable SQLite file: one owning process, every acknowledged write on disk, typed errors.

    file = SqliteFile.open(path, application_id=0x504C4D31, migrations=("CREATE TABLE t (a INTEGER) STRICT",))
    file.run(lambda tx: tx.execute("INSERT INTO t VALUES (?)", (1,)))
    file.read("SELECT a FROM t")
    file.close()

`migrations[n]` is the script that brings schema n to n + 1 (`PRAGMA user_version`); it runs in one
transaction, after a backup of the file (the newest two are kept, beside it). Beside the file lie `*.lock`
(the owner's pid), `*.ballast` and SQLite's own `*-wal` and `*-shm`.

On a full disk the ballast is dropped: from then on only jobs submitted with `releases=True` are run, and all
others are answered with `DiskFull`, until the ballast could be made again.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from agent.durable.ballast import Ballast
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
)
from agent.durable.files import (
    LockHeld,
    make_directory,
    make_file,
    owner_beside_root,
    sync_directory,
    sync_file,
    take_lock,
)
from agent.durable.group_commit import (
    GroupWriter,
    Job,
    Parameters,
    Participant,
    Ticket,
    Transaction,
)

T = TypeVar("T")

BACKUPS_KEPT = 2
BALLAST_BYTES = 1 << 20
BALLAST_RETRY_S = 1.0
BUSY_TIMEOUT_MS = 5000
SYNCHRONOUS_FULL = 2


class SqliteFile:
    """See the module's docstring. All methods may be called from any thread."""

    def __init__(self, path: Path, lock_descriptor: int, connection: sqlite3.Connection, name: str) -> None:
        self.path = path
        self._lock_descriptor = lock_descriptor
        self._connection = connection
        self._transaction = Transaction(connection)
        self._participants: list[Participant] = []
        self._ballast = Ballast(path.with_name(path.name + ".ballast"), BALLAST_BYTES)
        self._ballast_tried_at = time.monotonic()
        self._disk_full = not self._ballast.load()
        self._stale_frames = False
        self._out_of_step: DatabaseError | None = None
        self._gate = threading.Lock()
        self._closed = False
        self.committed: Callable[[float], None] = lambda seconds: None
        """Told, on the writer's thread, how long each commit took."""
        self._writer = GroupWriter(name, self._run_group)

    @classmethod
    def open(
        cls, path: Path, *, application_id: int, migrations: Sequence[str], name: str = "sqlite"
    ) -> SqliteFile:
        """Take the file's lock, check the file, bring its schema up to `len(migrations)`, and start the
        writer.

        A file that does not exist is made, mode 0600, and so is its directory, mode 0700. `name` goes into
        the writer thread's name.

        :raises DatabaseLocked: another process owns the file
        :raises DatabaseDamaged, DatabaseForeign, DatabaseNewer: not a file to work on; it is left as it is
        :raises DatabaseOfAnother: root may not, where the directory is another user's
        :raises DatabaseUnwritable: the directory or the disk refused
        """
        try:
            make_directory(path.parent)
            owner = owner_beside_root(path.parent)
            if owner is not None:
                raise DatabaseOfAnother(path, owner)
            descriptor = take_lock(path.with_name(path.name + ".lock"))
        except LockHeld as held:
            raise DatabaseLocked(path, held.pid) from None
        except OSError as error:
            raise DatabaseUnwritable(path, error.strerror or str(error)) from error
        try:
            return cls(path, descriptor, _connect(path, application_id, migrations), name)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, sqlite3.Error):
                raise typed(error, path) from error
            if isinstance(error, OSError):
                raise DatabaseUnwritable(path, error.strerror or str(error)) from error
            raise

    def join(self, participant: Participant) -> None:
        """Let in-memory state take part in every later group."""
        self._participants.append(participant)

    def submit(self, job: Job[T], *, releases: bool = False) -> Ticket[T]:
        """Queue `job`; its ticket is answered after the commit that made it durable.

        `releases` marks a job that frees things and so must get through on a full disk. A job may be run
        twice (its first commit found the disk full), so it may keep nothing outside the transaction and
        participants.

        :raises DatabaseClosed: after close()
        """
        ticket = Ticket(
            job, releases, lambda timeout_s, begun: DatabaseTimeout(self.path, timeout_s, begun=begun)
        )
        with self._gate:  # nothing may be queued behind the end mark, where nobody would answer it
            if self._closed:
                raise DatabaseClosed(self.path)
            self._writer.put(ticket)
        return ticket

    def run(self, job: Job[T], *, releases: bool = False, timeout_s: float = 60.0) -> T:
        """`submit`, and wait for the answer."""
        return self.submit(job, releases=releases).result(timeout_s)

    def read(
        self, sql: str, parameters: Parameters = (), *, timeout_s: float = 60.0
    ) -> list[tuple[Any, ...]]:
        """The rows of one reading statement, on disk all of them; answered on a full disk too."""
        return self.run(
            lambda transaction: transaction.query(sql, parameters), releases=True, timeout_s=timeout_s
        )

    @property
    def disk_full(self) -> bool:
        """Whether only releases are let through at present."""
        return self._disk_full

    def close(self, timeout_s: float = 30.0) -> None:
        """Finish what is queued, close the file and give up the lock. May be called twice.

        :raises DatabaseTimeout: the writer is stuck in the disk; file and lock stay as they are
        """
        with self._gate:
            if self._closed:
                return
            self._closed = True
        if not self._writer.stop(timeout_s):
            raise DatabaseTimeout(self.path, timeout_s)
        try:
            self._connection.close()
        except sqlite3.Error as error:
            raise typed(error, self.path) from error
        finally:
            os.close(self._lock_descriptor)

    # -- on the writer thread --

    def _run_group(self, tickets: list[Ticket[Any]]) -> None:
        if self._disk_full and not self._reload_ballast():
            tickets = self._only_releases(tickets)
        error = self._try_group(tickets)
        if isinstance(error, DiskFull) and not self._disk_full:
            self._disk_full = True
            self._ballast.drop()
            tickets = self._only_releases(tickets)
            error = self._try_group(tickets)
        for ticket in tickets:
            if error is None:
                ticket.answer()
            else:
                ticket.fail(error)
        if self._disk_full:
            self._shrink_log()

    def _only_releases(self, tickets: list[Ticket[Any]]) -> list[Ticket[Any]]:
        """Answer DiskFull to all tickets but the releases, and give those back."""
        for ticket in tickets:
            if not ticket.releases:
                ticket.fail(DiskFull(self.path))
        return [ticket for ticket in tickets if ticket.releases]

    def _try_group(self, tickets: list[Ticket[Any]]) -> DatabaseError | None:
        """Run the tickets in one transaction and commit it. The error says that nothing has changed."""
        if not tickets or self._out_of_step:
            return self._out_of_step
        try:
            self._overwrite_stale_frames()
            for ticket in tickets:
                ticket.run(self._transaction)
            for participant in self._participants:
                participant.flush(self._transaction)
            if self._connection.in_transaction:
                began = time.perf_counter()
                self._connection.execute("COMMIT")
                self.committed(time.perf_counter() - began)
        except sqlite3.Error as error:
            self._abandon()
            failure = typed(error, self.path)
            failure.__cause__ = error
            return failure
        except Exception as error:  # noqa: BLE001 - a mistake in a participant must not end the writer thread
            self._abandon()
            failure = DatabaseError(self.path, f"{self.path}: the write failed inside ({error!r}).")
            failure.__cause__ = error
            return failure
        return self._publish()

    def _publish(self) -> DatabaseError | None:
        try:
            for participant in self._participants:
                participant.publish()
        except Exception as error:  # noqa: BLE001 - a mistake in a participant must not end the writer thread
            # What is in memory is no longer what is on disk: going on would be going on from a wrong state.
            self._out_of_step = DatabaseError(
                self.path, f"{self.path} holds changes that could not be taken over ({error!r}); restart."
            )
            self._out_of_step.__cause__ = error
        return self._out_of_step

    def _abandon(self) -> None:
        for participant in self._participants:
            participant.discard()
        self._stale_frames = True
        if self._connection.in_transaction:
            # Where even this fails, the next BEGIN fails too, and so does everything until the disk is back.
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
        with contextlib.suppress(sqlite3.Error):  # tried again before the next group
            self._overwrite_stale_frames()

    def _overwrite_stale_frames(self) -> None:
        """After a failed commit, before anything else is written, write over what it left in the log.

        A sync that failed may have reached the disk all the same. Were the process killed now, recovery would
        find a whole transaction in the log and bring back what was answered with an error.
        """
        if self._stale_frames:
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
            self._connection.execute(f"PRAGMA user_version = {version}")
            self._stale_frames = False

    def _reload_ballast(self) -> bool:
        if time.monotonic() - self._ballast_tried_at < BALLAST_RETRY_S:
            return False
        self._ballast_tried_at = time.monotonic()
        self._disk_full = not self._ballast.load()
        return not self._disk_full

    def _shrink_log(self) -> None:
        """On a full disk, give back the log's space after each group; it would eat what the ballast freed."""
        with contextlib.suppress(sqlite3.Error):  # an attempt; the next commit tells whether there is space
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def _connect(path: Path, application_id: int, migrations: Sequence[str]) -> sqlite3.Connection:
    version = 0
    if path.exists() and path.stat().st_size > 0:
        version = _inspect(path, application_id, len(migrations))
    else:
        make_file(path)
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        _set_up(connection, path, application_id)
        if 0 < version < len(migrations):
            _back_up(connection, path, version)
        for number, script in enumerate(migrations[version:], start=version + 1):
            _migrate(connection, script, number)
    except BaseException:
        connection.close()
        raise
    return connection


def _inspect(path: Path, application_id: int, supported: int) -> int:
    """Look at the file without writing to it; answers its schema number."""
    # A crash in a file's first moments, before it has a write-ahead log, leaves a rollback journal, which
    # only a connection that may write can undo.
    mode = "rw" if path.with_name(path.name + "-journal").exists() else "ro"
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None)
    try:
        found_id = connection.execute("PRAGMA application_id").fetchone()[0]
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if found_id != application_id and (found_id or version or tables):
            raise DatabaseForeign(path, found_id, application_id)
        if version > supported:
            raise DatabaseNewer(path, version, supported)
        findings = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
    finally:
        connection.close()
    if findings != ["ok"]:
        raise DatabaseDamaged(path, "; ".join(findings))
    return version


def _set_up(connection: sqlite3.Connection, path: Path, application_id: int) -> None:
    """Set the PRAGMAs, and read each back: SQLite answers a failed one with the old value."""
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


def _migrate(connection: sqlite3.Connection, script: str, number: int) -> None:
    try:
        connection.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT;")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _back_up(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Copy the file beside itself as `NAME.backup-SCHEMA-TIME` and drop all but the newest copies."""
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
    for old in sorted(path.parent.glob(f"{path.name}.backup-*Z"), key=_made_at)[:-BACKUPS_KEPT]:
        old.unlink()


def _made_at(backup: Path) -> tuple[str, str]:
    return backup.name.rpartition("-")[2], backup.name
