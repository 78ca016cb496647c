"""Which CPUs go up and down with a guest: what nova does for the same flavor."""

from __future__ import annotations

from dataclasses import replace

from agent.driver import Guest, GuestState, HostSettings, UsedUnit
from agent.gate.cpu_power import CpuOrder, power_down, power_up

SETTINGS = HostSettings(cpu_dedicated_set=frozenset({0, 2, 3, 4}), cpu_power_management=True)
GOVERNOR = replace(SETTINGS, cpu_power_management_strategy="governor")


def guest(*cpus: int) -> Guest:
    units = (*(UsedUnit("PCPU", str(cpu), "host") for cpu in cpus), UsedUnit("VGPU", "x", "mdev:x"))
    return Guest("u", "vm", GuestState.RUNNING, {}, units)


def test_dedicated_cpus_but_cpu_0_go_online_and_offline() -> None:
    assert power_up(guest(3, 0, 2, 7), SETTINGS) == CpuOrder((2, 3), "online")
    assert power_down(guest(3, 0, 2), SETTINGS, ()) == CpuOrder((2, 3), "offline")


def test_governors_change_in_the_other_strategy() -> None:
    assert power_up(guest(3), GOVERNOR) == CpuOrder((3,), "performance")
    assert power_down(guest(3), GOVERNOR, ()) == CpuOrder((3,), "powersave")
    low = replace(GOVERNOR, cpu_power_governor_low="ondemand")
    assert power_down(guest(3), low, ()) == CpuOrder((3,), "ondemand")


def test_what_another_guest_uses_stays_up() -> None:
    assert power_down(guest(2, 3), SETTINGS, [guest(3), guest(4)]) == CpuOrder((2,), "offline")
    assert power_down(guest(2), SETTINGS, [guest(2)]) is None


def test_nothing_is_done_without_dedicated_cpus_or_unless_it_is_configured() -> None:
    assert power_up(guest(), SETTINGS) is None
    assert power_up(guest(0), SETTINGS) is None
    assert power_up(guest(2), replace(SETTINGS, cpu_power_management=False)) is None
    assert power_down(guest(2), replace(SETTINGS, cpu_dedicated_set=None), ()) is None
