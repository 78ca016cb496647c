"""The source learns which migration took a claim over; of identical moves it frees nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from kits.move_operations import AT_A, AT_B, BETWEEN
from kits.moves import DISK, INSTANCE, MIGRATION, ON_A, ON_B, OTHER, OTHER_MIGRATION, SMALL, World, asks
from kits.placements import Placement
from kits.tracker import uuid_of

from agent.claims.claim import Claim, ClaimState
from agent.errors import (
    ClaimConflict,
    DoesNotFit,
    PlacementConflict,
    PlacementUnavailable,
    UnknownConsumer,
)
from agent.moves.states import MoveKind, MoveState
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.tracker.follow_moves import LeftPlaces
from agent.tracker.tracker import ResourceTracker


@pytest.fixture
def alike(world: World) -> World:
    """Two instances of one size are on a."""
    for consumer in (INSTANCE, OTHER):
        world.a.tracker.claim(asks(consumer, PCPU=2))
    return world


def test_two_identical_moves_are_not_mixed_up(alike: World) -> None:
    """Which migration is whose cannot be told: nothing is freed before it is certain."""
    before = alike.a.tracker.claims()
    alike.b.tracker.begin_move(asks(PCPU=2), MoveKind.COLD_MIGRATE, MIGRATION)
    alike.b.tracker.begin_move(asks(OTHER, PCPU=2), MoveKind.COLD_MIGRATE, OTHER_MIGRATION)
    alike.settle()
    assert alike.a.tracker.moves() == {}
    assert alike.a.tracker.claims() == before
    alike.b.tracker.confirm_move(MIGRATION)
    alike.settle()
    assert alike.a.tracker.claims() == before  # one of the two is free, but which?
    with pytest.raises(ClaimConflict):
        alike.a.tracker.confirm_move(MIGRATION, instance=INSTANCE)
    alike.b.tracker.revert_move(OTHER_MIGRATION)
    alike.settle()
    assert alike.a.tracker.claims() == {OTHER: before[OTHER]}
    alike.check_settled()


def test_a_hint_tells_identical_moves_apart(alike: World) -> None:
    before = alike.a.tracker.claims()
    alike.b.tracker.begin_move(asks(PCPU=2), MoveKind.COLD_MIGRATE, MIGRATION)
    alike.b.tracker.begin_move(asks(OTHER, PCPU=2), MoveKind.COLD_MIGRATE, OTHER_MIGRATION)
    alike.settle()
    assert alike.a.tracker.revert_move(MIGRATION, instance=INSTANCE).state is MoveState.REVERTED
    alike.settle()
    assert alike.a.tracker.claim_of(INSTANCE) == before[INSTANCE]
    alike.check_settled()


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("end", ["confirm", "revert"])
def test_no_move_ends_by_the_name_of_another_instance(alike: World, end: str, side: str) -> None:
    """A host that knows the migration as that of another instance changes nothing."""
    alike.b.tracker.begin_move(asks(PCPU=2), MoveKind.COLD_MIGRATE, MIGRATION)
    alike.settle()
    before = alike.state()
    ends = getattr(getattr(alike, side).tracker, f"{end}_move")
    with pytest.raises(ClaimConflict, match=f"{MIGRATION} is that of .*{INSTANCE}.*, not of {OTHER}"):
        ends(MIGRATION, instance=OTHER)
    assert alike.state() == before
    assert ends(MIGRATION, instance=INSTANCE).ended
    with pytest.raises(ClaimConflict, match=f"not of {OTHER}"):
        ends(MIGRATION, instance=OTHER)


@pytest.mark.parametrize("typed", [True, False], ids=["an instance by its type", "an instance by its guest"])
def test_who_stays_is_not_taken_for_the_migration_of_one_who_left(claimed: World, typed: bool) -> None:
    """An instance without a claim holds just the same here: the place of the one who left is free."""
    raw = claimed.raw if typed else PlacementClient(claimed.a.tap, microversion="1.37")
    held = {uuid_of(name): amounts for name, amounts in {**ON_A, **DISK}.items()}
    raw.write_allocations(ConsumerAllocations(OTHER, held))
    claimed.a.see(*(() if typed else (OTHER,)))
    claimed.schedule(INSTANCE, **ON_B, **DISK)
    claimed.settle()
    assert (dict(claimed.a.tracker.claims()), dict(claimed.a.tracker.moves())) == ({}, {})
    assert claimed.placed(OTHER) == {**ON_A, **DISK}
    with pytest.raises(UnknownConsumer):
        claimed.a.tracker.confirm_move(OTHER, instance=INSTANCE)


# Consumers without a type


def untyped(world: World) -> World:
    """Both agents speak a microversion below 1.38: nothing says that a consumer is a migration."""
    for agent in world.agents:
        agent.tracker = ResourceTracker(agent.journal, PlacementClient(agent.tap, microversion="1.37"))
        agent.refresh()
        agent.tracker.admission.open()
    return world


@pytest.mark.parametrize("end", ["confirm", "revert"])
def test_where_consumers_have_no_types_a_move_ends_as_with_types(world: World, end: str) -> None:
    """The source frees nothing while it cannot know, and binds nothing; the end shows which it was."""
    untyped(world)
    before = world.a.tracker.claim(asks(**SMALL)).claim
    world.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    assert world.placed_all() == BETWEEN
    world.settle()
    assert world.a.tracker.claims() == {INSTANCE: before}
    assert world.a.tracker.moves() == {}
    tracker = world.b.tracker
    (tracker.confirm_move if end == "confirm" else tracker.revert_move)(MIGRATION)
    world.settle()
    assert world.placed_all() == (AT_B if end == "confirm" else AT_A)
    assert world.a.tracker.claims() == ({} if end == "confirm" else {INSTANCE: before})
    world.check_settled()


@pytest.mark.parametrize("end", ["confirm", "revert"])
def test_an_operator_may_name_the_migration_of_an_untyped_move(world: World, end: str) -> None:
    untyped(world)
    before = world.a.tracker.claim(asks(**SMALL)).claim
    world.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    world.settle()
    with pytest.raises(UnknownConsumer):
        getattr(world.a.tracker, f"{end}_move")(MIGRATION)
    getattr(world.a.tracker, f"{end}_move")(MIGRATION, instance=INSTANCE)
    world.settle()
    assert world.placed_all() == (AT_B if end == "confirm" else AT_A)
    assert world.a.tracker.claims() == ({} if end == "confirm" else {INSTANCE: before})
    world.check_settled()


def test_a_new_instance_without_a_type_is_nobodys_migration(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A scheduler put it where one of the same size, project and user was; it is never bound, nor is any
    end of a move advised, and it gets a place of its own as soon as it is claimed."""
    untyped(world)
    world.a.tracker.claim(asks(VCPU=2, SRIOV_NET_VF=1))
    world.b.tracker.begin_move(asks(VCPU=2, SRIOV_NET_VF=1), MoveKind.COLD_MIGRATE, MIGRATION)
    world.b.tracker.confirm_move(MIGRATION)
    here = {uuid_of("a"): {"VCPU": 2}, uuid_of("a-nic"): {"SRIOV_NET_VF": 1}}
    world.raw.write_allocations(ConsumerAllocations(OTHER, here))
    world.settle()
    world.settle()
    assert world.a.tracker.moves() == {}
    assert world.a.tracker.claims().keys() == {INSTANCE}  # not known to be free, so it is not freed
    assert OTHER in caplog.text
    assert "move confirm" not in caplog.text and "move revert" not in caplog.text
    with pytest.raises(UnknownConsumer):
        world.a.tracker.confirm_move(OTHER)
    with pytest.raises(ClaimConflict) as refused:
        world.a.tracker.release(INSTANCE)
    assert "move confirm" not in refused.value.message
    world.a.tracker.claim(asks(OTHER, VCPU=2, SRIOV_NET_VF=1))
    world.settle()
    assert world.a.tracker.claims().keys() == {OTHER}
    assert world.placed(OTHER) == {"a": {"VCPU": 2}, "a-nic": {"SRIOV_NET_VF": 1}}
    world.check_settled()


