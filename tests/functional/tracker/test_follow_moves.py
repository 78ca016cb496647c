"""The source learns which migration took a claim over; of identical moves it frees nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.moves import INSTANCE, MIGRATION, OTHER, OTHER_MIGRATION, SMALL, World, asks
from kits.placements import Placement
from kits.tracker import uuid_of

from agent.errors import (
    ClaimConflict,
    UnknownConsumer,
)
from agent.moves.states import MoveKind, MoveState
from agent.placement.client import ConsumerAllocations, PlacementClient

ON_A = {"a": {"VCPU": 2, "PCPU": 2, "MEMORY_MB": 1024}, "a-nic": {"SRIOV_NET_VF": 1}}
ON_B = {"b": {"VCPU": 2, "PCPU": 2, "MEMORY_MB": 1024}, "b-nic": {"SRIOV_NET_VF": 1}}
DISK = {"pool": {"DISK_GB": 200}}


@pytest.fixture
def world(placement: Placement, tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, placement) as world:
        yield world


@pytest.fixture
def claimed(world: World) -> World:
    """The instance is on a, its disk in the pool."""
    world.a.tracker.claim(asks(**SMALL))
    return world


def test_two_identical_moves_are_not_mixed_up(world: World) -> None:
    """Which migration is whose cannot be told: nothing is freed before it is certain."""
    for consumer in (INSTANCE, OTHER):
        world.a.tracker.claim(asks(consumer, PCPU=2))
    before = world.a.tracker.claims()
    world.b.tracker.begin_move(asks(PCPU=2), MoveKind.COLD_MIGRATE, MIGRATION)
    world.b.tracker.begin_move(asks(OTHER, PCPU=2), MoveKind.COLD_MIGRATE, OTHER_MIGRATION)
    world.settle()
    assert world.a.tracker.moves() == {}
    assert world.a.tracker.claims() == before
    world.b.tracker.confirm_move(MIGRATION)
    world.settle()
    assert world.a.tracker.claims() == before  # one of the two is free, but which?
    with pytest.raises(ClaimConflict):
        world.a.tracker.confirm_move(MIGRATION, instance=INSTANCE)
    world.b.tracker.revert_move(OTHER_MIGRATION)
    world.settle()
    assert world.a.tracker.claims() == {OTHER: before[OTHER]}
    world.check_settled()


def test_a_hint_tells_identical_moves_apart(world: World) -> None:
    for consumer in (INSTANCE, OTHER):
        world.a.tracker.claim(asks(consumer, PCPU=2))
    before = world.a.tracker.claims()
    world.b.tracker.begin_move(asks(PCPU=2), MoveKind.COLD_MIGRATE, MIGRATION)
    world.b.tracker.begin_move(asks(OTHER, PCPU=2), MoveKind.COLD_MIGRATE, OTHER_MIGRATION)
    world.settle()
    assert world.a.tracker.revert_move(MIGRATION, instance=INSTANCE).state is MoveState.REVERTED
    world.settle()
    assert world.a.tracker.claim_of(INSTANCE) == before[INSTANCE]
    world.check_settled()


@pytest.mark.parametrize("typed", [True, False], ids=["an instance by its type", "an instance by its guest"])
def test_who_stays_is_not_taken_for_the_migration_of_one_who_left(claimed: World, typed: bool) -> None:
    """An instance without a claim holds just the same here: the place of the one who left is free."""
    raw = claimed.raw if typed else PlacementClient(claimed.a.tap, microversion="1.37")
    held = {uuid_of(name): amounts for name, amounts in {**ON_A, **DISK}.items()}
    raw.write_allocations(ConsumerAllocations(OTHER, held))
    claimed.a.see(*(() if typed else (OTHER,)))
    claimed.schedule(INSTANCE, **ON_B, **DISK)
    claimed.settle()
    assert (dict(claimed.a.tracker.claims()), dict(claimed.a.tracker.moves())) == ({}, {})
    assert claimed.placed(OTHER) == {**ON_A, **DISK}
    with pytest.raises(UnknownConsumer):
        claimed.a.tracker.confirm_move(OTHER, instance=INSTANCE)
