"""What goes wrong in a Placement that works is healed, or shown with the way out: on both placements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

import pytest
from kits.agent import World, opened, request, told, world_of
from kits.placements import Placement

from agent.claims.claim import ClaimState
from agent.config.settings import Settings
from agent.daemon.offline import adopt
from agent.errors import ClaimsClosed, IdentityError, PlacementError
from agent.moves.states import MoveKind, MoveState
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.status.overview import HostState
from agent.tree import Inventory, Provider

NEIGHBOUR = Provider("c0ffee00-0000-4000-8000-000000000001", "neighbour", None, {"VCPU": Inventory(4)})


@pytest.fixture
def settings(placement: Placement, tmp_path: Path) -> Settings:
    return told(tmp_path, placement)


@pytest.fixture
def world(settings: Settings) -> Iterator[World]:
    with world_of(settings) as world:
        yield world


def hide(world: World, consumer: str) -> None:
    """Empty a consumer that never held anything: OpenStack Placement keeps a record that nobody can see."""
    body = {"allocations": {}, "consumer_generation": None, "project_id": "p", "user_id": "u"}
    reply = world.wire.inner.request(
        "PUT", f"/allocations/{consumer}", {**body, "consumer_type": "INSTANCE"}, microversion="1.38"
    )
    assert reply.status == 204


def test_an_invisible_consumer_gets_its_claim(world: World) -> None:
    asked = request(VCPU=2)
    hide(world, asked.consumer)
    assert world.operations.claim(asked).state is ClaimState.CLAIMED
    assert world.operations.release(asked.consumer)


def test_an_invisible_migration_gets_its_part(world: World) -> None:
    asked, migration = request(VCPU=2), str(uuid4())
    world.operations.claim(asked)
    hide(world, migration)
    grown = replace(request(VCPU=3), consumer=asked.consumer)
    assert world.operations.begin_move(MoveKind.RESIZE, migration, grown).state is MoveState.BEGUN
    assert world.operations.revert_move(migration, None).state is MoveState.REVERTED
    assert world.operations.release(asked.consumer)


def test_a_provider_over_capacity_is_in_the_status_until_it_is_not(world: World) -> None:
    """As claims that overtook each other in OpenStack Placement leave it, or an inventory that shrank."""
    (root,) = world.operations.tree()[0].roots
    client, consumer = PlacementClient(world.wire.inner), str(uuid4())
    half = root.inventories["DISK_GB"].total // 2
    client.write_allocations(ConsumerAllocations(consumer, {root.uuid: {"DISK_GB": half + 1}}))
    world.driver.change(disk_gb=half)
    world.agent.reconcile("an event")
    world.agent.verify()
    (reason,) = world.agent.host_status.status().reasons
    assert "node1 is over capacity" in reason and consumer in reason
    assert world.operations.claim(request(VCPU=1)).state is ClaimState.CLAIMED, "all else goes on"
    client.delete_allocations(consumer)
    world.agent.verify()
    assert world.agent.host_status.status().reasons == ()


def test_a_foreign_provider_with_our_name_is_named_and_can_be_adopted(
    settings: Settings, placement: Placement
) -> None:
    """Scenario 7: nothing is written, others keep working; `plimsoll adopt` makes it this host's root."""
    foreign, consumer = str(uuid4()), str(uuid4())
    with opened(settings) as world:
        client = PlacementClient(world.wire.inner)
        for each in (replace(NEIGHBOUR, uuid=foreign, name="node1"), NEIGHBOUR):
            client.put_inventories(each.uuid, client.create_provider(each), each.inventories)
        client.write_allocations(ConsumerAllocations(consumer, {foreign: {"VCPU": 1}}))
        before = client.generations(foreign)
        world.agent.reconcile("the start")
        (reason,) = world.agent.host_status.status().reasons
        assert world.agent.condition.state is HostState.DEGRADED and f"plimsoll adopt {foreign}" in reason
        with pytest.raises(ClaimsClosed, match=foreign):
            world.operations.claim(request(VCPU=1))
        assert client.generations(foreign) == before
        client.write_allocations(ConsumerAllocations(str(uuid4()), {NEIGHBOUR.uuid: {"VCPU": 1}}))
    adopt(settings, foreign)
    with world_of(settings) as world:
        assert world.agent.condition.state is HostState.READY, world.agent.condition.fault
        tree, usages = world.operations.tree()
        assert [each.uuid for each in tree.roots] == [foreign] and len(tree) == 9
        assert usages[foreign]["VCPU"] == 1, "what was held on it is kept"
        assert world.operations.claim(request(VCPU=1, PGPU=1)).state is ClaimState.CLAIMED


