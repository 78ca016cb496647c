"""`uses less`: a guest without something that it has claimed."""

from __future__ import annotations

from kits.audit import CONSUMER, a_move, claimed, in_state, observe, row_findings, running
from kits.tracker import uuid_of

from agent.audit.findings.uses_less import UsesLess
from agent.driver import GuestState, UsedUnit
from agent.moves.states import MoveState, claims_of

CLAIMS = claimed({"VCPU": 2, "SRIOV_NET_VF": 1, "DISK_GB": 10})
(VF,) = CLAIMS[CONSUMER].units[uuid_of("nic0")]["SRIOV_NET_VF"]
WITH_VF = running(CONSUMER, UsedUnit("SRIOV_NET_VF", VF, "nic0"), VCPU=2, SRIOV_NET_VF=1)


def test_a_guest_without_the_device_that_it_claimed_is_reported_with_the_unit() -> None:
    (finding,) = row_findings(UsesLess(), observe(CLAIMS, guests=(running(CONSUMER, VCPU=2),)))
    assert finding.evidence["missing"] == {"SRIOV_NET_VF": 1} and finding.evidence["units"] == [VF]
    assert f"1 SRIOV_NET_VF ({VF}) are missing" in finding.reason and not finding.repair
    assert row_findings(UsesLess(), observe(CLAIMS, guests=(WITH_VF,))) == []


def test_fewer_cpus_are_reported_and_a_disk_that_the_driver_does_not_see_is_not() -> None:
    (finding,) = row_findings(
        UsesLess(), observe(CLAIMS, guests=(running(CONSUMER, VCPU=1, SRIOV_NET_VF=1),))
    )
    assert finding.evidence["missing"] == {"VCPU": 1}


def test_a_unit_is_named_with_the_amount_of_its_own_class() -> None:
    (finding,) = row_findings(UsesLess(), observe(CLAIMS, guests=(running(CONSUMER, VCPU=1),)))
    assert f"1 SRIOV_NET_VF ({VF}), 1 VCPU are missing" in finding.reason


def test_a_guest_that_does_not_run_here_or_is_not_known_is_not_compared() -> None:
    without = running(CONSUMER, VCPU=2)
    states = (GuestState.SHUTOFF, GuestState.CRASHED, GuestState.STARTING, GuestState.MIGRATING)
    for guest in (*(in_state(state, without) for state in states), running(CONSUMER)):
        assert row_findings(UsesLess(), observe(CLAIMS, guests=(guest,))) == []


def test_without_a_claim_the_allocation_counts() -> None:
    placed = {CONSUMER: {uuid_of("host"): {"VCPU": 4}}}
    (finding,) = row_findings(UsesLess(), observe(guests=(running(CONSUMER, VCPU=2),), placed=placed))
    assert finding.evidence["missing"] == {"VCPU": 2} and "its allocation" in finding.reason


def test_during_a_move_the_claim_of_the_migration_counts() -> None:
    move = a_move(MoveState.BEGUN)
    moving = observe(claims_of(move), guests=(running(CONSUMER, VCPU=1),), moves=(move,))
    (finding,) = row_findings(UsesLess(), moving)
    assert finding.evidence["missing"] == {"VCPU": 1}
