"""`uses more`: a guest that grew past what it has."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kits.audit import CONSUMER, MIGRATION, a_move, claimed, observe, row_findings, running
from kits.tracker import VFS, uuid_of

from agent.audit.findings.uses_more import UsesMore
from agent.audit.repair import RecordUse
from agent.driver import UsedUnit
from agent.moves.states import MoveRole, MoveState, claims_of

ROOT, NIC = uuid_of("host"), uuid_of("nic0")
FUNCTIONS = tuple(UsedUnit("SRIOV_NET_VF", vf, "nic0") for vf in VFS)
GROWN = running(CONSUMER, *FUNCTIONS, VCPU=8, MEMORY_MB=4000, SRIOV_NET_VF=2)
CLAIMS = claimed({"VCPU": 2, "MEMORY_MB": 2048, "SRIOV_NET_VF": 1})


def test_what_a_guest_grew_by_is_named_by_provider_and_claimed_by_its_repair() -> None:
    (finding,) = row_findings(UsesMore(), observe(CLAIMS, guests=(GROWN,)))
    assert finding.subject == CONSUMER and not finding.own
    assert finding.evidence["more"] == {ROOT: {"VCPU": 6, "MEMORY_MB": 1952}, NIC: {"SRIOV_NET_VF": 1}}
    (other,) = set(VFS) - set(CLAIMS[CONSUMER].units[NIC]["SRIOV_NET_VF"])
    assert f"1 SRIOV_NET_VF ({other}) on nic0" in finding.reason
    assert "1952 MEMORY_MB, 6 VCPU on host" in finding.reason and finding.reason.count("(") == 1
    (step,) = finding.repair
    assert isinstance(step, RecordUse) and step.before == CLAIMS[CONSUMER]
    assert step.after.allocations == {ROOT: {"VCPU": 8, "MEMORY_MB": 4000}, NIC: {"SRIOV_NET_VF": 2}}
    assert set(step.after.units[NIC]["SRIOV_NET_VF"]) == set(VFS)
    assert step.after.request.resources == {"VCPU": 8, "MEMORY_MB": 4000, "SRIOV_NET_VF": 2}
    assert "8" not in finding.evidence["claim"]


def test_a_guest_with_just_what_it_claimed_is_not_reported() -> None:
    claimed_vf = CLAIMS[CONSUMER].units[NIC]["SRIOV_NET_VF"][0]
    vf = UsedUnit("SRIOV_NET_VF", claimed_vf, "nic0")
    guest = running(CONSUMER, vf, VCPU=2, MEMORY_MB=2048, SRIOV_NET_VF=1)
    assert row_findings(UsesMore(), observe(CLAIMS, guests=(guest,))) == []


def test_without_a_claim_the_allocation_counts_and_nothing_is_repaired() -> None:
    placed = {CONSUMER: {ROOT: {"VCPU": 2, "MEMORY_MB": 2048}}}
    (finding,) = row_findings(UsesMore(), observe(guests=(GROWN,), placed=placed))
    assert finding.evidence["more"][NIC] == {"SRIOV_NET_VF": 2}
    assert finding.repair == () and "its allocation" in finding.reason
    assert row_findings(UsesMore(), observe(guests=(GROWN,), placed={})) == []  # an unclaimed instance


@pytest.mark.parametrize(("cpus", "more"), [(2, 0), (4, 0), (5, 1)])
def test_during_a_resize_a_guest_may_have_the_old_or_the_new_size(cpus: int, more: int) -> None:
    (new,) = claimed({"VCPU": 4}).values()
    move = replace(a_move(MoveState.BEGUN, MoveRole.BOTH), new=new)
    claims = claims_of(move)
    assert claims.keys() == {CONSUMER, MIGRATION}
    found = row_findings(UsesMore(), observe(claims, guests=(running(CONSUMER, VCPU=cpus),), moves=(move,)))
    assert [finding.evidence["more"] for finding in found] == ([{ROOT: {"VCPU": more}}] if more else [])
    assert not any(finding.repair for finding in found)
