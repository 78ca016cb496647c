"""`moved away`: a guest on this host whose instance is on another one."""

from __future__ import annotations

from dataclasses import replace

from kits.audit import (
    CONSUMER,
    ELSEWHERE,
    MIGRATION,
    a_move,
    claimed,
    consumer_case,
    in_state,
    move_case,
    observe,
    running,
)
from kits.tracker import uuid_of

from agent.audit.findings.moved_away import MovedAway
from agent.driver import GuestState
from agent.moves.states import MoveState

THERE = {ELSEWHERE: {"VCPU": 2}}
CLAIMS = claimed({"VCPU": 2})
JUDGE = MovedAway().judge_consumer


def test_a_claimed_guest_that_stayed_behind_is_reported_shut_off_or_not() -> None:
    for state in (GuestState.RUNNING, GuestState.SHUTOFF):
        guest = in_state(state, running(CONSUMER))
        finding = JUDGE(consumer_case(observe(CLAIMS, guests=(guest,), placed={}), THERE))
        assert finding is not None and finding.subject == CONSUMER and not finding.repair
        assert "remove the guest" in finding.reason


def test_while_a_consumer_holds_the_claims_place_the_move_is_under_way() -> None:
    held = {MIGRATION: CLAIMS[CONSUMER].allocations}
    assert JUDGE(consumer_case(observe(CLAIMS, guests=(running(CONSUMER),), placed=held), THERE)) is None


def test_a_consumer_that_is_no_migration_by_its_type_hides_no_guest() -> None:
    held = {MIGRATION: CLAIMS[CONSUMER].allocations}
    observation = observe(CLAIMS, guests=(running(CONSUMER),), placed=held)
    for consumer_type, found in (("INSTANCE", True), ("MIGRATION", False), ("unknown", False)):
        typed = replace(observation, types={MIGRATION: consumer_type})
        assert (JUDGE(consumer_case(typed, THERE)) is not None) == found


def test_a_guest_without_a_claim_is_reported_while_it_runs() -> None:
    guest = running(CONSUMER)
    finding = JUDGE(consumer_case(observe(guests=(guest,)), THERE))
    assert finding is not None and finding.repair == () and "move the guest" in finding.reason
    merely_defined = observe(guests=(in_state(GuestState.SHUTOFF, guest),))
    assert JUDGE(consumer_case(merely_defined, THERE)) is None
    left_behind = replace(merely_defined, moved_away=frozenset({CONSUMER}))
    told = JUDGE(consumer_case(left_behind, THERE))
    assert told is not None and told.repair == () and "remove the definition" in told.reason


def test_a_guest_whose_allocation_is_here_or_nowhere_is_another_finding() -> None:
    here = {uuid_of("host"): {"VCPU": 2}}
    for placed in (here, {**here, **THERE}, {}):
        assert JUDGE(consumer_case(observe(CLAIMS, guests=(running(CONSUMER),)), placed)) is None
    assert JUDGE(consumer_case(observe(CLAIMS), THERE)) is None


def test_a_guest_that_stays_after_its_move_is_reported_without_a_repair() -> None:
    move = a_move(MoveState.LEAVING)
    assert MovedAway().judge_move(move_case(move, instance=THERE, migration={})) is None
    finding = MovedAway().judge_move(
        move_case(move, instance=THERE, migration={}, guests=(running(CONSUMER),))
    )
    assert finding is not None and finding.subject == CONSUMER
    assert finding.repair == () and "remove the guest" in finding.reason
