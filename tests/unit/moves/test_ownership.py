"""Ownership in a move: nothing is lost, nothing is held twice, and what is read back is understood."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.move_values import (
    HERE,
    INSTANCE,
    MIGRATION,
    NEW,
    OLD,
    PART,
    POOL,
    THERE,
    held,
    is_here,
    is_there,
    move,
    total,
)

from agent.claims.request import ClaimRequest, RequestGroup
from agent.errors import PlimsollError
from agent.moves.ownership import (
    ObservedState,
    SplitAllocations,
    count_shared_once,
    has_moved_on,
    has_taken_over,
    is_migration,
    kept_options,
    may_be_superseded,
    migration_share,
    observed_end,
    observed_state,
    options_of_move,
    reduce_allocations,
    resembles_migration,
    restored_allocations,
    separate_allocations,
    split_allocations,
    unambiguous_pairs,
    undecided_reason,
    with_source_at,
)
from agent.moves.states import MoveKind, MoveRole, MoveStep
from agent.placement.client import ConsumerAllocations
from agent.shapes import Allocations

CELL = "7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c09"
"""A provider that a reshape of THERE made."""


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
    for disk in (1, 10, 20):
        instance, migration = separate_allocations(found, {"VCPU": 2, "DISK_GB": disk})
        assert instance == {HERE: {"VCPU": 2}, POOL: {"DISK_GB": disk}}
        assert migration == {THERE: {"VCPU": 2}}
    own = SplitAllocations({HERE: {"DISK_GB": 10}}, {POOL: {"DISK_GB": 10}}, {})
    assert count_shared_once(own, {"DISK_GB": 10}) == {}, "all that it asks for is the host's own"


@pytest.mark.parametrize(
    ("instance", "migration", "where", "end"),
    [
        (OLD, {}, ObservedState.BEFORE, MoveStep.RESTORED),
        (NEW, PART, ObservedState.UNDER_WAY, None),
        (NEW, {}, ObservedState.AFTER, MoveStep.FREED),
        ({}, {}, ObservedState.NEITHER, MoveStep.GONE),
        ({}, PART, ObservedState.ORPHANED, None),
        (NEW, {THERE: {"VCPU": 1}}, ObservedState.CHANGED, None),
        (NEW, {CELL: {"VCPU": 2}}, ObservedState.UNDER_WAY, None),
        ({CELL: {"VCPU": 2}, POOL: {"DISK_GB": 5}}, {}, ObservedState.MOVED_ON, MoveStep.RESTORED),
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
    ("instance", "migration", "where", "end"),
    [
        (OLD, {}, ObservedState.BEFORE, MoveStep.RESTORED),
        ({CELL: {"VCPU": 2}, POOL: {"DISK_GB": 5}}, {}, ObservedState.MOVED_ON, MoveStep.RESTORED),
        (NEW, PART, ObservedState.UNDER_WAY, None),
        (OLD, PART, ObservedState.CHANGED, None),
        (NEW, {}, ObservedState.MOVED_ON, MoveStep.FREED),
        ({}, {}, ObservedState.NEITHER, MoveStep.GONE),
    ],
)
def test_the_source_does_not_know_the_new_place_and_reads_how_a_move_ended(
    instance: Allocations, migration: Allocations, where: ObservedState, end: MoveStep | None
) -> None:
    at_source = replace(move(MoveRole.SOURCE, OLD, None), handed=PART)
    assert observed_state(at_source, instance, migration) is where
    assert observed_end(at_source, instance, migration, {THERE, CELL}.__contains__) is end


@pytest.mark.parametrize(
    ("new", "now", "end"),
    [
        (2, 1, MoveStep.RESTORED),
        (2, 2, MoveStep.FREED),
        (2, 3, MoveStep.FREED),
        (1, 1, None),
    ],
)
def test_a_resize_on_its_host_ended_as_the_amounts_tell(new: int, now: int, end: MoveStep | None) -> None:
    resize = move(MoveRole.BOTH, {HERE: {"VCPU": 1}}, {HERE: {"VCPU": new}})
    assert observed_end(resize, {HERE: {"VCPU": now}}, {}, is_here) is end


@given(old=held, new=held, moved=st.dictionaries(st.sampled_from([THERE, HERE]), st.just(CELL)))
def test_a_revert_gives_back_what_the_migration_has_now(
    old: Allocations, new: Allocations, moved: dict[str, str]
) -> None:
    """Whatever a reshape of the source did with its place: all that was old, and nothing that was not."""
    begun = move(MoveRole.DESTINATION, old, new)
    now: dict[str, dict[str, int]] = {}
    for uuid, amounts in begun.handed.items():
        for name, amount in amounts.items():
            place = now.setdefault(moved.get(uuid, uuid), {})
            place[name] = place.get(name, 0) + amount
    restored = total(restored_allocations(begun, now))
    assert restored - total(now) == total(old) - total(begun.handed)
    assert restored.total() == total(old).total()
    assert restored_allocations(begun, begun.handed) == old
    followed = with_source_at(begun, now)
    assert (followed.handed, total(followed.old.allocations)) == (now, restored)


def test_a_revert_of_what_another_client_changed_gives_the_old_place_back() -> None:
    begun = move(MoveRole.DESTINATION, OLD, NEW)
    assert restored_allocations(begun, {THERE: {"VCPU": 1}}) == OLD


def holder(
    consumer: str, allocations: Allocations, kind: str = "MIGRATION", project: str = "p"
) -> ConsumerAllocations:
    return ConsumerAllocations(consumer, allocations, 1, project, "u", kind)


@pytest.mark.parametrize(
    ("instance", "candidate", "takes"),
    [
        (holder(INSTANCE, NEW), holder(MIGRATION, PART), True),
        (holder(INSTANCE, NEW), holder(MIGRATION, {THERE: {"VCPU": 1}}), False),
        (holder(INSTANCE, NEW), holder(MIGRATION, {**PART, HERE: {"VCPU": 1}}), False),
        (holder(INSTANCE, OLD), holder(MIGRATION, PART), False),
        (holder(INSTANCE, {}), holder(MIGRATION, PART), True),
        (holder(INSTANCE, {}), holder(MIGRATION, {THERE: {"VCPU": 1}}), False),
        (holder(INSTANCE, {HERE: {"VCPU": 2}}), holder(MIGRATION, PART), False),
        (holder(INSTANCE, {HERE: {"VCPU": 2}}), holder(MIGRATION, OLD), True),
    ],
)
def test_only_an_exact_match_has_taken_over(
    instance: ConsumerAllocations, candidate: ConsumerAllocations, takes: bool
) -> None:
    assert has_taken_over(OLD, instance, candidate, is_there) is takes


@pytest.mark.parametrize(
    ("candidate", "is_one", "resembles"),
    [
        (holder(MIGRATION, PART), True, True),
        (holder(MIGRATION, PART, "unknown"), False, True),
        (holder(MIGRATION, PART, ""), False, True),
        (holder(MIGRATION, PART, "INSTANCE"), False, False),
        (holder(MIGRATION, PART, project="q"), False, False),
        (holder(MIGRATION, PART, "", project="q"), False, False),
    ],
)
def test_only_a_type_makes_a_migration(candidate: ConsumerAllocations, is_one: bool, resembles: bool) -> None:
    """Without one it may as well be a new instance of the same size, project and user."""
    instance = holder(INSTANCE, NEW)
    assert (is_migration(candidate, instance), resembles_migration(candidate, instance)) == (
        is_one,
        resembles,
    )


@pytest.mark.parametrize(("known", "now", "may_be"), [(3, 3, False), (3, 5, True), (None, 3, True)])
def test_a_move_whose_instance_nobody_wrote_was_not_begun_again(
    known: int | None, now: int, may_be: bool
) -> None:
    begun = replace(move(MoveRole.SOURCE, OLD, None), instance_generation=known)
    assert may_be_superseded(begun, now) is may_be


def test_moves_that_look_the_same_are_left_alone() -> None:
    assert unambiguous_pairs({"i": ["m"], "j": ["n"]}) == {"i": "m", "j": "n"}
    assert unambiguous_pairs({"i": ["m", "n"], "j": ["m", "n"], "k": ["o"]}) == {"k": "o"}
    assert unambiguous_pairs({"i": ["m"], "j": ["m"]}) == {}
    assert unambiguous_pairs({"i": []}) == {}


def test_an_instance_that_left_for_a_third_host_has_moved_on() -> None:
    arrived = move(MoveRole.DESTINATION, OLD, NEW)
    assert has_moved_on(arrived, {POOL: {"DISK_GB": 5}}, is_here)
    assert not has_moved_on(arrived, NEW, is_here)
    assert not has_moved_on(arrived, {}, is_here)
    assert has_moved_on(replace(arrived, kind=MoveKind.REBUILD), {}, is_here), "it writes nothing to undo"
    assert not has_moved_on(move(MoveRole.SOURCE, OLD, None), NEW, is_there)


@pytest.mark.parametrize(
    ("role", "instance", "migration", "undecided"),
    [
        (MoveRole.SOURCE, {}, PART, True),
        (MoveRole.SOURCE, NEW, PART, False),
        (MoveRole.DESTINATION, {}, PART, False),
        (MoveRole.DESTINATION, NEW, {}, False),
    ],
)
def test_a_move_whose_instance_is_gone_is_undecided_at_the_source(
    role: MoveRole, instance: Allocations, migration: Allocations, undecided: bool
) -> None:
    begun = move(role, OLD, NEW if role is MoveRole.DESTINATION else None)
    reason = undecided_reason(begun, instance, migration, is_here if begun.new else is_there)
    assert (reason is not None) is undecided


def test_an_instance_has_the_alternatives_of_its_classes_and_unless_it_is_resized_of_its_amounts() -> None:
    amounts = [{"VCPU": 1, "VGPU": 1}, {"VCPU": 1, "VGPU": 2}, {"VCPU": 1, "PGPU": 1}, {"VCPU": 1}]
    options = [ClaimRequest(INSTANCE, (RequestGroup("", each),)) for each in amounts]

    def numbers(is_resize: bool, **held: int) -> list[int]:
        return [options.index(each) for each in kept_options(options, held, is_resize=is_resize)]

    for is_resize in (False, True):
        assert numbers(is_resize, VCPU=1, PGPU=1, DISK_GB=9) == [2], (
            "no alternative says anything of the disk"
        )
        assert numbers(is_resize, VCPU=7) == [3], "reserved beside what was asked for, as a withheld CPU is"
        assert numbers(is_resize, VCPU=1, PGPU=1, VGPU=1) == numbers(is_resize, DISK_GB=1) == []
    assert numbers(False, VCPU=1, VGPU=2) == [1]
    assert numbers(True, VCPU=1, VGPU=2) == numbers(False, VCPU=1, VGPU=3) == [0, 1]


PLAIN, TWO, SAME, SIZES, ONE_SIZE = (
    [
        ClaimRequest(INSTANCE, (RequestGroup("", {name: 1}),), alternative=number)
        for number, name in alternatives
    ]
    for alternatives in (
        [(0, "PGPU")],
        [(1, "PGPU"), (2, "VGPU")],
        [(1, "VGPU"), (2, "VGPU")],
        [(0, "VGPU"), (0, "PGPU"), (0, "FPGA")],  # of VRAM, for a request without alternatives
        [(0, "CUSTOM_VRAM_8192MB")],
    )
)


@pytest.mark.parametrize(
    ("kind", "options", "number", "held", "taken"),
    [
        ("cold_migrate", TWO, None, {"VGPU": 1}, [2]),
        ("cold_migrate", TWO, None, {}, [1]),
        ("cold_migrate", TWO, 1, None, [1]),
        ("cold_migrate", TWO, 0, None, [1, 2]),
        ("cold_migrate", TWO, 3, None, "The move is to take alternative 3, and the request has 2: name"),
        ("cold_migrate", PLAIN, 2, None, "The move is to take alternative 2, and the request has 1: name"),
        ("cold_migrate", PLAIN, 1, None, [1]),
        ("cold_migrate", PLAIN, None, None, [1]),
        ("cold_migrate", TWO[1:], 1, None, "The move is to take alternative 1, and the request has 1: name"),
        ("cold_migrate", TWO[1:], 2, None, [1]),
        ("cold_migrate", TWO, None, {"FPGA": 1}, "may be of no alternative of the request: name one"),
        ("cold_migrate", SAME, None, {"VGPU": 1}, "may be of alternatives 1, 2 of the request: name one"),
        ("cold_migrate", TWO[1:], None, None, [1]),
        ("resize", TWO, None, {"VGPU": 3}, [2]),
        ("resize", TWO, None, {"FPGA": 1}, [1, 2]),
        ("resize", SAME, None, {"VGPU": 3}, "may be of alternatives 1, 2 of the request: name one"),
        ("live_migrate", TWO, None, {"VGPU": 1}, [2]),
        ("live_migrate", TWO, 0, {"VGPU": 1}, [2]),
        ("live_migrate", TWO, 0, {}, [1, 2]),
        ("live_migrate", TWO, 1, {"VGPU": 1}, "holds 1 VGPU, and a live migration keeps the devices"),
        ("live_migrate", TWO, None, {"FPGA": 1}, "holds 1 FPGA, and a live migration keeps the devices"),
        ("live_migrate", SIZES, None, {"PGPU": 1}, [2]),
        ("live_migrate", SIZES, None, {}, [1]),
        ("live_migrate", PLAIN, None, None, [1]),
        ("live_migrate", ONE_SIZE, None, {"CUSTOM_VRAM_8192MB": 1}, [1]),
        ("live_migrate", ONE_SIZE, None, {}, [1]),
        ("live_migrate", ONE_SIZE, None, {"CUSTOM_VRAM_4096MB": 1}, "holds 1 CUSTOM_VRAM_4096MB, and a live"),
        ("cold_migrate", ONE_SIZE, None, None, [1]),
        ("cold_migrate", SIZES, None, {"PGPU": 1}, [2, 1, 3]),
        ("cold_migrate", SIZES, 0, None, [1, 2, 3]),
    ],
)
def test_a_move_takes_the_alternative_that_the_instance_has_or_that_is_asked_for(
    kind: str,
    options: list[ClaimRequest],
    number: int | None,
    held: dict[str, int] | None,
    taken: list[int] | str,
) -> None:
    """`held`: what it has elsewhere by Placement; None: Placement is not asked. `taken`: places, from 1."""

    def elsewhere() -> dict[str, int]:
        assert held is not None
        return held

    try:
        found = options_of_move(MoveKind(kind), options, number, None, elsewhere)
    except PlimsollError as error:
        assert isinstance(taken, str), error
        assert taken in error.message
    else:
        assert [options.index(each) + 1 for each in found] == taken
