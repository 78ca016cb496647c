"""Reshapes in the pass, on each placement: all or nothing, exactly once, and back again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from placements import Placement
from reshapekit import HOST, ROOT, Death, World, host, provider, uuid_of
from trackerkit import Crash, fast_directory, request

from agent.driver import DescribedProvider, Move
from agent.errors import DoesNotFit, PlacementUnavailable, ReshapeRefused
from agent.placement.client import ConsumerAllocations

FLAT = (host(VGPU=8),)
NESTED = (host(), provider("gpu0", VGPU=4), provider("gpu1", VGPU=4))


def to_gpus(**owners: dict[str, int]) -> tuple[Move, ...]:
    """owners {gpu: {consumer: amount}}"""
    return tuple(
        Move(HOST, {"VGPU": 4}, gpu, {uuid_of(who): {"VGPU": n} for who, n in owners.get(gpu, {}).items()})
        for gpu in ("gpu0", "gpu1")
    )


@pytest.fixture
def world(placement: Placement, tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, placement) as world:
        yield world


def test_vgpus_in_use_go_to_the_card_that_each_guest_holds(world: World) -> None:
    """Scenario 86: one atomic step, conserved; the second pass does nothing."""
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 1, "VCPU": 2})
    world.hold("b", node1={"VGPU": 2})
    world.hold("bystander", node1={"VCPU": 4})
    world.tap.calls.clear()
    report = world.see(*NESTED, moves=to_gpus(gpu0={"b": 2}, gpu1={"a": 1}))
    assert (report.error, report.pending) == (None, None)
    assert world.tap.calls.count("POST /reshaper") == 1
    assert f"GET /allocations/{uuid_of('bystander')}" not in world.tap.calls
    assert world.totals() == {HOST: {"VCPU": 64}, "gpu0": {"VGPU": 4}, "gpu1": {"VGPU": 4}}
    assert world.placed("a") == {HOST: {"VCPU": 2}, "gpu1": {"VGPU": 1}}
    assert world.placed("b") == {"gpu0": {"VGPU": 2}}
    assert world.placed("bystander") == {HOST: {"VCPU": 4}}
    before = world.everything()
    world.tap.calls.clear()
    assert world.again().operations == 0
    assert not any(call.startswith(("P", "D")) for call in world.tap.calls)
    assert world.everything() == before
