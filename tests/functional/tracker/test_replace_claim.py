"""A claim is replaced in one write; a failure changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from kits.placements import Placement
from kits.tracker import Kit, checked_kit, request

from agent.claims.claim import Claim
from agent.claims.request import ClaimRequest
from agent.errors import ClaimConflict, DoesNotFit, PlacementUnavailable
from agent.tracker.replace_claim import replace_claim


@pytest.fixture
def kit(tmp_path: Path, placement: Placement) -> Iterator[Kit]:
    with checked_kit(tmp_path, placement) as kit:
        yield kit


def replaced(kit: Kit, wanted: ClaimRequest) -> Claim:
    with kit.tracker.turn(wanted.consumer):
        return replace_claim(kit.tracker._context, wanted)


def test_a_claim_is_replaced_in_one_write(kit: Kit) -> None:
    before = kit.tracker.claim(request(VCPU=2, SRIOV_NET_VF=2)).claim
    kit.tap.calls.clear()
    after = replaced(kit, request(before.consumer, VCPU=1, SRIOV_NET_VF=1, MEMORY_MB=64))
    assert [call.split()[0] for call in kit.tap.calls] == ["GET", "PUT"]
    assert after == kit.tracker.claim_of(before.consumer) == kit.journal.claims()[before.consumer]
    assert kit.placed(before.consumer) == {"host": {"VCPU": 1, "MEMORY_MB": 64}, "nic0": {"SRIOV_NET_VF": 1}}
    kit.tracker.claim(request(SRIOV_NET_VF=1))  # what it gave up is free


def test_its_own_place_counts_as_free_for_it(kit: Kit) -> None:
    before = kit.tracker.claim(request(SRIOV_NET_VF=2, MEMORY_MB=4000)).claim
    after = replaced(kit, request(before.consumer, SRIOV_NET_VF=2, MEMORY_MB=4096))
    assert after.units == before.units


@pytest.mark.parametrize("amount", [64, 10**9], ids=["Placement is away", "it does not fit"])
def test_a_claim_that_cannot_be_replaced_stays_as_it_is(kit: Kit, amount: int) -> None:
    claim = kit.tracker.claim(request(SRIOV_NET_VF=1)).claim
    with kit.away(only="PUT"), pytest.raises((PlacementUnavailable, DoesNotFit)):
        replaced(kit, request(claim.consumer, SRIOV_NET_VF=2, MEMORY_MB=amount))
    assert kit.tracker.claim_of(claim.consumer) == claim == kit.journal.claims()[claim.consumer]
    assert kit.tracker.fit(request(str(uuid4()), SRIOV_NET_VF=1)).fits


def test_a_replacement_meets_other_writers_a_bounded_number_of_times(kit: Kit) -> None:
    """A generation that was read is old by the time of the write, twice; then the write goes through."""
    claim = kit.tracker.claim(request(VCPU=2)).claim
    left = [2]

    def touch(call: str) -> None:
        if call.startswith("PUT") and left[0]:
            left[0] -= 1
            kit.schedule(claim.consumer, host={"VCPU": 2})

    kit.tap.before = touch
    replaced(kit, request(claim.consumer, VCPU=3))
    assert left == [0]
    assert kit.placed(claim.consumer) == {"host": {"VCPU": 3}}


def test_an_allocation_that_another_client_changed_is_not_replaced(kit: Kit) -> None:
    claim = kit.tracker.claim(request(VCPU=2)).claim
    kit.schedule(claim.consumer, host={"VCPU": 3})
    with pytest.raises(ClaimConflict, match="plimsoll audit"):
        replaced(kit, request(claim.consumer, VCPU=4))
    assert kit.placed(claim.consumer) == {"host": {"VCPU": 3}}
    kit.schedule(claim.consumer, host={"VCPU": 2})
