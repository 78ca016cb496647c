"""The tracker on each real placement: claims, refusals, adoption, releases, outages, many clients at once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from kits.late_writes import late_writes
from kits.placements import Placement
from kits.threads import at_once
from kits.tracker import HOST, VFS, Kit, guest, provider, request, uuid_of
from kits.wire import Sent

from agent.backoff import CONFLICTS_MAX
from agent.claims.claim import Claim, ClaimState, Restriction
from agent.claims.doubt import BAR_GENERATION_MAX
from agent.claims.request import ClaimRequest, RequestGroup, TopologyRequest
from agent.errors import (
    ClaimConflict,
    ClaimsClosed,
    DoesNotFit,
    PlacementConflict,
    PlacementError,
    PlacementFull,
    PlacementUnavailable,
    StateError,
    UnknownConsumer,
    UsageError,
)
from agent.moves.states import MoveKind
from agent.placement.transport import Reply, WriteDone, WriteOutcome, WriteRefused
from agent.tracker.claim_attempt import follow_use, replace_claim
from agent.tracker.claims import GuestDemand, reserved_for
from agent.tracker.context import TrackerContext
from agent.tracker.tracker import ResourceTracker
from agent.tree import ProviderTree

HOST_UUID = uuid_of("host")


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
    kit.tracker.admission.open()
    with pytest.raises(DoesNotFit):
        kit.tracker.claim(request(PCPU=2))
    assert kit.tracker.claim(request(PCPU=1)).claim.units == {HOST_UUID: {"PCPU": ("7",)}}


def test_a_recovery_does_not_forget_a_guest_that_a_pass_has_seen_since(kit: Kit) -> None:
    seen = guest(request(VCPU=1).consumer)
    kit.tracker.see_guests([seen])
    assert kit.tracker.recover() == 0
    assert seen.uuid in kit.tracker.view.rows()


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
    answers = run_all([[request(SRIOV_NET_VF=1)] for _ in range(4)], kit)
    (won,) = (each for each in answers if isinstance(each, Claim))
    assert won.units == {uuid_of("nic0"): {"SRIOV_NET_VF": VFS[1:]}}
    assert len(answers) == 4


def test_a_host_without_inventory_refuses_and_records_nothing(tmp_path: Path) -> None:
    """Scenario 40: before the first full inventory, and on a tree that has nothing."""
    with Kit(tmp_path) as kit:
        fresh = ResourceTracker(kit.journal, kit.raw)
        assert fresh.admission.closed_reason == "waiting for the first full inventory"
        with pytest.raises(ClaimsClosed, match="waiting for the first full inventory"):
            fresh.claim(request(VCPU=1))
        fresh.admission.open()
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


def test_a_refusal_names_who_has_the_device(kit: Kit) -> None:
    """With exact units, and without."""
    asked = [{"VGPU": 3}, {"VGPU": 3}, {"SRIOV_NET_VF": 2}]
    for number, resources in enumerate(asked, start=1):
        kit.tracker.claim(request(uuid_of(f"web{number}"), name=f"web{number}", **resources))
    for resources, holders, text in (
        ({"VGPU": 2}, ("web1", "web2"), r"only 1 of 4 is free: {} has 3"),
        ({"SRIOV_NET_VF": 1}, ("web3",), r"only 0 of 2 are free: {} has 2"),
    ):
        for suffixed in (0, 1):
            with pytest.raises(DoesNotFit) as caught:
                kit.tracker.claim(request(suffixed=suffixed, **resources))
            assert any(text.format(f"{name} ({uuid_of(name)})") in caught.value.message for name in holders)
            assert all("is_scarce" not in each for each in caught.value.details["shortfalls"])


def test_the_same_claim_again_without_its_name_is_the_same_claim(kit: Kit) -> None:
    """As `plimsoll claim web1`, which finds the instance by its name, sends it."""
    named = request(name="web1", VCPU=1, VGPU=1)
    claim = kit.tracker.claim(named).claim
    assert kit.tracker.explain(replace(named, name="")).fits
    assert kit.tracker.claim(replace(named, name="")).claim == claim
    assert kit.tracker.claim_of(named.consumer).request.name == "web1"
    for other in (replace(named, name="web2"), request(named.consumer, VCPU=1)):
        with pytest.raises(ClaimConflict, match="with another request"):
            kit.tracker.claim(other)


def test_a_name_that_is_given_later_becomes_the_name(kit: Kit) -> None:
    """As `plimsoll claim UUID`, and then `plimsoll claim UUID --name web1`."""
    asked = request(VCPU=1, VGPU=1)
    claim = kit.tracker.claim(asked).claim
    named = replace(asked, name="web1")
    assert kit.tracker.explain(named).units == claim.units
    assert kit.tracker.claim(named).claim == replace(claim, request=named)
    assert kit.journal.claims()[asked.consumer].request == named
    assert kit.tracker.claim(asked).claim.request == named
    with pytest.raises(ClaimConflict, match=r"web1 .* with another request"):
        kit.tracker.claim(replace(asked, name="web2"))


def test_a_claim_for_what_an_audit_claimed_is_answered_as_that(kit: Kit) -> None:
    """Its groups are the places that the guest's units have; an operator's groups are meant as they are."""
    amounts = RequestGroup("", {"VCPU": 1})
    for suffix in ("_1", "red"):
        made = ClaimRequest(uuid_of(suffix), (amounts, RequestGroup(suffix, {"SRIOV_NET_VF": 1})))
        claim = kit.tracker.claim(made).claim
        flat = replace(made, groups=(RequestGroup("", {"VCPU": 1, "SRIOV_NET_VF": 1}),))
        for asked in (flat, replace(flat, user_id="alice")):
            if (suffix, asked.user_id) == ("_1", "plimsoll"):
                assert kit.tracker.claim(asked).claim == claim
            else:
                with pytest.raises(ClaimConflict, match="with another request"):
                    kit.tracker.claim(asked)


def test_a_claim_for_the_units_that_a_domain_names_is_answered_where_the_claim_has_them(kit: Kit) -> None:
    made = request(suffixed=1, SRIOV_NET_VF=1)
    made = replace(made, groups=tuple(replace(group, suffix="_1") for group in made.groups))
    claim = kit.tracker.claim(made).claim
    (here,) = claim.units
    flat = replace(made, groups=(RequestGroup("", {"SRIOV_NET_VF": 1}),))
    for unit in VFS:
        named = Restriction({here: {"SRIOV_NET_VF": (unit,)}})
        if unit in claim.units[here]["SRIOV_NET_VF"]:
            assert kit.tracker.claim(flat, named).claim == claim
        else:
            with pytest.raises(ClaimConflict, match="with another request"):
                kit.tracker.claim(flat, named)


def test_a_claim_that_waits_for_its_twin_gives_it_its_name(kit: Kit) -> None:
    asked = request(VCPU=1)
    named = replace(asked, name="web1")
    answers = run_all([[asked], [named], [asked], [named]], kit)
    assert {each.consumer for each in answers if isinstance(each, Claim)} == {asked.consumer}
    assert len(answers) == 4 and not any(isinstance(each, Exception) for each in answers)
    assert kit.tracker.claim_of(asked.consumer).request == named


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
    with impatient.turns.take(asked.consumer), pytest.raises(ClaimConflict, match="under way for"):
        impatient.release(asked.consumer)


def test_closed_claims_refuse_with_the_reason_while_releases_go_on(kit: Kit) -> None:
    claim = kit.tracker.claim(request(VCPU=1)).claim
    kit.tracker.admission.close("libvirt is away")
    before = kit.state()
    with pytest.raises(ClaimsClosed, match=r"^Claims are closed: libvirt is away\.$"):
        kit.tracker.claim(request(VCPU=1))
    assert kit.state() == before
    assert kit.tracker.explain(request(VCPU=1)).fits
    assert kit.tracker.release(claim.consumer)
    kit.tracker.admission.open()
    assert kit.tracker.admission.closed_reason is None


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


# agent.tracker.claim_attempt: adoption, other writers, and answers that are lost


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


# agent.tracker.claim_attempt: a claim is replaced in one write; a failure changes nothing


def replaced(kit: Kit, wanted: ClaimRequest) -> Claim:
    with kit.tracker.turns.take(wanted.consumer):
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
    assert kit.tracker.view.fit(request(str(uuid4()), SRIOV_NET_VF=1)).fits


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


# agent.tracker.follow_guest: a claim is extended in one write, and by nothing that is not free


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
    assert kit.tracker.view.fit(request(str(uuid4()), MEMORY_MB=64)).fits


def test_an_allocation_that_another_client_changed_is_not_extended(kit: Kit) -> None:
    claim = kit.tracker.claim(request(VCPU=2)).claim
    kit.raw.delete_allocations(claim.consumer)
    kit.schedule(claim.consumer, host={"VCPU": 3})
    with pytest.raises(ClaimConflict, match="plimsoll audit"):
        kit.tracker.extend(claim, request(claim.consumer, VCPU=2, MEMORY_MB=64))
    assert kit.tracker.claim_of(claim.consumer) == claim
    kit.raw.delete_allocations(claim.consumer)
    kit.schedule(claim.consumer, host={"VCPU": 2})


# agent.tracker.claims: what a guest that starts needs is reserved while that is decided, and not longer


def demand_for(unit: str) -> GuestDemand:
    wanted = request(SRIOV_NET_VF=1)
    return GuestDemand(
        guest(wanted.consumer), wanted, Restriction({uuid_of("nic0"): {"SRIOV_NET_VF": (unit,)}})
    )


@pytest.mark.parametrize("unit", VFS)
def test_in_the_block_the_request_gets_exactly_its_unit(kit: Kit, unit: str) -> None:
    demand = demand_for(unit)
    with reserved_for(kit.tracker._register, demand):
        assert kit.tracker.view.fit(demand.request).units == demand.restriction.units
    first = kit.tracker.view.fit(request(demand.request.consumer, SRIOV_NET_VF=1)).units
    assert first == {uuid_of("nic0"): {"SRIOV_NET_VF": VFS[:1]}}


def test_a_unit_of_another_consumer_is_refused_with_its_name(kit: Kit) -> None:
    owner = kit.tracker.claim(request(SRIOV_NET_VF=1)).claim
    ((_, _, unit),) = owner.exact
    with (
        pytest.raises(DoesNotFit, match=f"{unit} belongs to {owner.consumer}"),
        reserved_for(kit.tracker._register, demand_for(unit)),
    ):
        pass
    assert kit.tracker.view.fit(request(str(uuid4()), SRIOV_NET_VF=1)).fits


# agent.tracker.claim_attempt: what is taken out of Placement, and what stays


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


CLIENTS = 16


def run_all(work: list[list[ClaimRequest]], kit: Kit) -> list[Claim | DoesNotFit]:
    """Each client makes its claims one after the other; what all were answered."""

    def claim(asked: ClaimRequest) -> Claim | DoesNotFit:
        try:
            return kit.tracker.claim(asked).claim
        except DoesNotFit as error:
            return error

    def client(asked: list[ClaimRequest]) -> list[Claim | DoesNotFit]:
        return [claim(each) for each in asked]

    answers = at_once(*(partial(client, asked) for asked in work))
    return [answer for of_one in answers for answer in of_one]


def test_exactly_the_capacity_is_granted(tmp_path: Path, placement: Placement) -> None:
    """Scenario 35, sixteenfold: 16 x 8 claims for 4096 MiB in pieces of 64, and for 4 pinned CPUs."""
    with Kit(tmp_path, placement=placement) as kit:
        memory = [[request(MEMORY_MB=64) for _ in range(8)] for _ in range(CLIENTS - 4)]
        cpus = [[request(PCPU=1, MEMORY_MB=64) for _ in range(8)] for _ in range(4)]
        answers = run_all(memory + cpus, kit)
        assert len(answers) == 8 * CLIENTS
        assert len(kit.tracker.claims()) == 4096 // 64
        assert kit.used("host", "MEMORY_MB") == 4096
        assert {claim.state for claim in kit.tracker.claims().values()} == {ClaimState.CLAIMED}
        kit.check()
        kit.restart()
        kit.check()


def test_one_claim_made_by_all_clients_at_once_is_one_claim(tmp_path: Path, placement: Placement) -> None:
    with Kit(tmp_path, placement=placement) as kit:
        asked = request(PCPU=2, SRIOV_NET_VF=1)
        answers = run_all([[asked]] * CLIENTS, kit)
        assert len(answers) == CLIENTS
        assert all(each == answers[0] for each in answers)
        assert kit.placed_all() == {asked.consumer: {"host": {"PCPU": 2}, "nic0": {"SRIOV_NET_VF": 1}}}
        kit.check()


def test_claims_and_releases_and_another_writer_never_give_a_unit_twice(
    tmp_path: Path, placement: Placement
) -> None:
    """Each client claims and releases what it got; beside them somebody takes and frees VGPUs directly."""
    with Kit(tmp_path, placement=placement) as kit:
        stop = threading.Event()
        owners: dict[str, str] = {}
        failures: list[str] = []

        def client(seed: int) -> None:
            dice = random.Random(seed)
            for _ in range(6):
                asked = request(PCPU=dice.randint(1, 2), VGPU=dice.randint(1, 3))
                try:
                    claim = kit.tracker.claim(asked).claim
                except DoesNotFit:
                    continue
                for unit in claim.units[uuid_of("host")]["PCPU"]:
                    if owners.setdefault(unit, claim.consumer) != claim.consumer:
                        failures.append(unit)
                for unit in claim.units[uuid_of("host")]["PCPU"]:
                    del owners[unit]
                assert kit.tracker.release(claim.consumer)

        def other() -> None:
            while not stop.is_set():
                consumer = str(uuid4())
                with suppress(PlacementFull, PlacementConflict):
                    kit.schedule(consumer, gpu0={"VGPU": 1})
                kit.raw.delete_allocations(consumer)

        meddler = threading.Thread(target=other)
        meddler.start()
        at_once(*(partial(client, seed) for seed in range(CLIENTS)))
        stop.set()
        meddler.join(20)
        assert (failures, owners, kit.placed_all()) == ([], {}, {})
        assert kit.tracker.claims() == {}


# What other clients and the disk do in the midst of an operation


def refusing(method: str, path: str) -> Callable[[Sent], Reply | None]:
    """Placement refuses such requests for a reason of its own."""
    body = {"errors": [{"status": 400, "detail": "It is the rule of this cloud."}]}
    return lambda sent: Reply(400, body) if sent.call.startswith(f"{method} {path}") else None


def test_what_placement_refuses_by_a_rule_of_its_own_is_told_once_and_leaves_nothing(kit: Kit) -> None:
    kit.tap.answer = refusing("PUT", "/allocations")
    with pytest.raises(PlacementError, match="the rule of this cloud"):
        kit.tracker.claim(request(VCPU=1))
    assert len([call for call in kit.tap.calls if call.startswith("PUT")]) == 1
    assert (kit.tracker.claims(), kit.journal.claims(), kit.placed_all()) == ({}, {}, {})


@pytest.mark.parametrize("operation", ["claim", "begin"])
def test_an_intent_that_neither_placement_nor_the_disk_takes_is_told_of_both(
    kit: Kit, operation: str
) -> None:
    asked = request(VCPU=1)
    if operation == "begin":
        kit.tracker.claim(asked)

    def full(event: str) -> None:
        if event in ("refuse", "move_refuse"):
            raise StateError("the disk is full, as it was told")

    kit.tap.answer, kit.journal.before = refusing("PUT" if operation == "claim" else "POST", "/alloc"), full
    with pytest.raises(PlacementError, match="the rule of this cloud") as told:
        if operation == "claim":
            kit.tracker.claim(asked)
        else:
            wish = request(asked.consumer, VCPU=2)
            kit.tracker.begin_move(wish, MoveKind.RESIZE, uuid_of("the migration"))
    kit.tap.answer, kit.journal.before = None, lambda _: None
    assert told.value.__notes__ == ["The intent could not be undone either: the disk is full, as it was told"]
    assert (kit.tracker.pending, kit.tracker.deliver(), kit.tracker.pending) == (1, 1, 0)


def test_a_release_before_the_first_inventory_takes_nothing_of_which_it_is_not_known_where_it_is(
    kit: Kit,
) -> None:
    asked = request(VCPU=1)
    kit.tracker.claim(asked)
    kit.schedule(asked.consumer, host={"VCPU": 1}, elsewhere={"VCPU": 2})
    kit.restart()
    assert kit.tracker.release(asked.consumer) is False
    assert kit.tracker.claims()[asked.consumer].state is ClaimState.RELEASING
    assert kit.placed(asked.consumer) == {"host": {"VCPU": 1}, "elsewhere": {"VCPU": 2}}
    kit.refresh()
    assert kit.tracker.deliver() == 1
    assert kit.placed(asked.consumer) == {"elsewhere": {"VCPU": 2}}


def test_a_release_whose_instance_never_stays_where_it_was_read_goes_on_later(kit: Kit) -> None:
    asked = request(VCPU=1)
    kit.tracker.claim(asked)
    kit.schedule(asked.consumer, elsewhere={"VCPU": 1})
    reads = 0

    def moves(call: str) -> None:
        nonlocal reads
        if call == f"GET /allocations/{asked.consumer}":
            reads += 1
            kit.schedule(asked.consumer, elsewhere={"VCPU": 1 + reads % 2})

    kit.tap.after = moves
    with pytest.raises(PlacementConflict, match=rf"moved {asked.consumer} {CONFLICTS_MAX} times .* later"):
        kit.tracker.release(asked.consumer)
    assert (kit.tracker.pending, kit.tracker.claims()[asked.consumer].state) == (1, ClaimState.RELEASING)
    kit.tap.after = lambda _: None
    assert (kit.tracker.deliver(), kit.tracker.claims()) == (1, {})


@pytest.mark.parametrize("operation", ["claim", "begin", "release"])
def test_after_each_attempt_that_another_client_overtook_the_agent_pauses_for_longer(
    kit: Kit, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is attempted a bounded number of times; the pause leaves the others room."""
    asked = request(VCPU=1)
    if operation != "claim":
        kit.tracker.claim(asked)
    paused: list[int] = []
    for module in ("claim_attempt", "begin_move", "context"):
        monkeypatch.setattr(f"agent.tracker.{module}.pause", paused.append)
    monkeypatch.setattr("agent.backoff.pause", paused.append)
    conflict = {"errors": [{"status": 409, "code": "placement.concurrent_update", "detail": "It changed."}]}
    kit.tap.answer = lambda sent: Reply(409, conflict) if sent.method in ("PUT", "POST") else None
    with pytest.raises(PlacementConflict):
        if operation == "claim":
            kit.tracker.claim(asked)
        elif operation == "begin":
            wish = request(asked.consumer, VCPU=2)
            kit.tracker.begin_move(wish, MoveKind.RESIZE, uuid_of("the migration"))
        else:
            kit.tracker.release(asked.consumer)
    assert paused == [*range(CONFLICTS_MAX)]


