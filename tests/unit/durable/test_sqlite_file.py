"""The reserve inside a database's files: the log keeps its blocks, spare pages serve releases.

The durable SQLite file: ownership, checks at open, migrations, group commit, and a full disk.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.durable import sqlite_file
from agent.durable.errors import (
    DatabaseClosed,
    DatabaseDamaged,
    DatabaseError,
    DatabaseForeign,
    DatabaseLocked,
    DatabaseNewer,
    DatabaseOfAnother,
    DatabaseTimeout,
    DiskFull,
)
from agent.durable.group_commit import Transaction
from agent.durable.sqlite_file import SqliteFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "test.db"


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute("CREATE TABLE t (a)")
    yield connection
    connection.close()


@pytest.fixture
def descriptor(connection: sqlite3.Connection, path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR)
    yield descriptor
    connection.close()  # first: a close of any descriptor takes SQLite's locks away
    os.close(descriptor)


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def refusing(number: int) -> Callable[..., None]:
    """A call of the system that fails with this number."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def rows(path: Path, statement: str) -> list[tuple[object, ...]]:
    """What another connection reads."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def blocks(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_the_log_has_its_blocks_before_they_are_used(connection: sqlite3.Connection, path: Path) -> None:
    sqlite_file.fill_log(path)
    assert blocks(log_of(path)) >= sqlite_file.LOG_BYTES
    connection.execute("INSERT INTO t VALUES (1)")
    sqlite_file.restart_log(connection)
    connection.execute("INSERT INTO t VALUES (2)")
    assert blocks(log_of(path)) >= sqlite_file.LOG_BYTES
    assert connection.execute("SELECT a FROM t").fetchall() == [(1,), (2,)]


def test_a_close_leaves_an_empty_log_with_its_blocks(connection: sqlite3.Connection, path: Path) -> None:
    sqlite_file.fill_log(path)
    connection.execute("INSERT INTO t VALUES (1)")
    sqlite_file.before_close(path)
    connection.close()
    sqlite_file.after_close(path)
    assert sorted(each.name for each in path.parent.iterdir()) == ["test.db", "test.db-wal"]
    assert blocks(log_of(path)) >= sqlite_file.LOG_BYTES
    assert rows(path, "SELECT a FROM t") == [(1,)]


def test_a_backup_in_place_of_the_closed_database_is_read_as_it_is(
    connection: sqlite3.Connection, path: Path
) -> None:
    """The log that stays must not be taken for changes of the backup."""
    sqlite_file.restart_log(connection)
    backup = path.read_bytes()
    connection.execute("INSERT INTO t VALUES (1)")
    sqlite_file.before_close(path)
    connection.close()
    sqlite_file.after_close(path)
    path.write_bytes(backup)
    assert rows(path, "SELECT a FROM t") == []


def test_a_crash_within_a_close_loses_no_transaction(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("INSERT INTO t VALUES (1)")
    sqlite_file.before_close(path)
    sqlite_file.after_close(path)
    assert not path.with_name("test.db-wal.kept").exists()
    assert rows(path, "SELECT a FROM t") == [(1,)]


def test_spare_pages_serve_writes_that_cannot_grow_the_file(
    connection: sqlite3.Connection, descriptor: int
) -> None:
    assert sqlite_file.fill_pages(descriptor, connection)
    assert sqlite_file.fill_pages(descriptor, connection), "already there"
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    sqlite_file.free_pages(connection)
    connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    connection.execute(f"INSERT INTO t VALUES (zeroblob({sqlite_file.PAGES_BYTES - 150000}))")
    assert not sqlite_file.fill_pages(descriptor, connection), "no space for it"
    assert not connection.in_transaction


def test_spare_pages_that_the_disk_has_no_space_for_are_left_as_they_are(
    connection: sqlite3.Connection, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of more pages than the disk has blocks for could not take another transaction."""
    assert sqlite_file.fill_pages(descriptor, connection)
    sqlite_file.free_pages(connection)
    connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    sqlite_file.restart_log(connection)
    pages, free = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count")
    )

    monkeypatch.setattr("os.posix_fallocate", refusing(errno.ENOSPC))
    assert free > 0 and not sqlite_file.fill_pages(descriptor, connection)
    assert connection.execute("PRAGMA page_count").fetchone()[0] == pages
    assert connection.execute("PRAGMA freelist_count").fetchone()[0] == free
    connection.execute("BEGIN")
    connection.execute(f"INSERT INTO t VALUES (zeroblob({(free - 2) * 4000}))")
    sqlite_file.grow_file(descriptor, connection)
    connection.execute("COMMIT")


