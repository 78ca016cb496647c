"""Which group got which unit stays so: through moves, their reverts, restarts and reshapes."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from kits.agent import opened, told
from kits.moves import INSTANCE, MIGRATION, World
from kits.placements import Placement
from kits.status import FLAT

from agent.claims.claim import Claim, Restriction
from agent.claims.request import ClaimRequest, RequestGroup
from agent.moves.states import MoveKind
from agent.tree import ProviderTree

PORT = {"SRIOV_NET_VF": 1}
PORTS = ClaimRequest(
    INSTANCE,
    (RequestGroup("", {"VCPU": 1, "MEMORY_MB": 64}), RequestGroup("red", PORT), RequestGroup("blue", PORT)),
    group_policy="none",
)


def dealt(red: str, blue: str) -> Restriction:
    """Not the order in which equal groups get units by themselves."""
    return Restriction(dealt={"red": {"SRIOV_NET_VF": (red,)}, "blue": {"SRIOV_NET_VF": (blue,)}})


def ports(claim: Claim | None) -> dict[str, str]:
    """{group: its unit}, by the units that the claim keeps alone."""
    assert claim is not None
    return {
        mapping.label: unit
        for mapping in claim.mappings(ProviderTree())
        for classes in mapping.units.values()
        for (unit,) in classes.values()
    }


@pytest.mark.first_variant
@pytest.mark.parametrize("kind", [MoveKind.COLD_MIGRATE, MoveKind.RESIZE, MoveKind.LIVE_MIGRATE])
def test_through_a_move_and_its_revert(tmp_path: Path, placement: Placement, kind: MoveKind) -> None:
    with World(tmp_path, placement) as world:
        here = {"red": "a:vf0", "blue": "a:vf1"}
        assert ports(world.a.tracker.claim(PORTS, dealt(**here)).claim) == here
        move = world.b.tracker.begin_move(PORTS, kind, MIGRATION).move
        there = ports(move.new)
        assert set(there) == {"red", "blue"} and set(there.values()) == {"b:vf0", "b:vf1"}
        world.settle()
        world.b.restart()
        world.b.come_back()
        assert ports(world.b.tracker.claim_of(INSTANCE)) == there
        assert ports(world.a.tracker.moves()[MIGRATION].old) == here, "the migration holds the old place"
        world.b.tracker.revert_move(MIGRATION)
        world.settle()
        world.a.restart()
        world.a.come_back()
        assert ports(world.a.tracker.claim_of(INSTANCE)) == here
        world.b.tracker.begin_move(PORTS, kind, MIGRATION)
        world.b.tracker.confirm_move(MIGRATION)
        world.settle()
        assert ports(world.b.tracker.claim_of(INSTANCE)) == there


def test_through_a_reshape_and_its_undoing(tmp_path: Path, placement: Placement) -> None:
    world = opened(told(tmp_path, placement))
    try:
        world.driver.change(**{each.name: getattr(FLAT, each.name) for each in fields(FLAT)})
        world.agent.reconcile("the start")
        tracker = world.agent._tracker
        here = {"red": "0000:41:02.3", "blue": "0000:41:02.1"}
        root = tracker.view.host.root
        assert root is not None
        named = {root.uuid: {"SRIOV_NET_VF": tuple(here.values())}}
        claim = tracker.claim(PORTS, Restriction(named, dealt=dealt(**here).dealt)).claim
        assert ports(claim) == here
        world.driver.change(flat_devices=False)
        world.agent.reconcile("the cards have providers")
        moved = tracker.claim_of(INSTANCE)
        assert moved is not None and moved.allocations != claim.allocations
        assert ports(moved) == here
        world.driver.change(flat_devices=True)
        world.agent.reconcile("the cards have none again")
        back = tracker.claim_of(INSTANCE)
        assert back is not None and back.allocations == claim.allocations
        assert ports(back) == here
    finally:
        world.close()
