"""Moves between two agents on one placement: each kind, its begin, its success, its failure, its way back."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import pytest
from kits.moves import DISK, INSTANCE, MIGRATION, ON_A, ON_B, OTHER, OTHER_MIGRATION, SMALL, World, asks
from kits.tracker import provider, uuid_of
from kits.wire import Sent

from agent.claims.request import RequestGroup, TopologyRequest
from agent.device_names import mdev_type_trait
from agent.driver import Guest, GuestState, UsedUnit
from agent.errors import (
    ClaimConflict,
    ClaimsClosed,
    DoesNotFit,
    PlacementError,
    PlacementUnavailable,
    Refused,
    UnknownConsumer,
    UsageError,
)
from agent.moves.states import Move, MoveKind, MoveRole, MoveState
from agent.placement.transport import Reply
from agent.tracker.follow_guest import extend_claim
from agent.tracker.guarded_write import STALLED_S

ACROSS = (MoveKind.COLD_MIGRATE, MoveKind.RESIZE, MoveKind.LIVE_MIGRATE, MoveKind.EVACUATE)


@pytest.mark.parametrize("kind", ACROSS)
def test_each_holds_its_own_and_the_shared_disk_is_held_once(claimed: World, kind: MoveKind) -> None:
    """Scenarios 43, 61, 74: M holds exactly what I held, the disk in the pool is charged once throughout."""
    before = claimed.raw.allocations_of(INSTANCE)
    calls = claimed.b.tap.calls
    calls.clear()
    move = claimed.b.tracker.begin_move(asks(**SMALL), kind, MIGRATION).move
    assert calls.count("POST /allocations") == 1
    assert (move.state, move.role, move.kind) == (MoveState.BEGUN, MoveRole.DESTINATION, kind)
    held = claimed.raw.allocations_of(MIGRATION)
    assert claimed.placed(MIGRATION) == ON_A
    assert claimed.placed(INSTANCE) == {**ON_B, **DISK}
    assert (held.project_id, held.user_id) == (before.project_id, before.user_id)
    assert held.consumer_type == "MIGRATION"
    claimed.a.refresh()
    claimed.a.tracker.follow_moves()
    source = claimed.a.move()
    claimed.settle()
    assert claimed.a.move() == source, "it is learnt once"
    assert source is not None and (source.role, source.instance) == (MoveRole.SOURCE, INSTANCE)
    claimed.check_settled()


def test_a_begin_without_an_answer_is_undone_later_where_the_look_at_it_is_refused(claimed: World) -> None:
    """A keystone that lost the agent's role in between refuses what is read."""
    placed, tap = claimed.placed_all(), claimed.b.tap

    def answer(sent: Sent) -> Reply | None:
        if sent.method == "POST":
            sent.to(tap.inner)
            tap.answer = lambda _: Reply(403)
            raise PlacementUnavailable("Its answer was lost.")
        return None

    tap.answer = answer
    with pytest.raises(PlacementError):
        claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    assert claimed.b.moving() is MoveState.BEGINNING and claimed.placed_all() != placed
    tap.answer = None
    claimed.settle()
    assert claimed.placed_all() == placed and claimed.b.tracker.claims() == {}


def test_a_revert_waits_for_the_begin_that_is_under_way(claimed: World) -> None:
    """A caller that gave up undoes what it began; the move was not known yet, and stayed."""
    tracker, begun, ended = claimed.b.tracker, list[Move](), list[Move]()

    def revert() -> None:
        ended.append(tracker.revert_move(MIGRATION))

    undo = threading.Thread(target=revert)

    def before(_: str) -> None:
        if undo.ident is None:
            undo.start()
            undo.join(0.3)
            assert undo.is_alive()

    claimed.b.tap.before = before
    begun.append(tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION).move)
    undo.join(10)
    assert [move.state for move in (*begun, *ended)] == [MoveState.BEGUN, MoveState.REVERTED]
    assert claimed.placed(INSTANCE) == {**ON_A, **DISK} and claimed.placed(MIGRATION) == {}


def test_a_begin_that_is_repeated_with_a_name_is_the_same_move_and_gets_it(claimed: World) -> None:
    move = claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION).move
    assert move.new is not None
    nameless = replace(asks(**SMALL), name="")
    for name in dict.fromkeys((move.new.request.name, "")):
        again = claimed.b.tracker.begin_move(replace(nameless, name=name), MoveKind.COLD_MIGRATE, MIGRATION)
        assert again.move == move
    claimed.b.tracker.revert_move(MIGRATION)
    claimed.b.tracker.begin_move(nameless, MoveKind.COLD_MIGRATE, MIGRATION)
    named = claimed.b.tracker.begin_move(
        replace(nameless, name="web1"), MoveKind.COLD_MIGRATE, MIGRATION
    ).move
    assert named.new is not None and named.name == named.new.request.name == "web1"
    with pytest.raises(ClaimConflict, match="asks for something else"):
        claimed.b.tracker.begin_move(replace(nameless, name="web2"), MoveKind.COLD_MIGRATE, MIGRATION)


