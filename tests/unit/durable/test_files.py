"""Durable files: what they contain, who may open them, and the lock that names its holder."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agent.durable.files import (
    SIZE_MAX,
    LockHeld,
    entries,
    is_there,
    link_name,
    make_directory,
    make_file,
    read_bytes,
    read_number,
    read_text,
    take_lock,
    write_atomically,
)


def test_a_file_is_replaced_as_a_whole_and_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "host_id"
    path.write_text("old")
    write_atomically(path, "new\n")
    assert path.read_text() == "new\n" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_replacement_leaves_the_old_file_and_no_scratch(tmp_path: Path) -> None:
    path = tmp_path / "host_id"
    path.mkdir()
    with pytest.raises(OSError):
        write_atomically(path, "new\n")
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_file_is_written_to_and_stays_what_it_is(tmp_path: Path) -> None:
    """An export to /dev/null by root made a file of it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to(pipe)
    reader = os.open(pipe, os.O_RDWR)
    write_atomically(pipe, "new\n")
    write_atomically(link, "more\n")
    assert os.read(reader, 99) == b"new\nmore\n"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode) and link.is_symlink()


def test_directories_are_made_with_their_parents(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b")
    make_file(tmp_path / "a" / "b" / "c")
    make_file(tmp_path / "a" / "b" / "c")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/b/c")]
    assert modes == [0o700, 0o700, 0o600]


def test_a_lock_names_the_process_that_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    descriptor = take_lock(path)
    other = (
        "import sys; from pathlib import Path; from agent.durable.files import *\n"
        "try: take_lock(Path(sys.argv[1]))\n"
        "except LockHeld as held: print(held.pid)"
    )
    held = subprocess.run(
        [sys.executable, "-c", other, str(path)], capture_output=True, text=True, check=True
    )
    assert held.stdout == f"{os.getpid()}\n"
    os.close(descriptor)
    os.close(take_lock(path))


def test_a_lock_without_a_pid_is_still_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    descriptor = take_lock(path)
    path.write_text("")
    with pytest.raises(LockHeld) as caught:
        take_lock(path)
    assert caught.value.pid is None
    os.close(descriptor)


def test_a_path_that_cannot_be_looked_at_is_not_said_to_be_missing(tmp_path: Path) -> None:
    """`Path.exists` says so from Python 3.14 on: a file that the user may not see would count as none."""
    file = tmp_path / "file"
    file.touch()
    assert is_there(file) and is_there(tmp_path)
    assert not is_there(tmp_path / "missing") and not is_there(file / "below")
    with pytest.raises(OSError, match="too long"):
        is_there(tmp_path / ("n" * 300))


# The kernel's small files


def test_what_is_there_is_read(tmp_path: Path) -> None:
    (tmp_path / "numvfs").write_text("4\n", encoding="ascii")
    (tmp_path / "driver").symlink_to("../../bus/pci/drivers/vfio-pci")
    assert (read_text(tmp_path / "numvfs"), read_number(tmp_path / "numvfs")) == ("4", 4)
    assert link_name(tmp_path / "driver") == "vfio-pci"
    assert entries(tmp_path) == [tmp_path / "driver", tmp_path / "numvfs"]


def test_what_is_missing_is_nothing(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert (read_text(missing), read_number(missing), link_name(missing), entries(missing)) == (
        None,
        None,
        "",
        [],
    )


@pytest.mark.parametrize("text", ["", "-1", "4 5", "0x4", "٤"])
def test_what_is_no_number_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "numvfs").write_text(text, encoding="utf-8")
    assert read_number(tmp_path / "numvfs") is None


def test_a_file_without_end_is_read_up_to_a_bound(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("1" * (SIZE_MAX + 1), encoding="ascii")
    assert read_text(tmp_path / "long") == "1" * SIZE_MAX


def test_no_more_is_read_than_asked_for(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"x" * 100)
    os.close(writing)
    assert read_bytes(Path(f"/dev/fd/{reading}"), 64) == b"x" * 64
    assert os.read(reading, 100) == b"x" * 36
    os.close(reading)
    assert read_bytes(tmp_path, 64) is None