def test_a_file_gets_the_blocks_of_its_pages_before_the_commit(
    connection: sqlite3.Connection, path: Path, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute("BEGIN")
    connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    sqlite_file.grow_file(descriptor, connection)
    assert blocks(path) >= 100000

    monkeypatch.setattr("os.posix_fallocate", refusing(errno.ENOSPC))
    sqlite_file.grow_file(descriptor, connection)  # it has them already
    connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    with pytest.raises(OSError):
        sqlite_file.grow_file(descriptor, connection)
    connection.execute("COMMIT")
    connection.close()
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


APPLICATION = 0x54455354
SCHEMA = ("CREATE TABLE thing (name TEXT PRIMARY KEY, size INTEGER NOT NULL) STRICT",)


def opened(path: Path, migrations: tuple[str, ...] = SCHEMA) -> SqliteFile:
    return SqliteFile.open(path, application_id=APPLICATION, migrations=migrations, name="test")


@pytest.fixture
def file(path: Path) -> Iterator[SqliteFile]:
    file = opened(path)
    yield file
    file.close()


def add(name: str, size: int = 1):  # type: ignore[no-untyped-def]
    return lambda tx: tx.execute("INSERT INTO thing VALUES (?, ?)", (name, size))


def names(file: SqliteFile) -> list[str]:
    return [row[0] for row in file.read("SELECT name FROM thing ORDER BY name")]


class Tally:
    """A participant that keeps names in memory beside the table."""

    def __init__(self) -> None:
        self.published: list[str] = []
        self.pending: list[str] = []

    def flush(self, transaction: Transaction) -> None:
        transaction.executemany("INSERT INTO thing VALUES (?, 1)", [(name,) for name in self.pending])

    def publish(self) -> None:
        self.published += self.pending
        self.pending = []

    def discard(self) -> None:
        self.pending = []


def test_files_are_for_their_owner_only(file: SqliteFile, path: Path) -> None:
    file.run(add("a"))
    modes = {entry.name: entry.stat().st_mode & 0o777 for entry in path.parent.iterdir()}
    assert set(modes) == {"test.db", "test.db-wal", "test.db-shm", "test.db.lock", "test.db.ballast"}
    assert set(modes.values()) == {0o600}


def test_missing_directories_are_made_for_their_owner_only(tmp_path: Path) -> None:
    file = opened(tmp_path / "a" / "b" / "test.db")
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "a" / "b")] == [0o700] * 2
    file.close()


def test_the_durable_settings_are_in_force(file: SqliteFile) -> None:
    def settings(tx: Transaction) -> dict[str, object]:
        wanted = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "application_id")
        return {pragma: tx.query(f"PRAGMA {pragma}")[0][0] for pragma in wanted}

    assert file.run(settings) == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": 5000,
        "application_id": APPLICATION,
    }


def test_a_second_owner_is_refused_and_told_the_first_ones_pid(file: SqliteFile, path: Path) -> None:
    with pytest.raises(DatabaseLocked) as refused:
        opened(path)
    assert refused.value.holder_pid == os.getpid()
    assert str(os.getpid()) in str(refused.value)


def open_elsewhere(path: Path) -> str:
    """What another process that opens the file gets: "" or its error's name."""
    script = (
        "import sys\nfrom pathlib import Path\nfrom agent.durable.sqlite_file import SqliteFile\n"
        "from agent.durable.errors import DatabaseError\n"
        f"settings = dict(application_id={APPLICATION}, migrations={SCHEMA!r})\n"
        "try: SqliteFile.open(Path(sys.argv[1]), **settings).close()\n"
        "except DatabaseError as error: print(type(error).__name__, end='')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], check=True, timeout=30, capture_output=True, text=True
    )
    return done.stdout