@pytest.mark.parametrize("has_claim", [True, False])
@pytest.mark.parametrize("new_parent", [None, NEIGHBOUR.uuid])
def test_a_card_that_a_client_took_out_of_the_tree_is_put_back(
    world: World, settings: Settings, new_parent: str | None, has_claim: bool
) -> None:
    """Its provider cannot be adopted as a host: the host would be in Placement twice."""
    client = PlacementClient(world.wire.inner)
    tree = world.operations.tree()[0]
    card = next(each for each in tree if "PGPU" in each.inventories)
    if new_parent is not None:
        client.create_provider(NEIGHBOUR)
    claim = world.operations.claim(request(PGPU=1)) if has_claim else None
    client.reparent_provider(card.uuid, card.name, new_parent)
    if claim is not None:
        with pytest.raises(PlacementError, match=f"{card.name} .*is no longer in this host's tree"):
            world.operations.audit(heal=False)
    world.agent.verify()
    assert world.agent.condition.state is HostState.READY, world.agent.condition.fault
    again = world.operations.tree()[0]
    assert len(again) == len(tree) and again[card.uuid].parent == card.parent
    assert again[card.uuid].inventories == tree[card.uuid].inventories
    assert world.operations.audit(heal=False).findings == ()
    if claim is not None:
        assert client.allocations_of(claim.consumer).allocations == claim.allocations


def test_where_placement_does_not_take_the_card_back_the_command_is_named(
    world: World, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = PlacementClient(world.wire.inner)
    card = next(each for each in world.operations.tree()[0] if "PGPU" in each.inventories)

    def refuse(*_: object) -> NoReturn:
        raise PlacementError("Placement cannot do that.")

    client.reparent_provider(card.uuid, card.name, None)
    monkeypatch.setattr(PlacementClient, "reparent_provider", refuse)
    world.agent.verify()
    (reason,) = world.agent.host_status.status().reasons
    assert f"set --name {card.name} --parent-provider {card.parent} {card.uuid}" in reason
    assert "adopt" not in reason


def test_a_card_cannot_be_adopted_as_a_host(settings: Settings) -> None:
    with world_of(settings) as world:
        tree = world.operations.tree()[0]
        card = next(each for each in tree if "PGPU" in each.inventories)
    with pytest.raises(IdentityError, match=f"{card.uuid} is a part of this host.* below {card.parent}"):
        adopt(settings, card.uuid)
    assert card.parent is not None
    assert adopt(settings, card.parent).uuid == card.parent


def test_an_aggregate_that_somebody_changed_on_a_child_is_no_obstacle(world: World) -> None:
    """Scenario 29: its generation is another one; the next pass is fine, and the aggregate stays."""
    client, aggregate = PlacementClient(world.wire.inner), str(uuid4())
    tree = world.operations.tree()[0]
    child = next(each for each in tree if "VGPU" in each.inventories or "PGPU" in each.inventories)
    client.put_aggregates(child.uuid, child.generation or 0, {*child.aggregates, aggregate})
    world.driver.change(gpus=tuple(replace(gpu, total=gpu.total + 1) for gpu in world.driver.host.gpus))
    world.agent.reconcile("an event")
    assert world.agent.condition.state is HostState.READY, world.agent.condition.fault
    now = world.operations.tree()[0][child.uuid]
    assert aggregate in now.aggregates
    assert {n: i.total for n, i in now.inventories.items()} == {
        n: i.total + 1 for n, i in child.inventories.items()
    }
