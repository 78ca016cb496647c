"""The pure part of moves: nothing is lost, nothing is held twice, and what is read back is understood."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.claims.claim import Claim, ClaimState
from agent.errors import UsageError
from agent.moves.move_json import move_to_json, read_move
from agent.moves.ownership import (
    MoveConsumer,
    ObservedState,
    has_taken_over,
    migration_share,
    observed_end,
    observed_state,
    reduce_allocations,
    separate_allocations,
    split_allocations,
    unambiguous_pairs,
)
from agent.moves.states import (
    END_STATES,
    MOVE_TRANSITIONS,
    Move,
    MoveKind,
    MoveRole,
    MoveState,
    MoveStep,
    claims_of,
    request_for_allocations,
)
from agent.shapes import Allocations

INSTANCE = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"
MIGRATION = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b02"
HERE, THERE, POOL = (f"7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c0{number}" for number in range(3))

amounts = st.dictionaries(st.sampled_from(["VCPU", "MEMORY_MB", "DISK_GB"]), st.integers(1, 9), min_size=1)
held = st.dictionaries(st.sampled_from([HERE, THERE, POOL]), amounts, min_size=1)


def claim(allocations: Allocations) -> Claim:
    return Claim(INSTANCE, ClaimState.CLAIMED, request_for_allocations(INSTANCE, allocations), allocations)


def move(
    role: MoveRole, old: Allocations, new: Allocations | None, state: MoveState = MoveState.BEGUN
) -> Move:
    return Move(
        MIGRATION,
        INSTANCE,
        MoveKind.COLD_MIGRATE,
        role,
        state,
        claim(old),
        None if new is None else claim(new),
        migration_share(old, new or {}, is_here if role is not MoveRole.SOURCE else is_there),
    )


def is_here(uuid: str) -> bool:
    return uuid == HERE


def is_there(uuid: str) -> bool:
    return uuid == THERE


def total(*many: Allocations) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for allocations in many:
        for uuid, each in allocations.items():
            for name, amount in each.items():
                found[uuid, name] += amount
    return found


@given(old=held, new=held)
def test_what_was_held_has_an_owner_and_what_stays_is_held_once(old: Allocations, new: Allocations) -> None:
    given_away = migration_share(old, new, is_here)
    both, before, after = total(given_away, new), total(old), total(new)
    for key, amount in before.items():
        assert both[key] >= amount
        same = after[key] == amount and key[0] != HERE
        assert both[key] == (amount if same else amount + after[key])
    assert all(given_away.values())


@given(found=held)
def test_parts_are_the_whole(found: Allocations) -> None:
    split = split_allocations(found, is_here, {POOL}.__contains__)
    assert total(split.here, split.shared, split.elsewhere) == total(found)
    for runs_here in (True, False):
        kept = reduce_allocations(split, runs_here=runs_here)
        assert (THERE if runs_here else HERE) not in kept
        assert total(kept) <= total(found)


def test_a_pool_that_was_summed_up_is_charged_once() -> None:
    doubled = {HERE: {"VCPU": 2}, THERE: {"VCPU": 2}, POOL: {"DISK_GB": 20}}
    found = split_allocations(doubled, is_here, {POOL}.__contains__)
    assert found.doubled
    for disk in (10, 20):
        instance, migration = separate_allocations(found, {"VCPU": 2, "DISK_GB": disk})
        assert instance == {HERE: {"VCPU": 2}, POOL: {"DISK_GB": disk}}
        assert migration == {THERE: {"VCPU": 2}}


OLD, NEW = {THERE: {"VCPU": 2}, POOL: {"DISK_GB": 5}}, {HERE: {"VCPU": 2}, POOL: {"DISK_GB": 5}}
PART = {THERE: {"VCPU": 2}}


@pytest.mark.parametrize(
    ("instance", "migration", "where", "end"),
    [
        (OLD, {}, ObservedState.BEFORE, MoveStep.RESTORED),
        (NEW, PART, ObservedState.UNDER_WAY, None),
        (NEW, {}, ObservedState.AFTER, MoveStep.FREED),
        ({}, {}, ObservedState.NEITHER, MoveStep.GONE),
        ({}, PART, ObservedState.ORPHANED, None),
        (NEW, {THERE: {"VCPU": 1}}, ObservedState.CHANGED, None),
        (OLD, PART, ObservedState.CHANGED, None),
        ({HERE: {"VCPU": 9}}, {}, ObservedState.MOVED_ON, MoveStep.FREED),
    ],
)
def test_the_destination_reads_where_a_move_stands(
    instance: Allocations, migration: Allocations, where: ObservedState, end: MoveStep | None
) -> None:
    under_way = move(MoveRole.DESTINATION, OLD, NEW)
    assert observed_state(under_way, instance, migration) is where
    assert observed_end(under_way, instance, migration, is_here) is end


@pytest.mark.parametrize(
    ("instance", "migration", "end"),
    [
        (OLD, {}, MoveStep.RESTORED),
        (NEW, PART, None),
        (NEW, {}, MoveStep.FREED),
        ({}, {}, MoveStep.GONE),
    ],
)
def test_the_source_reads_how_it_ended(
    instance: Allocations, migration: Allocations, end: MoveStep | None
) -> None:
    assert observed_end(move(MoveRole.SOURCE, OLD, None), instance, migration, is_there) is end


def holder(
    consumer: str, allocations: Allocations, kind: str = "MIGRATION", project: str = "p"
) -> MoveConsumer:
    return MoveConsumer(consumer, allocations, project, "u", kind)


@pytest.mark.parametrize(
    ("instance", "candidate", "takes"),
    [
        (holder(INSTANCE, NEW), holder(MIGRATION, PART), True),
        (holder(INSTANCE, NEW), holder(MIGRATION, PART, "unknown"), True),
        (holder(INSTANCE, NEW), holder(MIGRATION, PART, ""), True),
        (holder(INSTANCE, NEW), holder(MIGRATION, PART, "INSTANCE"), False),
        (holder(INSTANCE, NEW), holder(MIGRATION, PART, project="q"), False),
        (holder(INSTANCE, NEW), holder(MIGRATION, {THERE: {"VCPU": 1}}), False),
        (holder(INSTANCE, NEW), holder(MIGRATION, {**PART, HERE: {"VCPU": 1}}), False),
        (holder(INSTANCE, OLD), holder(MIGRATION, PART), False),
        (holder(INSTANCE, {}), holder(MIGRATION, PART), False),
        (holder(INSTANCE, {HERE: {"VCPU": 2}}), holder(MIGRATION, PART), False),
        (holder(INSTANCE, {HERE: {"VCPU": 2}}), holder(MIGRATION, OLD), True),
    ],
)
def test_only_an_exact_match_is_a_migration(
    instance: MoveConsumer, candidate: MoveConsumer, takes: bool
) -> None:
    assert has_taken_over(OLD, instance, candidate, is_there) is takes


def test_moves_that_look_the_same_are_left_alone() -> None:
    assert unambiguous_pairs({"i": ["m"], "j": ["n"]}) == {"i": "m", "j": "n"}
    assert unambiguous_pairs({"i": ["m", "n"], "j": ["m", "n"], "k": ["o"]}) == {"k": "o"}
    assert unambiguous_pairs({"i": ["m"], "j": ["m"]}) == {}
    assert unambiguous_pairs({"i": []}) == {}


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
    found = claims_of(move(role, OLD, None if role is MoveRole.SOURCE else NEW, state))
    assert set(found) <= {INSTANCE, MIGRATION}
    for consumer, each in found.items():
        assert each.consumer == consumer == each.request.consumer
        assert sum(each.request.resources.values()) == sum(total(each.allocations).values())
    if state not in END_STATES:
        assert (MIGRATION in found) is (role is not MoveRole.DESTINATION)
        assert (INSTANCE in found) is (role is not MoveRole.SOURCE)


@pytest.mark.parametrize("role", MoveRole)
def test_what_is_written_comes_back(role: MoveRole) -> None:
    written = replace(move(role, OLD, None if role is MoveRole.SOURCE else NEW), since=1.5, adopted=True)
    assert read_move(json.loads(json.dumps(move_to_json(written)))) == written


@pytest.mark.parametrize("key", ["migration", "kind", "role", "state", "old", "handed", "since"])
def test_what_makes_no_sense_is_refused(key: str) -> None:
    broken = move_to_json(move(MoveRole.DESTINATION, OLD, NEW))
    with pytest.raises(UsageError):
        read_move({**broken, key: "?"})
