"""The states of a move: each has a way out, and no claim or unit is lost in any."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from kits.move_values import (
    INSTANCE,
    MIGRATION,
    NEW,
    OLD,
    move,
    total,
)

from agent.codec import decode, encode
from agent.errors import UsageError
from agent.moves.states import (
    END_STATES,
    MOVE_TRANSITIONS,
    Move,
    MoveRole,
    MoveState,
    claims_of,
)


def test_every_state_has_a_way_out_and_every_end_is_one() -> None:
    for state in MoveState:
        out = {after for (before, _), after in MOVE_TRANSITIONS.items() if before is state}
        if state in END_STATES:
            assert out <= {MoveState.BEGINNING, MoveState.BEGUN}
        else:
            assert out >= END_STATES


@pytest.mark.parametrize("role", MoveRole)
@pytest.mark.parametrize("state", MoveState)
def test_nobody_has_two_claims_and_units_are_never_lost(role: MoveRole, state: MoveState) -> None:
    claims = claims_of(move(role, OLD, None if role is MoveRole.SOURCE else NEW, state))
    assert set(claims) <= {INSTANCE, MIGRATION}
    for consumer, claim in claims.items():
        assert claim.consumer == consumer == claim.request.consumer
        assert sum(claim.request.resources.values()) == sum(total(claim.allocations).values())
    if state not in END_STATES:
        assert (MIGRATION in claims) is (role is not MoveRole.DESTINATION)
        assert (INSTANCE in claims) is (role is not MoveRole.SOURCE)


@pytest.mark.parametrize("role", MoveRole)
def test_what_is_written_comes_back(role: MoveRole) -> None:
    written = replace(
        move(role, OLD, None if role is MoveRole.SOURCE else NEW),
        since=1.5,
        adopted=True,
        instance_generation=3,
    )
    assert decode(Move, json.loads(json.dumps(encode(Move, written)))) == written


@pytest.mark.parametrize("key", ["migration", "kind", "role", "state", "old", "handed", "since"])
def test_what_makes_no_sense_is_refused(key: str) -> None:
    broken = encode(Move, move(MoveRole.DESTINATION, OLD, NEW))
    with pytest.raises(UsageError):
        decode(Move, {**broken, key: "?"})


def test_a_move_that_an_older_agent_wrote_is_read() -> None:
    """It wrote no generation of the instance: then it is not known."""
    written = {**encode(Move, move(MoveRole.SOURCE, OLD, None))}
    del written["instance_generation"]
    assert decode(Move, written) == move(MoveRole.SOURCE, OLD, None)
