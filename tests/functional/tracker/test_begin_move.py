"""A live migration takes a mediated device only to one of the same type, which the destination looks up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from kits.moves import INSTANCE, MIGRATION, World, asks
from kits.placements import Placement
from kits.tracker import provider, uuid_of

from agent.device_names import mdev_type_trait
from agent.errors import DoesNotFit, Refused
from agent.moves.states import MoveKind

GPU = {"VCPU": 1, "VGPU": 1}


@pytest.fixture
def world(placement: Placement, tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, placement) as world:
        yield world


def with_cards(world: World, **types: str) -> None:
    """{card: type}; the card `a_1` is the first one of host a."""
    for name, type_id in types.items():
        trait = mdev_type_trait(type_id)
        world.raw.ensure_trait(trait)
        card = provider(name.replace("_", "-gpu"), name[0], traits=(trait,), VGPU=2)
        world._create(replace(card, inventories={"VGPU": card.inventories["VGPU"]}))
    for agent in world.agents:
        agent.refresh()
    world.a.tracker.claim(asks(**GPU))


def begun(world: World, kind: MoveKind) -> Mapping[str, object]:
    world.b.tracker.begin_move(asks(**GPU), kind, MIGRATION)
    return world.raw.allocations_of(INSTANCE).allocations


def test_a_destination_with_another_type_refuses_a_live_migration(world: World) -> None:
    with_cards(world, a_1="nvidia-11", b_1="nvidia-12")
    before = world.raw.allocations_of(INSTANCE)
    with pytest.raises(
        Refused, match=r"CUSTOM_MDEV_TYPE_NVIDIA_11 at the source.*CUSTOM_MDEV_TYPE_NVIDIA_12"
    ):
        begun(world, MoveKind.LIVE_MIGRATE)
    assert world.raw.allocations_of(INSTANCE) == before
    assert dict(world.b.tracker.claims()) == dict(world.b.tracker.moves()) == {}
    assert uuid_of("b-gpu1") in begun(world, MoveKind.COLD_MIGRATE)


def test_a_destination_with_both_types_takes_the_same_one(world: World) -> None:
    with_cards(world, a_1="nvidia-11", b_1="nvidia-12", b_2="nvidia-11")
    assert uuid_of("b-gpu2") in begun(world, MoveKind.LIVE_MIGRATE)


def test_a_destination_whose_cards_of_the_type_are_full_refuses(world: World) -> None:
    with_cards(world, a_1="nvidia-11", b_1="nvidia-12", b_2="nvidia-11")
    world.raw.write_allocations(
        replace(world.raw.allocations_of(MIGRATION), allocations={uuid_of("b-gpu2"): {"VGPU": 2}})
    )
    world.b.refresh()
    with pytest.raises((Refused, DoesNotFit)):
        world.b.tracker.begin_move(asks(**GPU), MoveKind.LIVE_MIGRATE, uuid_of("another migration"))
    world.raw.delete_allocations(MIGRATION)


def test_without_mediated_devices_nothing_more_is_read(world: World) -> None:
    world.a.tracker.claim(asks(VCPU=1))
    world.b.tracker.begin_move(asks(VCPU=1), MoveKind.LIVE_MIGRATE, MIGRATION)
    assert not [call for call in world.b.tap.calls if call.endswith("/traits")]
