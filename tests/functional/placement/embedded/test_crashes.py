"""The embedded core under kill -9, failing syncs and a full disk, with strace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kits.embedded_api import Api, new
from kits.embedded_crash_points import (
    KILLED,
    PROGRAM,
    SYSCALLS,
    TOP,
    content,
    expected,
    kill_points,
    migration_points,
    run,
    unclean,
)
from kits.embedded_crash_program import PADS, program

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
    found = len(list(kill_points("write", None, 17)))
    found += len(list(kill_points("open", unclean(tmp_path / "unclean"), 17)))
    assert found >= 15


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
@pytest.mark.parametrize("later", [3, 10, 21, 40])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_failed_write_is_told_and_changes_nothing(
    tmp_path: Path, call: str, later: int, error: str
) -> None:
    number = PADS + 5 + later // 3 if call == "fdatasync" else PADS * 4 + later
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
