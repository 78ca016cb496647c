"""What must hold from one start to the next, and over several operations; docs/scenarios.md lists it all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from kits import moves
from kits.agent import opened, request, told, world_of
from kits.moves import (
    DISK,
    INSTANCE,
    MIGRATION,
    ON_A,
    ON_B,
    OTHER,
    OTHER_MIGRATION,
    SMALL,
    Agent,
    World,
    asks,
    host,
)
from kits.placements import Placement
from kits.tracker import provider, uuid_of

from agent.claims.claim import ClaimState
from agent.config.settings import Settings, load
from agent.driver import Guest, GuestState
from agent.errors import ClaimConflict, DoesNotFit, IdentityError, PlacementUnavailable
from agent.moves.states import MoveKind, MoveState
from agent.state.identity import establish_identity
from agent.state.journal import Journal
from agent.tree import ProviderTree

# Start, identity, restart


@pytest.fixture
def settings(placement: Placement, tmp_path: Path) -> Settings:
    return told(tmp_path, placement)


def started(settings: Settings) -> ProviderTree:
    """The tree in placement after a start and a first pass."""
    with world_of(settings) as world:
        assert world.agent.condition.fault is None
        return world.operations.tree()[0]


def test_a_first_start_makes_a_uuid_and_the_root_has_it(settings: Settings) -> None:
    """Scenario 1: and every later start has it, too."""
    first = started(settings)
    assert [root.uuid for root in first.roots] == [(settings.state_path / "host_id").read_text().strip()]
    assert {each.uuid for each in started(settings)} == {each.uuid for each in first}


def test_a_uuid_that_was_provisioned_is_used_and_not_written_again(settings: Settings) -> None:
    """Scenario 2."""
    file, uuid = settings.state_path / "host_id", str(uuid4())
    file.write_text(f"  {uuid.upper()}\n\n")
    written = file.stat().st_mtime_ns
    assert [root.uuid for root in started(settings).roots] == [uuid]
    assert file.stat().st_mtime_ns == written


@pytest.mark.parametrize("lost", ["the uuid's file", "the host's name"])
def test_a_host_that_may_be_another_one_does_not_start(settings: Settings, tmp_path: Path, lost: str) -> None:
    """Scenarios 4, 5: refused with the command that resolves it, before anything is touched."""
    world = world_of(settings)
    uuid = world.operations.tree()[0].roots[0].uuid
    world.operations.claim(request(VCPU=1))
    before = world.operations.tree()
    world.close()
    if lost == "the uuid's file":
        (settings.state_path / "host_id").unlink()
        now = settings
    else:
        file = tmp_path / "plimsoll.conf"
        file.write_text(file.read_text().replace("host = node1", "host = node2"))
        now = load([file])
    journal = Journal.open(now.state_path)
    with pytest.raises(IdentityError, match=f"plimsoll adopt {uuid}"):
        establish_identity(now.state_path, now.host, journal.host_uuid())
    journal.close()
    if lost == "the uuid's file":
        (settings.state_path / "host_id").write_text(uuid)
    with world_of(settings) as again:
        assert again.operations.tree() == before


def test_a_host_that_was_deleted_in_placement_is_back_under_its_uuid(settings: Settings) -> None:
    """Scenario 8: and while anything is allocated, placement lets nobody delete it."""
    with world_of(settings) as world:
        tree = world.operations.tree()[0]
        held = world.operations.claim(request(VCPU=1))
        root = tree.roots[0].uuid
        assert _delete(world.wire.inner, root) == 409
        world.operations.release(held.consumer)
        for each in reversed(list(tree)):
            assert _delete(world.wire.inner, each.uuid) == 204
        world.agent.verify()
        assert world.agent.condition.fault is None
        assert [each.uuid for each in world.operations.tree()[0].roots] == [root]
        world.operations.claim(request(VCPU=1))


@pytest.mark.parametrize("there", [False, True], ids=["no guest", "guest there"])
def test_what_a_crash_left_waits_for_the_hypervisor(settings: Settings, there: bool) -> None:
    """Scenario 38: an intent is undone where its guest is not, so not before the guests were seen."""
    asked = request(VCPU=1)
    world = world_of(settings)
    world.wire.lost = True
    with pytest.raises(PlacementUnavailable):
        world.operations.claim(asked)
    world.close()
    with opened(settings) as again:
        again.driver.change(unavailable="it is being repaired")
        if there:
            again.driver.add_guest(Guest(asked.consumer, "web1", GuestState.RUNNING, {"VCPU": 1}))
        again.agent.reconcile("the start")
        again.agent.deliver()
        assert [claim.state for claim in again.operations.tracker.claims().values()] == [ClaimState.CLAIMING]
        again.driver.change(unavailable=None)
        again.retry()
        assert [claim.state for claim in again.operations.tracker.claims().values()] == (
            [ClaimState.CLAIMED] if there else []
        )


def _delete(transport: object, uuid: str) -> int:
    reply = transport.request("DELETE", f"/resource_providers/{uuid}", microversion="1.39")  # type: ignore[attr-defined]
    status: int = reply.status
    return status


def test_what_a_cloud_says_of_its_service_on_our_root_stays_while_claims_race(settings: Settings) -> None:
    """Scenario 14: the trait is the cloud's to set and to clear; no pass takes it away or brings it back."""
    with world_of(settings) as world:
        root = world.operations.tree()[0].roots[0]
        for traits in (root.traits | {"COMPUTE_STATUS_DISABLED"}, root.traits):
            world.operations.claim(request(VCPU=1))
            now = world.operations.tree()[0].roots[0]
            reply = world.wire.inner.request(
                "PUT",
                f"/resource_providers/{root.uuid}/traits",
                {"traits": sorted(traits), "resource_provider_generation": now.generation},
                microversion="1.39",
            )
            assert reply.status == 200
            world.driver.change(disk_gb=now.inventories["DISK_GB"].total + 10)
            world.agent.reconcile("a change")
            world.agent.verify()
            assert world.agent.condition.fault is None
            assert world.operations.tree()[0].roots[0].traits == traits