def test_a_delivery_of_what_another_thread_has_resolved_asks_nothing(kit: Kit) -> None:
    claim = kit.tracker.claim(request(VCPU=1)).claim
    kit.tap.calls.clear()
    for consumer in (claim.consumer, str(uuid4())):
        assert kit.tracker._claims.deliver(consumer) is False
    assert kit.tap.calls == [] and kit.tracker.claims() == {claim.consumer: claim}


def test_a_claim_does_not_follow_a_guest_from_what_it_was_before(kit: Kit) -> None:
    """An operation came between the comparison and the write."""
    before = kit.tracker.claim(request(VCPU=1)).claim
    kit.tracker.extend(before, request(before.consumer, VCPU=1, MEMORY_MB=64))
    state = kit.state()
    with pytest.raises(ClaimConflict, match="has changed"):
        follow_use(kit.tracker._context, before, replace(before, allocations={HOST_UUID: {"VCPU": 2}}))
    assert kit.state() == state


@pytest.mark.parametrize("executed", [False, True], ids=["not done", "done"])
def test_a_repair_whose_earlier_write_is_in_doubt_is_found_anew_where_that_was_done(
    kit: Kit, executed: bool
) -> None:
    asked = request(VCPU=2)
    kit.tracker.claim(asked)
    held = kit.raw.allocations_of(asked.consumer)
    first = replace(held, allocations={HOST_UUID: {"VCPU": 1}})
    with late_writes(kit, "timeout") as late, pytest.raises(PlacementUnavailable):
        kit.tracker.heal(first)
    if executed:
        assert late.execute() == 204
        with pytest.raises(PlacementConflict, match=r"was in doubt\. Nothing was written; audit again"):
            kit.tracker.heal(replace(held, allocations={HOST_UUID: {"VCPU": 3}}))
        assert kit.placed(asked.consumer) == {"host": {"VCPU": 1}}
        kit.tracker.heal(replace(kit.raw.allocations_of(asked.consumer), allocations=held.allocations))
    else:
        kit.tracker.heal(replace(held, allocations={HOST_UUID: {"VCPU": 2}}))
        assert late.execute() == 409
    assert kit.placed(asked.consumer) == {"host": {"VCPU": 2}}


