"""A disk that fails or does not answer during a reshape: no reshape is half remembered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kits.reshape import HOST, World, host, provider, uuid_of
from kits.stalling_disk import StallingDisk
from kits.tracker import fast_directory, request

from agent.driver import MoveInstruction
from agent.errors import StateError, StateUnknown

WAIT_S = 0.2
WRITES_MAX = 20
FLAT = (host(VGPU=8),)
NESTED = (host(), provider("gpu0", VGPU=4), provider("gpu1", VGPU=4))
TO_CARDS = (
    MoveInstruction(HOST, {"VGPU": 4}, "gpu0", {}),
    MoveInstruction(HOST, {"VGPU": 4}, "gpu1", {uuid_of("a"): {"VGPU": 1}}),
)


def at_write(number: int, then: Callable[[], None]) -> Callable[[str], None]:
    """For `World.journal.before`: calls `then` once, at the write with this number."""
    left = [number]

    def before(_: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            then()

    return before


def prepared(world: World) -> str:
    """A claim on the flat host, beside a consumer of a scheduler's; the claim's consumer."""
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 1})
    return world.tracker.claim(request(VCPU=1, VGPU=2)).claim.consumer


def is_whole(world: World, claimed: str) -> None:
    """Placement, the claims in memory, and the journal all have the reshape, once."""
    world.check()
    assert world.placed(claimed) == {HOST: {"VCPU": 1}, "gpu0": {"VGPU": 2}}
    assert world.placed("a") == {"gpu1": {"VGPU": 1}}
    assert len(world.journal.reshapes(done=True)) == 1 and not world.journal.reshapes(done=False)
    assert world.journal.reserved_slots() == []


@pytest.mark.parametrize("restarts", [False, True], ids=["goes on", "starts again"])
def test_each_write_that_the_disk_refuses_is_made_up_for(restarts: bool) -> None:
    refused = 0
    for number in range(1, WRITES_MAX):
        with fast_directory() as directory, World(Path(directory)) as world:
            claimed = prepared(world)
            disk = StallingDisk(world.journal._file)
            world.journal.before = at_write(number, disk.fail_next)
            error = world.see(*NESTED, moves=TO_CARDS).error
            world.journal.before = lambda _: None
            assert world.tracker.claims() == world.journal.claims()
            if error is not None:
                assert isinstance(error, StateError) and not isinstance(error, StateUnknown)
                refused += 1
            if restarts:
                world.restart()
            if error is not None or restarts:
                report = world.see(*NESTED, moves=TO_CARDS)
                assert (report.error, report.pending) == (None, None)
            is_whole(world, claimed)
    assert refused >= 3, "the reservation, the intent, the end"


@pytest.mark.parametrize("restarts", [False, True], ids=["goes on", "starts again"])
def test_after_each_write_that_stalls_the_agent_continues_with_what_is_on_disk(restarts: bool) -> None:
    stalled = 0
    for number in range(1, WRITES_MAX):
        with fast_directory() as directory, World(Path(directory)) as world:
            claimed = prepared(world)
            disk = StallingDisk(world.journal._file)
            world.journal.wait_s = WAIT_S
            world.journal.before = at_write(number, disk.stall)
            error = world.see(*NESTED, moves=TO_CARDS).error
            world.journal.before = lambda _: None
            if error is not None:
                assert isinstance(error, StateUnknown)
                with pytest.raises(StateUnknown):
                    world.tracker.read_back()
                stalled += 1
            disk.go_on()
            world.journal.wait_s = 30
            world.journal.history()  # behind the stalled write
            if restarts:
                world.restart()
            world.tracker.read_back()
            assert world.tracker.claims() == world.journal.claims()
            report = world.see(*NESTED, moves=TO_CARDS)
            assert (report.error, report.pending) == (None, None)
            is_whole(world, claimed)
    assert stalled >= 3, "the reservation, the intent, the end"
