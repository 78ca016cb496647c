"""Who has a function open over VFIO."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.carving.kernel import vfio_uses


@pytest.fixture
def device(tmp_path: Path) -> Path:
    folder = tmp_path / "0000:41:10.0"
    folder.mkdir()
    (folder / "enable").write_text("0\n")
    (folder / "iommu_group").symlink_to(tmp_path / "iommu_groups" / "17")
    (folder / "vfio-dev" / "vfio3").mkdir(parents=True)
    return folder


def opens(proc: Path, process: int, name: str, file: str) -> None:
    folder = proc / str(process)
    (folder / "fd").mkdir(parents=True)
    (folder / "fd" / "7").symlink_to(file)
    (folder / "comm").write_text(f"{name}\n")


def test_a_function_that_no_process_has_open_is_free(device: Path, tmp_path: Path) -> None:
    opens(tmp_path / "proc", 1, "qemu", "/dev/vfio/18")
    assert list(vfio_uses(device, "vfio-pci", tmp_path / "proc")) == []


@pytest.mark.parametrize("file", ["/dev/vfio/17", "/dev/vfio/devices/vfio3"])
def test_who_has_its_group_or_the_function_itself_open_is_named(
    device: Path, tmp_path: Path, file: str
) -> None:
    opens(tmp_path / "proc", 42, "qemu-system-x86", file)
    assert list(vfio_uses(device, "vfio-pci", tmp_path / "proc")) == [
        "process 42 (qemu-system-x86) has it open"
    ]


def test_an_enabled_function_is_in_use_though_its_process_cannot_be_seen(
    device: Path, tmp_path: Path
) -> None:
    (device / "enable").write_text("1\n")
    assert list(vfio_uses(device, "vfio-pci", tmp_path / "proc")) == [
        "a guest or another program has it open over vfio-pci"
    ]


def test_what_the_kernel_does_not_tell_is_not_taken_for_free(device: Path, tmp_path: Path) -> None:
    (device / "enable").unlink()
    assert list(vfio_uses(device, "vfio-pci", tmp_path)) == ["its driver vfio-pci may give it to a guest"]
