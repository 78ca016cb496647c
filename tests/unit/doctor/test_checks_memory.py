"""libvirt's memory against the kernel's, in `plimsoll doctor`."""

from pathlib import Path

import pytest

from agent.doctor.check import CheckVerdict
from agent.doctor.checks_host import memory


@pytest.mark.parametrize(
    ("described_mb", "verdict"),
    [
        (16384, CheckVerdict.GOOD),
        (16384 - 500, CheckVerdict.GOOD),
        (8192, CheckVerdict.WARNING),
        (20000, None),
    ],
)
def test_the_memory_of_libvirt_is_compared_with_the_kernels(
    tmp_path: Path, described_mb: int, verdict: CheckVerdict | None
) -> None:
    file = tmp_path / "meminfo"
    file.write_text(f"MemTotal:       {16384 * 1024} kB\nMemFree: 1 kB\n")
    (check,) = memory(described_mb, file)
    assert check.verdict is (verdict or CheckVerdict.WARNING)
    assert f"{described_mb} MiB" in check.sentence
    if check.verdict is CheckVerdict.WARNING:
        assert "the kernel has 16384 MiB" in check.sentence and "restart libvirtd" in check.remedy


def test_a_kernel_that_does_not_say_is_told(tmp_path: Path) -> None:
    (check,) = memory(1, tmp_path / "none")
    assert check.verdict is CheckVerdict.WARNING