@pytest.mark.parametrize("kind", ACROSS)
def test_confirm_frees_the_source(claimed: World, kind: MoveKind) -> None:
    """Scenario 44: M gone, S free, D kept, and the context on both sides closed."""
    with claimed.b.tracker.begin_move(asks(**SMALL), kind, MIGRATION):
        claimed.settle()
    calls = claimed.b.tap.calls
    calls.clear()
    move = claimed.b.tracker.confirm_move(MIGRATION)
    assert [call for call in calls if not call.startswith("GET")] == [f"PUT /allocations/{MIGRATION}"]
    assert move.state is MoveState.CONFIRMED
    claimed.settle()
    assert claimed.placed_all() == {INSTANCE: {**ON_B, **DISK}}
    assert claimed.a.tracker.claims() == {}
    assert claimed.a.moving() is MoveState.CONFIRMED
    claimed.check_settled()
    assert claimed.b.tracker.confirm_move(MIGRATION) == move


@pytest.mark.parametrize("noticed", [False, True], ids=["source unaware", "source aware"])
@pytest.mark.parametrize("kind", ACROSS)
def test_revert_gives_the_same_devices_back(claimed: World, kind: MoveKind, noticed: bool) -> None:
    """Scenarios 46, 65, 76: the destination is free, the source as it was, device by device."""
    before = claimed.a.tracker.claim_of(INSTANCE)
    claimed.b.tracker.begin_move(asks(**SMALL), kind, MIGRATION)
    if noticed:
        claimed.settle()
        with pytest.raises(DoesNotFit):  # the devices are still taken, by the migration
            claimed.a.tracker.claim(asks(OTHER, PCPU=3))
    calls = claimed.b.tap.calls
    calls.clear()
    move = claimed.b.tracker.revert_move(MIGRATION)
    assert [call for call in calls if not call.startswith("GET")] == ["POST /allocations"]
    assert move.state is MoveState.REVERTED
    claimed.settle()
    assert claimed.placed_all() == {INSTANCE: {**ON_A, **DISK}}
    assert claimed.a.tracker.claim_of(INSTANCE) == before
    assert claimed.b.tracker.claims() == {}
    claimed.check_settled()
    assert claimed.b.tracker.revert_move(MIGRATION) == move


def test_a_block_that_raises_reverts(claimed: World) -> None:
    """Scenarios 47, 49, 50, 70: whatever fails on the way, I is back on S and nothing on D is leaked."""
    before = claimed.state()
    with (
        pytest.raises(RuntimeError),
        claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION),
    ):
        raise RuntimeError("the copy failed")
    claimed.settle()
    assert claimed.placed_all() == {INSTANCE: {**ON_A, **DISK}}
    assert claimed.b.moving() is MoveState.REVERTED
    claimed.check_settled()
    # Scenario 47: the next try may use the same uuid.
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    claimed.settle()
    assert claimed.placed(MIGRATION) == ON_A
    assert before != claimed.state()
    claimed.check_settled()


def test_what_does_not_fit_changes_nothing(claimed: World) -> None:
    """Scenario 64: as before."""
    claimed.b.tracker.claim(asks(OTHER, PCPU=3))
    before = claimed.state()
    with pytest.raises(DoesNotFit, match="PCPU"):
        claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.LIVE_MIGRATE, MIGRATION)
    assert claimed.state() == before


def test_placement_refuses_what_only_it_knows(claimed: World) -> None:
    """Somebody took it past us: fresh numbers, a refusal with them, and nothing has changed."""
    claimed.schedule(OTHER, **{"b": {"PCPU": 3}})
    placed = claimed.placed_all()
    with pytest.raises(DoesNotFit, match="PCPU"):
        claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.LIVE_MIGRATE, MIGRATION)
    assert claimed.placed_all() == placed
    assert claimed.b.tracker.claims() == {}
    claimed.settle()
    assert claimed.a.tracker.claim_of(INSTANCE) is not None


def test_the_same_again_is_the_same(claimed: World) -> None:
    first = claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.RESIZE, MIGRATION).move
    before = claimed.state()
    assert claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.RESIZE, MIGRATION).move == first
    with pytest.raises(ClaimConflict):
        claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.RESIZE, OTHER_MIGRATION)
    with pytest.raises(ClaimConflict):
        claimed.b.tracker.begin_move(asks(VCPU=1), MoveKind.RESIZE, MIGRATION)
    assert claimed.state() == before
    claimed.b.tracker.confirm_move(MIGRATION)
    with pytest.raises(ClaimConflict, match="confirmed"):
        claimed.b.tracker.revert_move(MIGRATION)
    with pytest.raises(ClaimConflict, match="confirmed"):
        claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.RESIZE, MIGRATION)