@pytest.mark.parametrize("version", ["1.37", "1.39"], ids=["untyped", "typed"])
def test_an_instance_gets_the_last_device_of_one_that_moved_away_once_it_is_claimed(
    placement: Placement, tmp_path: Path, version: str
) -> None:
    """A scheduler placed it there before the source looked; while the other guest is there, it waits."""
    wanted = {"VCPU": 2, "SRIOV_NET_VF": 2}
    with World(tmp_path, placement, microversion=version) as world:
        before = world.a.tracker.claim(asks(**wanted)).claim
        world.b.tracker.begin_move(asks(**wanted), MoveKind.COLD_MIGRATE, MIGRATION)
        world.b.tracker.confirm_move(MIGRATION)
        here = {uuid_of("a"): {"VCPU": 2}, uuid_of("a-nic"): {"SRIOV_NET_VF": 2}}
        PlacementClient(world.a.tap, microversion=version).write_allocations(ConsumerAllocations(OTHER, here))
        world.a.see(INSTANCE)
        world.a.refresh()
        with pytest.raises(DoesNotFit):
            world.a.tracker.claim(asks(OTHER, **wanted))
        assert world.a.tracker.claims().keys() == {INSTANCE}
        world.a.see()
        after = world.a.tracker.claim(asks(OTHER, **wanted)).claim
        assert after.units == before.units
        assert world.a.tracker.claims().keys() == {OTHER}
        world.settle()
        world.check_settled()


