"""Ends of moves: deleted, edited or ended by other clients, and the guests that must leave first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kits.moves import DISK, INSTANCE, MIGRATION, ON_A, ON_B, OTHER, SMALL, World, asks
from kits.placements import Placement
from kits.tracker import uuid_of

from agent.errors import (
    ClaimConflict,
    DoesNotFit,
    PlacementUnavailable,
)
from agent.moves.states import MoveKind, MoveState

RESHAPED = {"a": ON_A["a"], "a-new": ON_A["a-nic"]}
"""What the migration has at a after `World.reshape_card`."""


@pytest.fixture
def world(placement: Placement, tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, placement) as world:
        yield world


def test_released_in_the_middle(claimed: World) -> None:
    """Scenario 53: deleted while waiting to be confirmed, I and M both gone."""
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.RESIZE, MIGRATION)
    claimed.settle()
    assert claimed.b.tracker.release(INSTANCE)
    claimed.settle()
    assert claimed.placed_all() == {}
    assert [each.moving() for each in claimed.agents] == [MoveState.DELETED, MoveState.DELETED]
    claimed.check_settled()


def test_a_migration_is_not_released_nor_claimed_for(claimed: World) -> None:
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.RESIZE, MIGRATION)
    claimed.settle()
    before = claimed.state()
    for agent in claimed.agents:
        for consumer in (INSTANCE, MIGRATION):
            with pytest.raises(ClaimConflict, match="moving"):
                agent.tracker.claim(asks(consumer, VCPU=1))
    with pytest.raises(ClaimConflict, match="moving"):
        claimed.a.tracker.release(MIGRATION)
    with pytest.raises(ClaimConflict, match="moving"):
        claimed.a.tracker.release(INSTANCE)
    assert claimed.state() == before


@pytest.mark.parametrize("side", ["a", "b"])
def test_either_side_may_end_it(claimed: World, side: str) -> None:
    for end, left in (("revert", {**ON_A, **DISK}), ("confirm", {**ON_B, **DISK})):
        claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
        claimed.settle()
        getattr(getattr(claimed, side).tracker, f"{end}_move")(MIGRATION)
        claimed.settle()
        assert claimed.placed_all() == {INSTANCE: left}
        claimed.check_settled()


def test_the_other_side_is_found_to_have_ended_it(claimed: World) -> None:
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    claimed.settle()
    claimed.a.tracker.confirm_move(MIGRATION)
    with pytest.raises(ClaimConflict, match="Another client has already confirmed"):
        claimed.b.tracker.revert_move(MIGRATION)
    assert claimed.b.moving() is MoveState.CONFIRMED
    claimed.settle()
    claimed.check_settled()


def test_what_the_migration_holds_was_edited(claimed: World) -> None:
    """Scenario 58: freed or reported, never silent."""
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    claimed.settle()
    claimed.schedule(MIGRATION, "MIGRATION", a={"VCPU": 1})
    claimed.b.tracker.confirm_move(MIGRATION)
    claimed.settle()
    assert claimed.placed_all() == {INSTANCE: {**ON_B, **DISK}}
    claimed.check_settled()


def test_the_source_was_taken_after_an_edit(claimed: World) -> None:
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    claimed.schedule(MIGRATION, "MIGRATION", a={"VCPU": 1})
    claimed.schedule(OTHER, a={"PCPU": 3})
    with pytest.raises(ClaimConflict, match="revert again"):
        claimed.b.tracker.revert_move(MIGRATION)
    assert claimed.b.moving() is MoveState.BEGUN
    claimed.schedule(OTHER)
    assert claimed.b.tracker.revert_move(MIGRATION).state is MoveState.REVERTED
    claimed.settle()
    claimed.check_settled()


def test_the_destination_is_clean_before_it_is_free(claimed: World) -> None:
    """Scenario 65: D is cleaned before it is claimable by others."""
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.LIVE_MIGRATE, MIGRATION)
    claimed.b.see(INSTANCE)
    assert claimed.b.tracker.revert_move(MIGRATION).state is MoveState.REVERTING
    assert claimed.placed(INSTANCE) == {**ON_B, **DISK}
    with pytest.raises(DoesNotFit):
        claimed.b.tracker.claim(asks(OTHER, PCPU=3))
    assert claimed.b.tracker.deliver() == 0
    claimed.b.see()
    assert claimed.b.tracker.deliver() == 1
    claimed.settle()
    assert claimed.placed_all() == {INSTANCE: {**ON_A, **DISK}}
    claimed.check_settled()


def test_the_source_comes_back_with_the_guest(claimed: World) -> None:
    """Scenario 77: evacuated while S was down; the guest must go first, then S is free."""
    claimed.a.see(INSTANCE)
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.EVACUATE, MIGRATION)
    claimed.b.tracker.confirm_move(MIGRATION)
    claimed.a.restart()
    claimed.a.come_back()
    kept = claimed.a.tracker.claim_of(INSTANCE)
    assert kept is not None
    with pytest.raises(DoesNotFit):
        claimed.a.tracker.claim(asks(OTHER, PCPU=3))
    claimed.a.see()
    claimed.settle()
    assert claimed.a.tracker.claims() == {}
    assert claimed.placed_all() == {INSTANCE: {**ON_B, **DISK}}
    claimed.a.tracker.claim(asks(OTHER, PCPU=4))
    claimed.check_settled()


def test_the_source_comes_back_before_the_evacuation_is_complete(claimed: World) -> None:
    """Scenarios 74, 77: it finds that its part is the migration's; then that the guest must go."""
    claimed.a.see(INSTANCE)
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.EVACUATE, MIGRATION)
    claimed.a.restart()
    claimed.a.come_back()
    assert claimed.a.moving() is MoveState.BEGUN
    # The source may complete it, and does so once its guest is gone.
    assert claimed.a.tracker.confirm_move(MIGRATION).state is MoveState.CONFIRMING
    assert claimed.placed(MIGRATION) == ON_A
    claimed.a.see()
    claimed.settle()
    assert [each.moving() for each in claimed.agents] == [MoveState.CONFIRMED, MoveState.CONFIRMED]
    assert claimed.placed_all() == {INSTANCE: {**ON_B, **DISK}}
    claimed.check_settled()


