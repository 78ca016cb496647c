"""`orphaned allocation`: a consumer that only Placement knows."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from kits.audit import CONSUMER, ELSEWHERE, claimed, consumer_case, observe, running
from kits.tracker import uuid_of

from agent.audit.findings.orphaned_allocation import OrphanedAllocation
from agent.audit.repair import WriteAllocations

OTHER = str(UUID(int=2))
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


def test_what_an_instance_may_have_left_in_a_move_is_listed_and_left_alone() -> None:
    """Below microversion 1.38 a new instance of the same size looks the same: no advice on a guess."""
    claims = claimed({"VCPU": 1})
    left = replace(observe(claims, placed={}), elsewhere={CONSUMER: {ELSEWHERE: {"VCPU": 1}}})
    finding = JUDGE(consumer_case(left, HERE, OTHER, consumer_type=""))
    assert finding is not None and finding.subject == OTHER and finding.repair == ()
    assert CONSUMER in finding.reason
    assert "confirm" not in finding.reason and "revert" not in finding.reason
    nowhere = JUDGE(consumer_case(observe(claims, placed={}), HERE, OTHER, consumer_type=""))
    assert nowhere is not None and nowhere.repair
