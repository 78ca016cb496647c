"""Who holds the place of an instance that has left: by its type, or perhaps, or nobody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kits.moves import INSTANCE, MIGRATION, OTHER, World, asks
from kits.placements import Placement
from kits.tracker import uuid_of

from agent.claims.claim import Claim
from agent.errors import PlacementConflict
from agent.moves.states import MoveKind
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.tracker.left_places import LeftPlaces

PLACE = {"VCPU": 2, "SRIOV_NET_VF": 1}


@pytest.fixture
def world(placement: Placement, tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, placement) as world:
        yield world


@pytest.fixture
def place(world: World) -> Claim:
    """What the instance had on a; it is on b now."""
    claim = world.a.tracker.claim(asks(**PLACE)).claim
    world.b.tracker.begin_move(asks(**PLACE), MoveKind.COLD_MIGRATE, MIGRATION)
    return claim


def test_a_migration_is_known_by_its_type(world: World, place: Claim) -> None:
    places = LeftPlaces(world.a.tracker._context)
    instance = world.raw.allocations_of(INSTANCE)
    assert places.has_left(instance)
    places.read_holders([place])
    assert places.successors(place, instance) == places.lookalikes(place, instance) == [MIGRATION]
    assert places.possible_holders(place, instance) == [MIGRATION]
    world.a.see(MIGRATION)  # a guest of that uuid is an instance, whatever its type
    assert places.successors(place, instance) == places.possible_holders(place, instance) == []


def test_a_consumer_without_a_type_is_only_a_possible_one(world: World, place: Claim) -> None:
    world.b.tracker.confirm_move(MIGRATION)
    untyped = PlacementClient(world.a.tap, microversion="1.37")
    held = {uuid_of("a"): {"VCPU": 2}, uuid_of("a-nic"): {"SRIOV_NET_VF": 1}}
    untyped.write_allocations(ConsumerAllocations(OTHER, held))
    places = LeftPlaces(world.a.tracker._context)
    instance = world.raw.allocations_of(INSTANCE)
    places.read_holders([place])
    assert places.successors(place, instance) == []
    assert places.lookalikes(place, instance) == places.possible_holders(place, instance) == [OTHER]
    world.raw.write_allocations(replace(world.raw.allocations_of(OTHER), allocations={}))
    assert places.possible_holders(place, instance) == []


def test_an_instance_that_is_written_meanwhile_proves_nothing(world: World, place: Claim) -> None:
    instance = world.raw.allocations_of(INSTANCE)
    world.b.tracker.revert_move(MIGRATION)
    with pytest.raises(PlacementConflict):
        LeftPlaces(world.a.tracker._context).possible_holders(place, instance)
