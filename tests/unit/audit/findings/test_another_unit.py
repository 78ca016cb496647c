"""`another unit`: a guest with other units than its claim, and a claim that contradicts itself."""

from __future__ import annotations

from dataclasses import replace

from kits.audit import CONSUMER, claimed, in_state, observe, row_findings, running
from kits.tracker import UNITS, VFS, uuid_of

from agent.audit.findings.another_unit import AnotherUnit
from agent.claims.claim import Claim
from agent.claims.guest_cells import PlacedCell
from agent.driver import GuestState, UsedUnit

CLAIMS = claimed({"SRIOV_NET_VF": 1})
((CLAIMED, OTHER),) = [
    VFS if CLAIMS[CONSUMER].units[uuid_of("nic0")]["SRIOV_NET_VF"] == VFS[:1] else VFS[::-1]
]


def vf(unit: str) -> UsedUnit:
    return UsedUnit("SRIOV_NET_VF", unit, "nic0")


def test_another_function_than_the_claimed_one_is_named_beside_it() -> None:
    guest = running(CONSUMER, vf(OTHER), SRIOV_NET_VF=1)
    (finding,) = row_findings(AnotherUnit(), observe(CLAIMS, guests=(guest,)))
    assert finding.evidence["units"] == {"SRIOV_NET_VF": {"claimed": [CLAIMED], "used": [OTHER]}}
    assert f"the SRIOV_NET_VF {OTHER} instead of {CLAIMED}" in finding.reason
    same = running(CONSUMER, vf(CLAIMED), SRIOV_NET_VF=1)
    assert row_findings(AnotherUnit(), observe(CLAIMS, guests=(same,))) == []


def test_a_guest_that_is_shut_off_or_could_not_be_read_is_not_compared() -> None:
    guest = running(CONSUMER, vf(OTHER), SRIOV_NET_VF=1)
    for unclear in (in_state(GuestState.SHUTOFF, guest), replace(guest, problem="odd XML")):
        assert row_findings(AnotherUnit(), observe(CLAIMS, guests=(unclear,))) == []


def _pinned(*cpus: int) -> dict[str, Claim]:
    """A claim of the CPUs of UNITS, whose cell pins the guest to these."""
    ((consumer, claim),) = claimed({"PCPU": 2}).items()
    cell = PlacedCell(0, 0, dict(enumerate(cpus)), frozenset(), 4, 1024)
    return {consumer: replace(claim, cells=(cell,))}


def test_a_claims_cpus_and_cells_must_agree() -> None:
    claimed_cpus = tuple(int(cpu) for cpu in claimed({"PCPU": 2})[CONSUMER].units[uuid_of("host")]["PCPU"])
    others = tuple(int(cpu) for cpu in UNITS[uuid_of("host")]["PCPU"] if int(cpu) not in claimed_cpus)
    assert row_findings(AnotherUnit(), observe(_pinned(*claimed_cpus))) == []
    (finding,) = row_findings(AnotherUnit(), observe(_pinned(*others)))
    assert finding.subject == CONSUMER
    assert (finding.evidence["units"], finding.evidence["cells"]) == (sorted(claimed_cpus), sorted(others))
