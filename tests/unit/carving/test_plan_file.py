"""The carver reads the plan file as root, and takes it only for what the agent wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.carving.carving import NeededUnit
from agent.carving.kept_file import SIZE_MAX
from agent.carving.plan_file import NAME, read_plan_file, write_plan_file
from agent.driver import CarvedUnit
from agent.errors import StateError

NEED = NeededUnit(
    CarvedUnit("00000000-0000-0000-0000-000000000001", "0000:84:00.0", "0000:84:00.1", "t-1"), "vm1"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir(mode=0o700)
    return tmp_path / "state"


def test_what_was_written_is_read_and_only_its_owner_can(folder: Path) -> None:
    assert read_plan_file(folder) == ()
    write_plan_file(folder, [NEED])
    assert read_plan_file(folder) == (NEED,)
    assert (folder / NAME).stat().st_mode & 0o777 == 0o600


def test_a_link_is_not_followed_and_its_target_not_shown(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("root:hunter2")
    (folder / NAME).symlink_to(tmp_path / "secret")
    with pytest.raises(StateError) as caught:
        read_plan_file(folder)
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_can_write_is_refused(folder: Path, mode: int) -> None:
    write_plan_file(folder, [NEED])
    (folder / NAME).chmod(mode)
    with pytest.raises(StateError, match="others than the owner"):
        read_plan_file(folder)
    (folder / NAME).chmod(0o600)
    folder.chmod(0o777)
    with pytest.raises(StateError, match="others than the owner"):
        read_plan_file(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_refused(folder: Path) -> None:
    write_plan_file(folder, [NEED])
    os.chown(folder / NAME, 12345, 12345)
    with pytest.raises(StateError, match="others than the owner"):
        read_plan_file(folder)
    os.chown(folder, 12345, 12345)  # the agent's own directory and file
    assert read_plan_file(folder) == (NEED,)


def test_what_is_no_plan_is_refused_with_what_to_do(folder: Path) -> None:
    for text in ("", "{", '{"version": 9, "units": []}', " " * (SIZE_MAX + 1)):
        (folder / NAME).write_text(text)
        with pytest.raises(StateError, match="Remove the file"):
            read_plan_file(folder)
    (folder / NAME).unlink()
    os.mkfifo(folder / NAME)
    with pytest.raises(StateError, match="no file"):
        read_plan_file(folder)


def test_a_full_disk_is_told_with_what_it_means(folder: Path) -> None:
    with pytest.raises(StateError, match="after a reboot"):
        write_plan_file(folder / "missing", [NEED])
