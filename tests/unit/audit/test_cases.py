"""When a consumer can be compared, and how its allocations are divided."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
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

from agent.audit.cases import RowCase
from agent.claims.claim import ClaimState
from agent.moves.states import MoveRole, MoveState, claims_of
from agent.shapes import Allocations

HERE = {uuid_of("host"): {"VCPU": 2}}
SHARED = {uuid_of("pool"): {"DISK_GB": 5}}
THERE = {ELSEWHERE: {"VCPU": 2}}
CLAIMS = claimed({"VCPU": 2})


def test_a_guest_that_could_not_be_read_is_comparable_only_by_its_claim() -> None:
    guests = (replace(running(CONSUMER), problem="odd XML"),)
    assert not consumer_case(observe(guests=guests), HERE).is_comparable
    assert consumer_case(observe(CLAIMS, guests=guests), HERE).is_comparable


def test_during_a_move_a_consumer_is_comparable_while_it_has_what_the_move_gave_it() -> None:
    move = a_move(MoveState.BEGUN)
    claims = claims_of(move)
    begun = observe(claims, moves=(move,))
    assert consumer_case(begun, HERE, MIGRATION).is_comparable
    assert not consumer_case(begun, {}, MIGRATION).is_comparable  # the move has ended: the agent will see
    assert not consumer_case(begun, THERE, CONSUMER).is_comparable
    for state in (MoveState.BEGINNING, MoveState.CONFIRMING, MoveState.REVERTING, MoveState.LEAVING):
        under_way = observe(claims, moves=(replace(move, state=state),))
        assert not consumer_case(under_way, HERE, MIGRATION).is_comparable


def test_in_a_move_on_one_host_the_old_place_is_no_difference_once_the_migration_has_nothing() -> None:
    move = replace(a_move(MoveState.BEGUN, MoveRole.BOTH), new=CLAIMS[CONSUMER])
    claims = claims_of(move)
    both = observe(claims, moves=(move,), placed={CONSUMER: HERE, MIGRATION: HERE})
    assert consumer_case(both, HERE).is_comparable
    reverted = observe(claims, moves=(move,), placed={CONSUMER: HERE})
    assert not consumer_case(reverted, HERE).is_comparable


def test_a_migration_that_this_host_has_yet_to_learn_of_is_not_comparable() -> None:
    left = replace(observe(CLAIMS, placed={}), elsewhere={CONSUMER: THERE})
    typed = partial(consumer_case, consumer=MIGRATION, consumer_type="MIGRATION")
    assert not typed(left, HERE).is_comparable
    assert typed(left, {uuid_of("host"): {"VCPU": 1}}).is_comparable
    assert consumer_case(left, HERE, MIGRATION).is_comparable
    assert typed(observe(CLAIMS, placed={}), HERE).is_comparable  # its instance is nowhere
    assert typed(observe(CLAIMS), HERE).is_comparable


@pytest.mark.parametrize(
    ("state", "here", "found"),
    [
        (ClaimState.CLAIMED, HERE, True),
        (ClaimState.CLAIMED, {uuid_of("host"): {"VCPU": 1}}, True),
        (ClaimState.CLAIMED, {uuid_of("gpu0"): {"VGPU": 1}}, False),
        (ClaimState.RELEASING, HERE, True),
    ],
)
def test_what_an_instance_that_left_may_have_handed_over_names_its_claim(
    state: ClaimState, here: Allocations, found: bool
) -> None:
    lost = observe(claimed({"VCPU": 2}, state=state), placed={MIGRATION: here})
    left = replace(lost, elsewhere={CONSUMER: THERE})
    untyped = partial(consumer_case, consumer=MIGRATION, consumer_type="unknown")
    assert untyped(left, here).possible_origins == ((CONSUMER,) if found else ())
    assert untyped(lost, here).possible_origins == ()
    assert consumer_case(left, here, MIGRATION).possible_origins == (), "an instance, by its type"
    assert consumer_case(left, here, MIGRATION).is_comparable


def test_a_claim_without_allocation_here_may_have_its_migration_here() -> None:
    unknown = observe(CLAIMS, placed={MIGRATION: HERE})
    assert consumer_case(unknown, THERE).possible_holders == (MIGRATION,)
    smaller = observe(CLAIMS, placed={MIGRATION: {uuid_of("host"): {"VCPU": 1}}})
    assert consumer_case(smaller, THERE).possible_holders == ()
    assert consumer_case(observe(CLAIMS, placed={}), THERE).possible_holders == ()


def test_a_row_has_what_the_instance_and_its_migration_have() -> None:
    move = a_move(MoveState.BEGUN)
    guest = running(CONSUMER, VCPU=2)
    case = RowCase.of(observe(claims_of(move), guests=(guest,), moves=(move,)), CONSUMER)
    assert case.is_moving and case.instance == CONSUMER
    assert case.evidence == {"guest": {"VCPU": 2}, "claim": {MIGRATION: HERE}, "placement": {MIGRATION: HERE}}


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
