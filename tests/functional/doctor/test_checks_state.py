"""The doctor's checks of the state directory, its databases and the host's identity."""

import errno
import os
import shutil
import sqlite3
from collections import namedtuple
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.config.places import unusable_state_path
from agent.doctor import checks_state
from agent.doctor.check import CheckVerdict
from agent.durable import errors

GOOD, WARNING, BAD = CheckVerdict.GOOD, CheckVerdict.WARNING, CheckVerdict.BAD
HOST_UUID = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
Usage = namedtuple("Usage", ["total", "used", "free"])


@pytest.mark.parametrize(("mode", "verdict"), [(0o700, GOOD), (0o755, WARNING), (0o777, BAD)])
def test_the_directory_is_for_its_owner_alone(tmp_path: Path, mode: int, verdict: CheckVerdict) -> None:
    tmp_path.chmod(mode)
    directory, _ = checks_state.state_directory(tmp_path)
    assert directory.verdict is verdict and str(tmp_path) in directory.sentence
    assert bool(directory.remedy) is (verdict is not GOOD)


def test_a_missing_directory_is_no_fault(tmp_path: Path) -> None:
    (check,) = checks_state.state_directory(tmp_path / "missing")
    assert check.verdict is WARNING and "first start" in check.remedy


@pytest.mark.parametrize(("free_mib", "verdict"), [(1024, GOOD), (100, WARNING), (10, BAD)])
def test_the_free_space_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mib: int, verdict: CheckVerdict
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free_mib << 20))
    *_, disk = checks_state.state_directory(tmp_path)
    assert disk.verdict is verdict and f"{free_mib} MiB free" in disk.sentence


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("1 0 8:1 / {0} ro,relatime - ext4 /dev/sda1 ro", "mount -o remount,rw {0}"),
        ("1 0 8:1 / {0} ro,relatime - ext4 /dev/sda1 rw", "mount -o remount,bind,rw {0}"),
        ("1 0 8:1 / {0} rw,relatime - ext4 /dev/sda1 rw,emergency_ro", "fsck /dev/sda1"),
    ],
)
def test_a_read_only_file_system_is_named_with_its_mount_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, remedy: str
) -> None:
    """Also where statvfs does not say so: ext4 after an error. A bind mount is no mount of its parents."""
    state = tmp_path / "state"
    state.mkdir()
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"9 0 8:9 / / rw - ext4 /dev/sda9 rw\n{line.format(state)}\n")
    monkeypatch.setattr(errors, "MOUNTS", mounts)
    *_, disk = checks_state.state_directory(state)
    assert disk.verdict is BAD and "read-only" in disk.sentence
    assert remedy.format(state) in disk.remedy and disk.remedy.startswith("See ")
    refused = unusable_state_path(state, OSError(errno.EROFS, os.strerror(errno.EROFS)))
    assert remedy.format(state) in refused.message and "create it" not in refused.message


def test_a_file_system_that_statvfs_calls_read_only_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY))
    *_, disk = checks_state.state_directory(tmp_path)
    assert disk.verdict is BAD and "dmesg" in disk.remedy


def test_a_directory_in_which_its_owner_may_make_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not list(checks_state.accepts_files(tmp_path, os.geteuid()))
    assert not list(checks_state.accepts_files(tmp_path / "missing", os.geteuid()))

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    tmp_path.chmod(0o555)
    monkeypatch.setattr(checks_state, "check_accepts_files", refuse)
    (check,) = checks_state.accepts_files(tmp_path, os.geteuid())
    assert check.verdict is BAD and "mode 0555" in check.sentence
    assert check.remedy == f"Run `chmod 0700 {tmp_path}`"
    refused = unusable_state_path(tmp_path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    assert "create it" not in refused.message and f"chmod 0700 {tmp_path}" in refused.message
    missing = unusable_state_path(tmp_path / "none", FileNotFoundError(errno.ENOENT, "No such file"))
    assert "create it" in missing.message


def test_the_identity_before_and_after_the_first_start(tmp_path: Path) -> None:
    assert "has no uuid yet" in checks_state.identity(tmp_path, "node1").sentence
    (tmp_path / "host_id").write_text(f"{HOST_UUID}\n")
    assert "was provided before" in checks_state.identity(tmp_path, "node1").sentence
    (tmp_path / "host_name").write_text("node1\n")
    assert HOST_UUID in checks_state.identity(tmp_path, "node1").sentence
    assert checks_state.identity(tmp_path, "node2").verdict is BAD


def test_each_database_is_checked(tmp_path: Path) -> None:
    assert list(checks_state.databases(tmp_path)) == []
    with closing(sqlite3.connect(tmp_path / "agent.db")) as database:
        database.execute("CREATE TABLE t (a)")
    (tmp_path / "agent.db").chmod(0o600)
    (tmp_path / "placement.db").write_bytes(b"no database" * 100)
    intact, damaged = checks_state.databases(tmp_path)
    assert intact.verdict is GOOD and "agent.db is intact" in intact.sentence
    assert damaged.verdict is BAD and "placement.db is damaged" in damaged.sentence
