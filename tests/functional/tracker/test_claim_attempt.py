"""One claim on each real Placement: adoption, other writers, and answers that are lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kits.placements import Placement
from kits.tracker import HOST, VFS, Kit, checked_kit, guest, request, uuid_of

from agent.claims.claim import ClaimState
from agent.errors import ClaimConflict, DoesNotFit, PlacementUnavailable

HOST_UUID = uuid_of("host")


@pytest.fixture
def kit(tmp_path: Path, placement: Placement) -> Iterator[Kit]:
    with checked_kit(tmp_path, placement) as kit:
        yield kit


def test_what_a_scheduler_wrote_is_adopted_and_not_written_twice(kit: Kit) -> None:
    asked = request(VCPU=2, PCPU=1)
    kit.schedule(asked.consumer, host={"VCPU": 2, "PCPU": 1, "DISK_GB": 5})
    kit.tap.calls.clear()
    claim = kit.tracker.claim(asked).claim
    assert (claim.adopted, claim.allocations) == (True, {HOST_UUID: {"VCPU": 2, "PCPU": 1, "DISK_GB": 5}})
    assert claim.units == {HOST_UUID: {"PCPU": ("4",)}}
    assert kit.raw.allocations_of(asked.consumer).generation == 1
    again = kit.tracker.claim(asked).claim
    assert again == claim


def test_what_is_known_to_be_scheduled_is_adopted_with_one_read_on_a_full_host(kit: Kit) -> None:
    asked = request(VCPU=16)
    kit.schedule(asked.consumer, host={"VCPU": 16})
    kit.refresh()
    kit.tap.calls.clear()
    assert kit.tracker.claim(asked).claim.adopted
    assert kit.tap.calls == [f"GET /allocations/{asked.consumer}"]
    assert kit.tracker.release(asked.consumer)
    assert kit.placed(asked.consumer) == {}


def test_an_allocation_that_does_not_cover_the_request_is_a_conflict(kit: Kit) -> None:
    asked = request(VCPU=4)
    kit.schedule(asked.consumer, host={"VCPU": 2})
    before = kit.state()
    with pytest.raises(ClaimConflict, match=r"host: 2 VCPU; that does not cover .*4 VCPU asked, 2 held"):
        kit.tracker.claim(asked)
    assert kit.state() == before


def test_an_allocation_on_another_host_is_a_conflict_that_names_the_provider(kit: Kit) -> None:
    asked = request(VCPU=2)
    kit.schedule(asked.consumer, elsewhere={"VCPU": 2})
    before = kit.state()
    with pytest.raises(
        ClaimConflict, match=f"provider {uuid_of('elsewhere')}: 2 VCPU; none of it is on this host"
    ):
        kit.tracker.claim(asked)
    assert kit.state() == before


def test_an_adopted_guest_gets_the_units_that_it_has_in_its_hands(kit: Kit) -> None:
    asked = request(PCPU=1, SRIOV_NET_VF=1)
    kit.schedule(asked.consumer, host={"PCPU": 1}, nic0={"SRIOV_NET_VF": 1})
    kit.tracker.see_guests([guest(asked.consumer, PCPU="6", SRIOV_NET_VF=VFS[1])])
    assert kit.tracker.claim(asked).claim.units == {
        HOST_UUID: {"PCPU": ("6",)},
        uuid_of("nic0"): {"SRIOV_NET_VF": VFS[1:]},
    }


def test_a_unit_in_the_hands_of_an_unclaimed_guest_is_not_given_away(kit: Kit) -> None:
    kit.tracker.see_guests([guest(str(uuid4()), SRIOV_NET_VF=VFS[0])])
    assert kit.tracker.claim(request(SRIOV_NET_VF=1)).claim.units == {
        uuid_of("nic0"): {"SRIOV_NET_VF": VFS[1:]}
    }
    with pytest.raises(DoesNotFit, match="only 0 of 2 are free"):
        kit.tracker.claim(request(SRIOV_NET_VF=1))


def test_what_somebody_else_took_is_found_out_and_told_with_true_numbers(kit: Kit) -> None:
    kit.schedule(str(uuid4()), host={"VCPU": 13})
    before = kit.state()
    with pytest.raises(DoesNotFit, match="4 VCPU asked, 3 free on host"):
        kit.tracker.claim(request(VCPU=4))
    assert kit.state() == before
    kit.tap.calls.clear()
    with pytest.raises(DoesNotFit, match="4 VCPU asked, 3 free on host"):
        kit.tracker.claim(request(VCPU=4))
    assert not [call for call in kit.tap.calls if call.startswith("PUT")]


def test_what_somebody_else_took_on_one_card_is_taken_from_the_other(kit: Kit) -> None:
    kit.schedule(str(uuid4()), gpu0={"VGPU": 4})
    claim = kit.tracker.claim(request(VGPU=1)).claim
    assert claim.allocations == {uuid_of("gpu1"): {"VGPU": 1}}


def test_what_somebody_else_gave_back_is_noticed_before_a_refusal(kit: Kit) -> None:
    other = str(uuid4())
    kit.schedule(other, host={"VCPU": 16})
    kit.refresh()
    kit.raw.delete_allocations(other)
    assert kit.tracker.claim(request(VCPU=16)).claim.state is ClaimState.CLAIMED


def test_what_placement_refuses_for_reasons_of_its_own_is_told_in_its_words(kit: Kit) -> None:
    """The inventory shrank and the tracker has not been told yet."""
    root = kit.raw.find_provider(uuid=HOST_UUID)
    assert root is not None
    inventories = dict(HOST[0].inventories)
    inventories["VCPU"] = replace(inventories["VCPU"], total=1)
    kit.raw.put_inventories(HOST_UUID, root.generation or 0, inventories)
    with pytest.raises(DoesNotFit, match="Placement refuses") as caught:
        kit.tracker.claim(request(VCPU=4))
    assert caught.value.details["shortfalls"][0]["provider"] == "host"
    assert (kit.tracker.claims(), kit.journal.claims(), kit.placed_all()) == ({}, {}, {})


def test_a_consumer_known_to_hold_something_that_has_let_go_is_claimed_for(kit: Kit) -> None:
    asked = request(VCPU=2)
    kit.schedule(asked.consumer, host={"VCPU": 1})
    kit.refresh()
    kit.raw.delete_allocations(asked.consumer)
    claim = kit.tracker.claim(asked).claim
    assert not claim.adopted


def test_a_lost_answer_is_settled_by_one_read(kit: Kit) -> None:
    asked = request(VCPU=2)
    with kit.away(after=True, only="PUT"):
        claim = kit.tracker.claim(asked).claim
    assert (claim.state, claim.adopted) == (ClaimState.CLAIMED, False)


def test_a_request_that_was_not_sent_leaves_nothing(kit: Kit) -> None:
    before = kit.state()
    with kit.away(only="PUT"), pytest.raises(PlacementUnavailable, match="placement is away"):
        kit.tracker.claim(request(VCPU=2))
    assert kit.state() == before and kit.tracker.pending == 0


UNKNOWN = pytest.mark.parametrize("after", [False, True], ids=["request lost", "answer lost"])


@UNKNOWN
def test_an_outcome_nobody_knows_stays_reserved_until_it_is_undone(kit: Kit, after: bool) -> None:
    asked = request(PCPU=4)
    with kit.away(after=after, sent=True):
        with pytest.raises(PlacementUnavailable, match="stay reserved until it answers"):
            kit.tracker.claim(asked)
        assert kit.tracker.pending == 1
        with pytest.raises(DoesNotFit):
            kit.tracker.claim(request(PCPU=1))
        assert kit.tracker.deliver() == 0
    assert kit.tracker.claims()[asked.consumer].state is ClaimState.CLAIMING
    assert kit.tracker.deliver() == 1
    assert (kit.tracker.pending, kit.tracker.claims(), kit.placed_all()) == (0, {}, {})


@UNKNOWN
def test_an_outcome_nobody_knows_is_settled_by_asking_again(kit: Kit, after: bool) -> None:
    asked = request(PCPU=3)
    with kit.away(after=after, sent=True), pytest.raises(PlacementUnavailable):
        kit.tracker.claim(asked)
    kit.tracker.claim(request(PCPU=1))
    claim = kit.tracker.claim(asked).claim
    assert (claim.adopted, claim.units) == (False, {HOST_UUID: {"PCPU": ("4", "5", "6")}})


def test_another_request_after_an_outcome_nobody_knows_undoes_the_first(kit: Kit) -> None:
    asked = request(VCPU=3)
    with kit.away(after=True), pytest.raises(PlacementUnavailable):
        kit.tracker.claim(asked)
    kit.tracker.claim(request(asked.consumer, VCPU=2))
    assert kit.placed(asked.consumer) == {"host": {"VCPU": 2}}
