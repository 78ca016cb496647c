"""Placement goes away at each request of each step of a move, and is back later: nothing leaked or lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kits.agent import World as Agent
from kits.agent import request, told, world_of
from kits.examples import STRIDE, boundaries
from kits.move_operations import INTERRUPTED, OPERATIONS, Operation, again
from kits.moves import World
from kits.outage import Outage
from kits.placements import Embedded, OpenStack, Placement
from kits.tracker import fast_directory, uuid_of

from agent.claims.claim import ClaimState
from agent.errors import ClaimsClosed, PlacementUnavailable
from agent.moves.states import MoveKind, MoveState
from agent.status.overview import HostState

REQUESTS_MAX = 40
MIGRATION = uuid_of("the resize")
ALWAYS = "begin cold_migrate"
"""The others take minutes on OpenStack Placement; `./dev test-remote` runs them."""


def cases() -> Iterator[object]:
    for operation in OPERATIONS:
        marks = () if operation.name == ALWAYS else pytest.mark.remote
        if operation in INTERRUPTED:
            yield pytest.param("embedded", operation, id=f"embedded-{operation.name}")
        yield pytest.param("openstack", operation, id=f"openstack-{operation.name}", marks=marks)


@pytest.mark.parametrize("after", [False, True], ids=["before a request", "after a request"])
@pytest.mark.parametrize(("kind", "operation"), list(cases()))
def test_pulled_at_each_step_of_a_move(
    kind: str, operation: Operation, after: bool, request: pytest.FixtureRequest
) -> None:
    for number in boundaries(REQUESTS_MAX, OPERATIONS.index(operation) + after):
        with fast_directory() as directory:
            placement: Placement = (
                Embedded(Path(directory)) if kind == "embedded" else request.getfixturevalue("openstack")
            )
            with World(Path(directory), placement) as world:
                operation.prepare(world)
                if not pulled(world, operation, Outage(placement, number, after=after)):
                    assert number > 1 or STRIDE > 1 or "rebuild" in operation.name
                    return
                world.settle()
                if operation.before is not None:
                    assert world.placed_all() in (operation.before, operation.after, operation.midway)
                    world.check_settled()
                again(world, operation)
                assert world.placed_all() == operation.after
                world.check_settled()
    raise AssertionError(f"{operation.name} makes more than {REQUESTS_MAX} requests")


def pulled(world: World, operation: Operation, outage: Outage) -> bool:
    """Whether there was a request with that number. Placement is back afterwards."""
    tap = getattr(world, operation.agent).tap
    silent = tap.before, tap.after
    outage.listen(tap)
    try:
        with suppress(PlacementUnavailable):
            operation.does(world)
    finally:
        tap.before, tap.after = silent
        outage.end()
    return outage.begun


@pytest.fixture
def agent(placement: Placement, tmp_path: Path) -> Iterator[Agent]:
    with world_of(told(tmp_path, placement)) as world:
        yield world


@pytest.mark.parametrize("end", ["confirm", "revert"])
def test_an_agent_whose_placement_goes_in_the_middle_of_a_resize_catches_up_in_one_pass(
    agent: Agent, placement: Placement, end: str
) -> None:
    asked = request(VCPU=2, MEMORY_MB=512)
    agent.operations.claim(asked)
    grown = request(VCPU=3, MEMORY_MB=512)
    grown = type(grown)(asked.consumer, grown.groups)
    outage = Outage(placement)
    outage.begin()
    agent.wire.cut = not isinstance(placement, OpenStack)
    with pytest.raises(PlacementUnavailable):
        agent.operations.begin_move(MoveKind.RESIZE, MIGRATION, grown)
    assert (
        agent.operations.host_status.status().state == "degraded"
        and agent.operations.host_status.status().error("placement")
    )
    with pytest.raises(ClaimsClosed):
        agent.operations.begin_move(MoveKind.RESIZE, MIGRATION, grown)
    agent.wire.cut = False
    outage.end()
    agent.retry()
    assert agent.agent.condition.state is HostState.READY
    assert agent.operations.begin_move(MoveKind.RESIZE, MIGRATION, grown).state is MoveState.BEGUN
    outage.begin()
    agent.wire.cut = not isinstance(placement, OpenStack)
    ending = getattr(agent.operations, f"{end}_move")(MIGRATION, None)
    assert ending.state not in (MoveState.CONFIRMED, MoveState.REVERTED), "it is journaled, and owed"
    assert agent.operations.host_status.status().error("placement")
    with pytest.raises(ClaimsClosed):
        agent.operations.claim(request(VCPU=1))
    asked_so_far = agent.wire.requests
    for _ in range(3):
        assert getattr(agent.operations, f"{end}_move")(MIGRATION, None) == ending
        agent.agent.deliver()
    assert agent.wire.requests == asked_so_far
    agent.wire.cut = False
    outage.end()
    agent.retry()
    assert agent.agent.condition.state is HostState.READY
    (move,) = agent.operations.host_status.overview().moves
    assert move.state is (MoveState.CONFIRMED if end == "confirm" else MoveState.REVERTED)
    (claim,) = list(agent.operations.tracker.claims().values())
    assert claim.state is ClaimState.CLAIMED
    assert claim.request == (grown if end == "confirm" else asked)
    assert agent.operations.release(asked.consumer)
    tree, usages = agent.operations.tree()
    assert all(not any(amounts.values()) for amounts in usages.values()), tree
