"""The words of the gate's outcomes are part of the local API and of the metrics."""

from __future__ import annotations

from dataclasses import replace

from kits.audit import CONSUMER, a_move, claimed
from kits.tracker import VFS, uuid_of

from agent.claims.claim import Claim
from agent.claims.domain_demand import GATE_USER, DomainRequest
from agent.driver import Guest, GuestState, HostSettings, UsedUnit
from agent.gate.decision import (
    CpuOrder,
    GateOutcome,
    brought_in_by_gate,
    covers,
    made_by_gate,
    power_down,
    power_up,
)
from agent.moves.states import MoveState


def test_the_outcomes_keep_their_names() -> None:
    assert [outcome.value for outcome in GateOutcome] == ["claimed", "held", "moving", "noted", "ignored"]


SETTINGS = HostSettings(cpu_dedicated_set=frozenset({0, 2, 3, 4}), cpu_power_management=True)
GOVERNOR = replace(SETTINGS, cpu_power_management_strategy="governor")


def guest(*cpus: int) -> Guest:
    units = (*(UsedUnit("PCPU", str(cpu), "host") for cpu in cpus), UsedUnit("VGPU", "x", "mdev:x"))
    return Guest("u", "vm", GuestState.RUNNING, {}, units)


def test_dedicated_cpus_but_cpu_0_go_online_and_offline() -> None:
    assert power_up(guest(3, 0, 2, 7), SETTINGS) == CpuOrder((2, 3), "online")
    assert power_down(guest(3, 0, 2), SETTINGS, ()) == CpuOrder((2, 3), "offline")


def test_governors_change_in_the_other_strategy() -> None:
    assert power_up(guest(3), GOVERNOR) == CpuOrder((3,), "performance")
    assert power_down(guest(3), GOVERNOR, ()) == CpuOrder((3,), "powersave")
    low = replace(GOVERNOR, cpu_power_governor_low="ondemand")
    assert power_down(guest(3), low, ()) == CpuOrder((3,), "ondemand")


def test_what_another_guest_uses_stays_up() -> None:
    assert power_down(guest(2, 3), SETTINGS, [guest(3), guest(4)]) == CpuOrder((2,), "offline")
    assert power_down(guest(2), SETTINGS, [guest(2)]) is None


def test_nothing_is_done_without_dedicated_cpus_or_unless_it_is_configured() -> None:
    assert power_up(guest(), SETTINGS) is None
    assert power_up(guest(0), SETTINGS) is None
    assert power_up(guest(2), replace(SETTINGS, cpu_power_management=False)) is None
    assert power_down(guest(2), replace(SETTINGS, cpu_dedicated_set=None), ()) is None


NIC, HOST = uuid_of("nic0"), uuid_of("host")


def claim(user: str = GATE_USER, *, adopted: bool = False, **resources: int) -> Claim:
    made = claimed(resources)[CONSUMER]
    return replace(made, request=replace(made.request, user_id=user), adopted=adopted)


def wanted(named: dict[str, dict[str, tuple[str, ...]]], **resources: int) -> DomainRequest:
    return DomainRequest(claimed(resources)[CONSUMER].request, named)


def test_a_claim_of_the_gates_user_that_was_adopted_is_not_the_gates() -> None:
    assert made_by_gate(claim(VCPU=1))
    assert not made_by_gate(claim(VCPU=1, adopted=True))
    assert not made_by_gate(claim("plimsoll", VCPU=1))


def test_a_move_is_the_gates_by_its_new_claim() -> None:
    move = a_move(MoveState.BEGUN)
    assert not brought_in_by_gate(move)
    assert brought_in_by_gate(replace(move, new=claim(VCPU=1)))
    assert not brought_in_by_gate(replace(move, new=claim("plimsoll", VCPU=1)))


def test_every_amount_must_be_there() -> None:
    assert covers(claim(VCPU=2, MEMORY_MB=512), wanted({}, VCPU=2, MEMORY_MB=256))
    assert not covers(claim(VCPU=2), wanted({}, VCPU=2, MEMORY_MB=256))
    assert not covers(claim(VCPU=1), wanted({}, VCPU=2))
    assert not covers(claim(VCPU=1), wanted({}, VCPU=1, VGPU=1))


def test_named_units_must_be_the_claims_own() -> None:
    one = claim(VCPU=1, SRIOV_NET_VF=1)
    (unit,) = one.units[NIC]["SRIOV_NET_VF"]
    other = next(each for each in VFS if each != unit)
    assert covers(one, wanted({NIC: {"SRIOV_NET_VF": (unit,)}}, VCPU=1))
    assert not covers(one, wanted({NIC: {"SRIOV_NET_VF": (other,)}}, VCPU=1))
    without_units = replace(one, units={})
    assert covers(without_units, wanted({NIC: {"SRIOV_NET_VF": (other,)}}, VCPU=1))
    assert not covers(without_units, wanted({NIC: {"SRIOV_NET_VF": VFS}}, VCPU=1))
    assert not covers(claim(VCPU=1), wanted({NIC: {"SRIOV_NET_VF": (unit,)}}, VCPU=1))


def test_only_the_gates_claims_must_have_the_memory_on_the_domains_cells() -> None:
    asked = replace(wanted({}, MEMORY_MB=256), memory={uuid_of("cell0"): 256})
    assert not covers(claim(MEMORY_MB=256), asked)
    assert not covers(claim(MEMORY_MB=256), replace(asked, memory={uuid_of("cell0"): 1}))
    assert covers(claim("plimsoll", MEMORY_MB=256), asked)
    assert covers(claim(MEMORY_MB=256), replace(asked, memory={HOST: 256}))
