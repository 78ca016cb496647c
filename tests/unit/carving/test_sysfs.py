"""What is not there, or not readable, is nothing."""

from pathlib import Path

import pytest

from agent.carving.sysfs import SIZE_MAX, entries_of, read_link, read_number, read_text


def test_what_is_there_is_read(tmp_path: Path) -> None:
    (tmp_path / "numvfs").write_text("4\n", encoding="ascii")
    (tmp_path / "driver").symlink_to("../../bus/pci/drivers/vfio-pci")
    assert (read_text(tmp_path / "numvfs"), read_number(tmp_path / "numvfs")) == ("4", 4)
    assert read_link(tmp_path / "driver") == "vfio-pci"
    assert entries_of(tmp_path) == [tmp_path / "driver", tmp_path / "numvfs"]


def test_what_is_missing_is_nothing(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert (read_text(missing), read_number(missing), read_link(missing), entries_of(missing)) == (
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