def test_without_a_write_of_unknown_outcome_nothing_is_read_back(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on its way to the disk would be forgotten; another thread may have read all back just now."""
    monkeypatch.setattr(kit.journal, "claims", lambda: {})
    claim = kit.tracker.claim(request(VCPU=1)).claim
    assert not kit.tracker.read_back()
    kit.tracker._register.read_back()
    monkeypatch.undo()
    assert kit.tracker.claims() == {claim.consumer: claim}


def test_memory_keeps_as_many_ended_moves_as_the_disk(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("state.journal", "tracker.register"):
        monkeypatch.setattr(f"agent.{module}.ENDED_MOVES_MAX", 2)
    asked = request(VCPU=1)
    kit.tracker.claim(asked)
    migrations = [uuid_of(f"migration {number}") for number in range(4)]
    for migration in migrations:
        kit.tracker.begin_move(asked, MoveKind.REBUILD, migration)
        kit.tracker.confirm_move(migration)
    assert [*kit.tracker.moves()] == migrations[2:]
    assert {*kit.journal.moves()} == {*migrations[2:]}


def test_a_write_that_others_overtake_each_time_is_never_sent_without_what_is_reserved_for_it(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler could come in between; the operation is tried again as a whole."""
    lowered = {HOST_UUID: (1, {})}
    monkeypatch.setattr(TrackerContext, "_without_reserved", lambda *_: lowered)
    monkeypatch.setattr("agent.tracker.context.pause", lambda _: None)
    refused = WriteRefused(PlacementConflict("Another client wrote to a provider."))
    sent: list[object] = []

    def send(inventories: object) -> WriteOutcome:
        sent.append(inventories)
        return refused if inventories else WriteDone()

    assert kit.tracker._context.send_in_reserved(str(uuid4()), {HOST_UUID: {"VCPU": 1}}, send) is refused
    assert sent == CONFLICTS_MAX * [lowered]


@pytest.mark.parametrize("provider", ["pool", "elsewhere"])
def test_nothing_is_asked_of_providers_on_which_this_host_reserves_nothing(kit: Kit, provider: str) -> None:
    kit.tap.calls.clear()
    sent: list[object] = []

    def send(inventories: object) -> WriteOutcome:
        sent.append(inventories)
        return WriteDone()

    unheld = {uuid_of(provider): {"DISK_GB": 1, "VCPU": 1}}
    assert kit.tracker._context.send_in_reserved(str(uuid4()), unheld, send) == WriteDone()
    assert (sent, kit.tap.calls) == ([None], [])
