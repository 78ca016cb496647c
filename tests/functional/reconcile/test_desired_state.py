"""The state that a pass is to reach: the described tree, the moves that are due, and what is parked."""

from dataclasses import replace

import pytest
from kits.reshape import HOST, ROOT, World, host, provider, uuid_of

from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest
from agent.driver import Description, MoveInstruction
from agent.providers.resolve import resolve, uuid_of_new
from agent.reconcile.desired_state import Desired, desired_state
from agent.reshape.claimed_units import ExactUnits, HostRecords
from agent.reshape.receipt import UndoneReceipts

TO_GPU = MoveInstruction(HOST, {"VGPU": 4}, "gpu0", {uuid_of("a"): {"VGPU": 1}})
GONE = MoveInstruction(HOST, {"VGPU": 1}, HOST, {uuid_of("b"): {"VGPU": 1}})


@pytest.fixture
def world(world: World) -> World:
    world.see(host(VGPU=5))
    world.hold("a", node1={"VGPU": 1})
    world.tap.calls.clear()
    return world


def desired(world: World, *moves: MoveInstruction, records: HostRecords | None = None) -> Desired:
    """Of a host whose units are all on one card now."""
    description = Description((host(), provider("gpu0", VGPU=4)), moves)
    current = world.tree()
    resolved = resolve(description, current, world.journal.owned(), ROOT)
    return desired_state(
        world.client, description, current, resolved, UndoneReceipts(), records or HostRecords()
    )


def test_without_moves_nothing_is_asked(world: World) -> None:
    state = desired(world)
    assert state.due == () and state.tree.by_name("gpu0") is not None
    assert world.tap.calls == []


def test_a_move_that_placement_does_not_show_is_due(world: World) -> None:
    state = desired(world, TO_GPU)
    assert [instruction.move for instruction in state.due] == [TO_GPU]
    assert "VGPU" not in state.tree[ROOT].inventories
    assert (state.undoes, state.undone_notices, state.parked_notices) == (None, (), ())
    assert world.tap.calls == [f"GET /resource_providers/{ROOT}/allocations"]


@pytest.mark.parametrize("has_followed", [False, True], ids=["its unit moves", "it has moved already"])
def test_what_the_driver_says_of_a_consumer_whose_claim_says_it_better_is_left_out(
    world: World, has_followed: bool
) -> None:
    """By its exact unit, or by a record that is newer than Placement."""
    card = uuid_of_new(ROOT, "gpu0")
    on = card if has_followed else ROOT
    units = {} if has_followed else {ROOT: {"VGPU": ("mdev",)}}
    consumer = uuid_of("a")
    claim = Claim(consumer, ClaimState.CLAIMED, ClaimRequest(consumer, ()), {on: {"VGPU": 1}}, units)
    exact = ExactUnits({card: {"VGPU": ("mdev",)}} if units else {})
    state = desired(world, TO_GPU, records=HostRecords({consumer: claim}, exact=exact))
    assert [instruction.move for instruction in state.due] == [replace(TO_GPU, consumers={})]


def test_units_without_a_device_are_parked_and_named(world: World) -> None:
    consumer = world.hold("b", node1={"VGPU": 1})
    state = desired(world, TO_GPU, GONE)
    assert state.tree[ROOT].inventories["VGPU"].total == 1
    (notice,) = state.parked_notices
    assert consumer in notice
    assert state.owned.get(ROOT).classes >= {"VGPU"}
