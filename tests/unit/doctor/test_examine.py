"""Two checks of `plimsoll doctor` by themselves: the memory that libvirt counts, and the power of CPUs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.config.settings import Settings, load
from agent.doctor.check import CheckVerdict, DoctorCheck
from agent.doctor.examine import check_cpu_power, check_memory


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
    (check,) = check_memory(described_mb, file)
    assert check.verdict is (verdict or CheckVerdict.WARNING)
    assert f"{described_mb} MiB" in check.sentence
    if check.verdict is CheckVerdict.WARNING:
        assert "the kernel has 16384 MiB" in check.sentence and "restart libvirtd" in check.remedy


def test_a_kernel_that_does_not_say_is_told(tmp_path: Path) -> None:
    (check,) = check_memory(1, tmp_path / "none")
    assert check.verdict is CheckVerdict.WARNING


DOWN, UP = "0", "1"


def settings_of(folder: Path, more: str = "cpu_power_management = true") -> Settings:
    file = folder / "plimsoll.conf"
    file.write_text(f"[DEFAULT]\nstate_path = {folder}\n[compute]\ncpu_dedicated_set = 0,2-3\n{more}\n")
    return load([file])


def checks(folder: Path, more: str, online: dict[int, str], governors: str = "") -> list[DoctorCheck]:
    for cpu, state in online.items():
        (folder / f"cpu{cpu}" / "cpufreq").mkdir(parents=True, exist_ok=True)
        (folder / f"cpu{cpu}" / "online").write_text(f"{state}\n")
        if governors:
            (folder / f"cpu{cpu}" / "cpufreq" / "scaling_available_governors").write_text(governors)
    return list(check_cpu_power(settings_of(folder, more), folder))


GOVERNOR = "cpu_power_management = true\ncpu_power_management_strategy = governor"


@pytest.mark.parametrize(
    ("more", "online", "governors", "found"),
    [
        ("", {}, "", []),
        ("cpu_power_management = true", {2: DOWN, 3: UP}, "", [("good", "CPU 2 is offline")]),
        ("cpu_power_management = true", {2: UP, 3: UP}, "", [("good", "No dedicated CPU is offline")]),
        (
            "cpu_power_management = true",
            {3: UP},
            "",
            [("warning", "cannot take CPU 2 offline"), ("good", "No dedicated")],
        ),
        (GOVERNOR, {2: UP, 3: UP}, "performance powersave", [("good", "powersave and performance")]),
        (GOVERNOR, {2: UP, 3: UP}, "", [("bad", "CPU 2-3 .*cannot have the governors")]),
        (GOVERNOR, {2: DOWN, 3: UP}, "performance powersave", [("bad", "CPU 2 .*is offline")]),
    ],
)
def test_what_can_be_changed_is_told(
    tmp_path: Path, more: str, online: dict[int, str], governors: str, found: list[tuple[str, str]]
) -> None:
    told = checks(tmp_path, more, online, governors)
    assert [each.verdict.value for each in told] == [verdict for verdict, _ in found]
    for each, (verdict, sentence) in zip(told, found, strict=True):
        assert re.search(sentence, each.sentence)
        assert bool(each.remedy) == (verdict != "good")
