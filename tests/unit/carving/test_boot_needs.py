"""The agent keeps the plan file: whatever claims and domains need is in it, also over a boot."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest

from agent.backoff import BUSY_MAX_S, Backoff
from agent.carving.files import PLAN_NAME, BootNeeds, read_plan_file
from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest
from agent.driver import CarvedUnit, Guest, GuestState, UsedUnit
from agent.errors import DriverUnavailable

CARD, VF = "0000:84:00.0", "0000:84:00.1"
MDEV = "00000000-0000-0000-0000-000000000001"
CARVED = (CarvedUnit(MDEV, CARD, VF, "nvidia-471"),)
GUEST = Guest(str(UUID(int=7)), "gpu1", GuestState.RUNNING, {}, (UsedUnit("VGPU", MDEV, f"pci:{CARD}"),))


class World:
    """What the agent and the driver say."""

    claims: tuple[Claim, ...] = ()
    guests: tuple[Guest, ...] | None = (GUEST,)
    carved: tuple[CarvedUnit, ...] | None = CARVED
    now = 0.0

    def read_carved(self) -> tuple[CarvedUnit, ...]:
        if self.carved is None:
            raise DriverUnavailable("libvirt is away")
        return self.carved


def needs_of(world: World, folder: Path) -> BootNeeds:
    backoff = Backoff(clock=lambda: world.now, uniform=lambda _, high: high)
    return BootNeeds(folder, lambda: world.claims, lambda: world.guests, world.read_carved, backoff)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def test_a_guest_puts_its_units_into_the_file_and_takes_them_out(folder: Path) -> None:
    world = World()
    needs = needs_of(world, folder)
    needs.write()
    assert [need.unit for need in read_plan_file(folder)] == list(CARVED)
    world.guests = ()
    needs.write()
    assert read_plan_file(folder) == ()


def test_after_a_boot_the_agent_finds_in_the_file_what_the_kernel_does_not_show_any_more(
    folder: Path,
) -> None:
    needs_of(World(), folder).write()
    world = World()
    world.carved = ()
    needs_of(world, folder).write()
    assert [need.unit for need in read_plan_file(folder)] == list(CARVED)


def test_what_is_not_known_is_not_written(folder: Path) -> None:
    needs_of(World(), folder).write()
    world = World()
    for world.guests, world.carved in ((None, CARVED), ((), None)):
        needs_of(world, folder).write()
        assert [need.unit for need in read_plan_file(folder)] == list(CARVED)


def test_a_host_without_such_devices_gets_no_file(folder: Path) -> None:
    world = World()
    world.guests = ()
    needs_of(world, folder).write()
    assert not (folder / PLAN_NAME).exists()


def test_a_file_that_is_spoilt_is_told_once_and_written_anew(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / PLAN_NAME).write_text("spoilt")
    needs = needs_of(World(), folder)
    with caplog.at_level(logging.WARNING):
        needs.write()
        needs.write()
    assert len(caplog.records) == 1
    assert [need.unit for need in read_plan_file(folder)] == list(CARVED)


def test_a_vgpu_that_is_not_made_is_asked_for_again_and_ever_more_seldom(folder: Path) -> None:
    world = World()
    unit = f"{VF}/nvidia-470@12"
    world.guests, world.carved = (), ()
    world.claims = (
        Claim(
            GUEST.uuid,
            ClaimState.CLAIMED,
            ClaimRequest(GUEST.uuid, ()),
            {"card": {"CUSTOM_VGPU_8": 1}},
            {"card": {"CUSTOM_VGPU_8": (unit,)}},
            makings={unit: {"parent": VF, "type": "nvidia-470", "placement": "12"}},
        ),
    )
    needs = needs_of(world, folder)
    needs.write()
    written = []
    for second in range(0, 7200, 30):
        world.now = float(second)
        before = (folder / PLAN_NAME).stat().st_ino
        needs.write()
        if (folder / PLAN_NAME).stat().st_ino != before:
            written.append(second)
    assert written[:3] == [0, 30, 60] and len(written) < 25
    assert max(later - earlier for earlier, later in pairwise(written)) <= BUSY_MAX_S + 30
    world.carved = (CarvedUnit(VF, CARD, VF, "nvidia-470", 12),)
    needs.write()
    made = (folder / PLAN_NAME).stat().st_ino
    world.now += BUSY_MAX_S
    needs.write()
    assert (folder / PLAN_NAME).stat().st_ino == made, "it is made"
