"""A state directory that becomes unwritable while the agent runs."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kits.agent import World, opened, request, told
from kits.placements import Embedded

from agent.durable.errors import DatabaseUnwritable
from agent.errors import ClaimsClosed, StateError


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = opened(told(tmp_path, Embedded(tmp_path)))
    world.agent.reconcile("the start")
    yield world
    world.close()


class Kernel:
    """Refuses to make files, with this error, if it has one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: int | None = None
        self._open = os.open
        monkeypatch.setattr(os, "open", self._refuse)

    def _refuse(self, path: Any, flags: int, *args: Any, **named: Any) -> int:
        if self.error is not None and flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(self.error, os.strerror(self.error))
        return self._open(path, flags, *args, **named)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


def is_ready(world: World) -> bool:
    return all(check.ok for check in world.agent.host_status.health().ready)


def test_a_file_system_that_turned_read_only_closes_the_host_until_it_is_mended(
    world: World, kernel: Kernel
) -> None:
    assert is_ready(world)
    kernel.error = errno.EROFS
    world.agent.reconcile("its interval")
    status = world.operations.status()
    assert status.state == "degraded" and not is_ready(world)
    assert "read-only" in status.reasons[0] and "mount" in status.reasons[0]
    with pytest.raises(ClaimsClosed, match="read-only"):
        world.operations.claim(request(VCPU=1))
    kernel.error = None
    world.agent.reconcile("its interval")
    assert world.operations.status().state == "ready" and is_ready(world)
    world.operations.claim(request(VCPU=1))


def test_a_state_directory_that_is_gone_closes_the_host(world: World, tmp_path: Path) -> None:
    away = tmp_path.with_name(f"{tmp_path.name}.away")
    tmp_path.rename(away)
    try:
        world.agent.reconcile("its interval")
        assert world.operations.status().state == "degraded" and not is_ready(world)
    finally:
        shutil.rmtree(tmp_path, ignore_errors=True)
        away.rename(tmp_path)
    world.agent.reconcile("its interval")
    assert world.operations.status().state == "ready"


def test_a_mode_that_forbids_new_files_is_a_reason_while_the_open_ones_work(
    world: World, kernel: Kernel
) -> None:
    kernel.error = errno.EACCES
    world.agent.reconcile("its interval")
    status = world.operations.status()
    assert status.state == "ready" and not is_ready(world)
    assert any("may not write to" in reason and "chmod" in reason for reason in status.reasons)
    world.operations.claim(request(VCPU=1))


def test_a_read_behind_a_refused_write_says_that_the_write_failed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read waits until what a failed write left in the log is overwritten."""

    def refuse(*_: object, **__: object) -> list[tuple[Any, ...]]:
        raise DatabaseUnwritable(Path("agent.db"), "the file system at / is read-only", "see `dmesg`")

    monkeypatch.setattr("agent.durable.sqlite_file.SqliteFile.read", refuse)
    with pytest.raises(StateError, match=r"journal was not written: .*read-only.*\. See `dmesg`\."):
        world.journal.last_events("x")

    def interrupt(*_: object, **__: object) -> list[tuple[Any, ...]]:
        raise sqlite3.OperationalError("interrupted")

    monkeypatch.setattr("agent.durable.sqlite_file.SqliteFile.read", interrupt)
    with pytest.raises(StateError, match="journal was not read"):
        world.journal.last_events("x")
