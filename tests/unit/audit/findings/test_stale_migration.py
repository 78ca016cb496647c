"""`stale migration`: what an ended move left, and a move that does not go on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kits.audit import CONSUMER, ELSEWHERE, MIGRATION, a_move, claimed, consumer_case, move_case, observe

from agent.audit.findings.stale_migration import StaleMigration
from agent.audit.repair import EndMove, WriteAllocations
from agent.moves.states import END_STATES, MoveRole, MoveState

HANDED = a_move(MoveState.BEGUN).handed


@pytest.mark.parametrize("state", sorted(END_STATES))
def test_what_an_ended_move_left_is_deleted_and_by_itself_if_it_cannot_begin_again(state: MoveState) -> None:
    observation = observe(moves=(a_move(state),))
    finding = StaleMigration().judge_consumer(consumer_case(observation, HANDED, MIGRATION))
    assert finding is not None and finding.own is (state is not MoveState.REVERTED)
    (step,) = finding.repair
    assert isinstance(step, WriteAllocations) and step.write.allocations == {}


def test_an_unknown_migration_is_not_the_agents_and_keeps_what_it_has_elsewhere() -> None:
    there = {ELSEWHERE: {"VCPU": 1}}
    case = consumer_case(observe(), {**HANDED, **there}, MIGRATION, consumer_type="MIGRATION")
    finding = StaleMigration().judge_consumer(case)
    assert finding is not None and not finding.own and "does not know" in finding.reason
    (step,) = finding.repair
    assert isinstance(step, WriteAllocations) and step.write.allocations == there
    assert StaleMigration().judge_consumer(consumer_case(observe(), HANDED)) is None


def test_a_move_whose_instance_was_deleted_may_be_confirmed() -> None:
    move = a_move(MoveState.BEGUN, MoveRole.SOURCE)
    finding = StaleMigration().judge_move(move_case(move, instance={}, migration=HANDED))
    assert finding is not None and not finding.own
    assert finding.repair == (EndMove(MIGRATION),)
    goes_on = move_case(move, instance={ELSEWHERE: {"VCPU": 2}}, migration=HANDED)
    assert StaleMigration().judge_move(goes_on) is None


def test_a_migration_that_may_be_of_an_instance_that_left_is_listed_and_left_alone() -> None:
    """Another client has changed its amounts, so whose migration it is cannot be told."""
    claims = claimed({"VCPU": 2})
    left = replace(observe(claims, placed={}), elsewhere={CONSUMER: {ELSEWHERE: {"VCPU": 2}}})
    smaller = {uuid: dict.fromkeys(amounts, 1) for uuid, amounts in HANDED.items()}
    case = consumer_case(left, smaller, MIGRATION, consumer_type="MIGRATION")
    assert case.is_comparable
    finding = StaleMigration().judge_consumer(case)
    assert finding is not None and finding.repair == () and CONSUMER in finding.reason
    assert "confirm" not in finding.reason
