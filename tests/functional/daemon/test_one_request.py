"""What one request of one guest meets is that request's outcome, and not the host's: on both placements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kits.agent import World, opened, request, told
from kits.placements import Placement
from kits.wire import Sent

from agent.claims.claim import ClaimState
from agent.errors import DoesNotFit, PlacementUnavailable, PlimsollError
from agent.placement.client import PlacementClient
from agent.placement.transport import Reply, reply_of_answer
from agent.status.overview import HostState
from drivers.fake import Gpu

CARDS = (Gpu("0000:83:00.0", "PGPU"), Gpu("0000:84:00.0", "PGPU"))


def stumbling(sent: Sent, *, own: bool = True) -> Reply:
    """500, of Placement's own or of a proxy."""
    body = {"errors": [{"status": 500, "detail": "A NUL."}]}
    return reply_of_answer(
        sent.method, sent.path, 500, body, {"x-openstack-request-id": "req-1"} if own else {}
    )


@pytest.fixture
def world(placement: Placement, tmp_path: Path) -> Iterator[World]:
    with closing(opened(told(tmp_path, placement))) as world:
        world.driver.change(gpus=CARDS, nics=())
        world.agent.reconcile("the start")
        assert world.agent.condition.state is HostState.READY
        yield world


@pytest.mark.parametrize("own", [False, True], ids=["of a proxy", "of Placement"])
def test_a_body_that_makes_placement_stumble_does_not_close_the_host(world: World, *, own: bool) -> None:
    world.wire.answer = lambda sent: (
        stumbling(sent, own=own) if sent.call.startswith("PUT /allocations") else None
    )
    with pytest.raises(PlacementUnavailable):
        world.operations.claim(request(VCPU=1))
    assert world.agent.condition.state is HostState.READY
    world.wire.answer = None
    assert world.operations.claim(request(VCPU=1)).state is ClaimState.CLAIMED
    world.agent.deliver()
    claims = [claim for _, claim in world.operations.instances() if claim]
    assert [claim.state for claim in claims] == [ClaimState.CLAIMED]


def test_the_host_closes_for_claims_when_a_probe_fails_too(world: World) -> None:
    world.wire.answer = stumbling
    with pytest.raises(PlacementUnavailable):
        world.operations.claim(request(VCPU=1))
    assert world.agent.condition.state is HostState.DEGRADED
    world.wire.answer = None
    world.retry()
    assert world.agent.condition.state is HostState.READY


def test_a_text_with_a_nul_is_the_outcome_of_its_own_claim_alone(world: World) -> None:
    """PostgreSQL takes no NUL, so OpenStack Placement answers 500 there."""
    asked = request(VCPU=1)
    odd = type(asked)(asked.consumer, asked.groups, project_id="a\0b")
    try:
        world.operations.claim(odd)
    except PlimsollError:
        assert world.agent.condition.state is HostState.READY
    assert world.operations.claim(request(VCPU=1)).state is ClaimState.CLAIMED


def card_of(world: World, allocations: Any) -> str:
    ((uuid, _),) = [(uuid, amounts) for uuid, amounts in allocations.items() if "PGPU" in amounts]
    return str(uuid)


def test_a_provider_that_an_admin_deleted_is_left_out_and_written_again(world: World) -> None:
    """The claim is tried elsewhere, then refused in the agent's words; no verification is waited for."""
    first = world.operations.claim(request(PGPU=1))
    deleted = card_of(world, first.allocations)
    assert world.operations.release(first.consumer)
    world.agent.reconcile("a release")
    client = PlacementClient(world.wire.inner)
    assert client.delete_provider(deleted)
    second = world.operations.claim(request(PGPU=1))
    assert card_of(world, second.allocations) != deleted
    with pytest.raises(DoesNotFit, match="PGPU"):
        world.operations.claim(request(PGPU=1))
    world.agent.reconcile("at once, as it was requested")
    assert world.agent.condition.state is HostState.READY
    third = world.operations.claim(request(PGPU=1))
    assert card_of(world, third.allocations) == deleted


def test_a_claim_that_fits_only_on_a_deleted_provider_is_told_that(world: World) -> None:
    world.operations.claim(request(PGPU=1))
    second = world.operations.claim(request(PGPU=1))
    deleted = card_of(world, second.allocations)
    assert world.operations.release(second.consumer)
    world.agent.reconcile("a release")
    PlacementClient(world.wire.inner).delete_provider(deleted)
    asked_for = len(world.retries)
    with pytest.raises(
        DoesNotFit, match=r"Another client deleted .* of this host in Placement: the agent writes"
    ):
        world.operations.claim(request(PGPU=1))
    assert len(world.retries) > asked_for, "a pass is requested"
    world.agent.reconcile("that pass")
    assert world.operations.claim(request(PGPU=1)).state is ClaimState.CLAIMED
