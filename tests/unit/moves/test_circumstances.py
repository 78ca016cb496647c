"""Who acts next in a move follows from what is there: the guest, another host's deed, Placement's silence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kits.move_values import INSTANCE, MIGRATION, NEW, OLD, claim, move

from agent.claims.claim import Claim
from agent.driver import Guest, GuestState
from agent.moves.circumstances import Circumstances, consumer_names, next_actor
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
        (MoveRole.SOURCE, MoveState.BEGUN, Circumstances(holders=frozenset()), "this agent", "shows why"),
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
        (MoveRole.SOURCE, MoveState.LEAVING, Circumstances(), "this agent", "it continues"),
        (MoveRole.SOURCE, MoveState.CONFIRMING, Circumstances(HERE), "the guest", "left this host"),
        (MoveRole.SOURCE, MoveState.CONFIRMING, Circumstances(), "this agent", "verification"),
        (MoveRole.SOURCE, MoveState.BEGUN, Circumstances(HERE, holders=frozenset()), "this agent", "why"),
        (MoveRole.SOURCE, MoveState.REVERTING, Circumstances(HERE), "this agent", "verification"),
        (MoveRole.DESTINATION, MoveState.REVERTING, Circumstances(HERE), "the guest", "left this host"),
        (MoveRole.DESTINATION, MoveState.CONFIRMING, Circumstances(HERE), "this agent", "verification"),
        (
            MoveRole.DESTINATION,
            MoveState.CONFIRMING,
            Circumstances(HERE, placement_away=True),
            "Placement",
            "does not answer",
        ),
        (
            MoveRole.DESTINATION,
            MoveState.CONFIRMING,
            Circumstances(refusals={INSTANCE: "No such provider."}),
            "the operator",
            "10 minutes, or at once with `plimsoll look`: No such provider",
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


GUEST = Guest(INSTANCE, "web1-guest", GuestState.RUNNING, {})


def named(name: str) -> Claim:
    nameless = claim(NEW)
    return replace(nameless, request=replace(nameless.request, name=name))


def test_a_guest_has_its_own_name_before_that_of_its_claim() -> None:
    assert consumer_names([], [named("web1")], []) == {INSTANCE: "web1"}
    assert consumer_names([GUEST], [named("web1")], []) == {INSTANCE: "web1-guest"}
    assert consumer_names([], [claim(NEW)], []) == {}


def test_a_migration_is_called_as_its_instance() -> None:
    leaving = move(MoveRole.SOURCE, OLD, None)
    assert consumer_names([GUEST], [], [leaving])[MIGRATION] == "web1-guest"
    assert consumer_names([], [named("web1")], [leaving]) == {INSTANCE: "web1", MIGRATION: "web1"}
    known = replace(leaving, old=named("web1"))
    assert consumer_names([], [], [known]) == {INSTANCE: "web1", MIGRATION: "web1"}
    assert consumer_names([], [], [leaving]) == {MIGRATION: ""}
