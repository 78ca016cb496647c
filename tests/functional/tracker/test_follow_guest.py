"""A claim is extended by what became known later: in one write, and by nothing that is not free."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from kits.placements import Placement
from kits.tracker import Kit, checked_kit, request

from agent.errors import ClaimConflict, DoesNotFit, PlacementUnavailable


@pytest.fixture
def kit(tmp_path: Path, placement: Placement) -> Iterator[Kit]:
    with checked_kit(tmp_path, placement) as kit:
        yield kit


def test_a_claim_is_extended_in_one_write(kit: Kit) -> None:
    claim = kit.tracker.claim(request(VCPU=2)).claim
    kit.tap.calls.clear()
    extended = kit.tracker.extend(claim, request(claim.consumer, VCPU=2, MEMORY_MB=64))
    assert [call.split()[0] for call in kit.tap.calls] == ["GET", "PUT"]
    assert extended == kit.tracker.claim_of(claim.consumer) == kit.journal.claims()[claim.consumer]
    assert kit.placed(claim.consumer) == {"host": {"VCPU": 2, "MEMORY_MB": 64}}


def test_a_claim_that_has_changed_since_is_not_extended(kit: Kit) -> None:
    claim = kit.tracker.claim(request(VCPU=2)).claim
    kit.tracker.release(claim.consumer)
    again = kit.tracker.claim(request(claim.consumer, VCPU=1)).claim
    assert kit.tracker.extend(claim, request(claim.consumer, VCPU=2, MEMORY_MB=64)) is None
    assert kit.tracker.claim_of(claim.consumer) == again


@pytest.mark.parametrize("amount", [64, 10**9], ids=["Placement is away", "it does not fit"])
def test_a_claim_that_cannot_be_extended_stays_as_it_is(kit: Kit, amount: int) -> None:
    claim = kit.tracker.claim(request(VCPU=2)).claim
    wish = request(claim.consumer, VCPU=2, MEMORY_MB=amount)
    with kit.away(only="PUT"), pytest.raises((PlacementUnavailable, DoesNotFit)):
        kit.tracker.extend(claim, wish)
    assert kit.tracker.claim_of(claim.consumer) == claim == kit.journal.claims()[claim.consumer]
    assert kit.tracker.fit(request(str(uuid4()), MEMORY_MB=64)).fits


def test_an_allocation_that_another_client_changed_is_not_extended(kit: Kit) -> None:
    claim = kit.tracker.claim(request(VCPU=2)).claim
    kit.raw.delete_allocations(claim.consumer)
    kit.schedule(claim.consumer, host={"VCPU": 3})
    with pytest.raises(ClaimConflict, match="plimsoll audit"):
        kit.tracker.extend(claim, request(claim.consumer, VCPU=2, MEMORY_MB=64))
    assert kit.tracker.claim_of(claim.consumer) == claim
    kit.raw.delete_allocations(claim.consumer)
    kit.schedule(claim.consumer, host={"VCPU": 2})
