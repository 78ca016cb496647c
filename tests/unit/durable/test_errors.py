"""Why a file cannot be written, from what the kernel says: proc_pid_mountinfo(5), errno(3)."""

import errno
import os
import struct
from pathlib import Path

import pytest

from agent.durable import errors
from agent.durable.errors import find_obstacle, mount_of, obstacle_of, typed, unwritable

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
23 22 0:5 / /proc rw,nosuid - proc proc rw
30 22 8:2 / /bind ro,relatime shared:7 master:2 - ext4 /dev/sda2 rw
31 22 8:3 / /image ro,relatime - squashfs /dev/sda3 ro
32 22 7:0 / /broken rw,relatime - ext4 /dev/loop0 rw,errors=remount-ro,emergency_ro
33 32 7:1 / /broken/mended rw - ext4 /dev/loop1 rw
34 22 8:4 / /with\\040space ro - xfs /dev/sda4 rw
35 22 8:5 / /twice ro - xfs /dev/sda5 ro
36 22 8:6 / /twice rw - xfs /dev/sda6 rw
"""


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    monkeypatch.setattr(errors, "MOUNTS", tmp_path / "mountinfo")


@pytest.mark.usefixtures("mounts")
@pytest.mark.parametrize(
    ("path", "point", "remedy"),
    [
        ("/var/lib/plimsoll", "/", None),
        ("/bind/state", "/bind", "mount -o remount,bind,rw /bind"),
        ("/bindery/state", "/", None),
        ("/image", "/image", "mount -o remount,rw /image"),
        ("/broken/state", "/broken", "unmount /broken, check the file system (fsck /dev/loop0)"),
        ("/broken/mended/state", "/broken/mended", None),
        ("/with space/state", "/with space", "mount -o remount,bind,rw /with space"),
        ("/twice/state", "/twice", None),
    ],
)
def test_the_mount_of_a_path_and_how_it_becomes_writable(path: str, point: str, remedy: str | None) -> None:
    mount = mount_of(Path(path))
    assert mount is not None and str(mount.point) == point
    assert mount.is_read_only is (remedy is not None)
    if remedy is not None:
        obstacle = obstacle_of(Path(path), OSError(errno.EROFS, os.strerror(errno.EROFS)))
        assert remedy in obstacle.remedy and obstacle.reason == f"the file system at {point} is read-only"


def test_without_mountinfo_no_mount_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "MOUNTS", tmp_path / "none")
    assert mount_of(tmp_path) is None
    assert "read-only" in obstacle_of(tmp_path, OSError(errno.EROFS, "x")).reason


def test_an_immutable_directory_is_named_with_the_command_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `chattr +i` leaves it: chmod and chown do not help, and root may not write either."""
    denied = OSError(errno.EPERM, os.strerror(errno.EPERM))
    assert not obstacle_of(tmp_path, denied).reason.endswith("is immutable")
    monkeypatch.setattr(errors.fcntl, "ioctl", lambda *_: struct.pack("l", 0x80010))
    assert errors.is_immutable(tmp_path) and not errors.is_immutable(tmp_path / "none")
    obstacle = obstacle_of(tmp_path, denied)
    assert obstacle.reason == f"Operation not permitted: {tmp_path} is immutable"
    assert obstacle.remedy == f"run `chattr -i {tmp_path}`"


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EROFS, ("read-only",)),
        (errno.EMFILE, ("no file descriptor left", "LimitNOFILE")),
        (errno.EACCES, ("may not write to", "chmod 0700")),
    ],
)
def test_a_refused_write_of_a_database_has_its_cause_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, says: tuple[str, ...]
) -> None:
    """SQLite itself says "disk I/O error" or "unable to open database file"."""

    def refuse(directory: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(errors, "check_accepts_files", refuse)
    file = tmp_path / "agent.db"
    error = sqlite_error("SQLITE_CANTOPEN", "unable to open database file")
    for sentence in (str(typed(error, file)), str(unwritable(OSError(number, os.strerror(number)), file))):
        assert "cannot be written" in sentence and "Check the disk" not in sentence
        assert all(part in sentence for part in says), sentence


def sqlite_error(name: str, text: str) -> Exception:
    import sqlite3

    error = sqlite3.OperationalError(text)
    error.sqlite_errorname = name
    return error


def test_a_directory_that_accepts_files_is_no_obstacle(tmp_path: Path) -> None:
    assert find_obstacle(tmp_path / "agent.db") is None
    assert "SQLITE_IOERR_WRITE" in str(typed(sqlite_error("SQLITE_IOERR_WRITE", "x"), tmp_path / "agent.db"))