@pytest.mark.parametrize("removed", [(), (".lock",), (".lock", ".ballast", "-shm", "-wal")])
def test_a_second_process_is_refused_whatever_files_were_removed(
    path: Path, removed: tuple[str, ...]
) -> None:
    file = opened(path)
    file.run(add("a"))
    for end in removed:
        path.with_name(path.name + end).unlink()
    assert open_elsewhere(path) == "DatabaseLocked"
    assert names(file) == ["a"]
    file.close()
    assert open_elsewhere(path) == ""


def test_a_second_process_is_refused_under_another_name_of_the_file(path: Path) -> None:
    file = opened(path)
    other = path.parent / "elsewhere" / "other.db"
    other.parent.mkdir()
    os.link(path, other)
    assert open_elsewhere(other) == "DatabaseLocked"
    file.close()


def test_operators_read_and_back_up_the_file_of_a_running_owner(path: Path, tmp_path: Path) -> None:
    file = opened(path)
    file.run(add("a"))
    script = (
        "import sqlite3, sys\nsource = sqlite3.connect(sys.argv[1])\n"
        "source.backup(copy := sqlite3.connect(sys.argv[2]))\n"
        "print(copy.execute('SELECT name FROM thing').fetchall(), end='')"
    )
    read = [sys.executable, "-c", script, str(path), str(tmp_path / "copy.db")]
    shown = subprocess.run(read, check=True, timeout=30, capture_output=True, text=True).stdout
    assert shown == "[('a',)]"
    file.run(add("b"))
    file.close()
    file = opened(path)
    assert names(file) == ["a", "b"]
    file.close()


