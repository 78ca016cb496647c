"""Whether Placement executed a reshape that it did not answer, read from what it holds."""

import pytest
from kits.reshape import HOST, ROOT, World, host, provider, uuid_of

from agent.driver import MoveInstruction
from agent.errors import PlacementConflict, PlacementUnavailable
from agent.reconcile.reshape_outcome import fence_and_check, was_executed
from agent.reshape.receipt import Receipt

TO_GPU = MoveInstruction(HOST, {"VGPU": 4}, "gpu0", {uuid_of("a"): {"VGPU": 1}})


@pytest.fixture
def world(world: World) -> World:
    world.see(host(VGPU=4))
    world.hold("a", node1={"VGPU": 1})
    return world


def unanswered(world: World, *, executed: bool) -> Receipt:
    """The intent of a reshape whose request got no answer, `executed` or not."""
    with world.tap.gone_from("POST /reshaper", after=executed):
        report = world.see(host(), provider("gpu0", VGPU=4), moves=(TO_GPU,))
    assert isinstance(report.error, PlacementUnavailable)
    (receipt,) = world.journal.reshapes(done=False).values()
    return receipt


@pytest.mark.parametrize("executed", [True, False])
def test_the_outcome_is_read_from_placement(world: World, executed: bool) -> None:
    receipt = unanswered(world, executed=executed)
    assert was_executed(world.client, ROOT, receipt) is executed
    assert fence_and_check(world.client, ROOT, receipt) is executed


def test_after_the_fence_a_late_request_is_rejected(world: World) -> None:
    receipt = unanswered(world, executed=False)
    assert fence_and_check(world.client, ROOT, receipt) is False
    inventories = {
        uuid: (generation, world.tree()[uuid].inventories) for uuid, generation in receipt.generations.items()
    }
    with pytest.raises(PlacementConflict):
        world.client.reshape(inventories)
