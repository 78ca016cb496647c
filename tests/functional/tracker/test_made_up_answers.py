"""A proxy answers reads in Placement's place: the agent does as if Placement had not answered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kits.middlebox import Middlebox
from kits.moves import INSTANCE, MIGRATION, POOL, SMALL, World, asks
from kits.placements import OpenStack
from kits.tracker import Kit, checked_kit, request

from agent.claims.claim import ClaimState
from agent.errors import PlacementUnavailable
from agent.moves.states import MoveKind, MoveState

NOTHING_HELD = {"allocations": {}}
CONFLICT = {"errors": [{"status": 409, "code": "placement.concurrent_update", "detail": "It changed."}]}
MADE_UP = pytest.mark.parametrize(
    ("status", "body"),
    [(200, NOTHING_HELD), (204, None), (404, {"errors": []}), (409, CONFLICT)],
    ids=["nothing is held", "204", "404", "409"],
)


@pytest.fixture
def middlebox(openstack: OpenStack) -> Iterator[Middlebox]:
    openstack.empty()
    with closing(Middlebox(openstack.port)) as box:
        yield box


@pytest.fixture
def kit(tmp_path: Path, middlebox: Middlebox) -> Iterator[Kit]:
    with checked_kit(tmp_path, middlebox.placement) as kit:
        yield kit


@pytest.fixture
def world(tmp_path: Path, middlebox: Middlebox) -> Iterator[World]:
    with World(tmp_path, middlebox.placement) as world:
        yield world


@MADE_UP
def test_a_release_forgets_no_claim_that_placement_holds(
    kit: Kit, middlebox: Middlebox, status: int, body: Any
) -> None:
    asked = request(VCPU=1, SRIOV_NET_VF=1)
    kit.tracker.claim(asked)
    held = kit.placed_all()
    with middlebox.answering(f"GET /allocations/{asked.consumer}", status, body):
        kit.tracker.release(asked.consumer)
    assert middlebox.asked, "the release reads what the consumer holds"
    assert kit.placed_all() == held
    assert kit.tracker.claims()[asked.consumer].state is ClaimState.RELEASING
    assert kit.tracker.pending == 1
    assert kit.tracker.deliver() == 1
    assert (kit.placed_all(), dict(kit.tracker.claims()), kit.tracker.pending) == ({}, {}, 0)


@MADE_UP
@pytest.mark.parametrize("consumer", [INSTANCE, MIGRATION], ids=["instance", "migration"])
def test_a_revert_leaves_the_instance_at_the_source(
    world: World, middlebox: Middlebox, consumer: str, status: int, body: Any
) -> None:
    before = world.a.tracker.claim(asks(**SMALL)).claim
    held = world.placed_all()
    world.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    world.settle()
    begun = world.placed_all()
    with middlebox.answering(f"GET /allocations/{consumer}", status, body):
        world.b.tracker.revert_move(MIGRATION)
    assert middlebox.asked, "the revert reads what both hold"
    assert world.placed_all() == begun
    world.settle()
    assert world.b.moving() is MoveState.REVERTED
    assert world.placed_all() == held
    assert world.a.tracker.claim_of(INSTANCE) == before
    assert world.b.tracker.claims() == {}
    world.check_settled()


@MADE_UP
def test_a_verification_takes_no_claim_for_gone(
    world: World, middlebox: Middlebox, status: int, body: Any
) -> None:
    """The source of a move looks for what became of it: nothing, as far as it knows."""
    world.a.tracker.claim(asks(**SMALL))
    world.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    world.settle()
    begun, move = world.placed_all(), world.a.move()
    with middlebox.answering("GET /allocations/", status, body), pytest.raises(PlacementUnavailable):
        world.a.tracker.follow_moves()
    assert world.placed_all() == begun and world.a.move() == move
    assert POOL.uuid in world.raw.allocations_of(INSTANCE).allocations
    world.settle()
    assert world.a.move() == move
