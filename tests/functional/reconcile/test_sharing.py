"""Storage pools of others, shared with this host by an aggregate, as a running agent sees them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kits.moves import INSTANCE, MIGRATION
from kits.moves import POOL as MOVE_POOL
from kits.moves import World as TwoHosts
from kits.moves import asks as asks_to_move
from kits.placements import Placement
from kits.reshape import HOST, ROOT, World, host, provider, uuid_of
from kits.tracker import SHARING, request

from agent.driver import DescribedProvider, MoveInstruction
from agent.errors import DoesNotFit
from agent.moves.states import MoveKind
from agent.placement.client import ConsumerAllocations
from agent.tree import Inventory, Provider

RACK, OTHER_RACK = uuid_of("the rack"), uuid_of("another rack")
POOL = uuid_of("pool")
LIST = "GET /resource_providers"


def in_rack(described: DescribedProvider) -> DescribedProvider:
    return replace(described, aggregates=frozenset({RACK}))


@pytest.fixture
def world(world: World) -> World:
    """Somebody's pool of 100 GiB is there before the agent."""
    pool(world, "pool", RACK, {SHARING})
    return world


def pool(world: World, name: str, aggregate: str, traits: set[str], *, total: int = 100) -> str:
    uuid = uuid_of(name)
    generation = world.raw.create_provider(Provider(uuid, name))
    generation = world.raw.put_traits(uuid, generation, traits)
    generation = world.raw.put_aggregates(uuid, generation, {aggregate})
    world.raw.put_inventories(uuid, generation, {"DISK_GB": Inventory(total)})
    return uuid


def hold(world: World, who: str, amount: int) -> str:
    """Another host's guest has its disk in the pool."""
    consumer = uuid_of(who)
    generation = world.raw.allocations_of(consumer).generation
    allocations = {POOL: {"DISK_GB": amount}} if amount else {}
    world.raw.write_allocations(ConsumerAllocations(consumer, allocations, generation))
    return consumer


def asked(world: World) -> list[str]:
    calls = [*world.tap.calls]
    world.tap.calls.clear()
    return calls


def test_a_pool_of_ours_is_seen_and_claimed_from_and_never_changed(world: World) -> None:
    """Scenario 26: a sharing provider by aggregate is seen, never changed."""
    pool(world, "far", OTHER_RACK, {SHARING})
    pool(world, "private", RACK, set())
    before = {name: world.raw.read_tree(uuid_of(name)) for name in ("pool", "far", "private")}
    hold(world, "elsewhere", 30)
    assert world.see(in_rack(host())).error is None
    claim = world.tracker.claim(request(VCPU=1, DISK_GB=60)).claim
    assert claim.allocations == {ROOT: {"VCPU": 1}, POOL: {"DISK_GB": 60}}
    with pytest.raises(DoesNotFit, match="only 10 of 100 are free"):
        world.tracker.claim(request(VCPU=1, DISK_GB=11))
    world.see(in_rack(host()), provider("gpu0", VGPU=4))
    world.see(in_rack(host(VGPU=4)), moves=(MoveInstruction("gpu0", {"VGPU": 4}, HOST),))
    world.restart()
    world.again()
    assert {name: world.raw.read_tree(uuid_of(name)) for name in before} == before
    world.tracker.recover([])
    assert world.tracker.release(claim.consumer)
    assert world.raw.provider_usages(POOL) == {"DISK_GB": 30}


def test_a_pass_with_nothing_new_asks_nothing_and_a_verification_once_more(world: World) -> None:
    world.see(in_rack(host()))
    world.again()
    asked(world)
    assert world.reconciler.reconcile("its interval").operations == 0
    assert asked(world) == []
    world.again()
    assert asked(world) == [LIST] * 2, "one for the tree, one for what is shared"
    hold(world, "elsewhere", 30)
    world.again()
    assert len(asked(world)) == 2 + 4, "what is on the pool, and who"
    world.see(host())
    asked(world)
    world.again()
    assert asked(world) == [LIST], "no aggregate, no question"


def test_a_host_that_comes_into_an_aggregate_sees_its_pools_with_the_next_verification(world: World) -> None:
    world.see(host())
    with pytest.raises(DoesNotFit, match="DISK_GB"):
        world.tracker.claim(request(DISK_GB=1))
    root = world.tree()[ROOT]
    world.raw.put_aggregates(ROOT, root.generation or 0, {RACK})
    world.again()
    assert world.tracker.claim(request(DISK_GB=1)).claim.allocations == {POOL: {"DISK_GB": 1}}
    assert world.tree()[ROOT].aggregates == {RACK}


