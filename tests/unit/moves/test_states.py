"""The states of a move: each has a way out, and no claim or unit is lost in any."""

from __future__ import annotations

import pytest
from kits.move_values import (
    INSTANCE,
    MIGRATION,
    NEW,
    OLD,
    move,
    total,
)

from agent.moves.states import (
    END_STATES,
    MOVE_TRANSITIONS,
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
