"""Steps of moves whose outcome is unknown: whenever Placement does them, each instance has one place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kits.late_writes import ANY_ANSWER, late_writes
from kits.placements import Placement
from kits.tracker import HOST, Kit, checked_kit, request, uuid_of

from agent.claims.claim import ClaimState
from agent.errors import PlacementUnavailable
from agent.moves.states import MoveKind, MoveState

DONE, CONFLICT = 204, 409
HOST_UUID = uuid_of("host")
MIGRATION = "c0ffee00-0000-4000-8000-0000000000c2"


@pytest.fixture
def kit(tmp_path: Path, placement: Placement) -> Iterator[Kit]:
    with checked_kit(tmp_path, placement) as kit:
        yield kit


def restarted(kit: Kit) -> None:
    kit.restart()
    kit.refresh()
    kit.tracker.open()


def moved(kit: Kit) -> MoveState:
    return kit.tracker.moves()[MIGRATION].state


@pytest.mark.first_variant
@ANY_ANSWER
@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
def test_a_begin_that_nobody_answered_is_never_executed_late(kit: Kit, answer: str, *, killed: bool) -> None:
    asked = request(VCPU=1)
    kit.tracker.claim(asked)
    before = kit.placed_all()
    with late_writes(kit, answer) as late, pytest.raises(PlacementUnavailable, match="not known yet"):
        kit.tracker.begin_move(request(asked.consumer, VCPU=2), MoveKind.RESIZE, MIGRATION)
    assert (moved(kit), kit.tracker.pending) == (MoveState.BEGINNING, 1)
    if killed:
        restarted(kit)
    kit.tap.calls.clear()
    assert kit.tracker.deliver() == 1
    assert len([call for call in kit.tap.calls if not call.startswith("GET")]) == 1, "one fence"
    assert (moved(kit), kit.tracker.pending) == (MoveState.REVERTED, 0)
    assert late.execute() == CONFLICT
    assert kit.placed_all() == before
    kit.check()
    move = kit.tracker.begin_move(request(asked.consumer, VCPU=2), MoveKind.RESIZE, MIGRATION).move
    assert move.state is MoveState.BEGUN


def test_a_begin_that_nobody_answered_ends_where_the_host_is_over_committed_meanwhile(kit: Kit) -> None:
    """Placement refuses to write again what the instance holds, so only a bar of the migration ends it."""
    asked = request(VCPU=2)
    kit.tracker.claim(asked)
    before = kit.placed_all()
    with late_writes(kit, "502") as late, pytest.raises(PlacementUnavailable, match="not known yet"):
        kit.tracker.begin_move(request(asked.consumer, VCPU=1), MoveKind.RESIZE, MIGRATION)
    root = kit.raw.find_provider(uuid=HOST_UUID)
    assert root is not None
    inventories = dict(HOST[0].inventories)
    inventories["VCPU"] = replace(inventories["VCPU"], max_unit=1)
    kit.raw.put_inventories(HOST_UUID, root.generation or 0, inventories)
    assert kit.tracker.deliver() == 1
    assert (moved(kit), kit.tracker.pending) == (MoveState.REVERTED, 0)
    assert late.execute() == CONFLICT
    assert kit.placed_all() == before
    kit.tracker.release(asked.consumer)
    assert kit.placed_all() == {}


@pytest.mark.first_variant
@pytest.mark.parametrize("step", ["confirm", "revert"])
@pytest.mark.parametrize("executed", [False, True], ids=["not done yet", "done"])
def test_the_end_of_a_move_that_nobody_answered_is_executed_once(
    kit: Kit, step: str, *, executed: bool
) -> None:
    asked, grown = request(VCPU=1), {"VCPU": 2}
    kit.tracker.claim(asked)
    kit.tracker.begin_move(request(asked.consumer, VCPU=2), MoveKind.RESIZE, MIGRATION)
    with late_writes(kit, "502") as late:
        getattr(kit.tracker, f"{step}_move")(MIGRATION)
    assert kit.tracker.pending == 1
    if executed:
        assert late.execute() == DONE
    assert kit.tracker.deliver() == 1
    assert (moved(kit).value, kit.tracker.pending) == (f"{step}ed", 0)
    if not executed:
        assert late.execute() == CONFLICT
    assert kit.placed_all() == {asked.consumer: {"host": grown if step == "confirm" else {"VCPU": 1}}}
    kit.check()


def test_a_late_confirm_takes_nothing_of_a_later_move_with_the_same_uuid(kit: Kit) -> None:
    """The migration is made anew, at the generation that the late write names."""
    asked = request(VCPU=1)
    kit.tracker.claim(asked)
    kit.tracker.begin_move(request(asked.consumer, VCPU=2), MoveKind.RESIZE, MIGRATION)
    with late_writes(kit, "timeout") as late:
        kit.tracker.revert_move(MIGRATION)
    kit.tracker.deliver()
    assert moved(kit) is MoveState.REVERTED
    kit.tracker.begin_move(request(asked.consumer, VCPU=2), MoveKind.RESIZE, MIGRATION)
    assert late.execute() == CONFLICT
    assert kit.placed(MIGRATION) == {"host": {"VCPU": 1}}
    assert kit.placed(asked.consumer) == {"host": {"VCPU": 2}}
    assert kit.tracker.claims()[asked.consumer].state is ClaimState.CLAIMED
