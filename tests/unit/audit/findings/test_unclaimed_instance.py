"""`unclaimed instance`: what a guest without a claim gets, and when that is not possible."""

from __future__ import annotations

from kits.audit import CONSUMER, consumer_case, in_state, observe, running
from kits.tracker import uuid_of

from agent.audit.finding import Finding
from agent.audit.findings.unclaimed_instance import UnclaimedInstance
from agent.audit.repair import ClaimUse, TakeClaim
from agent.driver import Guest, GuestState, UsedUnit

HERE = {uuid_of("host"): {"VCPU": 1}}


def judge(guest: Guest) -> Finding:
    finding = UnclaimedInstance().judge_consumer(consumer_case(observe(guests=(guest,)), {}))
    assert finding is not None and not finding.own
    return finding


def test_a_guest_claims_what_it_uses_where_its_devices_are() -> None:
    finding = judge(running(CONSUMER, UsedUnit("VGPU", "mdev", "gpu1"), VGPU=1, VCPU=2))
    (claim,) = finding.repair
    assert isinstance(claim, ClaimUse)
    assert claim.request.resources == {"VGPU": 1, "VCPU": 2}
    (vgpu,) = (group for group in claim.request.groups if group.suffix)
    assert vgpu.resources == {"VGPU": 1} and claim.restriction.bound == {vgpu.suffix: uuid_of("gpu1")}


def test_without_a_place_it_is_reported_with_the_reason() -> None:
    for guest, clause in (
        (running(CONSUMER, VCPU=1000), "it does not fit (VCPU"),
        (running(CONSUMER, UsedUnit("VGPU", "mdev", "gpu7"), VGPU=1), "is on no provider of this host"),
        (running(CONSUMER), "are not known"),
    ):
        finding = judge(guest)
        assert finding.repair == () and clause in finding.reason


def test_only_an_allocation_that_the_agent_wrote_gets_its_claim_back() -> None:
    observation = observe(guests=(running(CONSUMER, VCPU=1),))
    finding = UnclaimedInstance().judge_consumer(consumer_case(observation, HERE))
    assert finding is not None and finding.own
    (take,) = finding.repair
    assert isinstance(take, TakeClaim) and take.request.resources == {"VCPU": 1}
    others = consumer_case(observation, HERE, owner=("project", "user"))
    assert UnclaimedInstance().judge_consumer(others) is None


def test_a_guest_that_is_merely_defined_needs_no_allocation() -> None:
    off = in_state(GuestState.SHUTOFF, running(CONSUMER, VCPU=1))
    assert UnclaimedInstance().judge_consumer(consumer_case(observe(guests=(off,)), {})) is None
    with_allocation = UnclaimedInstance().judge_consumer(consumer_case(observe(guests=(off,)), HERE))
    assert with_allocation is not None and with_allocation.own