def test_bad_input_changes_nothing(claimed: World) -> None:
    before = claimed.state()
    tracker = claimed.b.tracker
    with pytest.raises(UsageError):
        tracker.begin_move(asks(**SMALL), MoveKind.RESIZE, INSTANCE)
    with pytest.raises(UsageError):
        tracker.begin_move(asks(**SMALL), MoveKind.UNKNOWN, MIGRATION)
    with pytest.raises(UnknownConsumer):
        tracker.begin_move(asks(OTHER, **SMALL), MoveKind.RESIZE, MIGRATION)
    with pytest.raises(ClaimConflict):
        tracker.begin_move(asks(**SMALL), MoveKind.SAME_HOST_RESIZE, MIGRATION)
    with pytest.raises(UnknownConsumer):
        tracker.begin_move(asks(**SMALL), MoveKind.REBUILD, MIGRATION)
    for ask in (tracker.confirm_move, tracker.revert_move):
        with pytest.raises(UnknownConsumer):
            ask(MIGRATION)
    with pytest.raises(ClaimConflict):
        claimed.a.tracker.begin_move(asks(**SMALL), MoveKind.LIVE_MIGRATE, MIGRATION)
    with pytest.raises(ClaimConflict, match=f"{INSTANCE} is an instance with a claim, not a migration"):
        claimed.a.tracker.begin_move(asks(OTHER, VCPU=1), MoveKind.RESIZE, INSTANCE)
    with pytest.raises(UsageError, match="mem_page_size large does not name one"):
        any_pages = replace(asks(VCPU=2, MEMORY_MB=1024), topology=TopologyRequest(mem_page_size="large"))
        tracker.begin_move(any_pages, MoveKind.LIVE_MIGRATE, MIGRATION)
    claimed.b.tracker.admission.close("the test says so")
    with pytest.raises(ClaimsClosed):
        tracker.begin_move(asks(**SMALL), MoveKind.RESIZE, MIGRATION)
    assert claimed.state() == before


def test_a_resize_that_grows_the_disk_holds_both_amounts(claimed: World) -> None:
    bigger = asks(**{**SMALL, "DISK_GB": 300, "VCPU": 4})
    claimed.b.tracker.begin_move(bigger, MoveKind.RESIZE, MIGRATION)
    assert claimed.placed(MIGRATION) == {**ON_A, **DISK}
    assert claimed.placed(INSTANCE)["pool"] == {"DISK_GB": 300}
    claimed.settle()
    claimed.check_settled()
    claimed.b.tracker.revert_move(MIGRATION)
    claimed.settle()
    assert claimed.placed_all() == {INSTANCE: {**ON_A, **DISK}}
    claimed.check_settled()


def test_the_disk_stays_where_its_data_is(world: World) -> None:
    """It would fit on the destination itself, too; but it lies in the pool."""
    world.schedule(INSTANCE, a={"VCPU": 1}, pool={"DISK_GB": 10})
    world.b.tracker.begin_move(asks(VCPU=1, DISK_GB=10), MoveKind.COLD_MIGRATE, MIGRATION)
    assert world.placed(INSTANCE) == {"b": {"VCPU": 1}, "pool": {"DISK_GB": 10}}
    assert world.placed(MIGRATION) == {"a": {"VCPU": 1}}


# Same host


def test_same_host_resize_has_two_owners(world: World) -> None:
    """Scenario 46: 10 and 12 of a max_unit of 16 are two consumers, not one of 22."""
    world.a.tracker.claim(asks(VCPU=10, PCPU=1))
    old = world.a.tracker.claim_of(INSTANCE)
    move = world.a.tracker.begin_move(asks(VCPU=12, PCPU=2), MoveKind.RESIZE, MIGRATION).move
    assert (move.kind, move.role) == (MoveKind.SAME_HOST_RESIZE, MoveRole.BOTH)
    assert world.placed(MIGRATION) == {"a": {"VCPU": 10, "PCPU": 1}}
    assert world.placed(INSTANCE) == {"a": {"VCPU": 12, "PCPU": 2}}
    world.settle()
    world.check_settled()
    assert world.a.tracker.revert_move(MIGRATION).state is MoveState.REVERTED
    assert world.a.tracker.claim_of(INSTANCE) == old
    assert world.placed_all() == {INSTANCE: {"a": {"VCPU": 10, "PCPU": 1}}}
    world.a.tracker.begin_move(asks(VCPU=12, PCPU=2), MoveKind.RESIZE, MIGRATION)
    new = world.a.tracker.claim_of(INSTANCE)
    world.a.tracker.confirm_move(MIGRATION)
    assert world.placed_all() == {INSTANCE: {"a": {"VCPU": 12, "PCPU": 2}}}
    assert world.a.tracker.claim_of(INSTANCE) == new
    world.settle()
    world.check_settled()


