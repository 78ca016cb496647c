"""When a consumer can be compared, and how its allocations are divided."""

from __future__ import annotations

from dataclasses import replace

from kits.audit import (
    CONSUMER,
    ELSEWHERE,
    MIGRATION,
    a_move,
    claimed,
    consumer_case,
    move_case,
    observe,
    running,
)
from kits.tracker import uuid_of

from agent.claims.claim import ClaimState
from agent.moves.states import MoveState

HERE = {uuid_of("host"): {"VCPU": 2}}
SHARED = {uuid_of("pool"): {"DISK_GB": 5}}
THERE = {ELSEWHERE: {"VCPU": 2}}
CLAIMS = claimed({"VCPU": 2})


def test_a_guest_that_could_not_be_read_is_comparable_only_by_its_claim() -> None:
    guests = (replace(running(CONSUMER), problem="odd XML"),)
    assert not consumer_case(observe(guests=guests), HERE).is_comparable
    assert consumer_case(observe(CLAIMS, guests=guests), HERE).is_comparable


def test_a_consumer_in_a_move_is_not_comparable() -> None:
    observation = observe(CLAIMS, moves=(a_move(MoveState.BEGUN),))
    for consumer in (CONSUMER, MIGRATION):
        assert not consumer_case(observation, HERE, consumer).is_comparable


def test_an_allocation_that_a_claim_may_have_handed_over_is_not_comparable() -> None:
    for state, here, comparable in (
        (ClaimState.CLAIMED, HERE, False),
        (ClaimState.CLAIMED, {uuid_of("host"): {"VCPU": 1}}, False),
        (ClaimState.CLAIMED, {uuid_of("gpu0"): {"VGPU": 1}}, True),
        (ClaimState.RELEASING, HERE, False),
        (ClaimState.RELEASING, {uuid_of("host"): {"VCPU": 1}}, True),
    ):
        lost = observe(claimed({"VCPU": 2}, state=state), placed={})
        assert consumer_case(lost, here, MIGRATION).is_comparable is comparable, (state, here)
    assert consumer_case(observe(CLAIMS), HERE, MIGRATION).is_comparable


def test_what_remains_elsewhere_takes_its_shared_part_with_it() -> None:
    assert consumer_case(observe(), {**HERE, **SHARED}).remainder == {}
    assert consumer_case(observe(), {**HERE, **SHARED, **THERE}).remainder == {**SHARED, **THERE}


def test_a_claim_differs_only_where_something_is_placed_here() -> None:
    claimed_here = CLAIMS[CONSUMER].allocations
    assert consumer_case(observe(CLAIMS), claimed_here).claimed_otherwise is None
    assert consumer_case(observe(CLAIMS), THERE).claimed_otherwise is None
    assert consumer_case(observe(CLAIMS), {uuid_of("gpu0"): {"VGPU": 1}}).claimed_otherwise == claimed_here


def test_evidence_is_what_each_source_shows() -> None:
    case = consumer_case(observe(CLAIMS, guests=(running(CONSUMER, VCPU=3),)), HERE)
    assert case.evidence == {
        "guest": {"VCPU": 3},
        "claim": CLAIMS[CONSUMER].allocations,
        "placement": HERE,
        "generation": 1,
    }
    move = move_case(a_move(MoveState.BEGUN), instance=THERE, migration=HERE)
    assert move.evidence == {
        "move": "cold_migrate, source, begun",
        "instance": CONSUMER,
        "placement": {CONSUMER: THERE, MIGRATION: HERE},
        "generation": 1,
    }
