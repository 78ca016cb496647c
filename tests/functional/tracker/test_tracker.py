"""The tracker on each real placement: claims, refusals, adoption, releases, outages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kits.placements import Placement
from kits.tracker import VFS, Kit, checked_kit, guest, provider, request, uuid_of

from agent.claims.claim import ClaimState
from agent.claims.doubt import BAR_GENERATION_MAX
from agent.claims.request import TopologyRequest
from agent.errors import (
    ClaimConflict,
    ClaimsClosed,
    DoesNotFit,
    StateError,
    UsageError,
)
from agent.tracker.tracker import ResourceTracker
from agent.tree import ProviderTree

HOST_UUID = uuid_of("host")


@pytest.fixture
def kit(tmp_path: Path, placement: Placement) -> Iterator[Kit]:
    with checked_kit(tmp_path, placement) as kit:
        yield kit


def test_a_claim_is_in_placement_on_disk_and_has_its_units(kit: Kit) -> None:
    asked = request(VCPU=2, PCPU=2, SRIOV_NET_VF=1, name="web1")
    claim = kit.tracker.claim(asked).claim
    assert claim.state is ClaimState.CLAIMED
    assert kit.placed(asked.consumer) == {"host": {"VCPU": 2, "PCPU": 2}, "nic0": {"SRIOV_NET_VF": 1}}
    assert claim.units == {HOST_UUID: {"PCPU": ("4", "5")}, uuid_of("nic0"): {"SRIOV_NET_VF": VFS[:1]}}
    assert kit.tracker.claim_of(asked.consumer) == claim == kit.journal.claims()[asked.consumer]
    second = kit.tracker.claim(request(PCPU=1, SRIOV_NET_VF=1)).claim
    assert second.units == {HOST_UUID: {"PCPU": ("6",)}, uuid_of("nic0"): {"SRIOV_NET_VF": VFS[1:]}}


def test_a_claim_is_one_write_and_no_read(kit: Kit) -> None:
    asked = request(VCPU=1)
    kit.tap.calls.clear()
    kit.tracker.claim(asked)
    assert kit.tap.calls == [f"PUT /allocations/{asked.consumer}"]


def test_a_claim_survives_a_restart(kit: Kit) -> None:
    claim = kit.tracker.claim(request(PCPU=3)).claim
    kit.restart()
    assert kit.tracker.claims() == {claim.consumer: claim}
    kit.refresh()
    assert kit.tracker.recover([]) == 0
    kit.tracker.open()
    with pytest.raises(DoesNotFit):
        kit.tracker.claim(request(PCPU=2))
    assert kit.tracker.claim(request(PCPU=1)).claim.units == {HOST_UUID: {"PCPU": ("7",)}}


def test_a_recovery_does_not_forget_a_guest_that_a_pass_has_seen_since(kit: Kit) -> None:
    seen = guest(request(VCPU=1).consumer)
    kit.tracker.see_guests([seen])
    assert kit.tracker.recover() == 0
    assert seen.uuid in kit.tracker.rows()


def test_not_enough_of_one_is_refused_and_nothing_of_any_kind_stays(kit: Kit) -> None:
    """Scenario 31."""
    before = kit.state()
    kit.tap.calls.clear()
    asked = request(VCPU=2, MEMORY_MB=5000, VGPU=1, name="web1")
    with pytest.raises(DoesNotFit) as caught:
        kit.tracker.claim(asked)
    assert "5000 MEMORY_MB asked, 4096 free on host (only 4096 of 4096 are free)" in caught.value.message
    assert "web1" in caught.value.message
    (short,) = caught.value.details["shortfalls"]
    assert (short["resource_class"], short["asked"], short["free"], short["provider_uuid"]) == (
        "MEMORY_MB",
        5000,
        4096,
        HOST_UUID,
    )
    assert kit.state() == before
    assert kit.tap.calls == []


def test_when_the_spawn_fails_the_claim_is_given_back(kit: Kit) -> None:
    """Scenario 32."""
    before = kit.state()
    asked = request(VCPU=2, PCPU=1)
    with pytest.raises(RuntimeError, match="no such image"), kit.tracker.claim(asked) as held:
        assert held.claim.units
        raise RuntimeError("no such image")
    assert kit.state() == before
    with kit.tracker.claim(asked) as held:
        pass
    assert kit.tracker.claim_of(asked.consumer) == held.claim


def test_a_failed_spawn_whose_release_cannot_be_delivered_is_journaled(kit: Kit) -> None:
    """Scenario 32, with placement away."""
    held = kit.tracker.claim(request(VCPU=2))
    with kit.away(), pytest.raises(RuntimeError), held:
        raise RuntimeError("no such image")
    assert kit.tracker.claims()[held.claim.consumer].state is ClaimState.RELEASING
    assert kit.tracker.deliver() == 1
    assert kit.placed_all() == {}


def test_two_requests_in_one_instance_for_the_last_device(kit: Kit) -> None:
    """Scenario 34: no guest starts without one of its devices."""
    kit.tracker.claim(request(SRIOV_NET_VF=1))
    before = kit.state()
    with pytest.raises(DoesNotFit, match="2 SRIOV_NET_VF asked, 1 free on nic0"):
        kit.tracker.claim(request(suffixed=2, SRIOV_NET_VF=1))
    assert kit.state() == before


def test_two_claims_race_for_the_last_device(kit: Kit) -> None:
    """Scenario 35: exactly one wins."""
    kit.tap.before = lambda _: None
    kit.tracker.claim(request(SRIOV_NET_VF=1))
    asked = [request(SRIOV_NET_VF=1) for _ in range(4)]
    answers: list[object] = []
    start = threading.Barrier(len(asked))

    def run(number: int) -> None:
        start.wait(10)
        try:
            answers.append(kit.tracker.claim(asked[number]).claim.units)
        except DoesNotFit as error:
            answers.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    won = [each for each in answers if not isinstance(each, DoesNotFit)]
    assert won == [{uuid_of("nic0"): {"SRIOV_NET_VF": VFS[1:]}}]
    assert len(answers) == len(asked)


def test_a_host_without_inventory_refuses_and_records_nothing(tmp_path: Path) -> None:
    """Scenario 40: before the first full inventory, and on a tree that has nothing."""
    with Kit(tmp_path) as kit:
        fresh = ResourceTracker(kit.journal, kit.raw)
        assert fresh.closed_reason == "waiting for the first full inventory"
        with pytest.raises(ClaimsClosed, match="waiting for the first full inventory"):
            fresh.claim(request(VCPU=1))
        fresh.open()
        with pytest.raises(DoesNotFit, match="the host has no inventory yet"):
            fresh.claim(request(VCPU=1))
        fresh.refresh(ProviderTree([provider("host")]), {}, {})
        with pytest.raises(DoesNotFit, match="no provider of this host has it"):
            fresh.claim(request(VCPU=1))
        assert (fresh.claims(), kit.journal.claims(), kit.placed_all()) == ({}, {}, {})


def test_several_devices_for_several_guests_over_two_cards(kit: Kit) -> None:
    """Scenario 41: two guests with 4 VGPU each over two cards with 4 free each: both fit, wherever."""
    first = kit.tracker.claim(request(VGPU=4)).claim
    second = kit.tracker.claim(request(VGPU=4)).claim
    assert {*first.allocations, *second.allocations} == {uuid_of("gpu0"), uuid_of("gpu1")}
    assert kit.tracker.release(first.consumer)
    assert kit.tracker.release(second.consumer)
    both = kit.tracker.claim(request(suffixed=2, VGPU=4)).claim
    assert {*both.allocations} == {uuid_of("gpu0"), uuid_of("gpu1")}


def test_the_same_claim_again_is_the_same_claim(kit: Kit) -> None:
    asked = request(VCPU=2, PCPU=1)
    first = kit.tracker.claim(asked).claim
    before = kit.state()
    assert kit.tracker.claim(asked).claim == first
    assert kit.state() == before


def test_another_claim_for_the_same_consumer_is_a_conflict(kit: Kit) -> None:
    asked = request(VCPU=2)
    kit.tracker.claim(asked)
    before = kit.state()
    with pytest.raises(ClaimConflict, match="2 VCPU") as caught:
        kit.tracker.claim(request(asked.consumer, VCPU=3))
    assert caught.value.details["holds"] == {HOST_UUID: {"VCPU": 2}}
    assert kit.state() == before


def test_while_a_claim_is_in_flight_its_twin_waits_another_is_refused_and_a_release_comes_after(
    kit: Kit,
) -> None:
    asked = request(VCPU=2)
    sent, go_on = threading.Event(), threading.Event()

    def hold(call: str) -> None:
        if call.startswith("PUT") and not sent.is_set():
            sent.set()
            assert go_on.wait(10)

    kit.tap.before = hold
    claims: list[object] = []
    released: list[bool] = []
    first = threading.Thread(target=lambda: claims.append(kit.tracker.claim(asked).claim))
    twin = threading.Thread(target=lambda: claims.append(kit.tracker.claim(asked).claim))
    release = threading.Thread(target=lambda: released.append(kit.tracker.release(asked.consumer)))
    first.start()
    assert sent.wait(10)
    twin.start()
    with pytest.raises(ClaimConflict, match="under way, with a different request"):
        kit.tracker.claim(request(asked.consumer, VCPU=3))
    twin.join(0.05)
    assert twin.is_alive()
    go_on.set()
    twin.join(10)
    assert claims[0] == claims[1]
    release.start()
    for thread in (first, release):
        thread.join(10)
    assert released == [True]
    assert kit.placed(asked.consumer) == {}


def test_waiting_for_ones_turn_has_an_end(kit: Kit) -> None:
    impatient = ResourceTracker(kit.journal, kit.raw, turn_wait_s=0.02)
    asked = request(VCPU=1)
    with impatient.turn(asked.consumer), pytest.raises(ClaimConflict, match="under way for"):
        impatient.release(asked.consumer)


def test_closed_claims_refuse_with_the_reason_while_releases_go_on(kit: Kit) -> None:
    claim = kit.tracker.claim(request(VCPU=1)).claim
    kit.tracker.close("libvirt is away")
    before = kit.state()
    with pytest.raises(ClaimsClosed, match=r"^Claims are closed: libvirt is away\.$"):
        kit.tracker.claim(request(VCPU=1))
    assert kit.state() == before
    assert kit.tracker.explain(request(VCPU=1)).fits
    assert kit.tracker.release(claim.consumer)
    kit.tracker.open()
    assert kit.tracker.closed_reason is None


def test_what_makes_no_sense_is_refused_before_anything_is_done(kit: Kit) -> None:
    asked = replace(request(VCPU=1), topology=TopologyRequest(cells=2))
    before = kit.state()
    for ask in (kit.tracker.claim, kit.tracker.explain):
        with pytest.raises(UsageError, match="2 cells are asked for and 1 CPU:"):
            ask(asked)
    assert kit.state() == before


def test_explain_makes_no_request_and_changes_nothing(kit: Kit) -> None:
    held = kit.tracker.claim(request(PCPU=3)).claim
    before = kit.state()
    kit.tap.calls.clear()
    good = kit.tracker.explain(request(PCPU=1, VGPU=1))
    assert (good.fits, good.units) == (True, {HOST_UUID: {"PCPU": ("7",)}})
    bad = kit.tracker.explain(request(PCPU=2))
    assert [(each.asked, each.free, each.provider) for each in bad.shortfalls] == [(2, 1, "host")]
    assert kit.tracker.explain(held.request).units == held.units
    assert kit.tap.calls == []
    assert kit.state() == before


# Placement is away


def test_a_consumer_that_nobody_can_see_does_not_bar_its_first_claim(kit: Kit) -> None:
    """OpenStack Placement keeps one at generation 0 where a client emptied what never held anything.

    It may be the bar of another host whose write may still come: the claim is written on past that.
    """
    asked = request(VCPU=2)
    empty = {"allocations": {}, "consumer_generation": None, "project_id": "p", "user_id": "u"}
    path = f"/allocations/{asked.consumer}"
    done = kit.tap.request("PUT", path, {**empty, "consumer_type": "INSTANCE"}, microversion="1.38")
    assert done.status == 204
    kit.tap.calls.clear()
    assert kit.tracker.claim(asked).claim.state is ClaimState.CLAIMED
    assert kit.placed(asked.consumer) == {"host": {"VCPU": 2}}
    assert len(kit.tap.calls) <= 3 + BAR_GENERATION_MAX
    assert kit.tracker.release(asked.consumer)
    assert kit.placed_all() == {}


# The journal


def test_a_journal_that_cannot_be_written_refuses_the_claim_and_nothing_is_sent(kit: Kit) -> None:
    def full(_: str) -> None:
        raise StateError("the disk is full, as it was told")

    kit.tap.calls.clear()
    before = kit.state()
    kit.journal.before = full
    with pytest.raises(StateError, match="disk is full"):
        kit.tracker.claim(request(VCPU=1))
    kit.journal.before, kit.journal.after = (lambda _: None), full
    with pytest.raises(StateError, match="disk is full"):
        kit.tracker.claim(request(VCPU=1))
    kit.journal.after = lambda _: None
    assert kit.tap.calls == []
    assert kit.state()[:2] == before[:2]
    kit.restart()
    kit.refresh()
    kit.tracker.recover([])
    assert kit.state() == before


def test_a_result_that_cannot_be_journaled_is_undone(kit: Kit) -> None:
    def full(event: str) -> None:
        if event == "grant":
            raise StateError("the disk is full, as it was told")

    kit.journal.before = full
    with pytest.raises(StateError, match="disk is full"):
        kit.tracker.claim(request(VCPU=1))
    kit.journal.before = lambda _: None
    assert kit.tracker.pending == 1
    assert kit.tracker.deliver() == 1
    assert (kit.tracker.claims(), kit.placed_all()) == ({}, {})


def test_a_release_that_cannot_be_journaled_changes_nothing(kit: Kit) -> None:
    claim = kit.tracker.claim(request(VCPU=1)).claim
    before = kit.state()

    def full(_: str) -> None:
        raise StateError("the disk is full, as it was told")

    kit.journal.before = full
    with pytest.raises(StateError, match="disk is full"):
        kit.tracker.release(claim.consumer)
    kit.journal.before = lambda _: None
    assert kit.state() == before
