"""The steps of a pass, one by one: each returns the pass anew, and only some of them write."""

import pytest
from kits.reshape import HOST, ROOT, World, host, provider, uuid_of

from agent.driver import Description, MoveInstruction
from agent.reconcile.desired_state import ActiveProviderConfig, UndoneReshapes
from agent.reconcile.pass_steps import HostView, Pass, PassSteps
from agent.reconcile.placement_memory import AllocationCache
from agent.reconcile.reshape_runner import ReshapeRunner

NESTED = Description(
    (host(), provider("gpu0", VGPU=4)),
    (MoveInstruction(HOST, {"VGPU": 4}, "gpu0", {uuid_of("a"): {"VGPU": 1}}),),
)


@pytest.fixture
def world(world: World) -> World:
    world.see(host(VGPU=4))
    world.hold("a", node1={"VGPU": 1})
    return world


def steps_of(world: World) -> PassSteps:
    client, tracker, journal = world.client, world.tracker, world.journal
    return PassSteps(
        client,
        tracker,
        journal,
        ROOT,
        ReshapeRunner(client, tracker, journal, ROOT),
        UndoneReshapes(journal),
        ActiveProviderConfig(ROOT),
        AllocationCache(client, world.tree(), {}),
    )


def begun(world: World, steps: PassSteps) -> Pass:
    seen = HostView(NESTED, world.tracker.view.in_use())
    return steps.find_desired(steps.settle(steps.resolve(seen, world.tree())))


def test_the_steps_before_the_reshape_write_nothing(world: World) -> None:
    before = world.everything()
    steps = steps_of(world)
    this = begun(world, steps)
    card = this.desired.tree.by_name("gpu0")
    assert card is not None and [instruction.target for instruction in this.desired.due] == [card.uuid]
    assert this.written == ()
    assert world.everything() == before


def test_the_next_plan_leaves_what_moves_to_the_reshape(world: World) -> None:
    """The card is created; its units, and those of the host, wait for the one request."""
    world.driver.description = NESTED
    lines = world.reconciler.next_plan().lines()
    assert any("gpu0" in line for line in lines) and not any("VGPU" in line for line in lines)
    assert world.again().error is None
    assert world.reconciler.next_plan().empty


def test_the_next_plan_of_a_refused_reshape_reserves_its_source_once(world: World) -> None:
    world.hold("a", node1={"VGPU": 4})
    world.driver.description = Description(
        (host(), provider("gpu0", VGPU=2)), (MoveInstruction(HOST, {"VGPU": 2}, "gpu0"),)
    )
    assert any("reserved" in line for line in world.reconciler.next_plan().lines())
    assert world.again().pending is not None
    assert world.reconciler.next_plan().empty


def test_the_steps_lead_to_the_desired_tree(world: World) -> None:
    steps = steps_of(world)
    reshaped = steps.reshape(begun(world, steps))
    assert reshaped.pending is None and reshaped.written
    assert world.placed("a") == {"gpu0": {"VGPU": 1}}
    applied, held = steps.inform_tracker(steps.apply(reshaped))
    assert world.totals() == {HOST: {"VCPU": 64}, "gpu0": {"VGPU": 4}}
    assert held == {world.uuid("gpu0"): {uuid_of("a"): {"VGPU": 1}}}
    assert applied.complete and applied.problems == ()


def test_a_reshape_that_is_not_possible_is_pending_and_its_source_reserved(world: World) -> None:
    """A consumer holds more than the card has."""
    world.hold("a", node1={"VGPU": 4})
    small = Description((host(), provider("gpu0", VGPU=2)), (MoveInstruction(HOST, {"VGPU": 2}, "gpu0"),))
    steps = steps_of(world)
    this = steps.find_desired(steps.resolve(HostView(small, world.tracker.view.in_use()), world.tree()))
    this = steps.apply(steps.reshape(this))
    assert this.pending is not None and not this.complete
    assert world.tree()[ROOT].inventories["VGPU"].capacity == 0
