"""The embedded core under kill -9, failing syncs, a full disk and power loss, with strace."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from kits.embedded_api import Api, new
from kits.embedded_crash_points import (
    KILLED,
    PROGRAM,
    SYSCALLS,
    TOP,
    content,
    copied,
    expected,
    kill_points,
    migration_points,
    run,
    unclean,
)
from kits.embedded_crash_program import PADS, program
from kits.journals import NEEDS_POSTGRESQL, fresh_journal

from agent.placement.embedded import Core

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")

STEPS = list(program())
RELEASES = {
    number
    for number, (method, path, body) in enumerate(STEPS)
    if method == "DELETE"
    or (path == "/allocations" and any(not part["allocations"] for part in body.values()))
}


def test_a_sample_of_the_kill_points(tmp_path: Path) -> None:
    """Every 17th; embedded_crash_points.py itself goes through all of them."""
    found = len(list(kill_points("write", partial(copied, None), 17)))
    found += len(list(kill_points("open", partial(copied, unclean(tmp_path / "unclean")), 17)))
    assert found >= 15


@NEEDS_POSTGRESQL
def test_a_sample_of_the_kill_points_of_a_session() -> None:
    """PostgreSQL has what was acknowledged, and of the step under way all or nothing."""
    assert len(list(kill_points("write", fresh_journal, 17, ("sendto", "recvfrom")))) >= 15


def test_a_sample_of_the_kill_points_of_a_migration(tmp_path: Path) -> None:
    assert len(list(migration_points(unclean(tmp_path / "unclean"), 9))) >= 5


def test_every_answer_comes_after_its_sync(tmp_path: Path) -> None:
    log = tmp_path / "strace"
    command = ["strace", "-f", "-y", "-o", str(log), "-e", "trace=pwrite64,fdatasync,write"]
    program = [sys.executable, "-P", str(PROGRAM), "write", str(tmp_path / "state")]
    subprocess.run(
        [*command, *program], check=True, capture_output=True, timeout=60, env={"PYTHONPATH": str(TOP)}
    )
    unsynced, answers = False, 0
    for line in log.read_text().splitlines():
        if "placement.db-wal" in line:
            unsynced = "pwrite64(" in line
        elif match := re.search(r'write\(1<.*?>, "(\d+) ', line):
            assert not unsynced, f"step {match[1]} was answered before it was on disk"
            answers += 1
    assert answers == len(STEPS)


@pytest.mark.parametrize("call", ["fdatasync", "pwrite64"])
@pytest.mark.parametrize("later", [3, 10, 21, 30])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_failed_write_is_told_and_changes_nothing(
    tmp_path: Path, call: str, later: int, error: str
) -> None:
    number = PADS + 5 + later // 3 if call == "fdatasync" else PADS * 2 + later
    ended = run("write", tmp_path, f"{call}:error={error}:when={number}")
    failed = {step for step, status in ended.statuses.items() if status == 503}
    assert failed, ended
    if error == "ENOSPC" and call == "pwrite64":
        assert not failed & RELEASES, "what frees resources must get through on a full disk"
    assert content(tmp_path) == expected(frozenset(failed))[-1]


@pytest.mark.parametrize("number", range(PADS + 4, PADS + 24, 5))
def test_what_a_failed_sync_left_in_the_log_does_not_come_back(tmp_path: Path, number: int) -> None:
    """The process dies right after it said that the write failed, before anything else is written."""
    ended = run("die", tmp_path, f"fdatasync:error=EIO:when={number}")
    assert ended.returncode == KILLED
    acknowledged = len(ended.statuses) - 1
    assert content(tmp_path) == expected()[acknowledged]


@pytest.mark.parametrize("call", SYSCALLS)
def test_an_opening_that_fails_says_so_and_can_be_repeated(tmp_path: Path, call: str) -> None:
    ended = run("open", tmp_path, f"{call}:error=EIO:when=1")
    assert ended.returncode in (0, 1)
    if ended.returncode:
        assert "placement.db" in ended.complaint.splitlines()[-1], ended.complaint
    assert content(tmp_path) == expected()[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_lets_releases_through(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)], check=True, timeout=10)
    try:
        core = Core.open(disk / "state")
        api = Api(core)
        host = api.provider("host", {"VCPU": 10**6})
        held = []
        answer = None
        for _ in range(20_000):
            consumer = new()
            answer = api.claim(consumer, {host: {"VCPU": 1}})
            if answer.status != 204:
                break
            held.append(consumer)
        assert answer is not None and answer.status == 503
        assert "no space is left" in answer.body["errors"][0]["detail"]
        assert api.held(consumer) == {}
        for consumer in held:
            assert api.ask("DELETE", f"/allocations/{consumer}").status == 204
        assert api.usage(host) == {"VCPU": 0}
        core.close()
        core = Core.open(disk / "state")
        assert Api(core).usage(host) == {"VCPU": 0}
        core.close()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True, timeout=10)


SECTOR = 512
WRITE = re.compile(r'pwrite64\(\d+<(.+?)>, "((?:\\x..)*)", \d+, (\d+)\)')
TRUNCATE = re.compile(r"ftruncate\(\d+<(.+?)>, (\d+)\)")
SYNC = re.compile(r"f(?:data)?sync\(\d+<(.+?)>\)")
UNLINK = re.compile(r'unlink\("((?:\\x..)*)"\)')
ANSWER = re.compile(r"write\(1<")
UNFINISHED = re.compile(r"(\d+) +(.*) <unfinished \.\.\.>")
RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)")


class Change(NamedTuple):
    """Bytes at an offset of a file; None cuts the file off there."""

    offset: int
    data: bytes | None

    def apply(self, file: bytearray) -> None:
        if self.data is None:
            del file[self.offset :]
            file.extend(bytes(self.offset - len(file)))
        else:
            file.extend(bytes(max(0, self.offset - len(file))))
            file[self.offset : self.offset + len(self.data)] = self.data


class Disk:
    """The files as synced, and what was written to each since its last sync."""

    def __init__(self) -> None:
        self.synced: dict[str, bytearray] = {}
        self.pending: dict[str, list[Change]] = {}

    def write(self, name: str, change: Change) -> None:
        self.synced.setdefault(name, bytearray())
        self.pending.setdefault(name, []).append(change)

    def sync(self, name: str) -> None:
        for change in self.pending.pop(name, []):
            change.apply(self.synced.setdefault(name, bytearray()))

    def unlink(self, name: str) -> None:
        self.synced.pop(name, None)
        self.pending.pop(name, None)

    def lose_power(self, folder: Path, chance: random.Random | None) -> None:
        """Leave in `folder` what is synced, and of the pending writes the sectors that chance picks."""
        folder.mkdir()
        for name, synced in self.synced.items():
            file = bytearray(synced)
            for change in self.pending.get(name, []) if chance else []:
                for sector in _sectors(change):
                    if chance and chance.random() < 0.5:
                        sector.apply(file)
            (folder / name).write_bytes(bytes(file))


def _sectors(change: Change) -> Iterator[Change]:
    if change.data is None:
        yield change
        return
    for start in range(0, len(change.data), SECTOR):
        yield Change(change.offset + start, change.data[start : start + SECTOR])


def record(state_dir: Path, log: Path) -> Iterator[tuple[Disk, int]]:
    """The disk after every system call, and how many steps had been answered by then."""
    calls = "trace=pwrite64,ftruncate,fdatasync,fsync,unlink,write"
    strace = ["strace", "-f", "-y", "-xx", "-s", str(1 << 20), "-o", str(log), "-e", calls]
    program = [sys.executable, "-P", str(PROGRAM), "write", str(state_dir)]
    subprocess.run(
        [*strace, *program], check=True, capture_output=True, timeout=60, env={"PYTHONPATH": str(TOP)}
    )
    disk, answered = Disk(), 0
    for line in whole_calls(log.read_text().splitlines()):
        if found := WRITE.search(line):
            disk.write(_name(found[1]), Change(int(found[3]), _bytes(found[2])))
        elif found := TRUNCATE.search(line):
            disk.write(_name(found[1]), Change(int(found[2]), None))
        elif found := SYNC.search(line):
            disk.sync(_name(found[1]))
        elif found := UNLINK.search(line):
            disk.unlink(_name(found[1]))
        elif ANSWER.search(line):
            answered += 1
        else:
            continue
        yield disk, answered


def whole_calls(lines: Iterable[str]) -> Iterator[str]:
    """The calls in the order in which they returned: strace cuts one in two where another comes between."""
    begun: dict[str, str] = {}
    for line in lines:
        if cut := UNFINISHED.fullmatch(line):
            begun[cut[1]] = cut[2]
        elif rest := RESUMED.fullmatch(line):
            yield begun.pop(rest[1], "") + rest[2]
        else:
            yield line


def test_a_call_that_strace_cut_in_two_is_one() -> None:
    cut = ["7  fsync(3</a> <unfinished ...>", "8  write(1<p>, x, 1) = 1", "7  <... fsync resumed>) = 0"]
    assert list(whole_calls(cut)) == ["8  write(1<p>, x, 1) = 1", "fsync(3</a>) = 0"]


def _name(path: str) -> str:
    return Path(_bytes(path).decode()).name


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_nothing_acknowledged_is_lost_and_nothing_is_half_there(tmp_path: Path, seed: int | None) -> None:
    chance = None if seed is None else random.Random(seed)
    contents = expected()
    moments = 0
    for number, (disk, answered) in enumerate(record(tmp_path / "state", tmp_path / "log")):
        if seed is not None and number % 3 != seed:
            continue
        folder = tmp_path / f"moment{number}"
        disk.lose_power(folder, chance)
        left = content(folder)
        assert left in contents[answered : answered + 2], f"at call {number}, {answered} steps answered"
        shutil.rmtree(folder)
        moments += 1
    assert moments > len(contents)
