"""What the passes remember of Placement: only what may have changed is read again."""

from pathlib import Path

import pytest
from kits.reshape import ROOT, World, host, provider

from agent.placement.client import PlacementClient
from agent.reconcile.placement_memory import AllocationCache, check_home, go_on_without


@pytest.fixture
def world(world: World) -> World:
    world.see(host(), provider("gpu0", VGPU=4))
    return world


def reads(world: World) -> list[str]:
    calls = [call for call in world.tap.calls if call.endswith("/allocations")]
    world.tap.calls.clear()
    return calls


def test_a_provider_is_read_again_only_if_its_generation_changed_or_it_is_doubted(world: World) -> None:
    gpu = world.uuid("gpu0")
    consumer = world.hold("a", gpu0={"VGPU": 1})
    cache = AllocationCache(PlacementClient(world.tap), world.tree(), {gpu: {consumer: {"VGPU": 1}}})
    world.tap.calls.clear()
    assert cache.read(world.tree(), ()) == ({gpu: {consumer: {"VGPU": 1}}}, set()), "as it was saved"
    assert cache.read(world.tree(), ()) == ({}, {gpu, ROOT}), "the book has it"
    assert reads(world) == []
    assert cache.read(world.tree(), {gpu}) == ({gpu: {consumer: {"VGPU": 1}}}, {ROOT})
    assert reads(world) == [f"GET /resource_providers/{gpu}/allocations"]
    other = world.hold("b", gpu0={"VGPU": 2})
    assert cache.read(world.tree(), ()).held[gpu].keys() == {consumer, other}
    assert reads(world) == [f"GET /resource_providers/{gpu}/allocations"]
    cache.forget()
    assert cache.read(world.tree(), ()).held[gpu].keys() == {consumer, other}, "it was not entered"


def test_the_agents_own_writes_cost_no_read_and_those_of_others_do(world: World) -> None:
    before = world.tree()
    cache = AllocationCache(PlacementClient(world.tap), before, {})
    for uuid in (ROOT, world.uuid("gpu0")):
        world.raw.put_traits(uuid, before[uuid].generation or 0, {"HW_CPU_X86_VMX"})
    after = world.tree()
    cache.follow_writes(before, after, {ROOT})
    world.tap.calls.clear()
    assert cache.read(after, ()).held == {}
    assert reads(world) == [f"GET /resource_providers/{ROOT}/allocations"]


@pytest.mark.parametrize("times", [1, 2])
def test_to_go_on_without_what_placement_lost_is_said_for_one_start(
    world: World, tmp_path: Path, times: int
) -> None:
    def is_told() -> bool:
        return check_home(tmp_path, world.raw, "that of http://keystone, region any", ROOT, ())

    go_on_without(tmp_path)
    assert [is_told(), is_told()] == [False, False], "nothing was known yet"
    for _ in range(times):
        go_on_without(tmp_path)
    assert [is_told(), is_told()] == [True, False]
