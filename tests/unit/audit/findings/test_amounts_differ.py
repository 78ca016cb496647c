"""`amounts differ`: the claimed providers with other amounts, or no allocation."""

from __future__ import annotations

from kits.audit import CONSUMER, ELSEWHERE, claimed, consumer_case, observe, running
from kits.tracker import uuid_of

from agent.audit.findings.amounts_differ import AmountsDiffer
from agent.audit.repair import WriteAllocations

CLAIMS = claimed({"VCPU": 2})
CLAIMED = CLAIMS[CONSUMER].allocations
JUDGE = AmountsDiffer().judge_consumer


def test_other_amounts_are_written_as_claimed() -> None:
    finding = JUDGE(consumer_case(observe(CLAIMS), {uuid_of("host"): {"VCPU": 1}}))
    assert finding is not None and not finding.own
    (step,) = finding.repair
    assert isinstance(step, WriteAllocations)
    assert (step.write.allocations, step.write.generation) == (CLAIMED, 1)


def test_a_guest_without_allocation_gets_that_of_its_claim() -> None:
    finding = JUDGE(consumer_case(observe(CLAIMS, guests=(running(CONSUMER),)), {}))
    assert finding is not None
    (step,) = finding.repair
    assert isinstance(step, WriteAllocations)
    assert (step.write.allocations, step.write.generation) == (CLAIMED, None)


def test_it_is_another_finding_or_none_elsewhere() -> None:
    for allocations in ({uuid_of("gpu0"): {"VGPU": 1}}, {ELSEWHERE: {"VCPU": 2}}, CLAIMED):
        assert JUDGE(consumer_case(observe(CLAIMS), allocations)) is None
    assert JUDGE(consumer_case(observe(), CLAIMED)) is None
