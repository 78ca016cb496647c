"""`stuck consumer`: a claim or a release in doubt."""

from __future__ import annotations

from kits.audit import CONSUMER, claimed, consumer_case, observe

from agent.audit.findings.stuck_consumer import StuckConsumer
from agent.audit.repair import Deliver
from agent.claims.claim import ClaimState


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
