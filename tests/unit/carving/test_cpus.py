"""Which dedicated CPUs come up at a claim and go down at a boot, and the file that says who has which."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.backoff import BUSY_MAX_S, Backoff
from agent.carving.cpus import (
    CpuHold,
    CpuStep,
    awaited_cpus,
    cpu_holds,
    cpu_steps,
    holds_to_json,
    managed_cpus,
    read_holds,
)
from agent.carving.files import CPUS_NAME, CpuNeeds, read_cpu_file
from agent.carving.kernel import CpuKernel
from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest
from agent.claims.rows import Row
from agent.driver import Guest, GuestState, HostSettings, UsedUnit
from agent.errors import UsageError

HOST = "host"
WEB, DB = (str(UUID(int=number)) for number in (1, 2))
SETTINGS = HostSettings(cpu_dedicated_set=frozenset(range(6)), cpu_power_management=True)
ALL_UP = dict.fromkeys(range(1, 6), "online")
ALL_DOWN = dict.fromkeys(range(1, 6), "offline")


def claim(instance: str, *cpus: int) -> Claim:
    units = {HOST: {"PCPU": tuple(map(str, cpus)), "VGPU": ("x",)}}
    return Claim(instance, ClaimState.CLAIMED, ClaimRequest(instance, ()), {HOST: {"PCPU": len(cpus)}}, units)


def guest(instance: str, state: GuestState, *cpus: int) -> Guest:
    return Guest(instance, "vm", state, {}, tuple(UsedUnit("PCPU", str(cpu), HOST) for cpu in cpus))


def row(instance: str, of_claim: tuple[int, ...], state: GuestState | None = None, *of_guest: int) -> Row:
    claimed = {instance: claim(instance, *of_claim)} if of_claim else {}
    return Row(instance, claimed=claimed, guest=guest(instance, state, *of_guest) if state else None)


def steps(
    holds: dict[str, CpuHold] | None,
    seen: dict[int, str],
    settings: HostSettings = SETTINGS,
    *,
    booting: bool = False,
) -> list[str]:
    return [step.text for step in cpu_steps(settings, holds, seen, guests_may_start=not booting)]


def test_a_claim_awaits_its_cpus_until_its_guest_runs_and_not_again_after_it() -> None:
    """The guest that is shut off had its CPUs taken down by libvirt's hook, which brings them up again."""
    holds = cpu_holds([row(WEB, (3, 4))], {})
    assert holds == {WEB: CpuHold(frozenset({3, 4}), awaited=True)}
    holds = cpu_holds([row(WEB, (3, 4), GuestState.SHUTOFF, 3, 4)], holds)
    assert holds[WEB].awaited, "it is defined, and did not run yet"
    for state in (GuestState.RUNNING, GuestState.SHUTOFF, None):
        holds = cpu_holds([row(WEB, (3, 4), state)], holds)
        assert holds == {WEB: CpuHold(frozenset({3, 4}))}
    assert cpu_holds([], holds) == {}


def test_other_cpus_of_an_instance_are_awaited_anew_and_fewer_are_not() -> None:
    """As after the begin of a resize, and after its revert."""
    former = {WEB: CpuHold(frozenset({3, 4}))}
    assert cpu_holds([row(WEB, (3, 5))], former)[WEB].awaited
    assert not cpu_holds([row(WEB, (3,))], former)[WEB].awaited


def test_a_guest_without_a_claim_has_its_cpus_and_awaits_none() -> None:
    rows = [row(WEB, (), GuestState.SHUTOFF, 2), row(DB, (), GuestState.RUNNING)]
    assert cpu_holds(rows, {}) == {WEB: CpuHold(frozenset({2}))}


def test_what_is_awaited_comes_up_and_nothing_goes_down_where_a_guest_may_start() -> None:
    holds = {WEB: CpuHold(frozenset({3, 4}), awaited=True), DB: CpuHold(frozenset({1}))}
    assert awaited_cpus(holds) == {3, 4}
    assert steps(holds, ALL_DOWN) == ["bring CPU 3 online", "bring CPU 4 online"]
    assert steps(holds, ALL_UP) == []


def test_at_a_boot_what_no_instance_has_goes_down_but_for_cpu_0() -> None:
    holds = {WEB: CpuHold(frozenset({3, 4}), awaited=True), DB: CpuHold(frozenset({1}))}
    assert steps(holds, {0: "online", **ALL_UP}, booting=True) == ["take CPU 2 offline", "take CPU 5 offline"]
    assert steps({}, ALL_UP, booting=True) == [f"take CPU {cpu} offline" for cpu in range(1, 6)]


def test_nothing_goes_down_where_it_is_unknown_who_has_what() -> None:
    assert steps(None, ALL_UP, booting=True) == []


def test_a_cpu_that_the_kernel_cannot_change_stays_and_so_does_all_without_the_option() -> None:
    holds = {WEB: CpuHold(frozenset({3}), awaited=True)}
    assert steps(holds, {}, booting=True) == []
    off = replace(SETTINGS, cpu_power_management=False)
    assert managed_cpus(off) == managed_cpus(HostSettings(cpu_power_management=True)) == frozenset()
    assert steps(holds, ALL_DOWN, off, booting=True) == []


