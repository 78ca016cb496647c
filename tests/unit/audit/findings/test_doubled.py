"""`doubled`: allocations on this host and on another one."""

from __future__ import annotations

from kits.audit import CONSUMER, ELSEWHERE, claimed, consumer_case, observe, running
from kits.tracker import uuid_of

from agent.audit.findings.doubled import Doubled
from agent.audit.repair import WriteAllocations

CLAIMS = claimed({"VCPU": 2})
HERE = CLAIMS[CONSUMER].allocations
THERE = {ELSEWHERE: {"VCPU": 2}}


def test_the_repair_keeps_the_side_of_the_guest() -> None:
    for guests, kept in (((running(CONSUMER),), HERE), ((), THERE)):
        finding = Doubled().judge_consumer(consumer_case(observe(CLAIMS, guests=guests), {**HERE, **THERE}))
        assert finding is not None and not finding.own
        (step,) = finding.repair
        assert isinstance(step, WriteAllocations) and step.write.allocations == kept


def test_a_shared_provider_is_not_another_host() -> None:
    shared = {uuid_of("pool"): {"DISK_GB": 5}}
    assert Doubled().judge_consumer(consumer_case(observe(CLAIMS), {**HERE, **shared})) is None
