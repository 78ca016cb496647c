"""Which claim is older than Placement and its guest, and what it follows."""

from __future__ import annotations

from dataclasses import replace

from kits.audit import CONSUMER, claimed, consumer_case, observe, running
from kits.tracker import VFS, uuid_of

from agent.audit.findings import judge_consumer
from agent.audit.older_records import as_used, follow_together, held_of, is_older, is_undecided
from agent.audit.repair import FollowGuests, WriteAllocations
from agent.driver import Guest, UsedUnit

NIC = uuid_of("nic0")
((_, CLAIM),) = claimed({"SRIOV_NET_VF": 1, "VCPU": 1}).items()
((_, _, OWN),) = CLAIM.exact
(FREE,) = set(VFS) - {OWN}
SECOND = replace(CLAIM, consumer=uuid_of("second"), units={NIC: {"SRIOV_NET_VF": (FREE,)}})


def user(consumer: str, unit: str, cpus: int = 1) -> Guest:
    return running(consumer, UsedUnit("SRIOV_NET_VF", unit, "nic0"), SRIOV_NET_VF=1, VCPU=cpus)


def test_a_guest_with_another_unit_of_what_placement_has_is_newer_than_its_claim() -> None:
    observation = observe({CONSUMER: CLAIM}, guests=[user(CONSUMER, FREE)])
    held = held_of(observation, CLAIM)
    assert held == CLAIM.allocations and is_older(observation, CLAIM, held)
    now = as_used(observation, CLAIM, held)
    assert now == replace(CLAIM, units={NIC: {"SRIOV_NET_VF": (FREE,)}}), "the request is as before"
    assert not is_older(observe({CONSUMER: CLAIM}, guests=[user(CONSUMER, OWN)]), CLAIM, held)
    assert not is_older(observe({CONSUMER: CLAIM}, guests=[user(CONSUMER, FREE, 3)]), CLAIM, held)
    assert not is_older(observe({CONSUMER: CLAIM}), CLAIM, held), "no guest tells"


def test_claims_follow_together_where_both_guests_tell() -> None:
    claims = {CONSUMER: CLAIM, SECOND.consumer: SECOND}
    guests = [user(CONSUMER, FREE), user(SECOND.consumer, OWN)]
    (step,) = follow_together(observe(claims, guests=guests), CLAIM, CLAIM.allocations)
    assert isinstance(step, FollowGuests)
    assert {after.consumer: [unit for *_, unit in after.exact] for _, after in step.records} == {
        CONSUMER: [FREE],
        SECOND.consumer: [OWN],
    }
    (step,) = follow_together(observe(claims, guests=guests[:1]), CLAIM, CLAIM.allocations)
    assert [before.consumer for before, _ in step.records] == [CONSUMER], "which is refused when executed"


def test_a_claim_whose_unit_another_guest_uses_is_not_written_again() -> None:
    """Its record is from before it was given to the other one, so Placement is newer."""
    other = uuid_of("other")
    guests = [user(other, OWN)]
    placed = {uuid_of("host"): {"VCPU": 2}}
    finding = judge_consumer(consumer_case(observe({CONSUMER: CLAIM}, guests=guests), placed))
    assert finding is not None and finding.kind == "wrong provider" and not finding.repair
    assert other in finding.reason and "is older" in finding.reason
    free = judge_consumer(consumer_case(observe({CONSUMER: CLAIM}, guests=[user(other, FREE)]), placed))
    assert free is not None and [type(step) for step in free.repair] == [WriteAllocations]


def test_only_amounts_without_units_and_without_a_telling_guest_are_undecided() -> None:
    (claim,) = claimed({"VGPU": 1}).values()
    ((card, amounts),) = claim.allocations.items()
    other = uuid_of("gpu1") if card == uuid_of("gpu0") else uuid_of("gpu0")
    assert is_undecided(observe({CONSUMER: claim}), claim, {other: amounts})
    assert not is_undecided(observe({CONSUMER: claim}), claim, {other: {"VGPU": 2}})
    named = replace(claim, units={card: {"VGPU": ("mdev0",)}})
    assert not is_undecided(observe({CONSUMER: named}), named, {other: amounts}), "its unit is on the card"