def test_a_release_that_a_revert_overtakes_does_not_say_that_there_is_no_claim(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client takes 404 for "it is gone already", and would leave the claim behind."""
    tracker = world.a.tracker
    tracker.claim(asks(VCPU=10))
    tracker.begin_move(asks(VCPU=12), MoveKind.RESIZE, MIGRATION)
    move_of = tracker._register.move_of

    def move_of_then_revert(consumer: str) -> Move | None:
        monkeypatch.undo()
        move = move_of(consumer)
        tracker.revert_move(MIGRATION)
        return move

    monkeypatch.setattr(tracker._register, "move_of", move_of_then_revert)
    with pytest.raises(ClaimConflict, match="has just been reverted: try again") as refused:
        tracker.release(INSTANCE)
    assert refused.value.http_status == 409
    assert tracker.claim_of(INSTANCE) is not None
    assert tracker.release(INSTANCE) and world.placed_all() == {}


def test_a_release_that_a_begin_overtakes_says_that_the_instance_is_moving(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = world.a.tracker
    tracker.claim(asks(VCPU=10))
    move_of = tracker._register.move_of

    def move_of_then_begin(consumer: str) -> Move | None:
        monkeypatch.undo()
        move = move_of(consumer)
        tracker.begin_move(asks(VCPU=12), MoveKind.RESIZE, MIGRATION)
        return move

    monkeypatch.setattr(tracker._register, "move_of", move_of_then_begin)
    with pytest.raises(ClaimConflict, match="is moving"):
        tracker.release(INSTANCE)
    assert world.a.moving() is MoveState.BEGUN
    assert world.placed_all() == {INSTANCE: {"a": {"VCPU": 12}}, MIGRATION: {"a": {"VCPU": 10}}}


def test_a_claim_for_what_a_move_in_doubt_asks_for_says_that_the_instance_is_moving(world: World) -> None:
    world.a.tracker.claim(asks(VCPU=10))
    with world.away(world.a, only="POST"), suppress(PlacementUnavailable):
        world.a.tracker.begin_move(asks(VCPU=12), MoveKind.RESIZE, MIGRATION)
    assert world.a.moving() is MoveState.BEGINNING
    with pytest.raises(ClaimConflict, match="is moving"):
        world.a.tracker.claim(asks(VCPU=12))
    assert world.a.moving() is MoveState.BEGINNING
    world.settle()
    assert world.placed_all() == {INSTANCE: {"a": {"VCPU": 10}}}


def test_a_begin_whose_intent_waited_for_the_disk_reads_the_instance_again(claimed: World) -> None:
    """Meanwhile another client may have written it, with the generation that was read before."""
    tap, journal = claimed.b.tap, claimed.b.journal

    def waits(event: str) -> None:
        if event == "move_begin":
            journal.after = lambda _: None
            claimed.b.later_s += STALLED_S + 1

    journal.after = waits
    tap.calls.clear()
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    assert tap.calls[: tap.calls.index("POST /allocations")].count(f"GET /allocations/{INSTANCE}") == 2
    assert tap.calls.count("POST /allocations") == 1
    claimed.settle()
    claimed.check_settled()


def test_a_claim_in_a_move_is_neither_named_nor_replaced(world: World) -> None:
    nameless = replace(asks(VCPU=10), name=""), replace(asks(VCPU=12), name="")
    world.a.tracker.claim(nameless[0])
    world.a.tracker.begin_move(nameless[1], MoveKind.RESIZE, MIGRATION)
    before = world.state()
    new = world.a.tracker.claim_of(INSTANCE)
    assert world.a.tracker.claim(nameless[1]).claim == new
    for other in (replace(nameless[1], name="web1"), nameless[0], asks(VCPU=1)):
        with pytest.raises(ClaimConflict, match="is moving"):
            world.a.tracker.claim(other)
    assert new is not None
    with pytest.raises(ClaimConflict, match="has no claim, or is moving"):
        extend_claim(world.a.tracker._context, asks(VCPU=13))
    assert world.state() == before


def test_same_host_resize_takes_other_devices(claimed: World) -> None:
    old = claimed.a.tracker.claim_of(INSTANCE)
    claimed.a.see(INSTANCE)
    claimed.a.tracker.begin_move(asks(**{**SMALL, "VCPU": 3}), MoveKind.RESIZE, MIGRATION)
    new, kept = claimed.a.tracker.claim_of(INSTANCE), claimed.a.tracker.claim_of(MIGRATION)
    assert old is not None and new is not None and kept is not None
    assert kept.units == old.units
    for uuid, classes in new.units.items():
        for name, units in classes.items():
            assert not set(units) & set(old.units[uuid][name])
    assert claimed.placed(INSTANCE)["pool"] == {"DISK_GB": 200}
    assert "pool" not in claimed.placed(MIGRATION)
    claimed.check_settled()


def test_same_host_resize_that_does_not_fit_twice(claimed: World) -> None:
    before = claimed.state()
    with pytest.raises(DoesNotFit):
        claimed.a.tracker.begin_move(asks(**{**SMALL, "PCPU": 3}), MoveKind.RESIZE, MIGRATION)
    assert claimed.state() == before


# Rebuild


def test_rebuild_charges_nothing_twice(claimed: World) -> None:
    """Scenario 82: no second charge."""
    before = claimed.placed_all()
    calls = claimed.a.tap.calls
    calls.clear()
    shiny = replace(asks(**SMALL), name="rebuilt")
    move = claimed.a.tracker.begin_move(shiny, MoveKind.REBUILD, MIGRATION).move
    assert move.state is MoveState.BEGUN
    assert claimed.a.tracker.confirm_move(MIGRATION).state is MoveState.CONFIRMED
    claim = claimed.a.tracker.claim_of(INSTANCE)
    assert claim is not None and claim.request == shiny
    assert calls == [f"GET /allocations/{INSTANCE}"]
    assert claimed.placed_all() == before
    claimed.check_settled()


def test_rebuild_with_traits_that_the_host_lacks_is_refused(claimed: World) -> None:
    """Scenario 82: a trait of the new image refused, unchanged."""
    before = claimed.state()
    required = RequestGroup("", SMALL, (frozenset({"HW_CPU_X86_AVX2"}),))
    with pytest.raises(DoesNotFit, match="HW_CPU_X86_AVX2"):
        claimed.a.tracker.begin_move(replace(asks(**SMALL), groups=(required,)), MoveKind.REBUILD, MIGRATION)
    with pytest.raises(ClaimConflict, match="resize"):
        claimed.a.tracker.begin_move(asks(**{**SMALL, "VCPU": 3}), MoveKind.REBUILD, MIGRATION)
    assert claimed.state() == before


def test_a_rebuild_that_fails_is_reverted(claimed: World) -> None:
    before = claimed.a.tracker.claim_of(INSTANCE)
    shiny = replace(asks(**SMALL), name="rebuilt")
    with pytest.raises(RuntimeError), claimed.a.tracker.begin_move(shiny, MoveKind.REBUILD, MIGRATION):
        raise RuntimeError("no such image")
    assert claimed.a.tracker.claim_of(INSTANCE) == before
    claimed.check_settled()


# Placement away


@pytest.mark.parametrize("end", ["confirm", "revert"])
def test_an_end_is_journaled_while_placement_is_away(claimed: World, end: str) -> None:
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    with claimed.away():
        with pytest.raises(PlacementUnavailable):
            claimed.b.tracker.follow_moves()
        move = getattr(claimed.b.tracker, f"{end}_move")(MIGRATION)
        assert not move.ended
        other = {"confirm": "revert", "revert": "confirm"}[end]
        with pytest.raises(ClaimConflict, match=f"{MIGRATION} of .* is {end}ing already"):
            getattr(claimed.b.tracker, f"{other}_move")(MIGRATION)
        assert getattr(claimed.b.tracker, f"{end}_move")(MIGRATION) == move, "it is asked for already"
        assert claimed.b.tracker.deliver() == 0
    assert claimed.b.tracker.deliver() == 1
    claimed.settle()
    assert claimed.placed_all() == {INSTANCE: {**(ON_B if end == "confirm" else ON_A), **DISK}}
    claimed.check_settled()


@pytest.mark.parametrize("at_source", [True, False])
def test_what_a_guest_uses_here_after_its_move_is_not_released_before_it_is_removed(
    claimed: World, *, at_source: bool
) -> None:
    """The destination confirmed, or the source reverted, while the other host's guest was still there."""
    here = claimed.a if at_source else claimed.b
    end = claimed.b.tracker.confirm_move if at_source else claimed.a.tracker.revert_move
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    here.see(INSTANCE)
    claimed.settle()
    end(MIGRATION)
    claimed.settle()
    assert here.moving() is MoveState.LEAVING
    with pytest.raises(ClaimConflict, match=f"igration {MIGRATION}.* remove the guest"):
        here.tracker.release(INSTANCE)
    with pytest.raises(ClaimConflict, match=f"migration {MIGRATION}, .* remove the guest first"):
        here.tracker.release(MIGRATION)
    for ask in (here.tracker.confirm_move, here.tracker.revert_move):
        with pytest.raises(ClaimConflict, match="is leaving already"):
            ask(MIGRATION)
    assert here.moving() is MoveState.LEAVING
    here.see()
    claimed.settle()
    assert here.moving() is (MoveState.CONFIRMED if at_source else MoveState.REVERTED)
    claimed.check_settled()


def test_a_begin_is_refused_while_placement_is_away(claimed: World) -> None:
    before = claimed.state()
    with claimed.away(), pytest.raises(PlacementUnavailable):
        claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    assert claimed.state() == before


@pytest.mark.parametrize("after", [False, True], ids=["request lost", "answer lost"])
def test_a_lost_begin_is_found_out_about(claimed: World, after: bool) -> None:
    with claimed.away(claimed.b, only="POST", after=after):
        if after:
            claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
        else:
            with pytest.raises(PlacementUnavailable, match="placement is away"):
                claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    assert (claimed.placed(MIGRATION) == ON_A) is after
    # That Placement does not hold the move proves nothing while the request may still be on its way.
    assert claimed.b.moving() is (MoveState.BEGUN if after else MoveState.BEGINNING)
    claimed.settle()
    assert claimed.b.moving() is (MoveState.BEGUN if after else MoveState.REVERTED)
    claimed.check_settled()


@pytest.mark.parametrize("then", ["begin", "revert", "confirm", "nothing, as the guest came in"])
def test_a_lost_begin_is_found_out_about_before_anything_else(claimed: World, then: str) -> None:
    with claimed.away(claimed.b, only="POST"), pytest.raises(PlacementUnavailable):
        claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    if then == "begin":
        move = claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION).move
        assert move.state is MoveState.BEGUN and claimed.placed(MIGRATION) == ON_A
    elif then == "confirm":
        with pytest.raises(ClaimConflict, match="was reverted already"):
            claimed.b.tracker.confirm_move(MIGRATION)
    else:
        stays = then != "revert"
        state = claimed.b.tracker.revert_move(MIGRATION, unless=lambda: stays).state
        assert state is (MoveState.BEGINNING if stays else MoveState.REVERTED)
    claimed.settle()
    claimed.check_settled()


