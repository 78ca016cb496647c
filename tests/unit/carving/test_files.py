"""The files by which the agent tells a process of root what guests need, and whom that process trusts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.carving.carving import NeededUnit
from agent.carving.files import PLAN_NAME, SIZE_MAX, check_owners, read_plan_file, write_plan_file
from agent.driver import CarvedUnit
from agent.errors import StateError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir(mode=0o750)
    (tmp_path / "etc" / "plimsoll.conf").write_text("")
    (tmp_path / "etc" / "plimsoll.conf").chmod(0o640)
    return tmp_path / "etc" / "plimsoll.conf"


def test_a_file_of_the_owner_alone_is_trusted(file: Path) -> None:
    check_owners([file])


@pytest.mark.parametrize("mode", [0o660, 0o646])
def test_a_file_that_others_write_is_not(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(StateError, match="chmod go-w"):
        check_owners([file])


def test_nor_is_one_in_a_directory_in_which_others_can_replace_it(file: Path) -> None:
    file.parent.chmod(0o770)
    with pytest.raises(StateError, match="others than root"):
        check_owners([file])
    file.parent.chmod(0o1777)
    check_owners([file])


def test_a_file_that_is_gone_is_told(file: Path) -> None:
    with pytest.raises(StateError, match="cannot be read"):
        check_owners([file.with_name("other.conf")])


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
    assert (folder / PLAN_NAME).stat().st_mode & 0o777 == 0o600


def test_a_link_is_not_followed_and_its_target_not_shown(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("root:hunter2")
    (folder / PLAN_NAME).symlink_to(tmp_path / "secret")
    with pytest.raises(StateError) as caught:
        read_plan_file(folder)
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_can_write_is_refused(folder: Path, mode: int) -> None:
    write_plan_file(folder, [NEED])
    (folder / PLAN_NAME).chmod(mode)
    with pytest.raises(StateError, match="others than the owner"):
        read_plan_file(folder)
    (folder / PLAN_NAME).chmod(0o600)
    folder.chmod(0o777)
    with pytest.raises(StateError, match="others than the owner"):
        read_plan_file(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_refused(folder: Path) -> None:
    write_plan_file(folder, [NEED])
    os.chown(folder / PLAN_NAME, 12345, 12345)
    with pytest.raises(StateError, match="others than the owner"):
        read_plan_file(folder)
    os.chown(folder, 12345, 12345)  # the agent's own directory and file
    assert read_plan_file(folder) == (NEED,)


def test_what_is_no_plan_is_refused_with_what_to_do(folder: Path) -> None:
    for text in ("", "{", '{"version": 9, "units": []}', " " * (SIZE_MAX + 1)):
        (folder / PLAN_NAME).write_text(text)
        with pytest.raises(StateError, match="Remove the file"):
            read_plan_file(folder)
    (folder / PLAN_NAME).unlink()
    os.mkfifo(folder / PLAN_NAME)
    with pytest.raises(StateError, match="no file"):
        read_plan_file(folder)


def test_a_full_disk_is_told_with_what_it_means(folder: Path) -> None:
    with pytest.raises(StateError, match="after a reboot"):
        write_plan_file(folder / "missing", [NEED])
