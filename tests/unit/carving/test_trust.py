"""Settings that say what root does are root's alone to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.carving.trust import check_owners
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
