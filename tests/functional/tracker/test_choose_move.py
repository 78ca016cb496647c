"""What a begin makes of allocations that other clients wrote: adopted, or brought into the owned form."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.moves import DISK, INSTANCE, MIGRATION, ON_A, ON_B, OTHER_MIGRATION, SMALL, World, asks
from kits.placements import Placement

from agent.errors import (
    ClaimConflict,
)
from agent.moves.states import MoveKind, MoveState


@pytest.fixture
def world(placement: Placement, tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, placement) as world:
        yield world


def test_a_move_that_a_control_plane_began_is_adopted(claimed: World) -> None:
    """As nova's conductor and scheduler write it: checked for coverage, and not written twice."""
    claimed.schedule(INSTANCE, **ON_B, **DISK)
    claimed.schedule(MIGRATION, "MIGRATION", **ON_A)
    calls = claimed.b.tap.calls
    calls.clear()
    move = claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION).move
    assert move.adopted and not [call for call in calls if not call.startswith("GET")]
    claimed.settle()
    claimed.check_settled()
    claimed.b.tracker.revert_move(MIGRATION)
    claimed.settle()
    assert claimed.placed_all() == {INSTANCE: {**ON_A, **DISK}}
    claimed.check_settled()


@pytest.mark.first_variant
@pytest.mark.parametrize("disk", [200, 400], ids=["disk once", "disk summed up"])
@pytest.mark.parametrize("end", ["confirm", "revert"])
def test_a_doubled_allocation_becomes_the_owned_form(claimed: World, end: str, disk: int) -> None:
    """Scenario 74 as nova does it today, and Pike's sum over both hosts."""
    claimed.schedule(INSTANCE, **ON_A, **ON_B, pool={"DISK_GB": disk})
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.EVACUATE, MIGRATION)
    assert claimed.placed(INSTANCE) == {**ON_B, **DISK}
    assert claimed.placed(MIGRATION) == ON_A
    claimed.settle()
    claimed.check_settled()
    getattr(claimed.b.tracker, f"{end}_move")(MIGRATION)
    claimed.settle()
    assert claimed.placed_all() == {INSTANCE: {**(ON_B if end == "confirm" else ON_A), **DISK}}
    claimed.check_settled()


def test_a_release_at_a_source_that_has_not_noticed_frees_nothing(claimed: World) -> None:
    """What the instance had here is the migration's: the move may still be reverted."""
    before = claimed.a.tracker.claim_of(INSTANCE)
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    with pytest.raises(ClaimConflict, match="moving"):
        claimed.a.tracker.release(INSTANCE)
    assert claimed.a.moving() is MoveState.BEGUN
    claimed.b.tracker.revert_move(MIGRATION)
    claimed.settle()
    assert claimed.a.tracker.claim_of(INSTANCE) == before
    claimed.check_settled()
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, OTHER_MIGRATION)
    claimed.b.tracker.confirm_move(OTHER_MIGRATION)
    assert claimed.a.tracker.release(INSTANCE)
    assert claimed.placed_all() == {INSTANCE: {**ON_B, **DISK}}
