"""Which consumers and moves are read in full."""

from __future__ import annotations

from uuid import UUID

import pytest
from kits.audit import CONSUMER, MIGRATION, a_move, claimed, observe, running
from kits.tracker import uuid_of

from agent.audit.suspects import suspect_moves, suspects
from agent.claims.claim import ClaimState
from agent.moves.states import MoveRole, MoveState, claims_of

HERE = {uuid_of("host"): {"VCPU": 2}}
CLAIMS = claimed({"VCPU": 2})


def test_a_consumer_whose_sources_agree_is_no_suspect() -> None:
    assert suspects(observe(CLAIMS)) == frozenset()
    assert suspects(observe(guests=(running(CONSUMER),), placed={CONSUMER: HERE})) == frozenset()
    assert suspects(observe(moves=(a_move(MoveState.BEGUN),), placed={MIGRATION: HERE})) == frozenset()


def test_a_consumer_whose_sources_differ_is_one() -> None:
    for observation in (
        observe(CLAIMS, placed={}),
        observe(CLAIMS, placed={CONSUMER: {uuid_of("host"): {"VCPU": 1}}}),
        observe(claimed({"VCPU": 2}, state=ClaimState.RELEASING)),
        observe(guests=(running(CONSUMER),)),
        observe(placed={CONSUMER: HERE}),
    ):
        assert suspects(observation) == {CONSUMER}
    other = str(UUID(int=2))
    assert suspects(observe(CLAIMS, placed={CONSUMER: CLAIMS[CONSUMER].allocations, other: HERE})) == {other}


def test_the_migration_of_a_move_is_a_suspect_while_it_has_something_else_here_than_the_move_gave_it() -> (
    None
):
    move = a_move(MoveState.BEGUN)
    other = {uuid_of("host"): {"VCPU": 1}}
    for placed, suspected in ((HERE, frozenset()), (other, {MIGRATION}), ({}, frozenset())):
        observation = observe(claims_of(move), moves=(move,), placed={MIGRATION: placed} if placed else {})
        assert suspects(observation) == suspected


@pytest.mark.parametrize(
    ("state", "role", "adopted", "guest", "placed", "suspect"),
    [
        (MoveState.LEAVING, MoveRole.SOURCE, False, True, {}, True),
        (MoveState.LEAVING, MoveRole.SOURCE, False, False, {}, False),
        (MoveState.CONFIRMING, MoveRole.SOURCE, False, True, {}, False),
        (MoveState.BEGUN, MoveRole.SOURCE, False, False, {}, True),
        (MoveState.BEGUN, MoveRole.BOTH, False, False, {}, True),
        (MoveState.BEGUN, MoveRole.BOTH, False, False, {MIGRATION: HERE}, False),
        (MoveState.BEGUN, MoveRole.DESTINATION, False, False, {}, False),
        (MoveState.BEGUN, MoveRole.DESTINATION, True, False, {}, True),
        (MoveState.BEGUN, MoveRole.DESTINATION, True, False, {CONSUMER: HERE}, False),
    ],
)
def test_a_move_is_one_where_another_program_may_have_ended_it(
    state: MoveState,
    role: MoveRole,
    adopted: bool,
    guest: bool,
    placed: dict[str, dict[str, dict[str, int]]],
    suspect: bool,
) -> None:
    move = a_move(state, role, adopted=adopted)
    guests = (running(CONSUMER),) if guest else ()
    assert bool([*suspect_moves(observe(guests=guests, moves=(move,), placed=placed))]) is suspect
