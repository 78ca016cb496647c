"""`absent guest`: a claim whose guest has not come for an hour."""

from __future__ import annotations

from dataclasses import replace

from kits.audit import CONSUMER, a_move, claimed, observe, row_findings, running

from agent.audit.findings.absent_guest import AbsentGuest
from agent.claims.claim import ClaimState
from agent.moves.states import MoveState, claims_of

CLAIMS = claimed({"VCPU": 2})
AFTER_AN_HOUR = dict.fromkeys([CONSUMER], 3601.0)


def test_a_claim_without_a_guest_is_reported_after_an_hour() -> None:
    (finding,) = row_findings(AbsentGuest(), replace(observe(CLAIMS), ages=AFTER_AN_HOUR))
    assert finding.subject == CONSUMER and finding.repair == () and "release the claim" in finding.reason
    assert row_findings(AbsentGuest(), replace(observe(CLAIMS), ages={CONSUMER: 3600.0})) == []


def test_a_guest_a_move_or_an_operation_under_way_explains_it() -> None:
    move = a_move(MoveState.BEGUN)
    for observation in (
        observe(CLAIMS, guests=(running(CONSUMER),)),
        observe(claims_of(move), moves=(move,)),
        observe(claimed({"VCPU": 2}, state=ClaimState.RELEASING)),
        observe(CLAIMS, placed={}),  # a leaked claim
    ):
        assert row_findings(AbsentGuest(), replace(observation, ages=AFTER_AN_HOUR)) == []