@pytest.mark.parametrize("looked", [False, True], ids=["done before the look", "done after it"])
@pytest.mark.parametrize("same_host", [False, True], ids=["from elsewhere", "on the host"])
def test_a_begin_that_was_not_answered_in_time_moves_nothing_when_it_is_done(
    claimed: World, *, looked: bool, same_host: bool
) -> None:
    """It waited in front of a placement that was slow, and came in after the read that was to decide."""
    agent = claimed.a if same_host else claimed.b
    kind = MoveKind.SAME_HOST_RESIZE if same_host else MoveKind.COLD_MIGRATE
    asked = asks(**{**SMALL, "VCPU": 1} if same_host else SMALL)
    before, waiting = claimed.placed_all(), list[Sent]()

    def gives_up(sent: Sent) -> None:
        if sent.method == "POST" and not waiting:
            waiting.append(sent)
            raise PlacementUnavailable("Placement did not answer in time.", busy=True)

    agent.tap.answer = gives_up
    with pytest.raises(PlacementUnavailable, match="both places stay reserved") as caught:
        agent.tracker.begin_move(asked, kind, MIGRATION)
    assert caught.value.details["busy"]
    assert (agent.moving(), agent.tracker.pending) == (MoveState.BEGINNING, 1)
    if looked:
        assert agent.tracker.deliver() == 1
    assert waiting[0].to(agent.tap.inner).status == (409 if looked else 204)
    agent.tracker.deliver()
    claimed.settle()
    assert (claimed.placed_all(), agent.moving()) == (before, MoveState.REVERTED)
    claimed.check_settled()
    assert agent.tracker.begin_move(asked, kind, MIGRATION).move.state is MoveState.BEGUN