def test_the_lock_of_a_killed_owner_is_free(path: Path) -> None:
    script = (
        "import os, sys, signal\nfrom pathlib import Path\n"
        "from agent.durable.sqlite_file import SqliteFile\n"
        f"SqliteFile.open(Path(sys.argv[1]), application_id={APPLICATION}, migrations=())\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(path)], check=False, timeout=30)
    assert killed.returncode == -9
    opened(path).close()


@pytest.mark.parametrize("content", [b"this is not a database" * 100, b"SQLite format 3\0" + b"\xff" * 8176])
def test_a_damaged_file_is_refused_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(DatabaseDamaged, match=r"not changed\. Move it aside"):
        opened(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("lost", ["content", "file"])
def test_a_log_without_its_database_is_no_new_database(path: Path, lost: str) -> None:
    """SQLite would remove the log, which may have what an agent acknowledged."""
    file = opened(path)
    file.run(add("acknowledged"))
    log = path.with_name(path.name + "-wal")
    before = log.read_bytes()
    file.close()
    path.write_bytes(b"")
    if lost == "file":
        path.unlink()
    opened_anew = opened(path)
    opened_anew.close()
    path.unlink()
    log.write_bytes(before)
    if lost == "content":
        path.write_bytes(b"")
    with pytest.raises(DatabaseDamaged, match="missing or empty, and its -wal file is not"):
        opened(path)
    assert log.read_bytes() == before


def test_a_damaged_page_is_found_at_open(path: Path) -> None:
    file = opened(path)
    for number in range(200):
        file.run(add(f"{number:050}"))
    file.close()
    content = bytearray(path.read_bytes())
    content[8192:12288] = os.urandom(4096)
    path.write_bytes(bytes(content))
    with pytest.raises(DatabaseDamaged):
        opened(path)
    assert path.read_bytes() == bytes(content)


def test_another_applications_file_is_refused(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(DatabaseForeign):
        opened(path)
    assert path.read_bytes() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write into another user's directory")
@pytest.mark.parametrize(
    ("uid", "said"),
    [
        (65534, "belongs to nobody.*runuser -u nobody -- plimsoll"),
        (54321, "belongs to 54321.*setpriv --reuid=54321 --clear-groups plimsoll"),
    ],
)
def test_root_leaves_nothing_in_a_directory_of_another_user(path: Path, uid: int, said: str) -> None:
    """The agent could not read it: its identity, its journal, its placement."""
    os.chown(path.parent, uid, uid)
    with pytest.raises(DatabaseOfAnother, match=said):
        opened(path)
    assert list(path.parent.iterdir()) == []


def test_a_newer_schema_is_refused(path: Path) -> None:
    opened(path, (*SCHEMA, "SELECT 1")).close()
    before = path.read_bytes()
    with pytest.raises(DatabaseNewer) as refused:
        opened(path)
    assert (refused.value.version, refused.value.supported) == (2, 1)
    assert path.read_bytes() == before


def test_migrations_run_once_with_a_backup_first_and_two_kept(path: Path) -> None:
    migrations = SCHEMA
    opened(path, migrations).close()
    for number in range(2, 6):
        migrations = (*migrations, f"INSERT INTO thing VALUES ('v{number}', {number})")
        opened(path, migrations).close()
    backups = sorted(path.parent.glob("test.db.backup-*"))
    assert [backup.name.split("-")[1] for backup in backups] == ["3", "4"]
    assert rows(backups[-1], "SELECT max(size) FROM thing") == [(4,)]
    file = opened(path, migrations)
    assert names(file) == ["v2", "v3", "v4", "v5"]
    file.close()


def test_the_backup_of_an_upgrade_stays_where_the_clock_was_set_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrations = SCHEMA
    opened(path, migrations).close()
    for number in range(2, 6):
        migrations = (*migrations, f"INSERT INTO thing VALUES ('v{number}', {number})")
        monkeypatch.setattr(time, "gmtime", lambda number=number: time.localtime(10**9 - number * 10**6))
        opened(path, migrations).close()
        assert list(path.parent.glob(f"test.db.backup-{number - 1}-*Z"))
    assert {backup.name.split("-")[1] for backup in path.parent.glob("test.db.backup-*")} == {"3", "4"}


def test_a_failed_migration_changes_nothing(path: Path) -> None:
    opened(path).close()
    with pytest.raises(DatabaseError):
        opened(path, (*SCHEMA, "INSERT INTO thing VALUES ('half', 1); INSERT INTO nowhere VALUES (1)"))
    file = opened(path)
    assert names(file) == []
    file.close()


def hold_writer(file: SqliteFile) -> threading.Event:
    """Keep the writer busy, so that what is submitted next is run as one group, until the event is set."""
    go_on, running = threading.Event(), threading.Event()

    def wait(tx: Transaction) -> None:
        running.set()
        go_on.wait(10)

    file.submit(wait)
    assert running.wait(10)
    return go_on


def test_a_failing_job_takes_back_only_its_own_statements(file: SqliteFile) -> None:
    def half(tx: Transaction) -> None:
        tx.execute("INSERT INTO thing VALUES ('half', 1)")
        raise LookupError("no")

    go_on = hold_writer(file)
    good, bad, twice, last = (file.submit(job) for job in (add("a"), half, add("a"), add("b")))
    go_on.set()
    assert good.result() == 1
    with pytest.raises(LookupError):
        bad.result()
    with pytest.raises(sqlite3.IntegrityError):
        twice.result()
    assert last.result() == 1
    assert names(file) == ["a", "b"]


def test_jobs_of_one_group_see_their_predecessors(file: SqliteFile) -> None:
    go_on = hold_writer(file)
    file.submit(add("a"))
    count = file.submit(lambda tx: tx.query("SELECT count(*) FROM thing")[0][0])
    go_on.set()
    assert count.result() == 1


def test_a_group_is_told_once(file: SqliteFile) -> None:
    told: list[str] = []
    tell_a, tell_b = (lambda name=name: told.append(name) for name in "ab")
    go_on = hold_writer(file)
    tickets = [
        file.submit(add(name), tell=tell) for name, tell in zip("abc", (tell_a, tell_b, tell_a), strict=True)
    ]
    go_on.set()
    for ticket in tickets:
        ticket.result()
    file.run(add("d"))  # the next group: all of this one are told
    assert sorted(told) == ["a", "b"]


def test_a_failed_commit_fails_the_whole_group_and_changes_nothing(file: SqliteFile, path: Path) -> None:
    tally = Tally()
    file.join(tally)
    file.run(lambda tx: tx.execute("PRAGMA max_page_count = 3"))  # the file cannot grow: SQLITE_FULL
    go_on = hold_writer(file)
    first = file.submit(lambda tx: tally.pending.append("a"))
    second = file.submit(lambda tx: tx.execute("INSERT INTO thing VALUES (?, 1)", ("x" * 100_000,)))
    go_on.set()
    for ticket in (first, second):
        with pytest.raises(DiskFull):
            ticket.result()
    assert (tally.published, tally.pending, names(file)) == ([], [], [])


def test_releases_get_through_on_a_full_disk(file: SqliteFile, path: Path) -> None:
    file.run(add("a"))
    file.run(lambda tx: tx.execute("PRAGMA max_page_count = 3"))
    with pytest.raises(DiskFull):
        file.run(add("x" * 100_000))
    assert file.disk_full and not path.with_name("test.db.ballast").exists()
    with pytest.raises(DiskFull):
        file.run(add("b"))
    assert file.run(lambda tx: tx.execute("DELETE FROM thing"), releases=True) == 1
    assert names(file) == []


def test_writes_go_on_once_the_ballast_could_be_made_again(
    file: SqliteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.run(lambda tx: tx.execute("PRAGMA max_page_count = 3"))
    with pytest.raises(DiskFull):
        file.run(add("x" * 100_000))
    monkeypatch.setattr("agent.durable.sqlite_file.BALLAST_RETRY_S", 0.0)
    file.run(add("b"))
    assert not file.disk_full


def test_a_participant_is_published_after_the_commit(file: SqliteFile) -> None:
    tally = Tally()
    file.join(tally)
    file.run(lambda tx: tally.pending.append("a"))
    assert tally.published == ["a"]
    assert names(file) == ["a"]


def test_many_threads_lose_nothing(file: SqliteFile) -> None:
    def work(worker: int) -> None:
        for number in range(50):
            file.run(add(f"{worker}-{number}"))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names(file)) == 400


def test_a_job_that_nobody_waits_for_any_more_is_not_begun(file: SqliteFile) -> None:
    go_on = hold_writer(file)
    ticket = file.submit(add("late"))
    with pytest.raises(DatabaseTimeout, match="cancelled") as caught:
        ticket.result(timeout_s=0.01)
    assert not caught.value.begun
    go_on.set()
    assert file.run(add("next")) == 1
    assert names(file) == ["next"]


def test_a_job_under_way_is_in_doubt_for_a_caller_who_waits_no_longer(file: SqliteFile) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> int:
        began.set()
        assert go_on.wait(10)
        return add("slow")(tx)

    ticket = file.submit(slow)
    assert began.wait(10)
    with pytest.raises(DatabaseTimeout, match="outcome is unknown") as caught:
        ticket.result(timeout_s=0.01)
    assert caught.value.begun
    go_on.set()
    assert ticket.result() == 1
    assert names(file) == ["slow"]


def test_after_close_jobs_are_refused(path: Path) -> None:
    file = opened(path)
    file.close()
    file.close()
    with pytest.raises(DatabaseClosed):
        file.run(add("a"))


def test_a_mistake_before_the_commit_fails_its_group_and_the_writer_goes_on(file: SqliteFile) -> None:
    class Broken(Tally):
        def flush(self, transaction: Transaction) -> None:
            if self.pending:
                raise LookupError("mistake")

    broken = Broken()
    file.join(broken)
    with pytest.raises(DatabaseError, match="mistake"):
        file.run(lambda tx: broken.pending.append("a"))
    assert broken.pending == []
    assert file.run(add("b")) == 1


def test_after_a_mistake_in_publishing_nothing_goes_on(file: SqliteFile) -> None:
    """Memory and disk would part from there on."""

    class Broken(Tally):
        def publish(self) -> None:
            raise LookupError("mistake")

    file.join(Broken())
    for name in ("a", "b"):
        with pytest.raises(DatabaseError, match=r"mistake.*restart"):
            file.run(add(name))


def test_a_disk_that_cannot_hold_a_ballast_is_no_full_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.posix_fallocate", refusing(errno.EOPNOTSUPP))
    file = opened(path)
    assert file.run(add("a")) == 1
    assert not path.with_name("test.db.ballast").exists()
    file.close()


def test_a_disk_without_room_for_the_ballast_lets_only_releases_through(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.posix_fallocate", refusing(errno.ENOSPC))
    file = opened(path)
    with pytest.raises(DiskFull):
        file.run(add("a"))
    assert file.run(lambda tx: tx.execute("DELETE FROM thing"), releases=True) == 0
    file.close()