# Inventory


def test_what_is_reserved_follows_the_option_also_back_to_nothing(settings: Settings, tmp_path: Path) -> None:
    """Scenario 16."""
    file = tmp_path / "plimsoll.conf"
    plain = file.read_text()
    reserved = []
    for line in ("reserved_host_cpus = 2", "reserved_host_cpus = 3", ""):
        file.write_text(f"{plain}{line}\n")
        reserved.append(started(load([file])).roots[0].inventories["VCPU"].reserved)
    assert reserved == [2, 3, 0]


def test_a_class_of_which_there_is_none_is_left_out(settings: Settings) -> None:
    """Scenario 17: and is back when there is some."""
    with opened(settings) as world:
        for disk in (0, 50):
            world.driver.change(disk_gb=disk)
            world.agent.reconcile("a change")
            assert world.agent.condition.fault is None
            assert ("DISK_GB" in world.operations.tree()[0].roots[0].inventories) is bool(disk)


# Moves


@pytest.fixture
def world(any_placement: Placement, tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, any_placement) as world:
        yield world


@pytest.mark.parametrize("fails", ["does not fit", "after it began"])
def test_the_next_alternate_is_tried_with_the_same_migration(
    world: World, tmp_path: Path, fails: str
) -> None:
    """Scenario 47: the first destination refuses, or fails later; the instance is back, another takes it."""
    for each in host("c"):
        world.create(each)
    (tmp_path / "c").mkdir()
    c = Agent("c", tmp_path / "c", world._transport)
    world.a.tracker.claim(asks(**SMALL))
    before = world.a.tracker.claim_of(INSTANCE)
    if fails == "does not fit":
        world.b.tracker.claim(asks(OTHER, PCPU=3))
        with pytest.raises(DoesNotFit):
            world.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    else:
        world.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
        world.settle()
        world.b.tracker.revert_move(MIGRATION)
    assert world.placed(INSTANCE) == {**ON_A, **DISK} and not world.placed(MIGRATION)
    world.settle()
    assert world.a.tracker.claim_of(INSTANCE) == before
    c.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    world.settle()
    assert world.placed(MIGRATION) == ON_A
    assert world.a.moving() is MoveState.BEGUN
    c.tracker.confirm_move(MIGRATION)
    world.settle()
    assert world.a.tracker.claims() == {} and not world.placed(MIGRATION)
    assert world.placed(INSTANCE)["c"] == ON_A["a"]
    with pytest.raises(ClaimConflict):
        c.tracker.revert_move(MIGRATION)
    c.close()


