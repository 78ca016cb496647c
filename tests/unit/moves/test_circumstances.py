"""Who acts next in a move follows from what is there: the guest, another host's deed, Placement's silence."""

from __future__ import annotations

import pytest
from kits.move_values import INSTANCE, MIGRATION, NEW, OLD, move

from agent.moves.circumstances import Circumstances, next_actor
from agent.moves.states import END_STATES, MoveRole, MoveState

HERE = frozenset({INSTANCE})
HOLDS = frozenset({MIGRATION})


def turn(role: MoveRole, state: MoveState, seen: Circumstances) -> str:
    return next_actor(move(role, OLD, None if role is MoveRole.SOURCE else NEW, state), seen)


@pytest.mark.parametrize(
    ("role", "state", "seen", "whose", "what"),
    [
        (
            MoveRole.DESTINATION,
            MoveState.BEGUN,
            Circumstances(HERE),
            "the service",
            "on this host; confirm",
        ),
        (
            MoveRole.DESTINATION,
            MoveState.BEGUN,
            Circumstances(),
            "the service",
            "bring the guest",
        ),
        (MoveRole.SOURCE, MoveState.BEGUN, Circumstances(HERE), "the service", "still here; carry it over"),
        (MoveRole.SOURCE, MoveState.BEGUN, Circumstances(), "the service", "has left this host; confirm"),
        (MoveRole.SOURCE, MoveState.BEGUN, Circumstances(holders=HOLDS), "the service", "confirm"),
        (MoveRole.SOURCE, MoveState.BEGUN, Circumstances(holders=frozenset()), "this agent", "verification"),
        (
            MoveRole.SOURCE,
            MoveState.BEGUN,
            Circumstances(holders=frozenset(), placement_away=True),
            "Placement",
            "does not answer",
        ),
        (MoveRole.BOTH, MoveState.BEGUN, Circumstances(HERE), "the service", "on this host"),
        (
            MoveRole.SOURCE,
            MoveState.LEAVING,
            Circumstances(HERE),
            "the service that runs",
            "remove",
        ),
        (MoveRole.SOURCE, MoveState.LEAVING, Circumstances(), "this agent", "verification"),
        (MoveRole.SOURCE, MoveState.CONFIRMING, Circumstances(HERE), "the guest", "left this host"),
        (MoveRole.SOURCE, MoveState.CONFIRMING, Circumstances(), "this agent", "verification"),
        (MoveRole.DESTINATION, MoveState.REVERTING, Circumstances(HERE), "the guest", "left this host"),
        (MoveRole.DESTINATION, MoveState.CONFIRMING, Circumstances(HERE), "this agent", "verification"),
        (
            MoveRole.DESTINATION,
            MoveState.CONFIRMING,
            Circumstances(HERE, placement_away=True),
            "Placement",
            "does not answer",
        ),
    ],
)
def test_whose_turn_it_is(
    role: MoveRole, state: MoveState, seen: Circumstances, whose: str, what: str
) -> None:
    clause = turn(role, state, seen)
    actor, _, deed = clause.partition(":")
    assert actor.startswith(whose) and what in deed


@pytest.mark.parametrize("role", MoveRole)
@pytest.mark.parametrize("state", MoveState)
def test_somebody_acts_until_the_end(role: MoveRole, state: MoveState) -> None:
    for seen in (Circumstances(), Circumstances(HERE, holders=HOLDS, placement_away=True)):
        assert turn(role, state, seen).startswith("none") is (state in END_STATES)
