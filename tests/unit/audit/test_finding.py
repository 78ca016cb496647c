"""What a finding is by default; each step of a repair describes itself to the operator."""

from __future__ import annotations

from dataclasses import replace

from kits.tracker import request

from agent.audit.finding import (
    ClaimUse,
    Deliver,
    DropClaim,
    EndMove,
    Finding,
    FollowGuests,
    RecordUse,
    Repair,
    TakeClaim,
    WriteAllocations,
)
from agent.claims.claim import UNRESTRICTED, Claim, ClaimState
from agent.placement.client import ConsumerAllocations


def test_a_finding_has_no_repair_and_is_not_the_agents_by_default() -> None:
    finding = Finding("kind", "subject", "reason")
    assert (finding.own, finding.repair, finding.evidence) == (False, (), {})


ALLOCATIONS = {"p2": {"VGPU": 1}, "p1": {"VCPU": 2, "MEMORY_MB": 512}}
CLAIM = Claim("c", ClaimState.CLAIMED, request("c", VCPU=2), ALLOCATIONS)
OTHER = Claim("d", ClaimState.CLAIMED, request("d", VCPU=1), {"p1": {"VCPU": 1}})


def test_the_sentence_of_each_step() -> None:
    step: Repair
    for step, sentence in (
        (
            WriteAllocations(ConsumerAllocations("c", ALLOCATIONS)),
            "write the allocations of c (if it has none): p1: MEMORY_MB=512, VCPU=2; p2: VGPU=1",
        ),
        (
            WriteAllocations(ConsumerAllocations("c", {}, 7)),
            "delete the allocations of c (if its generation is still 7)",
        ),
        (TakeClaim(request("c", VCPU=1), UNRESTRICTED), "record a claim for the allocation of c"),
        (ClaimUse(request("c", VCPU=1), UNRESTRICTED), "claim what the guest c uses: 1 VCPU"),
        (RecordUse(CLAIM, CLAIM), "claim what the guest c uses: p1: MEMORY_MB=512, VCPU=2; p2: VGPU=1"),
        (
            FollowGuests(((CLAIM, replace(CLAIM, units={"p2": {"VGPU": ("u",)}})), (OTHER, OTHER))),
            "claim what the guest c uses: p1: MEMORY_MB=512, VCPU=2; p2: VGPU=1, the VGPU u, and "
            "claim what the guest d uses: p1: VCPU=1",
        ),
        (DropClaim("c"), "release the claim of c"),
        (Deliver("c"), "finish or undo the pending operation of c"),
        (EndMove("m"), "confirm the migration m"),
    ):
        assert str(step) == sentence
