"""The files by which the agent tells a process of root what guests need: trusted when, and written when."""

from __future__ import annotations

import logging
import os
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest

from agent.backoff import BUSY_MAX_S, Backoff
from agent.carving.carving import NeededUnit
from agent.carving.files import (
    PLAN_NAME,
    SIZE_MAX,
    BootNeeds,
    KeptNeeds,
    check_owners,
    read_plan_file,
    write_plan_file,
)
from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest
from agent.driver import CarvedUnit, Guest, GuestState, UsedUnit
from agent.errors import DriverUnavailable, StateError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir(mode=0o750)
    (tmp_path / "etc" / "plimsoll.conf").write_text("")
    (tmp_path / "etc" / "plimsoll.conf").chmod(0o640)
    return tmp_path / "etc" / "plimsoll.conf"


def test_a_file_of_the_owner_alone_is_trusted(file: Path) -> None:
    check_owners([file])


@pytest.mark.parametrize("mode", [0o660, 0o646])
def test_a_file_that_others_write_is_not(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(StateError, match="chmod go-w"):
        check_owners([file])


def test_nor_is_one_in_a_directory_in_which_others_can_replace_it(file: Path) -> None:
    file.parent.chmod(0o770)
    with pytest.raises(StateError, match="others than root"):
        check_owners([file])
    file.parent.chmod(0o1777)
    check_owners([file])


def test_a_file_that_is_gone_is_told(file: Path) -> None:
    with pytest.raises(StateError, match="cannot be read"):
        check_owners([file.with_name("other.conf")])


NEED = NeededUnit(
    CarvedUnit("00000000-0000-0000-0000-000000000001", "0000:84:00.0", "0000:84:00.1", "t-1"), "vm1"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir(mode=0o700)
    return tmp_path / "state"


def test_what_was_written_is_read_and_only_its_owner_can(folder: Path) -> None:
    assert read_plan_file(folder) == ()
    write_plan_file(folder, [NEED])
    assert read_plan_file(folder) == (NEED,)
    assert (folder / PLAN_NAME).stat().st_mode & 0o777 == 0o600


def test_a_link_is_not_followed_and_its_target_not_shown(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("root:hunter2")
    (folder / PLAN_NAME).symlink_to(tmp_path / "secret")
    with pytest.raises(StateError) as caught:
        read_plan_file(folder)
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_can_write_is_refused(folder: Path, mode: int) -> None:
    write_plan_file(folder, [NEED])
    (folder / PLAN_NAME).chmod(mode)
    with pytest.raises(StateError, match="others than the owner"):
        read_plan_file(folder)
    (folder / PLAN_NAME).chmod(0o600)
    folder.chmod(0o777)
    with pytest.raises(StateError, match="others than the owner"):
        read_plan_file(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_refused(folder: Path) -> None:
    write_plan_file(folder, [NEED])
    os.chown(folder / PLAN_NAME, 12345, 12345)
    with pytest.raises(StateError, match="others than the owner"):
        read_plan_file(folder)
    os.chown(folder, 12345, 12345)  # the agent's own directory and file
    assert read_plan_file(folder) == (NEED,)


def test_what_is_no_plan_is_refused_with_what_to_do(folder: Path) -> None:
    for text in ("", "{", '{"version": 9, "units": []}', " " * (SIZE_MAX + 1)):
        (folder / PLAN_NAME).write_text(text)
        with pytest.raises(StateError, match="The agent replaces it: start"):
            read_plan_file(folder)
    (folder / PLAN_NAME).unlink()
    os.mkfifo(folder / PLAN_NAME)
    with pytest.raises(StateError, match="no file"):
        read_plan_file(folder)


def test_a_full_disk_is_told_with_what_it_means(folder: Path) -> None:
    with pytest.raises(StateError, match="after a reboot"):
        write_plan_file(folder / "missing", [NEED])


class File:
    """A file that may fail, and what was written to it."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.fault: str | None = None
        self.now = 0.0

    def read(self) -> int | None:
        return self.written[-1] if self.written else None

    def write(self, needs: int) -> None:
        if self.fault is not None:
            raise StateError(self.fault)
        self.written.append(needs)


@pytest.fixture
def disk() -> File:
    return File()


@pytest.fixture
def kept(disk: File) -> KeptNeeds[int]:
    backoff = Backoff(clock=lambda: disk.now, uniform=lambda _, high: high)
    return KeptNeeds(disk.read, disk.write, backoff)


def test_only_what_differs_is_written_and_nothing_where_it_is_unknown(
    disk: File, kept: KeptNeeds[int]
) -> None:
    for needs in (1, 1, 2, 2):
        kept.keep(lambda _, needs=needs: (needs, lambda: True))
    kept.keep(lambda _: None)
    assert disk.written == [1, 2]


def test_what_is_not_there_is_asked_for_again_ever_more_seldom(disk: File, kept: KeptNeeds[int]) -> None:
    at = []
    for second in range(int(BUSY_MAX_S) * 4):
        disk.now = float(second)
        before = len(disk.written)
        kept.keep(lambda _: (1, lambda: False))
        if len(disk.written) > before:
            at.append(second)
    pauses = [later - earlier for earlier, later in pairwise(at[1:])]
    assert len(pauses) > 3 and pauses == sorted(pauses) and pauses[-1] <= BUSY_MAX_S + 1
    kept.keep(lambda _: (1, lambda: True))
    before = len(disk.written)
    disk.now += 1
    kept.keep(lambda _: (1, lambda: False))
    assert len(disk.written) == before + 1, "it was there: the waiting begins anew"


def test_a_file_that_cannot_be_written_is_told_once_and_tried_again(
    disk: File, kept: KeptNeeds[int], caplog: pytest.LogCaptureFixture
) -> None:
    disk.fault = "the disk is full"
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            kept.keep(lambda _: (1, lambda: True))
    assert caplog.messages == ["the disk is full"]
    disk.fault = None
    kept.keep(lambda _: (1, lambda: True))
    assert disk.written == [1]


# The agent keeps the plan file: it writes into it all that claims and domains need, also over a boot

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


def test_a_file_that_is_spoilt_or_removed_beside_the_agent_is_written_anew_with_what_it_said(
    folder: Path,
) -> None:
    world = World()
    needs, file = needs_of(world, folder), folder / PLAN_NAME
    needs.write()
    world.carved = ()  # what has the unit now is in the file alone
    for spoil in (lambda: file.write_text('{"ver'), file.unlink):
        spoil()
        world.now += 30.0
        needs.write()
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
