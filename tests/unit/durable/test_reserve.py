"""The reserve inside a database's files: the log keeps its blocks, spare pages serve releases."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.durable import reserve


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


def blocks(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_the_log_has_its_blocks_before_they_are_used(connection: sqlite3.Connection, path: Path) -> None:
    reserve.fill_log(path)
    assert blocks(log_of(path)) >= reserve.LOG_BYTES
    connection.execute("INSERT INTO t VALUES (1)")
    reserve.restart_log(connection)
    connection.execute("INSERT INTO t VALUES (2)")
    assert blocks(log_of(path)) >= reserve.LOG_BYTES
    assert connection.execute("SELECT a FROM t").fetchall() == [(1,), (2,)]


def test_a_close_leaves_an_empty_log_with_its_blocks(connection: sqlite3.Connection, path: Path) -> None:
    reserve.fill_log(path)
    connection.execute("INSERT INTO t VALUES (1)")
    reserve.before_close(path)
    connection.close()
    reserve.after_close(path)
    assert sorted(each.name for each in path.parent.iterdir()) == ["test.db", "test.db-wal"]
    assert blocks(log_of(path)) >= reserve.LOG_BYTES
    with sqlite3.connect(path) as again:
        assert again.execute("SELECT a FROM t").fetchall() == [(1,)]
    again.close()


def test_a_backup_in_place_of_the_closed_database_is_read_as_it_is(
    connection: sqlite3.Connection, path: Path
) -> None:
    """The log that stays must not be taken for changes of the backup."""
    reserve.restart_log(connection)
    backup = path.read_bytes()
    connection.execute("INSERT INTO t VALUES (1)")
    reserve.before_close(path)
    connection.close()
    reserve.after_close(path)
    path.write_bytes(backup)
    again = sqlite3.connect(path)
    assert again.execute("SELECT a FROM t").fetchall() == []
    again.close()


def test_a_crash_within_a_close_loses_no_transaction(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("INSERT INTO t VALUES (1)")
    reserve.before_close(path)
    reserve.after_close(path)
    assert not path.with_name("test.db-wal.kept").exists()
    other = sqlite3.connect(path)
    assert other.execute("SELECT a FROM t").fetchall() == [(1,)]
    other.close()


def test_spare_pages_serve_writes_that_cannot_grow_the_file(
    connection: sqlite3.Connection, descriptor: int
) -> None:
    assert reserve.fill_pages(descriptor, connection)
    assert reserve.fill_pages(descriptor, connection), "already there"
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    reserve.free_pages(connection)
    connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    connection.execute(f"INSERT INTO t VALUES (zeroblob({reserve.PAGES_BYTES - 150000}))")
    assert not reserve.fill_pages(descriptor, connection), "no space for it"
    assert not connection.in_transaction


def test_spare_pages_that_the_disk_has_no_space_for_are_left_as_they_are(
    connection: sqlite3.Connection, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of more pages than the disk has blocks for could not take another transaction."""
    assert reserve.fill_pages(descriptor, connection)
    reserve.free_pages(connection)
    connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    reserve.restart_log(connection)
    pages, free = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count")
    )

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("os.posix_fallocate", full)
    assert free > 0 and not reserve.fill_pages(descriptor, connection)
    assert connection.execute("PRAGMA page_count").fetchone()[0] == pages
    assert connection.execute("PRAGMA freelist_count").fetchone()[0] == free
    connection.execute("BEGIN")
    connection.execute(f"INSERT INTO t VALUES (zeroblob({(free - 2) * 4000}))")
    reserve.grow_file(descriptor, connection)
    connection.execute("COMMIT")


def test_a_file_gets_the_blocks_of_its_pages_before_the_commit(
    connection: sqlite3.Connection, path: Path, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute("BEGIN")
    connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    reserve.grow_file(descriptor, connection)
    assert blocks(path) >= 100000

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("os.posix_fallocate", full)
    reserve.grow_file(descriptor, connection)  # it has them already
    connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    with pytest.raises(OSError):
        reserve.grow_file(descriptor, connection)
    connection.execute("COMMIT")
    connection.close()
    again = sqlite3.connect(path)
    assert again.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    again.close()