@pytest.mark.parametrize(
    ("deleted", "guest_is_here", "state", "placed"),
    [
        ((), False, MoveState.REVERTED, {INSTANCE: {**ON_A, **DISK}}),
        ((), True, MoveState.BEGUN, {INSTANCE: {**ON_B, **DISK}, MIGRATION: ON_A}),
        ((MIGRATION,), False, MoveState.CONFIRMED, {INSTANCE: {**ON_B, **DISK}}),
        ((INSTANCE,), False, MoveState.DELETED, {}),
        ((INSTANCE, MIGRATION), False, MoveState.DELETED, {}),
    ],
)
def test_a_begin_that_was_done_unknown_to_the_host_ends_as_placement_shows_it(
    claimed: World,
    deleted: tuple[str, ...],
    guest_is_here: bool,
    state: MoveState,
    placed: dict[str, dict[str, dict[str, int]]],
) -> None:
    waiting: list[Sent] = []

    def gives_up(sent: Sent) -> None:
        if sent.method == "POST" and not waiting:
            waiting.append(sent)
            raise PlacementUnavailable("Placement did not answer in time.", busy=True)

    claimed.b.tap.answer = gives_up
    with pytest.raises(PlacementUnavailable):
        claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    assert waiting[0].to(claimed.b.tap.inner).status == 204
    for consumer in deleted:
        claimed.raw.delete_allocations(consumer)
    claimed.b.see(*[INSTANCE] * guest_is_here)
    assert claimed.b.tracker.deliver() == 1
    assert (claimed.b.moving(), claimed.placed_all()) == (state, placed)
    claimed.settle()
    claimed.check()


def test_the_end_of_a_move_waits_for_the_first_inventory(claimed: World) -> None:
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    claimed.b.close()
    claimed.b._open()
    assert claimed.b.tracker.confirm_move(MIGRATION).state is MoveState.CONFIRMING
    claimed.b.refresh()
    assert claimed.b.tracker.deliver() == 1 and claimed.b.moving() is MoveState.CONFIRMED


@pytest.mark.parametrize("within", [False, True], ids=["two hosts", "one host"])
def test_a_revert_at_the_source_gives_a_deleted_instance_its_place_while_its_guest_runs(
    claimed: World, within: bool
) -> None:
    """To free it would let Placement give what the guest runs with to another client."""
    claimed.a.see(INSTANCE)
    before, claims = claimed.raw.allocations_of(INSTANCE), claimed.a.tracker.claims()
    host, kind = (claimed.a, MoveKind.RESIZE) if within else (claimed.b, MoveKind.COLD_MIGRATE)
    host.tracker.begin_move(asks(VCPU=1, MEMORY_MB=1024), kind, MIGRATION)
    claimed.a.look()
    claimed.raw.delete_allocations(INSTANCE)
    assert claimed.a.tracker.revert_move(MIGRATION).state is MoveState.REVERTED
    assert replace(claimed.raw.allocations_of(INSTANCE), generation=before.generation) == before
    assert claimed.placed(MIGRATION) == {}
    claimed.settle()
    assert claimed.a.tracker.claims() == claims and not claimed.b.tracker.claims()


@pytest.mark.parametrize("reverts", [True, False])
def test_of_an_instance_that_was_deleted_the_destination_frees_what_the_migration_holds(
    claimed: World, reverts: bool
) -> None:
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    claimed.raw.delete_allocations(INSTANCE)
    if reverts:
        assert claimed.b.tracker.revert_move(MIGRATION).state is MoveState.DELETED
    else:
        claimed.b.tracker.follow_moves()
    assert claimed.placed_all() == {}
    claimed.settle()
    claimed.check()


def test_a_guest_whose_move_and_instance_another_client_deleted_keeps_its_claim(
    claimed: World, caplog: pytest.LogCaptureFixture
) -> None:
    before = claimed.a.tracker.claim_of(INSTANCE)
    claimed.a.see(INSTANCE)
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    claimed.settle()
    for consumer in (MIGRATION, INSTANCE):
        claimed.raw.delete_allocations(consumer)
    claimed.settle()
    assert claimed.a.tracker.claim_of(INSTANCE) == before and claimed.a.moving() is MoveState.REVERTED
    assert "deleted the instance, and its guest is still on this host" in caplog.text


