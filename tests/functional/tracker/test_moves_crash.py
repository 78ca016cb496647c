"""An agent is gone at any request and any journal write of a move: each resource has exactly one right owner.

Every operation of every kind is run again and again, dying some boundaries later each time, until it runs
to its end: at every third boundary in `./dev test`, at every one in `./dev test-long`. After each death the
agent comes back: with placement there, with placement away at first, or with the other agent restarted, too;
in turn, or at every boundary in each of these ways where PLIMSOLL_KILLS is "all". Then the operation is
repeated, and comes to the end that it would have had.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from kits.come_back import HOW, come_back
from kits.examples import STRIDE, boundaries
from kits.move_operations import AT_A, INTERRUPTED, OPERATIONS, Operation, again, units_held
from kits.moves import World
from kits.placements import OpenStack
from kits.tracker import Death, dies, fast_directory

from agent.claims.request import ClaimRequest
from agent.shapes import Allocations, Units

BOUNDARIES_MAX = 120
Claims = dict[str, dict[str, tuple[ClaimRequest, Allocations, Units]]]


WAYS = [[how] for how in HOW] if os.environ.get("PLIMSOLL_KILLS") == "all" else [HOW]


@pytest.mark.parametrize("ways", WAYS, ids="-".join)
@pytest.mark.parametrize("operation", INTERRUPTED, ids=lambda each: each.name)
def test_death_at_every_boundary(operation: Operation, ways: Sequence[str]) -> None:
    """Scenarios 38, 56, 71: whatever was interrupted is finished or undone."""
    for number in boundaries(BOUNDARIES_MAX, INTERRUPTED.index(operation)):
        with fast_directory() as directory, World(Path(directory)) as world:
            if not dies_and_comes_back(world, operation, number, ways[number // STRIDE % len(ways)]):
                return
    raise AssertionError(f"{operation.name} has more than {BOUNDARIES_MAX} boundaries")


@pytest.mark.remote
@pytest.mark.timeout(600)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_death_at_every_boundary_on_openstack_placement(operation: Operation, openstack: OpenStack) -> None:
    """Scenarios 38, 56, 71: whatever was interrupted is finished or undone; the ways back in turn."""
    for number in range(1, BOUNDARIES_MAX):
        with fast_directory() as directory, World(Path(directory), openstack) as world:
            if not dies_and_comes_back(world, operation, number, HOW[number % len(HOW)]):
                return
    raise AssertionError(f"{operation.name} has more than {BOUNDARIES_MAX} boundaries")


def dies_and_comes_back(world: World, operation: Operation, number: int, how: str) -> bool:
    """False: there is no boundary with that number."""
    operation.prepare(world)
    units = units_held(world)
    taps = world.taps(getattr(world, operation.agent), Death(number))
    if not dies(taps, lambda: operation.does(world)):
        assert number > 2 or STRIDE > 1
        return False
    come_back(world, getattr(world, operation.agent), how)
    world.check()
    held = world.placed_all()
    if operation.before is not None:
        assert held in (operation.before, operation.after, operation.midway), number
        world.check_settled()
        if held != operation.midway:
            assert claims_of(world) in claims_around(operation.name), number
    if held == AT_A and units:
        assert units_held(world) == units
    again(world, operation)
    assert world.placed_all() == operation.after, number
    world.check_settled()
    assert claims_of(world) == claims_around(operation.name)[1], number
    return True


@cache
def claims_around(name: str) -> tuple[Claims, Claims]:
    """The claims before the operation of that name and after it, where nobody dies."""
    operation = next(each for each in OPERATIONS if each.name == name)
    with fast_directory() as directory, World(Path(directory)) as world:
        operation.prepare(world)
        world.settle()
        before = claims_of(world)
    with fast_directory() as directory, World(Path(directory)) as world:
        operation.prepare(world)
        operation.does(world)
        world.settle()
        return before, claims_of(world)


def claims_of(world: World) -> Claims:
    """Each agent's: what was asked, what is held where, and the exact units of it."""
    return {
        agent.name: {
            consumer: (claim.request, claim.allocations, claim.units)
            for consumer, claim in agent.tracker.claims().items()
        }
        for agent in world.agents
    }