HOLDS = st.dictionaries(
    st.uuids().map(str), st.builds(CpuHold, st.frozensets(st.integers(0, 8), min_size=1), st.booleans())
)


@given(HOLDS, st.dictionaries(st.integers(0, 8), st.sampled_from(("online", "offline"))), st.booleans())
def test_after_the_steps_there_are_none_and_no_cpu_of_an_instance_went_down(
    holds: dict[str, CpuHold], seen: dict[int, str], booting: bool
) -> None:
    taken = cpu_steps(SETTINGS, holds, seen, guests_may_start=not booting)
    down = {step.cpu for step in taken if step.state == "offline"}
    assert not down & {0, *(cpu for hold in holds.values() for cpu in hold.cpus)}
    assert {step.cpu for step in taken} <= managed_cpus(SETTINGS) & seen.keys()
    after = seen | {step.cpu: step.state for step in taken}
    assert cpu_steps(SETTINGS, holds, after, guests_may_start=not booting) == ()


@given(HOLDS)
def test_the_file_says_all(holds: dict[str, CpuHold]) -> None:
    assert read_holds(json.loads(json.dumps(holds_to_json(holds)))) == holds


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "an object"),
        ({"version": 2, "instances": {}}, "version 1"),
        ({"version": 1, "instances": {"web": {"cpus": "1", "awaited": True}}}, "a uuid"),
        ({"version": 1, "instances": {WEB: {"cpus": "../1", "awaited": True}}}, "CPU ids and ranges"),
        ({"version": 1, "instances": {WEB: {"cpus": "1", "awaited": 1}}}, "true or false"),
        ({"version": 1, "instances": {WEB: {"cpus": "1", "online": True}}}, "unknown key"),
    ],
)
def test_another_file_is_refused(data: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_holds(data)


def test_a_step_says_what_it_does() -> None:
    assert CpuStep(3, "online").text == "bring CPU 3 online"


CLAIM = Claim(
    WEB, ClaimState.CLAIMED, ClaimRequest(WEB, ()), {"host": {"PCPU": 1}}, {"host": {"PCPU": ("3",)}}
)
HELD = {WEB: CpuHold(frozenset({3}), awaited=True)}


class World:
    """What the agent knows, and the host's root."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o700)
        self.folder = folder
        self.settings = HostSettings(cpu_dedicated_set=frozenset({3}), cpu_power_management=True)
        self.rows: tuple[Row, ...] = (Row(WEB, claimed={WEB: CLAIM}),)
        self.guests: tuple[Guest, ...] | None = ()
        self.now = 0.0
        self.cpu = folder / "root/sys/devices/system/cpu/cpu3"
        self.cpu.mkdir(parents=True)
        self.kernel_says("0")
        self.needs = self.restarted()

    def kernel_says(self, online: str) -> None:
        (self.cpu / "online").write_text(f"{online}\n")

    def restarted(self) -> CpuNeeds:
        return CpuNeeds(
            self.folder,
            lambda: self.settings,
            lambda: self.rows,
            lambda: self.guests,
            CpuKernel(self.folder / "root"),
            Backoff(clock=lambda: self.now, uniform=lambda _, high: high),
        )

    def writes(self) -> bool:
        """Whether the file is replaced."""
        file = self.folder / CPUS_NAME
        before = file.stat().st_ino if file.exists() else None
        self.needs.write()
        return file.exists() and file.stat().st_ino != before


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_claim_puts_its_cpus_into_the_file_and_its_release_takes_them_out(world: World) -> None:
    assert world.writes()
    assert read_cpu_file(world.folder) == HELD
    world.kernel_says("1")
    assert not world.writes()
    world.rows = ()
    assert world.writes()
    assert read_cpu_file(world.folder) == {}


def test_nothing_is_written_without_the_option_or_before_the_guests_are_known(world: World) -> None:
    world.guests = None
    assert not world.writes()
    world.guests, world.settings = (), HostSettings(cpu_dedicated_set=frozenset({3}))
    assert not world.writes()


def test_an_agent_that_starts_again_goes_on_from_the_file(world: World) -> None:
    world.needs.write()
    world.needs = world.restarted()
    world.kernel_says("1")
    assert not world.writes()


def test_an_agent_that_starts_again_awaits_no_cpu_of_a_guest_that_has_run(world: World) -> None:
    for state in (GuestState.RUNNING, GuestState.SHUTOFF):
        world.rows = (row(WEB, (3,), state, 3),)
        world.needs = world.restarted()
        world.needs.write()
        assert read_cpu_file(world.folder) == {WEB: CpuHold(frozenset({3}))}


def test_a_cpu_that_does_not_come_up_is_asked_for_again_and_ever_more_seldom(world: World) -> None:
    written = []
    for second in range(0, 7200, 30):
        world.now = float(second)
        if world.writes():
            written.append(second)
    assert written[:3] == [0, 30, 60] and len(written) < 25
    assert max(later - earlier for earlier, later in pairwise(written)) <= BUSY_MAX_S + 30
    world.kernel_says("1")
    world.now += BUSY_MAX_S
    assert not world.writes()
