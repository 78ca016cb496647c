"""Durable files: what they contain, who may open them, and the lock that names its holder."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agent.durable.files import LockHeld, is_there, make_directory, make_file, take_lock, write_atomically


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
