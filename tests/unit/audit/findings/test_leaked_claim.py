"""`leaked claim`: neither a guest nor an allocation."""

from __future__ import annotations

from kits.audit import CONSUMER, claimed, consumer_case, observe, running

from agent.audit.findings.leaked_claim import LeakedClaim
from agent.audit.repair import DropClaim

CLAIMS = claimed({"VCPU": 1})


def test_a_claim_alone_is_leaked_and_released() -> None:
    finding = LeakedClaim().judge_consumer(consumer_case(observe(CLAIMS, placed={}), {}))
    assert finding is not None and finding.own
    assert finding.repair == (DropClaim(CONSUMER),)


def test_a_guest_or_an_allocation_keeps_it() -> None:
    with_guest = observe(CLAIMS, guests=(running(CONSUMER),), placed={})
    assert LeakedClaim().judge_consumer(consumer_case(with_guest, {})) is None
    assert LeakedClaim().judge_consumer(consumer_case(observe(CLAIMS), CLAIMS[CONSUMER].allocations)) is None
    assert LeakedClaim().judge_consumer(consumer_case(observe(), {})) is None
