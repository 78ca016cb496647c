"""Releases: what is taken out of Placement, and what stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from kits.placements import Placement
from kits.tracker import Kit, checked_kit, request

from agent.errors import (
    UnknownConsumer,
)


@pytest.fixture
def kit(tmp_path: Path, placement: Placement) -> Iterator[Kit]:
    with checked_kit(tmp_path, placement) as kit:
        yield kit


def test_a_release_is_one_read_and_one_write(kit: Kit) -> None:
    claim = kit.tracker.claim(request(VCPU=2, VGPU=1)).claim
    kit.tap.calls.clear()
    assert kit.tracker.release(claim.consumer)
    path = f"/allocations/{claim.consumer}"
    assert kit.tap.calls == [f"GET {path}", f"PUT {path}"]


def test_a_release_does_not_take_what_was_deleted_and_given_anew_elsewhere(kit: Kit) -> None:
    """The new allocation has the generation that ours had; only a read can tell them apart."""
    claim = kit.tracker.claim(request(VCPU=2)).claim
    kit.raw.delete_allocations(claim.consumer)
    kit.schedule(claim.consumer, elsewhere={"VCPU": 2})
    assert kit.tracker.release(claim.consumer)
    assert kit.placed(claim.consumer) == {"elsewhere": {"VCPU": 2}}


def test_an_unknown_consumer_cannot_be_released(kit: Kit) -> None:
    with pytest.raises(UnknownConsumer, match="nothing to release"):
        kit.tracker.release(str(uuid4()))
    claim = kit.tracker.claim(request(VCPU=1)).claim
    assert kit.tracker.release(claim.consumer)
    with pytest.raises(UnknownConsumer):
        kit.tracker.release(claim.consumer)


def test_a_claim_that_placement_has_lost_can_be_released(kit: Kit) -> None:
    claim = kit.tracker.claim(request(VCPU=1)).claim
    kit.raw.delete_allocations(claim.consumer)
    assert kit.tracker.release(claim.consumer) is True


def test_a_release_leaves_alone_what_has_moved_elsewhere_and_the_shared_pool_with_it(kit: Kit) -> None:
    """The consumer holds source and destination, or the destination alone: only this host's part is ours."""
    asked = request(VCPU=2, DISK_GB=200)
    kit.tracker.claim(asked)
    assert kit.placed(asked.consumer) == {"host": {"VCPU": 2}, "pool": {"DISK_GB": 200}}
    kit.schedule(asked.consumer, host={"VCPU": 2}, pool={"DISK_GB": 200}, elsewhere={"VCPU": 2})
    assert kit.tracker.release(asked.consumer)
    assert kit.placed(asked.consumer) == {"elsewhere": {"VCPU": 2}, "pool": {"DISK_GB": 200}}


def test_a_release_gives_the_shared_pool_back_when_the_guest_ends_here(kit: Kit) -> None:
    asked = request(VCPU=2, DISK_GB=200)
    kit.tracker.claim(asked)
    assert kit.tracker.release(asked.consumer)
    assert kit.placed_all() == {}


def test_a_release_that_somebody_overtakes_is_made_again_from_a_fresh_read(kit: Kit) -> None:
    asked = request(VCPU=2)
    kit.tracker.claim(asked)

    def meddle(call: str) -> None:
        if call.startswith("GET /allocations"):
            kit.tap.after = lambda _: None
            kit.schedule(asked.consumer, host={"VCPU": 3})

    kit.tap.after = meddle
    assert kit.tracker.release(asked.consumer)
    assert kit.placed_all() == {}
