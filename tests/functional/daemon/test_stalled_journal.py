"""The agent's own disk stalls: the agent says so, decides nothing, and comes back by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.agent import World, opened, request, told
from kits.placements import Embedded
from kits.stalling_disk import StallingDisk

from agent.errors import ClaimsClosed, StateUnknown
from agent.state.operators import Cordon, PauseRequest
from agent.status.overview import OWN, HostState


def test_a_stalled_journal_closes_the_agent_until_the_disk_answers(tmp_path: Path) -> None:
    world = opened(told(tmp_path, Embedded(tmp_path)))
    world.agent.reconcile("test")
    agent, operations, journal = world.agent, world.operations, world.journal
    asked = request(VCPU=1)
    operations.claim(asked)
    disk, journal.wait_s = StallingDisk(journal._file), 0.1
    with disk.stalled():
        with pytest.raises(StateUnknown):
            operations.release(asked.consumer)
        fault = agent.condition.fault
        assert fault is not None and fault.concern == OWN and "disk does not answer" in fault.sentence
        with pytest.raises(ClaimsClosed, match="disk does not answer"):
            operations.claim(request(VCPU=1))
        agent.reconcile("test")
        assert agent.condition.state is HostState.DEGRADED, "the disk does not answer yet"
    journal.wait_s = 30.0
    journal.history()
    agent.reconcile("test")
    assert agent.condition.state is HostState.READY
    assert asked.consumer not in journal.claims(), "the release was on disk, and is delivered"
    operations.claim(request(VCPU=1))
    world.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = opened(told(tmp_path, Embedded(tmp_path)))
    world.agent.reconcile("test")
    yield world
    world.close()


def reserved(world: World) -> int:
    """All that is reserved of the class of the first device, as Placement has it."""
    name = world.operations.devices()[0].resource_class
    tree, _ = world.operations.tree()
    return sum(each.inventories[name].reserved for each in tree if name in each.inventories)


def test_a_cordon_that_was_not_confirmed_is_in_force_once_the_disk_answers(world: World) -> None:
    cordon = Cordon(world.operations.devices()[0].unit, "", 0, 1.0)
    before = reserved(world)
    disk, world.journal.wait_s = StallingDisk(world.journal._file), 0.1
    with disk.stalled(), pytest.raises(StateUnknown):
        world.operations.cordon(cordon)
    world.journal.wait_s = 30.0
    assert world.journal.cordons() == {cordon.address: cordon}
    world.agent.reconcile("test")
    assert world.operations.devices()[0].cordon == cordon
    assert reserved(world) == before + 1, "Placement has it too"


def test_a_pause_that_was_not_confirmed_is_in_force_once_the_disk_answers(world: World) -> None:
    # An event of the start that is still queued would stall in place of the pause.
    world.journal.history()
    disk, world.journal.wait_s = StallingDisk(world.journal._file), 0.1
    with disk.stalled(), pytest.raises(StateUnknown):
        world.operations.pause(PauseRequest(0, 1.0, "a test"))
    world.journal.wait_s = 30.0
    world.journal.history()
    world.agent.reconcile("test")
    with pytest.raises(ClaimsClosed, match="paused"):
        world.operations.claim(request(VCPU=1))


def test_a_cordon_and_a_pause_on_a_disk_that_hangs_are_a_fault_at_once(world: World) -> None:
    cordon = Cordon(world.operations.devices()[0].unit, "", 0, 1.0)
    for write in (
        lambda: world.operations.cordon(cordon),
        lambda: world.operations.pause(PauseRequest(0, 1.0, "a test")),
    ):
        world.journal.wait_s = 30.0
        world.agent.reconcile("test")
        assert world.agent.condition.fault is None
        disk, world.journal.wait_s = StallingDisk(world.journal._file), 0.1
        with disk.stalled(), pytest.raises(StateUnknown):
            write()
        fault = world.agent.condition.fault
        assert fault is not None and fault.concern == OWN and "disk does not answer" in fault.sentence
        world.journal.wait_s = 30.0
        world.journal.history()
