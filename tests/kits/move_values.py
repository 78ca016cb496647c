"""Moves as values, between the hosts HERE and THERE that share the provider POOL."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st

from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest
from agent.moves.ownership import migration_share
from agent.moves.states import Move, MoveKind, MoveRole, MoveState, request_for_allocations
from agent.shapes import Allocations

INSTANCE = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"
MIGRATION = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b02"
HERE, THERE, POOL = (f"7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c0{number}" for number in range(3))

amounts = st.dictionaries(st.sampled_from(["VCPU", "MEMORY_MB", "DISK_GB"]), st.integers(1, 9), min_size=1)
held = st.dictionaries(st.sampled_from([HERE, THERE, POOL]), amounts, min_size=1)


def claim(allocations: Allocations) -> Claim:
    request = request_for_allocations(ClaimRequest(INSTANCE, ()), allocations)
    return Claim(INSTANCE, ClaimState.CLAIMED, request, allocations)


def move(
    role: MoveRole, old: Allocations, new: Allocations | None, state: MoveState = MoveState.BEGUN
) -> Move:
    return Move(
        MIGRATION,
        INSTANCE,
        MoveKind.COLD_MIGRATE,
        role,
        state,
        claim(old),
        None if new is None else claim(new),
        migration_share(old, new or {}, is_here if role is not MoveRole.SOURCE else is_there),
        0.0,
    )


def is_here(uuid: str) -> bool:
    return uuid == HERE


def is_there(uuid: str) -> bool:
    return uuid == THERE


def total(*many: Allocations) -> Counter[tuple[str, str]]:
    sums: Counter[tuple[str, str]] = Counter()
    for allocations in many:
        for uuid, amounts_of in allocations.items():
            for name, amount in amounts_of.items():
                sums[uuid, name] += amount
    return sums


OLD, NEW = {THERE: {"VCPU": 2}, POOL: {"DISK_GB": 5}}, {HERE: {"VCPU": 2}, POOL: {"DISK_GB": 5}}
PART = {THERE: {"VCPU": 2}}
"""The allocations of an instance that moves from THERE to HERE, and what its migration takes over."""
