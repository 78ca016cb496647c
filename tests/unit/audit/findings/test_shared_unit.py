"""`shared unit`: an exact unit with two owners."""

from __future__ import annotations

from uuid import UUID

from kits.audit import CONSUMER, claimed, in_state, observe, running
from kits.tracker import uuid_of

from agent.audit.finding import Finding
from agent.audit.findings.shared_unit import SharedUnit
from agent.claims.claim import Claim
from agent.driver import Guest, GuestState, UsedUnit

CLAIMS = claimed({"SRIOV_NET_VF": 1})
(VF,) = CLAIMS[CONSUMER].units[uuid_of("nic0")]["SRIOV_NET_VF"]
OTHER, THIRD = str(UUID(int=2)), str(UUID(int=3))


def with_vf(consumer: str, state: GuestState = GuestState.RUNNING) -> Guest:
    return in_state(state, running(consumer, UsedUnit("SRIOV_NET_VF", VF, "nic0"), SRIOV_NET_VF=1))


def judge(claims: dict[str, Claim], *guests: Guest) -> list[Finding]:
    return [*SharedUnit().judge_host(observe(claims, guests=guests))]


def test_a_unit_that_one_claims_and_another_names_is_reported_with_both() -> None:
    for state, column in ((GuestState.RUNNING, "used"), (GuestState.SHUTOFF, "named")):
        (finding,) = judge(CLAIMS, with_vf(OTHER, state))
        assert finding.subject == VF and not finding.repair
        assert finding.evidence["claimed"] == [CONSUMER] and finding.evidence[column] == [OTHER]


def test_a_claim_and_its_own_guest_are_one_owner() -> None:
    assert judge(CLAIMS, with_vf(CONSUMER)) == []


def test_definitions_of_guests_that_are_all_shut_off_are_not_reported() -> None:
    off = GuestState.SHUTOFF
    assert judge({}, with_vf(OTHER, off), with_vf(THIRD, off)) == []
    assert len(judge({}, with_vf(OTHER), with_vf(THIRD, off))) == 1
