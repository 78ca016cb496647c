"""A move from this host whose migration the agent cannot name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kits.audit import CONSUMER, ELSEWHERE, MIGRATION, claimed, consumer_case, observe
from kits.tracker import uuid_of

from agent.audit.findings.unlinked_move import UnlinkedMove
from agent.claims.claim import Claim
from agent.moves.states import MIGRATION_TYPE
from agent.shapes import Allocations

HERE = {uuid_of("host"): {"VCPU": 2}}
THERE = {ELSEWHERE: {"VCPU": 2}}
MOVED = {uuid_of("gpu0"): {"VCPU": 2}}
CLAIM = claimed({"VCPU": 2})[CONSUMER]
TWIN, TWIN_MIGRATION = uuid_of("the twin"), uuid_of("the twin's migration")


def sentence(
    claims: dict[str, Claim], consumer_type: str = MIGRATION_TYPE, **placed: Allocations
) -> str | None:
    """What is found about CONSUMER, whose instance is elsewhere, as those of all these claims."""
    lost = observe(claims, placed={uuid_of(name): each for name, each in placed.items()})
    types = {uuid_of(name): consumer_type for name in placed}
    case = consumer_case(replace(lost, elsewhere=dict.fromkeys(claims, THERE), types=types), THERE)
    found = UnlinkedMove().judge_consumer(case)
    assert found is None or (found.subject, found.own, found.repair) == (CONSUMER, False, ())
    return found.reason if found else None


def test_a_migration_with_just_the_place_is_learned_of_at_the_next_look() -> None:
    assert sentence({CONSUMER: CLAIM}, migration=HERE) is None


def test_nobody_with_as_much_is_no_move_under_way() -> None:
    assert sentence({CONSUMER: CLAIM}) is None
    assert sentence({CONSUMER: CLAIM}, migration={uuid_of("host"): {"VCPU": 1}}) is None


def test_a_place_on_other_providers_is_named() -> None:
    found = sentence({CONSUMER: CLAIM}, migration=MOVED)
    assert found is not None and uuid_of("migration") in found and "on its other host" in found


def test_two_moves_that_look_alike_are_named() -> None:
    twins = {CONSUMER: CLAIM, TWIN: replace(CLAIM, consumer=TWIN)}
    found = sentence(twins, migration=HERE, other=HERE)
    assert found is not None and f"--instance {CONSUMER}" in found
    assert uuid_of("migration") in found and uuid_of("other") in found
    assert sentence(twins, migration=HERE) is not None, "whose it is, is as uncertain"


@pytest.mark.parametrize("consumer_type", ["", "unknown"])
def test_no_end_of_a_move_is_advised_where_the_consumer_may_be_an_instance(consumer_type: str) -> None:
    twins = {CONSUMER: CLAIM, TWIN: replace(CLAIM, consumer=TWIN)}
    for found in (
        sentence({CONSUMER: CLAIM}, consumer_type, migration=MOVED),
        sentence(twins, consumer_type, migration=HERE, other=HERE),
    ):
        assert found is not None and f"{uuid_of('migration')}" in found
        assert "confirm" not in found.lower() and "revert" not in found.lower()
        assert "may be an instance of its own" in found


def test_an_instance_that_is_here_or_nowhere_has_not_left() -> None:
    observation = observe({CONSUMER: CLAIM}, placed={MIGRATION: MOVED})
    for placed in (HERE, {}):
        assert UnlinkedMove().judge_consumer(consumer_case(observation, placed)) is None