@pytest.mark.parametrize("end", [MoveState.CONFIRMED, MoveState.REVERTED])
def test_a_move_that_waits_for_its_guest_learns_that_another_client_ended_it(
    claimed: World, end: MoveState
) -> None:
    """The destination waits to revert, and the source to confirm, until the guest has left."""
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    claimed.settle()
    here = claimed.b if end is MoveState.CONFIRMED else claimed.a
    here.see(INSTANCE)
    if end is MoveState.CONFIRMED:
        assert here.tracker.revert_move(MIGRATION).state is MoveState.REVERTING
    else:
        assert here.tracker.confirm_move(MIGRATION).state is MoveState.CONFIRMING
        claimed.schedule(INSTANCE, **ON_A, **DISK)
    claimed.raw.delete_allocations(MIGRATION)
    here.tracker.follow_moves()
    assert here.moving() is end and here.tracker.claim_of(INSTANCE) is not None


@pytest.mark.parametrize("end", [MoveState.CONFIRMED, MoveState.REVERTED])
def test_a_resize_on_its_host_that_another_client_ends_waits_for_no_guest(
    claimed: World, end: MoveState
) -> None:
    claimed.a.tracker.begin_move(asks(VCPU=1), MoveKind.RESIZE, MIGRATION)
    claimed.a.see(INSTANCE)
    claimed.raw.delete_allocations(MIGRATION)
    if end is MoveState.REVERTED:
        claimed.schedule(INSTANCE, **ON_A, **DISK)
    claimed.a.tracker.follow_moves()
    assert claimed.a.moving() is end
    claimed.a.see()
    claimed.check_settled()


# agent.tracker.begin_move: what a begin makes of allocations that other clients wrote


def test_a_move_that_a_control_plane_began_is_adopted(claimed: World) -> None:
    """As nova's conductor and scheduler write it: checked for coverage, and not written twice.

    The project and user that Placement has count, not those of the claim, which was made without any.
    """
    claimed.owner = ("demo", "ann")
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


@pytest.mark.parametrize(
    ("kind", "placed", "asked", "why"),
    [
        (
            MoveKind.RESIZE,
            {MIGRATION: {"a": {"VCPU": 1, "PCPU": 1}}},
            {"VCPU": 4},
            r"already holds an allocation in Placement \(provider .*: 1 PCPU, 1 VCPU\): give the move a uuid",
        ),
        (MoveKind.RESIZE, {INSTANCE: {"a": {"VCPU": 3}}}, {"VCPU": 4}, "Placement holds something else for"),
        (MoveKind.COLD_MIGRATE, {}, {"VCPU": 2}, "is on this host already: a cold_migrate begins on"),
        (MoveKind.REBUILD, {}, {"VCPU": 3}, "resize it instead"),
    ],
)
def test_a_claim_that_is_here_is_moved_only_as_placement_has_it(
    world: World,
    kind: MoveKind,
    placed: dict[str, dict[str, dict[str, int]]],
    asked: dict[str, int],
    why: str,
) -> None:
    world.a.tracker.claim(asks(VCPU=2))
    for consumer, allocations in placed.items():
        world.schedule(consumer, **allocations)
    before = world.state()
    with pytest.raises(ClaimConflict, match=why):
        world.a.tracker.begin_move(asks(**asked), kind, MIGRATION)
    assert world.state() == before


@pytest.mark.parametrize(
    ("placed", "asked", "why"),
    [
        (
            {INSTANCE: {"b": {"VCPU": 1}}},
            {"VCPU": 1},
            "without a claim, and none elsewhere: claim it instead",
        ),
        ({INSTANCE: {"pool": {"DISK_GB": 10}}}, {"DISK_GB": 10}, "would change no allocation of"),
        (
            {INSTANCE: {"a": {"VCPU": 1}}, MIGRATION: {"a": {"VCPU": 1}}},
            {"VCPU": 1},
            r"already holds an allocation in Placement \(provider .*: 1 VCPU\): give the move a uuid",
        ),
        ({INSTANCE: {"b": {"VCPU": 1}}, MIGRATION: {"a": {"VCPU": 1}}}, {"VCPU": 2}, "1 VCPU"),
    ],
)
def test_allocations_that_are_no_beginning_of_a_move_are_refused_and_left_as_they_are(
    world: World, placed: dict[str, dict[str, dict[str, int]]], asked: dict[str, int], why: str
) -> None:
    for consumer, allocations in placed.items():
        world.schedule(consumer, "MIGRATION" if consumer == MIGRATION else "INSTANCE", **allocations)
    before = world.state()
    with pytest.raises(ClaimConflict, match=why):
        world.b.tracker.begin_move(asks(**asked), MoveKind.COLD_MIGRATE, MIGRATION)
    assert world.state() == before


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


# agent.tracker.begin_move: a live migration takes a mediated device only to one of the same type


GPU = {"VCPU": 1, "VGPU": 1}


def with_cards(world: World, **types: str) -> None:
    """{card: type}; the card `a_1` is the first one of host a."""
    for name, type_id in types.items():
        trait = mdev_type_trait(type_id)
        world.raw.ensure_trait(trait)
        card = provider(name.replace("_", "-gpu"), name[0], traits=(trait,), VGPU=2)
        world.create(replace(card, inventories={"VGPU": card.inventories["VGPU"]}))
    for agent in world.agents:
        agent.refresh()
    world.a.tracker.claim(asks(**GPU))


