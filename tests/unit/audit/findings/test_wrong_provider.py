"""`wrong provider`: an allocation on other providers than the claim."""

from __future__ import annotations

from kits.audit import CONSUMER, claimed, consumer_case, observe
from kits.tracker import uuid_of

from agent.audit.findings.wrong_provider import WrongProvider
from agent.audit.repair import WriteAllocations

CLAIMS = claimed({"VGPU": 1})
CLAIMED = CLAIMS[CONSUMER].allocations
OTHER = uuid_of("gpu1") if uuid_of("gpu0") in CLAIMED else uuid_of("gpu0")
JUDGE = WrongProvider().judge_consumer


def test_the_claims_providers_are_written_again() -> None:
    finding = JUDGE(consumer_case(observe(CLAIMS), {OTHER: {"VGPU": 1}}))
    assert finding is not None and not finding.own
    (step,) = finding.repair
    assert isinstance(step, WriteAllocations) and step.write.allocations == CLAIMED


def test_other_amounts_on_the_same_provider_are_another_finding() -> None:
    more = {uuid: {"VGPU": 2} for uuid in CLAIMED}
    assert JUDGE(consumer_case(observe(CLAIMS), more)) is None
