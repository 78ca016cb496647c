from pathlib import Path

import pytest

from agent.errors import DriverDataError
from drivers.libvirt.io.sysfs import Sysfs, default_huge_page_kib


def test_sysfs_is_read_inside_its_folder(tmp_path: Path) -> None:
    device = tmp_path / "bus" / "pci" / "devices" / "0000:42:00.0"
    types = device / "mdev_supported_types"
    for name, text in (("nvidia-11", "num_heads=2, max_instance=16"), ("nvidia-12", "no such word")):
        (types / name).mkdir(parents=True)
        (types / name / "description").write_text(text)
    (device / "11111111-1111-4111-8111-111111111111").mkdir()
    (device / "nvidia").mkdir()
    (device / "nvidia" / "current_vgpu_type").write_text("471\n")
    sysfs = Sysfs(tmp_path)
    assert sysfs.mdev_limits("0000:42:00.0", ["nvidia-11", "nvidia-12", "nvidia-13"]) == {"nvidia-11": 16}
    assert (sysfs.mdev_count("0000:42:00.0"), sysfs.mdev_count("0000:43:00.0")) == (1, None)
    assert (sysfs.vgpu_type("0000:42:00.0"), sysfs.vgpu_type("0000:43:00.0")) == ("471", None)
    assert sysfs.vgpu_place("0000:42:00.0") is None
    (device / "nvidia" / "placement_id").write_text("-1\n")
    assert sysfs.vgpu_place("0000:42:00.0") is None, "the card is not in mixed-size mode"
    (device / "nvidia" / "placement_id").write_text("20\n")
    assert sysfs.vgpu_place("0000:42:00.0") == 20
    assert sysfs.vgpu_names("0000:42:00.0") == {}
    (device / "nvidia" / "creatable_vgpu_types").write_text(
        "ID    : vGPU Name\n468   : NVIDIA A100-4C\n471   : NVIDIA A100-10C\n"
    )
    assert sysfs.vgpu_names("0000:42:00.0") == {"468": "NVIDIA A100-4C", "471": "NVIDIA A100-10C"}
    for name in ("..", "a/../..", "", "nvidia-11/", "."):
        with pytest.raises(DriverDataError, match="is not a name in sysfs"):
            sysfs.mdev_limits("0000:42:00.0", [name])


def test_the_kernel_says_how_large_a_page_is_of_which_a_domain_says_nothing(tmp_path: Path) -> None:
    told = tmp_path / "meminfo"
    told.write_text("HugePages_Free:        0\nHugepagesize:    1048576 kB\nHugetlb: 0 kB\n")
    assert default_huge_page_kib(told) == 1048576
    assert default_huge_page_kib(tmp_path / "none") == 2048