def test_a_claim_frees_no_place_that_a_migration_may_have(world: World) -> None:
    """The move of the other one is under way, and its migration has no type."""
    untyped(world)
    wanted = {"VCPU": 2, "SRIOV_NET_VF": 2}
    world.a.tracker.claim(asks(**wanted))
    before = world.a.tracker.claims()
    world.b.tracker.begin_move(asks(**wanted), MoveKind.COLD_MIGRATE, MIGRATION)
    world.a.refresh()
    with pytest.raises(DoesNotFit):
        world.a.tracker.claim(asks(OTHER, **wanted))
    assert world.a.tracker.claims() == before
    world.b.tracker.revert_move(MIGRATION)
    world.settle()
    assert world.a.tracker.claims() == before


@pytest.mark.parametrize("end", ["confirm", "revert"])
def test_a_guest_whose_untyped_move_is_under_way_has_not_moved_away(
    world: World, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is told to remove the only guest: who holds its place may well be its migration."""
    untyped(world)
    world.a.tracker.claim(asks(**SMALL))
    world.a.see(INSTANCE)
    world.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    for _ in range(2):
        world.settle()
        assert world.a.tracker.circumstances().moved_away == frozenset()
    assert "Remove the guest" not in caplog.text
    tracker = world.b.tracker
    (tracker.confirm_move if end == "confirm" else tracker.revert_move)(MIGRATION)
    world.settle()
    assert world.a.tracker.circumstances().moved_away == ({INSTANCE} if end == "confirm" else frozenset())


@pytest.mark.parametrize("pool", [{}, DISK], ids=["own disk", "shared pool"])
@pytest.mark.parametrize("version", ["1.37", "1.39"], ids=["untyped", "typed"])
def test_an_unclaimed_guest_whose_move_is_under_way_has_not_moved_away(
    placement: Placement, tmp_path: Path, version: str, pool: dict[str, dict[str, int]]
) -> None:
    """A scheduler placed it, and no agent claimed for it: its migration holds what it had here."""
    wanted = {name: amount for name, amount in SMALL.items() if pool or name != "DISK_GB"}
    with World(tmp_path, placement, microversion=version) as world:
        world.schedule(INSTANCE, **ON_A, **pool)
        world.a.uses[INSTANCE] = {"VCPU": 2, "MEMORY_MB": 1024}
        world.a.see(INSTANCE)
        world.settle()
        world.b.tracker.begin_move(asks(**wanted), MoveKind.LIVE_MIGRATE, MIGRATION)
        world.settle()
        assert world.a.tracker.circumstances().moved_away == frozenset()
        world.b.tracker.confirm_move(MIGRATION)
        world.settle()
        assert world.a.tracker.circumstances().moved_away == {INSTANCE}


# A move that is begun again under another uuid, before the source looks


@pytest.mark.parametrize("running", [True, False], ids=["guest there", "no guest"])
@pytest.mark.parametrize("end", ["confirm", "revert"])
def test_the_source_knows_a_move_that_was_begun_again(claimed: World, end: str, running: bool) -> None:
    before = claimed.a.tracker.claims()[INSTANCE]
    claimed.a.see(*([INSTANCE] if running else []))
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    claimed.settle()
    claimed.b.tracker.revert_move(MIGRATION)
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, OTHER_MIGRATION)
    claimed.a.look()
    again = claimed.a.move(OTHER_MIGRATION)
    assert again is not None and (again.instance, again.state) == (INSTANCE, MoveState.BEGUN)
    assert claimed.a.moving() is MoveState.REVERTED
    assert {consumer: claim.units for consumer, claim in claimed.a.tracker.claims().items()} == {
        OTHER_MIGRATION: before.units
    }
    other = claimed.a.tracker.claim(asks(OTHER, SRIOV_NET_VF=1)).claim
    assert not set(other.exact) & set(before.exact)
    claimed.a.see()
    getattr(claimed.b.tracker, f"{end}_move")(OTHER_MIGRATION)
    claimed.settle()
    assert claimed.placed(INSTANCE) == {**(ON_B if end == "confirm" else ON_A), **DISK}
    assert claimed.a.tracker.claim_of(INSTANCE) == (None if end == "confirm" else before)
    claimed.check_settled()


@pytest.mark.parametrize("asked", ["confirm", "revert"])
def test_a_superseded_move_is_not_ended_twice(claimed: World, asked: str) -> None:
    """An operator at the source names the first one: it was reverted, and the second goes on."""
    before = claimed.a.tracker.claims()[INSTANCE]
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    claimed.settle()
    claimed.b.tracker.revert_move(MIGRATION)
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, OTHER_MIGRATION)
    if asked == "confirm":
        with pytest.raises(ClaimConflict, match="already reverted"):
            claimed.a.tracker.confirm_move(MIGRATION)
    else:
        assert claimed.a.tracker.revert_move(MIGRATION).state is MoveState.REVERTED
    assert claimed.placed_all() == {INSTANCE: {**ON_B, **DISK}, OTHER_MIGRATION: ON_A}
    claimed.settle()
    assert claimed.a.tracker.claims()[OTHER_MIGRATION].units == before.units
    claimed.check_settled()


def at_the_turn(world: World, patch: pytest.MonkeyPatch, turn: str, act: Callable[[], object]) -> None:
    """Once, `act` just before the agent on a takes such a turn: what it has read may have changed by then."""
    turns = world.a.tracker.turns
    take = getattr(turns, turn)

    def acts_first(*consumers: str) -> AbstractContextManager[None]:
        patch.undo()
        act()
        taken: AbstractContextManager[None] = take(*consumers)
        return taken

    patch.setattr(turns, turn, acts_first)


@pytest.mark.parametrize("meanwhile", ["its end is asked for", "it holds something again"])
def test_a_move_that_goes_on_while_the_source_looks_is_not_superseded(
    claimed: World, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    claimed.a.see(INSTANCE)
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    claimed.settle()
    claimed.b.tracker.revert_move(MIGRATION)
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, OTHER_MIGRATION)
    claimed.a.refresh()
    state = MoveState.BEGUN
    if meanwhile == "its end is asked for":
        state = MoveState.CONFIRMING
        at_the_turn(claimed, monkeypatch, "take_both", lambda: claimed.a.tracker.confirm_move(MIGRATION))
    else:
        again = partial(claimed.schedule, MIGRATION, "MIGRATION", a={"VCPU": 1})
        at_the_turn(claimed, monkeypatch, "take_both", again)
    claimed.a.tracker._linker.link_all()
    assert (claimed.a.moving(), claimed.a.move(OTHER_MIGRATION)) == (state, None)
    claimed.check()


def test_a_claim_that_is_released_while_the_source_looks_is_not_dropped_again(
    claimed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    claimed.b.tracker.confirm_move(MIGRATION)
    claimed.a.refresh()
    at_the_turn(claimed, monkeypatch, "take", lambda: claimed.a.tracker.release(INSTANCE))
    claimed.a.tracker.follow_moves()
    assert claimed.a.tracker.claims() == {}
    assert claimed.placed_all() == {INSTANCE: {**ON_B, **DISK}}
    claimed.settle()
    claimed.check_settled()


def test_instances_that_look_the_same_leave_one_after_the_other(alike: World) -> None:
    """One is confirmed and the next one begins before the source looks: nobody wrote the first one, so the
    migration can only be the second one's."""
    alike.b.tracker.begin_move(asks(PCPU=2), MoveKind.COLD_MIGRATE, MIGRATION)
    alike.settle()
    alike.b.tracker.confirm_move(MIGRATION)
    alike.b.tracker.begin_move(asks(OTHER, PCPU=2), MoveKind.COLD_MIGRATE, OTHER_MIGRATION)
    alike.a.look()
    assert alike.a.moving() is MoveState.CONFIRMED
    assert alike.a.tracker.claims().keys() == {OTHER_MIGRATION}
    alike.check_settled()


def test_a_second_move_of_one_is_not_taken_for_the_move_of_another(alike: World) -> None:
    """Both look the same; one was begun again, and the other one confirmed."""
    before = alike.a.tracker.claims()
    alike.b.tracker.begin_move(asks(PCPU=2), MoveKind.COLD_MIGRATE, MIGRATION)
    alike.settle()
    alike.b.tracker.revert_move(MIGRATION)
    alike.b.tracker.begin_move(asks(PCPU=2), MoveKind.COLD_MIGRATE, OTHER_MIGRATION)
    alike.b.tracker.begin_move(asks(OTHER, PCPU=2), MoveKind.COLD_MIGRATE, uuid_of("a third migration"))
    alike.b.tracker.confirm_move(uuid_of("a third migration"))
    alike.settle()
    assert {unit for claim in alike.a.tracker.claims().values() for unit in claim.exact} == {
        unit for claim in before.values() for unit in claim.exact
    }
    alike.b.tracker.revert_move(OTHER_MIGRATION)
    alike.settle()
    assert alike.a.tracker.claims() == {INSTANCE: before[INSTANCE]}
    alike.check_settled()


def test_a_claim_that_leaves_while_the_source_looks_is_not_robbed_of_its_migration(alike: World) -> None:
    """The first one has left for good. The second one, just like it, leaves after the source has read who is
    gone, and before it reads the migrations."""
    before = alike.a.tracker.claims()
    alike.b.tracker.begin_move(asks(PCPU=2), MoveKind.COLD_MIGRATE, MIGRATION)
    alike.b.tracker.confirm_move(MIGRATION)
    alike.a.refresh()
    left = []

    def leave(call: str) -> None:
        if call.startswith("GET /resource_providers") and not left:
            left.append(call)
            alike.b.tracker.begin_move(asks(OTHER, PCPU=2), MoveKind.COLD_MIGRATE, OTHER_MIGRATION)

    alike.a.tap.before = leave
    alike.a.tracker.follow_moves()
    assert left and alike.a.tracker.claims() == before
    alike.a.tap.before = lambda _: None
    alike.b.tracker.revert_move(OTHER_MIGRATION)
    alike.settle()
    assert alike.a.tracker.claims() == {OTHER: before[OTHER]}
    alike.check_settled()


# A control plane moves an instance that has no claim, with a place just like that of a claim


STRANGER, FOREIGN = uuid_of("a stranger"), uuid_of("the stranger's migration")


def a_control_plane_moves_the_stranger(world: World) -> None:
    held = world.placed(STRANGER)
    world.schedule(STRANGER, b=held["a"])
    world.schedule(FOREIGN, "MIGRATION", a=held["a"])


@pytest.fixture
def beside_a_stranger(alike: World) -> World:
    """An instance of the same size without a claim is on a; the other one with a claim is gone."""
    alike.a.tracker.release(OTHER)
    alike.schedule(STRANGER, a={"PCPU": 2})
    return alike


def test_a_migration_that_was_here_beside_an_instance_is_not_the_migration_of_that(
    beside_a_stranger: World,
) -> None:
    """Both migrations hold just the same; one was there when the instance still had its own place."""
    world = beside_a_stranger
    a_control_plane_moves_the_stranger(world)
    world.settle()
    before = world.a.tracker.claims()
    world.b.tracker.begin_move(asks(PCPU=2), MoveKind.COLD_MIGRATE, MIGRATION)
    world.settle()
    assert {move.migration: move.instance for move in world.a.tracker.moves().values()} == {
        MIGRATION: INSTANCE
    }
    world.b.tracker.revert_move(MIGRATION)
    world.settle()
    assert world.a.tracker.claims() == before


def test_an_instance_that_left_for_good_leaves_nothing_to_a_migration_that_was_beside_it(
    beside_a_stranger: World,
) -> None:
    world = beside_a_stranger
    a_control_plane_moves_the_stranger(world)
    world.settle()
    world.b.tracker.begin_move(asks(PCPU=2), MoveKind.COLD_MIGRATE, MIGRATION)
    world.b.tracker.confirm_move(MIGRATION)
    world.settle()
    assert (dict(world.a.tracker.claims()), dict(world.a.tracker.moves())) == ({}, {})
    assert world.placed(FOREIGN) == {"a": {"PCPU": 2}}


@pytest.mark.parametrize("knows", ["as it was listed", "by its guest"])
def test_a_migration_that_may_be_that_of_an_instance_without_a_claim_is_linked_to_none(
    beside_a_stranger: World, knows: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Both have left since the source looked, and one move was confirmed: but which? No claim is lost."""
    world = beside_a_stranger
    world.settle()
    before = world.a.tracker.claims()
    a_control_plane_moves_the_stranger(world)
    world.b.tracker.begin_move(asks(PCPU=2), MoveKind.COLD_MIGRATE, MIGRATION)
    world.b.tracker.confirm_move(MIGRATION)
    if knows == "by its guest":
        world.a.restart()
        world.a.uses[STRANGER] = {"VCPU": 1}
        world.a.see(STRANGER)
        world.a.come_back()
    world.settle()
    assert (world.a.tracker.claims(), dict(world.a.tracker.moves())) == (before, {})
    assert f"{INSTANCE} has moved away, and it is not certain" in caplog.text
    world.schedule(FOREIGN, "MIGRATION")
    world.settle()
    assert world.a.tracker.claims() == {}


@pytest.mark.parametrize("stays", [False, True], ids=["guest gone", "guest still here"])
def test_an_instance_whose_own_move_is_known_has_no_part_in_the_next_one(alike: World, stays: bool) -> None:
    """Both had claims of one size, and have left since the source looked; one move is confirmed by name."""
    alike.settle()
    if stays:
        alike.a.uses[OTHER] = {"PCPU": 2}
        alike.a.see(OTHER)
    alike.b.tracker.begin_move(asks(OTHER, PCPU=2), MoveKind.COLD_MIGRATE, OTHER_MIGRATION)
    alike.b.tracker.begin_move(asks(PCPU=2), MoveKind.COLD_MIGRATE, MIGRATION)
    alike.a.tracker.confirm_move(OTHER_MIGRATION, instance=OTHER)
    alike.settle()
    assert alike.a.tracker.moves()[MIGRATION].instance == INSTANCE


def test_a_stranger_of_another_size_keeps_no_claim_from_its_migration(beside_a_stranger: World) -> None:
    world = beside_a_stranger
    world.schedule(STRANGER, a={"PCPU": 1})
    world.settle()
    a_control_plane_moves_the_stranger(world)
    world.b.tracker.begin_move(asks(PCPU=2), MoveKind.COLD_MIGRATE, MIGRATION)
    world.settle()
    assert world.a.tracker.moves().keys() == {MIGRATION}


@pytest.mark.parametrize("away", [True, False], ids=["moved away before", "moving"])
def test_only_the_guest_of_a_move_under_way_may_have_another_migration(claimed: World, away: bool) -> None:
    """A guest without a claim whose move had ended before the migration came has no part in it."""
    claimed.schedule(STRANGER, b={"PCPU": 1})
    claimed.a.uses[STRANGER] = {"VCPU": 1}
    claimed.a.see(STRANGER)
    if away:
        claimed.settle()
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    claimed.settle()
    assert claimed.a.tracker.moves().keys() == ({MIGRATION} if away else set())
    claimed.a.see()
    claimed.settle()
    assert claimed.a.tracker.moves().keys() == {MIGRATION}


# The source is asked before it has looked


@pytest.mark.parametrize("end", ["confirm", "revert"])
def test_an_end_at_a_source_that_has_not_looked_yet(claimed: World, end: str) -> None:
    before = claimed.a.tracker.claims()[INSTANCE]
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    move = getattr(claimed.a.tracker, f"{end}_move")(MIGRATION)
    assert (move.instance, move.ended) == (INSTANCE, True)
    claimed.settle()
    assert claimed.placed_all() == {INSTANCE: {**(ON_B if end == "confirm" else ON_A), **DISK}}
    assert claimed.a.tracker.claim_of(INSTANCE) == (None if end == "confirm" else before)
    claimed.check_settled()


def test_an_end_at_a_source_that_cannot_tell_whose_migration_it_is_changes_nothing(alike: World) -> None:
    alike.b.tracker.begin_move(asks(PCPU=2), MoveKind.COLD_MIGRATE, MIGRATION)
    alike.b.tracker.begin_move(asks(OTHER, PCPU=2), MoveKind.COLD_MIGRATE, OTHER_MIGRATION)
    before = alike.state()
    with pytest.raises(UnknownConsumer, match="--instance"):
        alike.a.tracker.confirm_move(MIGRATION)
    with pytest.raises(UnknownConsumer):
        alike.a.tracker.confirm_move(uuid_of("no migration at all"))
    assert alike.state() == before
    assert alike.a.tracker.confirm_move(MIGRATION, instance=INSTANCE).state is MoveState.CONFIRMED


# A move that ends while the other host reads of it


@pytest.mark.parametrize("end", ["confirm", "revert"])
@pytest.mark.parametrize("reader", ["source", "destination"])
@pytest.mark.parametrize("read_first", [INSTANCE, MIGRATION], ids=["instance", "migration"])
@pytest.mark.parametrize("runs", [False, True], ids=["no guest", "guest"])
def test_a_move_that_ends_between_two_reads_ends_as_it_did(
    claimed: World, reader: str, end: str, read_first: str, runs: bool
) -> None:
    """The instance was read during the move, and the migration after it; or the other way round."""
    before = claimed.a.tracker.claims()
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    claimed.settle()
    moved = claimed.b.tracker.claims()
    asking, ending = (claimed.a, claimed.b) if reader == "source" else (claimed.b, claimed.a)
    if runs:
        (claimed.b if end == "confirm" else claimed.a).see(INSTANCE)
    ended = []

    def end_meanwhile(call: str) -> None:
        if call == f"GET /allocations/{read_first}" and not ended:
            ended.append(call)
            tracker = ending.tracker
            (tracker.confirm_move if end == "confirm" else tracker.revert_move)(MIGRATION)

    asking.tap.after = end_meanwhile
    asking.look()
    assert ended
    claimed.settle()
    assert claimed.placed_all() == (AT_B if end == "confirm" else AT_A)
    at_source, at_destination = (dict(agent.tracker.claims()) for agent in claimed.agents)
    assert at_source == ({} if end == "confirm" else before)
    assert at_destination == (moved if end == "confirm" else {})
    claimed.check_settled()


def test_a_claim_that_lost_its_allocation_may_be_leaked_only_once_its_guest_has_gone(claimed: World) -> None:
    claimed.a.see(INSTANCE)
    claimed.raw.delete_allocations(INSTANCE)
    claimed.settle()
    assert claimed.a.tracker.emptied == frozenset()
    claimed.a.see()
    claimed.settle()
    assert claimed.a.tracker.emptied == {INSTANCE}


@pytest.mark.parametrize("how", ["leaked", "released", "named"])
def test_a_claim_whose_instance_was_deleted_in_a_move_is_its_migrations(world: World, how: str) -> None:
    """The destination has lost its journal; the source has not looked, and its audit finds a leaked claim.

    Or an operator releases it there, or names its migration.

    Placement does not tell the owner of an instance that was deleted; the claim does.
    """
    asked = replace(asks(**SMALL), project_id="demo", user_id="ann")
    world.a.tracker.claim(asked)
    units = world.a.tracker.claims()[INSTANCE].units
    world.b.tracker.begin_move(asked, MoveKind.COLD_MIGRATE, MIGRATION)
    world.raw.delete_allocations(INSTANCE)
    if how != "named":
        with pytest.raises(ClaimConflict, match=f"is moving.*{MIGRATION}"):
            if how == "released":
                world.a.tracker.release(INSTANCE)
            world.a.tracker.drop_claim(INSTANCE, "audit: leaked claim")
        claims = world.a.tracker.claims()
        assert {consumer: claim.units for consumer, claim in claims.items()} == {MIGRATION: units}
    world.a.tracker.confirm_move(MIGRATION, instance=INSTANCE if how == "named" else None)
    assert world.a.tracker.claims() == {} == world.placed_all()


def test_a_leaked_claim_is_kept_while_one_of_several_migrations_may_hold_its_place(world: World) -> None:
    """Nothing says which was that of the instance that was deleted, until one of the moves has ended.

    Also not of the one that is left: a revert of it would take the other instance back.
    """
    for instance, migration in ((INSTANCE, MIGRATION), (OTHER, OTHER_MIGRATION)):
        world.a.tracker.claim(asks(instance, **SMALL))
        world.b.tracker.begin_move(asks(instance, **SMALL), MoveKind.COLD_MIGRATE, migration)
    world.raw.delete_allocations(INSTANCE)
    for ended, just_made in ((False, False), (True, True), (True, False)):
        if ended:
            world.b.tracker.confirm_move(OTHER_MIGRATION)
        world.a.later_s = 0.0 if just_made else 120.0
        world.a.look()
        with pytest.raises(ClaimConflict, match=f"move confirm MIGRATION --instance {INSTANCE}"):
            world.a.tracker.drop_claim(INSTANCE, "audit: leaked claim")
        with pytest.raises(ClaimConflict, match="not certain"):
            world.a.tracker.release(OTHER)
        assert world.a.tracker.claims().keys() == {INSTANCE, OTHER} and not world.a.tracker.moves()
        told = {finding.subject: finding.kind for finding in world.a.auditor.audit().findings}
        assert told[INSTANCE] == "leaked claim"
        assert told.get(OTHER) == (None if just_made else "unlinked move")
    world.a.tracker.confirm_move(MIGRATION, instance=INSTANCE)
    world.settle()
    assert not world.a.tracker.claims() and not world.placed(MIGRATION)


def test_a_claim_on_its_way_to_placement_is_not_that_of_a_deleted_instance(world: World) -> None:
    """It asks for the same place, and the migration can only be that of the instance that has left."""
    world.a.tracker.claim(asks(INSTANCE, **SMALL))
    world.b.tracker.begin_move(asks(INSTANCE, **SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    with world.away(world.a, only="PUT"), pytest.raises(PlacementUnavailable):
        world.a.tracker.claim(asks(OTHER, **SMALL))
    assert world.a.tracker.claims()[OTHER].state is ClaimState.CLAIMING
    world.a.later_s = 120.0
    told = {finding.subject for finding in world.a.auditor.audit().findings}
    assert INSTANCE not in told, "the agent learns of that move by itself"
    with pytest.raises(ClaimConflict, match=f"is moving.*{MIGRATION}"):
        world.a.tracker.release(INSTANCE)
    assert MIGRATION in world.a.tracker.moves()


@pytest.mark.parametrize("version", ["1.37", "1.39"], ids=["untyped", "typed"])
def test_a_guest_whose_move_is_reverted_while_the_source_looks_has_not_moved_away(
    placement: Placement, tmp_path: Path, version: str
) -> None:
    with World(tmp_path, placement, microversion=version) as world:
        world.a.tracker.claim(asks(**SMALL))
        world.a.see(INSTANCE)
        world.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
        world.a.refresh()
        ended = []

        def revert(call: str) -> None:
            if call == f"GET /allocations/{INSTANCE}" and not ended:
                ended.append(world.b.tracker.revert_move(MIGRATION))

        world.a.tap.after = revert
        world.a.tracker.follow_moves()
        assert ended
        assert world.a.tracker.circumstances().moved_away == frozenset()
        world.settle()
        world.check_settled()


# A guest that stays behind


def test_an_evacuated_guest_that_comes_back_with_its_host_has_moved_away(claimed: World) -> None:
    """Confirmed while the source was dead: its claim stays until somebody removes the guest."""
    before = claimed.a.tracker.claims()
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.EVACUATE, MIGRATION)
    claimed.b.tracker.confirm_move(MIGRATION)
    claimed.a.restart()
    claimed.a.see(INSTANCE)
    claimed.a.come_back()
    claimed.settle()
    assert claimed.a.tracker.circumstances().moved_away == {INSTANCE}
    assert claimed.b.tracker.circumstances().moved_away == frozenset()
    assert claimed.a.tracker.claims() == before
    claimed.a.see()
    claimed.settle()
    assert claimed.a.tracker.circumstances().moved_away == frozenset()
    assert claimed.a.tracker.claims() == {}
    claimed.check_settled()


def test_a_guest_whose_move_ended_elsewhere_has_moved_away(claimed: World) -> None:
    claimed.a.see(INSTANCE)
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    claimed.settle()
    assert claimed.a.tracker.circumstances().moved_away == frozenset()  # it is still on its way
    claimed.b.tracker.confirm_move(MIGRATION)
    claimed.settle()
    assert claimed.a.moving() is MoveState.LEAVING
    assert claimed.a.tracker.circumstances().moved_away == {INSTANCE}


def test_a_guest_that_moved_away_and_comes_back_is_an_ordinary_one(claimed: World) -> None:
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.EVACUATE, MIGRATION)
    claimed.b.tracker.confirm_move(MIGRATION)
    claimed.a.see(INSTANCE)
    claimed.settle()
    assert claimed.a.tracker.circumstances().moved_away == {INSTANCE}
    claimed.schedule(INSTANCE, **ON_A, **DISK)
    claimed.a.look()
    assert claimed.a.tracker.circumstances().moved_away == frozenset()


# agent.tracker.follow_moves: who holds the place of an instance that has left: by its type, or perhaps


PLACE = {"VCPU": 2, "SRIOV_NET_VF": 1}


@pytest.fixture
def place(world: World) -> Claim:
    """What the instance had on a; it is on b now."""
    claim = world.a.tracker.claim(asks(**PLACE)).claim
    world.b.tracker.begin_move(asks(**PLACE), MoveKind.COLD_MIGRATE, MIGRATION)
    return claim


def test_a_migration_is_known_by_its_type(world: World, place: Claim) -> None:
    places = LeftPlaces(world.a.tracker._context)
    instance = world.raw.allocations_of(INSTANCE)
    assert places.has_left(instance)
    places.read_holders([place])
    assert places.successors(place, instance) == places.lookalikes(place, instance) == [MIGRATION]
    assert places.possible_holders(place, instance) == [MIGRATION]
    world.a.see(MIGRATION)  # a guest of that uuid is an instance, whatever its type
    assert places.successors(place, instance) == places.possible_holders(place, instance) == []


def test_a_consumer_without_a_type_is_only_a_possible_one(world: World, place: Claim) -> None:
    world.b.tracker.confirm_move(MIGRATION)
    untyped = PlacementClient(world.a.tap, microversion="1.37")
    held = {uuid_of("a"): {"VCPU": 2}, uuid_of("a-nic"): {"SRIOV_NET_VF": 1}}
    untyped.write_allocations(ConsumerAllocations(OTHER, held))
    places = LeftPlaces(world.a.tracker._context)
    instance = world.raw.allocations_of(INSTANCE)
    places.read_holders([place])
    assert places.successors(place, instance) == []
    assert places.lookalikes(place, instance) == places.possible_holders(place, instance) == [OTHER]
    world.raw.write_allocations(replace(world.raw.allocations_of(OTHER), allocations={}))
    assert places.possible_holders(place, instance) == []


def test_an_instance_that_is_written_meanwhile_proves_nothing(world: World, place: Claim) -> None:
    instance = world.raw.allocations_of(INSTANCE)
    world.b.tracker.revert_move(MIGRATION)
    with pytest.raises(PlacementConflict):
        LeftPlaces(world.a.tracker._context).possible_holders(place, instance)
