"""`orphaned allocation`: a consumer that only Placement knows."""

from __future__ import annotations

from kits.audit import CONSUMER, ELSEWHERE, claimed, consumer_case, observe, running
from kits.tracker import uuid_of

from agent.audit.findings.orphaned_allocation import OrphanedAllocation
from agent.audit.repair import WriteAllocations

HERE = {uuid_of("host"): {"VCPU": 1}}
JUDGE = OrphanedAllocation().judge_consumer


def test_its_part_on_this_host_is_deleted() -> None:
    for allocations, left in ((HERE, {}), ({**HERE, ELSEWHERE: {"VCPU": 1}}, {ELSEWHERE: {"VCPU": 1}})):
        finding = JUDGE(consumer_case(observe(), allocations))
        assert finding is not None and not finding.own
        (step,) = finding.repair
        assert isinstance(step, WriteAllocations) and step.write.allocations == left


def test_guests_claims_and_migrations_are_other_findings() -> None:
    for observation in (observe(guests=(running(CONSUMER),)), observe(claimed({"VCPU": 1}))):
        assert JUDGE(consumer_case(observation, HERE)) is None
    assert JUDGE(consumer_case(observe(), HERE, consumer_type="MIGRATION")) is None
