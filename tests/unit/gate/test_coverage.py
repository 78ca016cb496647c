"""Which claims a domain may start on."""

from __future__ import annotations

from dataclasses import replace

from kits.audit import CONSUMER, a_move, claimed
from kits.tracker import VFS, uuid_of

from agent.claims.claim import Claim
from agent.claims.domain_demand import GATE_USER, DomainRequest
from agent.gate.coverage import brought_in_by_gate, covers, made_by_gate
from agent.moves.states import MoveState

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


def test_named_units_must_be_the_claims_own() -> None:
    one = claim(VCPU=1, SRIOV_NET_VF=1)
    (unit,) = one.units[NIC]["SRIOV_NET_VF"]
    other = next(each for each in VFS if each != unit)
    assert covers(one, wanted({NIC: {"SRIOV_NET_VF": (unit,)}}, VCPU=1))
    assert not covers(one, wanted({NIC: {"SRIOV_NET_VF": (other,)}}, VCPU=1))
    without_units = replace(one, units={})
    assert covers(without_units, wanted({NIC: {"SRIOV_NET_VF": (other,)}}, VCPU=1))
    assert not covers(without_units, wanted({NIC: {"SRIOV_NET_VF": VFS}}, VCPU=1))


def test_only_the_gates_claims_must_have_the_memory_on_the_domains_cells() -> None:
    asked = replace(wanted({}, MEMORY_MB=256), memory={uuid_of("cell0"): 256})
    assert not covers(claim(MEMORY_MB=256), asked)
    assert covers(claim("plimsoll", MEMORY_MB=256), asked)
    assert covers(claim(MEMORY_MB=256), replace(asked, memory={HOST: 256}))
