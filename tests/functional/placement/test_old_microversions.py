"""A service that speaks no later microversion than it did years ago: all goes on, or says what is missing.

From 1.30 on everything works: below 1.38 consumers have no types, below 1.37 no provider gets another parent.
PLIMSOLL_TEST_MICROVERSION=1.30 runs any test of this directory on such a service.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kits.agent import World as Agent
from kits.agent import opened, request, told, world_of
from kits.move_operations import OPERATIONS, Operation
from kits.moves import INSTANCE, MIGRATION, World, asks
from kits.placements import OpenStack
from kits.tracker import fast_directory

from agent.claims.claim import Claim, ClaimState
from agent.errors import ClaimsClosed, UnknownConsumer
from agent.moves.states import MoveKind
from agent.status.overview import HostState
from drivers.fake.host import Gpu

OLD = ("1.30", "1.37")
TOO_OLD = "1.29"
CARD = Gpu("0000:83:00.0", "PGPU")
ALWAYS = ("begin cold_migrate", "source learns late", "heal a stale migration")
"""The others take minutes; `./dev test-remote` runs them."""


@pytest.fixture(params=OLD)
def old(request: pytest.FixtureRequest, openstack: OpenStack) -> Iterator[OpenStack]:
    openstack.empty()
    with openstack.aged(request.param):
        yield openstack


@pytest.fixture
def agent(old: OpenStack, tmp_path: Path) -> Iterator[Agent]:
    with opened(told(tmp_path, old)) as world:
        world.driver.change(nics=(), gpus=(CARD,), flat_devices=True)
        world.agent.reconcile("the start")
        yield world


def test_claims_a_reshape_there_and_back_a_resize_and_an_audit(agent: Agent) -> None:
    host, operations = agent.agent, agent.operations
    assert host.condition.state is HostState.READY, host.condition.fault
    asked = request(VCPU=2, MEMORY_MB=64, PGPU=1)
    operations.claim(asked)
    agent.driver.change(flat_devices=False)
    host.reconcile("the card has a provider of its own")
    assert len(claim_of(agent, asked.consumer).allocations) == 2
    (receipt,) = agent.journal.reshapes(done=True)
    operations.reshape(receipt)
    assert len(claim_of(agent, asked.consumer).allocations) == 1
    small = request(VCPU=1)
    operations.claim(small)
    for end in (operations.revert_move, operations.confirm_move):
        migration = str(uuid4())
        operations.begin_move(MoveKind.RESIZE, migration, replace(small, groups=request(VCPU=2).groups))
        end(migration, None)
    assert operations.audit(heal=True).findings == ()
    host.verify()
    assert host.condition.state is HostState.READY and operations.reconciler.next_plan().empty
    assert operations.release(asked.consumer) and operations.release(small.consumer)
    assert not any(amount for used in operations.tree()[1].values() for amount in used.values())


def claim_of(agent: Agent, consumer: str) -> Claim:
    (claim,) = [
        claim
        for _, claim in agent.operations.host_status.overview().instances
        if claim and claim.consumer == consumer
    ]
    assert claim.state is ClaimState.CLAIMED
    return claim


def cases() -> Iterator[object]:
    for operation in OPERATIONS:
        marks = () if operation.name in ALWAYS else pytest.mark.remote
        yield pytest.param(operation, id=f"openstack-{operation.name}", marks=marks)


@pytest.mark.parametrize("operation", list(cases()))
def test_every_move_and_repair_where_consumers_have_no_types(
    operation: Operation, openstack: OpenStack
) -> None:
    with openstack.aged(OLD[0]), fast_directory() as directory, World(Path(directory), openstack) as world:
        for agent in world.agents:  # so that a lost answer is that of a write, not of a refused microversion
            met = replace(asks(VCPU=1), consumer=str(uuid4()))
            agent.tracker.claim(met)
            agent.tracker.release(met.consumer)
        operation.prepare(world)
        try:
            operation.does(world)
        except UnknownConsumer as unknown:
            names_its_instance(world, operation, unknown)
        world.settle()
        assert world.placed_all() == operation.after
        ends_what_no_host_may_guess(world)
        world.check_settled()


def names_its_instance(world: World, operation: Operation, unknown: UnknownConsumer) -> None:
    """An operator ends a move at its source: which instance it moves, only the operator knows there."""
    end, at_source, _ = operation.name.partition(" at the source")
    assert at_source and "--instance" in unknown.message
    assert world.a.move() is None, "a consumer that resembles a migration is bound by nobody"
    getattr(world.a.tracker, f"{end}_move")(MIGRATION, instance=INSTANCE)


def ends_what_no_host_may_guess(world: World) -> None:
    """The source of a move that goes on, or whose instance was deleted, keeps its claim, unit by unit."""
    claim = world.a.tracker.claim_of(INSTANCE)
    if claim is None or "a" in world.placed(INSTANCE):
        return
    assert claim.state is ClaimState.CLAIMED and world.a.tracker.moves() == {}
    if world.placed(MIGRATION):
        world.a.tracker.revert_move(MIGRATION, instance=INSTANCE)
        world.settle()
        assert world.a.tracker.claim_of(INSTANCE) == claim
    else:
        assert world.placed(INSTANCE) == {}
        world.a.tracker.release(INSTANCE)


def test_a_provider_that_needs_another_parent_is_told_below_1_37_and_the_way_back_is_open(
    openstack: OpenStack, tmp_path: Path
) -> None:
    openstack.empty()
    with openstack.aged("1.36"), closing(opened(told(tmp_path, openstack))) as world:
        world.driver.change(nics=(), gpus=(replace(CARD, numa=0),))
        world.agent.reconcile("the start")
        asked = request(VCPU=1, PGPU=1)
        claim = world.operations.claim(asked)
        world.driver.change(report_numa=True)
        world.agent.reconcile("the card goes under its cell")
        (reason,) = world.agent.host_status.status().reasons
        assert "under node1_numa0" in reason and "needs microversion 1.37" in reason
        world.driver.change(report_numa=False)
        world.retry()
        assert world.agent.condition.state is HostState.READY, world.agent.condition.fault
        assert claim_of(world, asked.consumer).allocations == claim.allocations
        assert world.operations.reconciler.next_plan().empty


def test_one_that_is_too_old_is_told_what_is_missing_and_nothing_is_written(
    openstack: OpenStack, tmp_path: Path
) -> None:
    openstack.empty()
    with openstack.aged(TOO_OLD), closing(opened(told(tmp_path, openstack))) as world:
        world.agent.reconcile("the start")
        status = world.agent.host_status.status()
        assert status.state == "degraded"
        (reason,) = status.reasons
        assert f"speaks microversions 1.0 to {TOO_OLD}, and the agent needs 1.30" in reason
        assert "moved in one request" in reason
        with pytest.raises(ClaimsClosed, match=r"needs 1\.30"):
            world.operations.claim(request(VCPU=1))


def test_a_service_that_is_put_back_to_an_older_release_is_spoken_to_in_its_own(
    openstack: OpenStack, tmp_path: Path
) -> None:
    openstack.empty()
    with world_of(told(tmp_path, openstack)) as world:
        asked = request(VCPU=1)
        with openstack.aged(OLD[0]):
            world.operations.claim(asked)
            assert world.operations.release(asked.consumer)
            assert world.agent.condition.state is HostState.READY