def begun(world: World, kind: MoveKind) -> Mapping[str, object]:
    world.b.tracker.begin_move(asks(**GPU), kind, MIGRATION)
    return world.raw.allocations_of(INSTANCE).allocations


def test_a_destination_with_another_type_refuses_a_live_migration(world: World) -> None:
    with_cards(world, a_1="nvidia-11", b_1="nvidia-12")
    before = world.raw.allocations_of(INSTANCE)
    with pytest.raises(
        Refused, match=r"CUSTOM_MDEV_TYPE_NVIDIA_11 at the source.*CUSTOM_MDEV_TYPE_NVIDIA_12"
    ):
        begun(world, MoveKind.LIVE_MIGRATE)
    assert world.raw.allocations_of(INSTANCE) == before
    assert dict(world.b.tracker.claims()) == dict(world.b.tracker.moves()) == {}
    assert uuid_of("b-gpu1") in begun(world, MoveKind.COLD_MIGRATE)


def test_a_destination_with_both_types_takes_the_same_one(world: World) -> None:
    with_cards(world, a_1="nvidia-11", b_1="nvidia-12", b_2="nvidia-11")
    assert uuid_of("b-gpu2") in begun(world, MoveKind.LIVE_MIGRATE)


def test_a_destination_whose_cards_of_the_type_are_full_refuses(world: World) -> None:
    with_cards(world, a_1="nvidia-11", b_1="nvidia-12", b_2="nvidia-11")
    world.raw.write_allocations(
        replace(world.raw.allocations_of(MIGRATION), allocations={uuid_of("b-gpu2"): {"VGPU": 2}})
    )
    world.b.refresh()
    with pytest.raises((Refused, DoesNotFit)):
        world.b.tracker.begin_move(asks(**GPU), MoveKind.LIVE_MIGRATE, uuid_of("another migration"))
    world.raw.delete_allocations(MIGRATION)


def test_without_mediated_devices_nothing_more_is_read(world: World) -> None:
    world.a.tracker.claim(asks(VCPU=1))
    world.b.tracker.begin_move(asks(VCPU=1), MoveKind.LIVE_MIGRATE, MIGRATION)
    assert not [call for call in world.b.tap.calls if call.endswith("/traits")]


# agent.tracker.moves: deleted, edited or ended by other clients, and the guests that must leave first


RESHAPED = {"a": ON_A["a"], "a-new": ON_A["a-nic"]}
"""What the migration has at a after `World.reshape_card`."""


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


# What other clients and Placement do in the midst of a begin or an end


def test_a_claim_that_is_to_be_released_begins_no_resize(claimed: World) -> None:
    with claimed.away(claimed.a):
        assert claimed.a.tracker.release(INSTANCE) is False
    before = claimed.state()
    with pytest.raises(ClaimConflict, match="is releasing: try again after that"):
        claimed.a.tracker.begin_move(asks(**SMALL | {"VCPU": 3}), MoveKind.RESIZE, MIGRATION)
    assert claimed.state() == before


def test_a_move_that_a_control_plane_began_is_refused_where_guests_have_the_devices(claimed: World) -> None:
    """By Placement's numbers there is room, and both functions are in the hands of guests without a claim."""
    vfs = [UsedUnit("SRIOV_NET_VF", f"b:vf{number}", "b-nic") for number in range(2)]
    guests = [Guest(uuid_of(vf.unit), "guest", GuestState.RUNNING, {}, (vf,)) for vf in vfs]
    claimed.b.tracker.see_guests(guests)
    claimed.schedule(MIGRATION, "MIGRATION", **ON_A)
    claimed.schedule(INSTANCE, **ON_B, **DISK)
    claimed.b.refresh()
    before = claimed.state()
    with pytest.raises(DoesNotFit, match="SRIOV_NET_VF"):
        claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    assert claimed.state() == before


def test_a_revert_that_placement_refuses_by_a_rule_of_its_own_is_asked_for_again(claimed: World) -> None:
    """Only a place that is taken, or was edited, makes a revert impossible."""
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    body = {"errors": [{"status": 400, "detail": "It is the rule of this cloud."}]}
    claimed.b.tap.answer = lambda sent: Reply(400, body) if sent.method == "POST" else None
    with pytest.raises(PlacementError, match="the rule of this cloud"):
        claimed.b.tracker.revert_move(MIGRATION)
    assert claimed.b.moving() is MoveState.REVERTING
    claimed.b.tap.answer = None
    claimed.settle()
    assert claimed.b.moving() is MoveState.REVERTED
    assert claimed.placed_all() == {INSTANCE: {**ON_A, **DISK}}
    claimed.check_settled()


def test_a_resize_of_an_instance_that_left_says_that_its_migration_is_not_certain(world: World) -> None:
    for consumer, migration in ((INSTANCE, MIGRATION), (OTHER, OTHER_MIGRATION)):
        world.a.tracker.claim(asks(consumer, PCPU=2))
        world.b.tracker.begin_move(asks(consumer, PCPU=2), MoveKind.COLD_MIGRATE, migration)
        world.b.see()
    before = world.state()
    with pytest.raises(ClaimConflict, match="it is not certain which of"):
        world.a.tracker.begin_move(asks(PCPU=1), MoveKind.RESIZE, uuid_of("a third migration"))
    assert world.state() == before
