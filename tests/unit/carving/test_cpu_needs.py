"""The agent keeps the file of dedicated CPUs, whose replacement brings those of a claim up."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest

from agent.backoff import BUSY_MAX_S, Backoff
from agent.carving.cpus import CpuHold
from agent.carving.files import CPUS_NAME, CpuNeeds, read_cpu_file
from agent.carving.kernel import CpuKernel
from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest
from agent.claims.rows import Row
from agent.driver import Guest, HostSettings

WEB = str(UUID(int=1))
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


def test_a_file_that_is_spoilt_is_told_once_and_written_anew(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    (world.folder / CPUS_NAME).write_text("spoilt")
    world.kernel_says("1")
    with caplog.at_level(logging.WARNING):
        assert world.writes()
        assert not world.writes()
    assert len(caplog.records) == 1
    assert read_cpu_file(world.folder) == HELD


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