def test_confirmed_while_the_guest_is_still_on_the_source(claimed: World) -> None:
    claimed.a.see(INSTANCE)
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.EVACUATE, MIGRATION)
    claimed.settle()
    claimed.b.tracker.confirm_move(MIGRATION)
    claimed.settle()
    assert claimed.a.moving() is MoveState.LEAVING
    with pytest.raises(DoesNotFit):
        claimed.a.tracker.claim(asks(OTHER, PCPU=3))
    claimed.a.see()
    claimed.settle()
    assert claimed.a.moving() is MoveState.CONFIRMED
    claimed.check_settled()


def test_a_failed_evacuation_keeps_the_guest(claimed: World) -> None:
    """Scenario 76: the rebuild on D fails: D free, S kept."""
    before = claimed.a.tracker.claim_of(INSTANCE)
    claimed.a.see(INSTANCE)
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.EVACUATE, MIGRATION)
    claimed.b.tracker.revert_move(MIGRATION)
    claimed.a.restart()
    claimed.a.come_back()
    claimed.settle()
    assert claimed.a.tracker.claim_of(INSTANCE) == before
    assert claimed.placed_all() == {INSTANCE: {**ON_A, **DISK}}
    claimed.check_settled()


def test_the_source_returns_after_the_instance_was_deleted(claimed: World) -> None:
    """Scenario 79: it starts, and nothing is held."""
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.EVACUATE, MIGRATION)
    claimed.b.tracker.confirm_move(MIGRATION)
    claimed.b.tracker.release(INSTANCE)
    claimed.a.restart()
    claimed.a.come_back()
    assert claimed.placed_all() == {}


def test_a_source_that_never_returns_blocks_nothing(claimed: World) -> None:
    """Scenario 80: its tree can be deleted once the evacuation was confirmed."""
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.EVACUATE, MIGRATION)
    claimed.b.tracker.confirm_move(MIGRATION)
    for name in ("a-nic", "a"):
        assert claimed.raw.delete_provider(uuid_of(name))


def test_the_source_is_down_at_confirm(claimed: World) -> None:
    """Scenario 55: it learns at its next start."""
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    claimed.b.tracker.confirm_move(MIGRATION)
    claimed.a.restart()
    claimed.a.come_back()
    assert claimed.a.tracker.claims() == {}
    claimed.check_settled()


@pytest.mark.parametrize("looked", [True, False], ids=["the destination looked", "it did not look"])
@pytest.mark.parametrize("end", ["confirm", "revert"])
def test_a_reshape_of_the_source_is_in_the_way_of_no_end(claimed: World, end: str, looked: bool) -> None:
    """A revert at the destination gives the instance the place that the reshape gave the migration."""
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    claimed.reshape_card(MIGRATION)
    assert claimed.placed(MIGRATION) == RESHAPED
    if looked:
        claimed.b.look()
        move = claimed.b.move()
        assert move is not None and move.handed == {uuid_of(name): each for name, each in RESHAPED.items()}
    getattr(claimed.b.tracker, f"{end}_move")(MIGRATION)
    assert claimed.placed(INSTANCE) == {**(ON_B if end == "confirm" else RESHAPED), **DISK}
    assert claimed.placed(MIGRATION) == {}


def test_an_end_by_another_client_after_a_reshape_of_the_source_is_understood(claimed: World) -> None:
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    claimed.reshape_card(MIGRATION)
    claimed.schedule(MIGRATION, "MIGRATION")
    claimed.schedule(INSTANCE, **RESHAPED, **DISK)
    claimed.b.look()
    assert claimed.b.moving() is MoveState.REVERTED
    assert claimed.b.tracker.claims() == {}


def test_a_begin_in_doubt_whose_source_was_reshaped_is_undone(claimed: World) -> None:
    with claimed.b.tap.gone_from("POST"), suppress(PlacementUnavailable):
        claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    assert claimed.b.moving() is MoveState.BEGINNING
    claimed.reshape_card(MIGRATION)
    claimed.b.tracker.deliver()
    assert claimed.placed(INSTANCE) == {**RESHAPED, **DISK}
    assert claimed.placed(MIGRATION) == {}
    assert claimed.b.tracker.claims() == {}
