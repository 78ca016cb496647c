"""`stuck consumer`: a claim in doubt, and a guest that stayed behind after its move."""

from __future__ import annotations

from kits.audit import CONSUMER, ELSEWHERE, a_move, claimed, consumer_case, move_case, observe, running

from agent.audit.findings.stuck_consumer import StuckConsumer
from agent.audit.repair import Deliver
from agent.claims.claim import ClaimState
from agent.moves.states import MoveState


def test_a_claim_that_is_not_final_is_delivered() -> None:
    for state in ClaimState:
        case = consumer_case(observe(claimed({"VCPU": 1}, state=state)), {})
        finding = StuckConsumer().judge_consumer(case)
        if state is ClaimState.CLAIMED:
            assert finding is None
        else:
            assert finding is not None and finding.own
            assert finding.repair == (Deliver(CONSUMER),)
            assert str(state) in finding.reason


def test_a_guest_that_stays_after_its_move_is_reported_without_a_repair() -> None:
    move = a_move(MoveState.LEAVING)
    instance = {ELSEWHERE: {"VCPU": 2}}
    gone = move_case(move, instance=instance, migration={})
    assert StuckConsumer().judge_move(gone) is None
    finding = StuckConsumer().judge_move(
        move_case(move, instance=instance, migration={}, guests=(running(CONSUMER),))
    )
    assert finding is not None and finding.subject == CONSUMER
    assert finding.repair == () and "remove the guest" in finding.reason