@pytest.mark.parametrize("end", ["confirm", "revert"])
def test_mediated_devices_are_held_on_the_side_where_the_guest_runs(
    world: World, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Scenario 59: over a resize each side has its own; after it the one that lost the guest has none."""
    plain = moves.units_of
    for name in ("a", "b"):
        card = provider(f"{name}-gpu", name, VGPU=4)
        world.create(card)
    monkeypatch.setattr(
        moves,
        "units_of",
        lambda name: {
            **plain(name),
            uuid_of(f"{name}-gpu"): {"VGPU": tuple(f"{name}:mdev{number}" for number in range(4))},
        },
    )
    for agent in world.agents:
        agent.refresh()
    world.a.tracker.claim(asks(OTHER, VGPU=2))
    world.a.tracker.claim(asks(VCPU=1, VGPU=1))
    world.b.tracker.begin_move(asks(VCPU=1, VGPU=2), MoveKind.RESIZE, MIGRATION)
    world.settle()
    units = _mdevs(world.b, INSTANCE)
    assert units == ("b:mdev0", "b:mdev1") and _mdevs(world.a, MIGRATION) == ("a:mdev2",)
    assert world.placed(MIGRATION)["a-gpu"] == {"VGPU": 1} and world.placed(INSTANCE)["b-gpu"] == {"VGPU": 2}
    with pytest.raises(DoesNotFit):
        world.a.tracker.claim(asks(OTHER_MIGRATION, VGPU=2))
    getattr(world.b.tracker, f"{end}_move")(MIGRATION)
    world.settle()
    here, gone = (world.b, world.a) if end == "confirm" else (world.a, world.b)
    assert _mdevs(here, INSTANCE) == (units if end == "confirm" else ("a:mdev2",))
    assert gone.tracker.claim_of(INSTANCE) is None and gone.tracker.claim_of(MIGRATION) is None
    gone.tracker.claim(asks(OTHER_MIGRATION, VGPU=2))
    world.check()


def _mdevs(agent: Agent, consumer: str) -> tuple[str, ...]:
    claim = agent.tracker.claim_of(consumer)
    assert claim is not None
    return claim.units[uuid_of(f"{agent.name}-gpu")]["VGPU"]


def test_a_migration_of_long_ago_does_not_shadow_the_present_one(world: World) -> None:
    """Scenario 62: to and fro under two migrations; the audit finds nothing and writes nothing."""
    world.a.tracker.claim(asks(**SMALL))
    world.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    world.settle()
    world.b.tracker.confirm_move(MIGRATION)
    world.settle()
    world.a.tracker.begin_move(asks(**SMALL), MoveKind.LIVE_MIGRATE, OTHER_MIGRATION)
    world.settle()
    before = world.state()
    for agent in world.agents:
        assert agent.auditor.audit(heal_own=True, heal_all=True).findings == ()
        move = agent.move(OTHER_MIGRATION)
        assert move is not None and move.state is MoveState.BEGUN
        assert agent.moving() is MoveState.CONFIRMED
    assert world.state() == before
    world.a.tracker.revert_move(OTHER_MIGRATION)
    world.settle()
    assert world.placed_all() == {INSTANCE: {**ON_B, **DISK}}
    world.check_settled()


# Shelve


@pytest.mark.parametrize("where", ["back", "elsewhere"])
def test_a_shelved_instance_holds_nothing_and_is_claimed_anew(world: World, where: str) -> None:
    """Scenario 83: to shelve is to release, to unshelve is to claim, with devices of where it comes to."""
    first, second = world.agents
    first.tracker.claim(asks(**SMALL))
    assert first.tracker.release(INSTANCE)
    assert world.placed_all() == {} and first.tracker.claims() == {}
    first.tracker.claim(asks(OTHER, PCPU=2, SRIOV_NET_VF=1))  # its devices are others' meanwhile
    agent, left = (first, ON_A) if where == "back" else (second, ON_B)
    claim = agent.tracker.claim(asks(**SMALL)).claim
    assert world.placed(INSTANCE) == {**left, **DISK}
    assert {unit for classes in claim.units.values() for unit in sum(classes.values(), ())} == (
        {"a2", "a3", "a:vf1"} if where == "back" else {"b0", "b1", "b:vf0"}
    )
    world.settle()
    world.check_settled()


def test_an_unshelve_that_fails_at_its_network_leaves_nothing(world: World) -> None:
    """Scenario 85."""
    before = world.state()
    with pytest.raises(ConnectionError), world.b.tracker.claim(asks(**SMALL)):
        raise ConnectionError("no port could be bound")
    assert world.state() == before
