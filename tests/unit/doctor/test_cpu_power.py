"""The doctor on dedicated CPUs that may be down: what the kernel can change of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.config.settings import Settings, load
from agent.doctor.check import DoctorCheck
from agent.doctor.cpu_power import cpu_power

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
    return list(cpu_power(settings_of(folder, more), folder))


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
