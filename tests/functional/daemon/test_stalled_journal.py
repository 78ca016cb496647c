"""The agent's disk stalls or refuses to be written: the agent says so, decides nothing, and comes back."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kits.agent import World, request, told, world_of
from kits.placements import Embedded
from kits.stalling_disk import StallingDisk

from agent.durable.errors import DatabaseUnwritable
from agent.errors import ClaimsClosed, StateError, StateUnknown
from agent.state.operators import Cordon, PauseRequest
from agent.status.overview import OWN, HostState


def test_a_stalled_journal_closes_the_agent_until_the_disk_answers(tmp_path: Path) -> None:
    world = world_of(told(tmp_path, Embedded(tmp_path)))
    agent, operations, journal = world.agent, world.operations, world.journal
    asked = request(VCPU=1)
    operations.claim(asked)
    disk, journal.wait_s = StallingDisk(journal._file), 0.1
    with disk.stalled():
        with pytest.raises(StateUnknown):
            operations.release(asked.consumer)
        fault = agent.condition.fault
        assert fault is not None and fault.concern == OWN and "disk does not answer" in fault.sentence
        with pytest.raises(ClaimsClosed, match="disk does not answer"):
            operations.claim(request(VCPU=1))
        agent.reconcile("the start")
        assert agent.condition.state is HostState.DEGRADED, "the disk does not answer yet"
    journal.wait_s = 30.0
    journal.history()
    agent.reconcile("the start")
    assert agent.condition.state is HostState.READY
    assert asked.consumer not in journal.claims(), "the release was on disk, and is delivered"
    operations.claim(request(VCPU=1))
    world.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with world_of(told(tmp_path, Embedded(tmp_path))) as world:
        yield world


def reserved(world: World) -> int:
    """All that is reserved of the class of the first device, as Placement has it."""
    name = world.operations.tracker.cordons.devices()[0].resource_class
    tree, _ = world.operations.tree()
    return sum(each.inventories[name].reserved for each in tree if name in each.inventories)


def test_a_cordon_that_was_not_confirmed_is_in_force_once_the_disk_answers(world: World) -> None:
    cordon = Cordon(world.operations.tracker.cordons.devices()[0].unit, "", 0, 1.0)
    before = reserved(world)
    disk, world.journal.wait_s = StallingDisk(world.journal._file), 0.1
    with disk.stalled(), pytest.raises(StateUnknown):
        world.operations.cordon(cordon)
    world.journal.wait_s = 30.0
    assert world.journal.cordons() == {cordon.address: cordon}
    world.agent.reconcile("the start")
    assert world.operations.tracker.cordons.devices()[0].cordon == cordon
    assert reserved(world) == before + 1, "Placement has it too"


def test_a_pause_that_was_not_confirmed_is_in_force_once_the_disk_answers(world: World) -> None:
    disk, world.journal.wait_s = StallingDisk(world.journal._file), 0.1
    with disk.stalled(), pytest.raises(StateUnknown):
        world.operations.pause(PauseRequest(0, 1.0, "a test"))
    world.journal.wait_s = 30.0
    world.journal.history()
    world.agent.reconcile("the start")
    with pytest.raises(ClaimsClosed, match="paused"):
        world.operations.claim(request(VCPU=1))


def test_a_cordon_and_a_pause_on_a_disk_that_hangs_are_a_fault_at_once(world: World) -> None:
    cordon = Cordon(world.operations.tracker.cordons.devices()[0].unit, "", 0, 1.0)
    for write in (
        lambda: world.operations.cordon(cordon),
        lambda: world.operations.pause(PauseRequest(0, 1.0, "a test")),
    ):
        world.journal.wait_s = 30.0
        world.agent.reconcile("the start")
        assert world.agent.condition.fault is None
        disk, world.journal.wait_s = StallingDisk(world.journal._file), 0.1
        with disk.stalled(), pytest.raises(StateUnknown):
            write()
        fault = world.agent.condition.fault
        assert fault is not None and fault.concern == OWN and "disk does not answer" in fault.sentence
        world.journal.wait_s = 30.0
        world.journal.history()


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
    status = world.agent.host_status.status()
    assert status.state == "degraded" and not is_ready(world)
    assert "read-only" in status.reasons[0] and "mount" in status.reasons[0]
    with pytest.raises(ClaimsClosed, match="read-only"):
        world.operations.claim(request(VCPU=1))
    kernel.error = None
    world.agent.reconcile("its interval")
    assert world.agent.host_status.status().state == "ready" and is_ready(world)
    world.operations.claim(request(VCPU=1))


def test_a_state_directory_that_is_gone_closes_the_host(world: World, tmp_path: Path) -> None:
    away = tmp_path.with_name(f"{tmp_path.name}.away")
    tmp_path.rename(away)
    try:
        world.agent.reconcile("its interval")
        assert world.agent.host_status.status().state == "degraded" and not is_ready(world)
    finally:
        shutil.rmtree(tmp_path, ignore_errors=True)
        away.rename(tmp_path)
    world.agent.reconcile("its interval")
    assert world.agent.host_status.status().state == "ready"


def test_a_mode_that_forbids_new_files_is_a_reason_while_the_open_ones_work(
    world: World, kernel: Kernel
) -> None:
    kernel.error = errno.EACCES
    world.agent.reconcile("its interval")
    status = world.agent.host_status.status()
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