def test_what_is_free_in_the_pool_again_is_learned_when_a_claim_is_refused(world: World) -> None:
    """Narrowly: who holds what on the pool, and nothing else."""
    world.see(in_rack(host()))
    hold(world, "elsewhere", 90)
    world.again()
    hold(world, "elsewhere", 0)
    asked(world)
    claim = world.tracker.claim(request(VCPU=1, DISK_GB=50)).claim
    assert claim.allocations[POOL] == {"DISK_GB": 50}
    reads = [call for call in asked(world) if call.startswith("GET")]
    assert f"GET /resource_providers/{POOL}/allocations" in reads and len(reads) <= 3, reads


def test_what_another_host_took_of_the_pool_is_refused_by_placement_and_told(world: World) -> None:
    world.see(in_rack(host()))
    hold(world, "elsewhere", 90)
    with pytest.raises(DoesNotFit, match="pool"):
        world.tracker.claim(request(VCPU=1, DISK_GB=50))
    assert world.raw.provider_usages(ROOT)["VCPU"] == 0
    assert world.tracker.claim(request(VCPU=1, DISK_GB=10)).claim.allocations[POOL] == {"DISK_GB": 10}


def test_a_pool_that_is_gone_or_no_longer_shared_is_not_offered(world: World) -> None:
    world.see(in_rack(host()))
    pool_now = world.raw.read_provider(Provider(POOL, "pool"))
    world.raw.put_traits(POOL, pool_now.generation or 0, set())
    world.again()
    with pytest.raises(DoesNotFit):
        world.tracker.claim(request(DISK_GB=1))
    world.raw.delete_provider(POOL)
    assert world.again().error is None


def test_a_pool_that_hangs_under_another_hosts_root_is_seen_too(world: World) -> None:
    theirs = uuid_of("their host")
    world.raw.create_provider(Provider(theirs, "their host"))
    nested = pool(world, "nested", RACK, {SHARING}, total=500)
    world.raw.reparent_provider(nested, "nested", theirs)
    world.see(in_rack(host()))
    assert world.tracker.claim(request(DISK_GB=400)).claim.allocations == {nested: {"DISK_GB": 400}}
    assert world.raw.read_tree(theirs)[nested].parent == theirs


def test_a_reshape_leaves_the_pool_to_its_consumers(world: World) -> None:
    world.see(in_rack(host(VGPU=4)))
    claim = world.tracker.claim(request(VGPU=1, DISK_GB=50)).claim
    report = world.see(
        in_rack(host()), provider("gpu0", VGPU=4), moves=(MoveInstruction(HOST, {"VGPU": 4}, "gpu0"),)
    )
    assert (report.error, report.pending) == (None, None)
    after = world.tracker.claim_of(claim.consumer)
    assert after is not None and after.allocations == {
        world.uuid("gpu0"): {"VGPU": 1},
        POOL: {"DISK_GB": 50},
    }
    world.check()


@pytest.mark.parametrize("end", ["confirm", "revert"])
@pytest.mark.parametrize("kind", [MoveKind.COLD_MIGRATE, MoveKind.LIVE_MIGRATE, MoveKind.EVACUATE])
def test_the_disk_is_charged_once_throughout_a_move(
    kind: MoveKind, end: str, placement: Placement, tmp_path: Path
) -> None:
    """Scenario 61: shared disk provider, any move: both agents found the pool by its aggregate."""
    disk = {"DISK_GB": 200}
    with TwoHosts(tmp_path, placement) as world:
        pool_uuid = MOVE_POOL.uuid
        wanted = asks_to_move(VCPU=2, DISK_GB=200)
        world.a.tracker.claim(wanted)
        used = []

        def see(_: str) -> None:
            used.append(dict(world.raw.provider_usages(pool_uuid)))

        world.a.tap.after = world.b.tap.after = see
        world.b.look()
        world.b.tracker.begin_move(wanted, kind, MIGRATION)
        assert world.placed(INSTANCE) == {"b": {"VCPU": 2}, "pool": disk}
        assert world.placed(MIGRATION) == {"a": {"VCPU": 2}}
        getattr(world.b.tracker, f"{end}_move")(MIGRATION)
        world.settle()
        see("")
        assert len(used) > 3 and all(each == disk for each in used)
        assert world.placed(INSTANCE) == {"b" if end == "confirm" else "a": {"VCPU": 2}, "pool": disk}
