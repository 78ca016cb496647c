"""Moves that run into each other, into claims in doubt, into restarts: groups keep their units."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

import pytest
from kits.agent import opened, told
from kits.moves import INSTANCE, MIGRATION, OTHER, OTHER_MIGRATION, World, asks
from kits.placements import Placement
from kits.status import FLAT

from agent.claims.claim import Claim, Restriction
from agent.claims.request import ClaimRequest, RequestGroup
from agent.errors import ClaimConflict, PlacementUnavailable
from agent.moves.states import MoveKind, MoveRole, MoveState
from agent.tree import ProviderTree

PINNED = {"VCPU": 2, "PCPU": 2}
PINNED_ON_A, PINNED_ON_B = {"a": PINNED}, {"b": PINNED}


@pytest.fixture
def world(any_placement: Placement, tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, any_placement) as world:
        yield world


@pytest.mark.parametrize("end", ["confirm", "revert"])
@pytest.mark.parametrize("running", [False, True], ids=["no guest", "guest there"])
def test_a_claim_in_doubt_that_a_move_took_away_is_the_migrations(
    world: World, running: bool, end: str
) -> None:
    """Its answer was lost, and its instance moved before anybody asked what became of it."""
    with world.away(world.a, after=True), suppress(PlacementUnavailable):
        world.a.tracker.claim(asks(**PINNED))
    chosen = world.a.journal.claims()[INSTANCE].units
    world.b.tracker.begin_move(asks(**PINNED), MoveKind.COLD_MIGRATE, MIGRATION)
    world.a.see(*([INSTANCE] if running else []))
    world.settle()
    source = world.a.move()
    assert source is not None and (source.role, source.old.units) == (MoveRole.SOURCE, chosen)
    assert world.placed_all() == {INSTANCE: PINNED_ON_B, MIGRATION: PINNED_ON_A}
    world.check_settled()
    world.a.see()
    getattr(world.b.tracker, f"{end}_move")(MIGRATION)
    world.settle()
    assert world.placed_all() == {INSTANCE: PINNED_ON_B if end == "confirm" else PINNED_ON_A}
    world.check_settled()


def test_asking_again_for_a_claim_that_a_move_took_away_says_so(world: World) -> None:
    with world.away(world.a, after=True), suppress(PlacementUnavailable):
        world.a.tracker.claim(asks(**PINNED))
    world.b.tracker.begin_move(asks(**PINNED), MoveKind.COLD_MIGRATE, MIGRATION)
    with pytest.raises(ClaimConflict, match=f"moving.*{MIGRATION}"):
        world.a.tracker.claim(asks(**PINNED))
    assert world.a.moving() is MoveState.BEGUN
    world.check_settled()


@pytest.mark.parametrize("wish", [PINNED, {"VCPU": 3, "PCPU": 1}], ids=["alike", "other amounts"])
def test_a_move_that_another_one_overtook_waits_for_its_end(world: World, wish: dict[str, int]) -> None:
    """Where the second one is confirmed, the instance is elsewhere for good: the first is confirmed, too."""
    overtaken(world, wish)
    world.a.tracker.confirm_move(OTHER_MIGRATION)
    world.settle()
    assert world.b.moving() is MoveState.CONFIRMED
    assert world.placed_all() == {INSTANCE: {"a": wish}}
    world.check_settled()


@pytest.mark.parametrize("wish", [PINNED, {"VCPU": 3, "PCPU": 1}], ids=["alike", "other amounts"])
def test_a_move_that_another_one_overtook_goes_on_once_that_one_is_reverted(
    world: World, wish: dict[str, int]
) -> None:
    """The instance is back, device by device, and what the first one holds is its way home."""
    at_b = overtaken(world, wish)
    world.a.tracker.revert_move(OTHER_MIGRATION)
    world.settle()
    assert world.b.moving() is MoveState.BEGUN
    assert world.b.tracker.claim_of(INSTANCE) == at_b
    assert world.placed_all() == {INSTANCE: PINNED_ON_B, MIGRATION: PINNED_ON_A}
    world.b.tracker.revert_move(MIGRATION)
    world.settle()
    assert world.placed_all() == {INSTANCE: PINNED_ON_A}


@pytest.mark.parametrize("end", ["confirm", "revert"])
@pytest.mark.parametrize("wish", [PINNED, {"VCPU": 3, "PCPU": 1}], ids=["alike", "other amounts"])
def test_a_caller_may_confirm_a_move_that_another_one_overtook(
    world: World, wish: dict[str, int], end: str
) -> None:
    at_b = overtaken(world, wish)
    world.b.tracker.confirm_move(MIGRATION)
    world.settle()
    assert world.b.moving() is MoveState.CONFIRMED
    assert world.placed_all() == {INSTANCE: {"a": wish}, OTHER_MIGRATION: PINNED_ON_B}
    world.check_settled()
    getattr(world.a.tracker, f"{end}_move")(OTHER_MIGRATION)
    world.settle()
    assert world.placed_all() == {INSTANCE: {"a": wish} if end == "confirm" else PINNED_ON_B}
    assert (world.b.tracker.claim_of(INSTANCE) == at_b) is (end == "revert")
    world.check_settled()


def overtaken(world: World, wish: dict[str, int]) -> Claim | None:
    """The instance's claim at b, from where a second move took it on; that does not confirm the first one."""
    world.schedule(INSTANCE, a=PINNED)  # of which a knows nothing, else it refused the second move
    world.b.tracker.begin_move(asks(**PINNED), MoveKind.COLD_MIGRATE, MIGRATION)
    at_b = world.b.tracker.claim_of(INSTANCE)
    world.a.refresh()
    world.a.tracker.begin_move(asks(**wish), MoveKind.RESIZE, OTHER_MIGRATION)
    world.settle()
    assert world.b.moving() is MoveState.BEGUN
    assert world.placed_all() == {INSTANCE: {"a": wish}, MIGRATION: PINNED_ON_A, OTHER_MIGRATION: PINNED_ON_B}
    world.check()
    return at_b


def test_a_revert_of_a_move_that_another_one_overtook_is_refused(world: World) -> None:
    world.schedule(INSTANCE, a=PINNED)
    world.b.tracker.begin_move(asks(**PINNED), MoveKind.COLD_MIGRATE, MIGRATION)
    world.a.refresh()
    world.a.tracker.begin_move(asks(**PINNED), MoveKind.COLD_MIGRATE, OTHER_MIGRATION)
    with pytest.raises(ClaimConflict):
        world.b.tracker.revert_move(MIGRATION)
    world.settle()
    assert world.placed_all() == {INSTANCE: PINNED_ON_A, OTHER_MIGRATION: PINNED_ON_B}
    world.check_settled()


def test_a_revert_takes_nothing_back_from_where_another_client_put_the_instance(world: World) -> None:
    world.a.tracker.claim(asks(**PINNED))
    world.b.tracker.begin_move(asks(**PINNED), MoveKind.COLD_MIGRATE, MIGRATION)
    world.schedule(INSTANCE, a={"VCPU": 1})
    with pytest.raises(ClaimConflict, match="has moved on"):
        world.b.tracker.revert_move(MIGRATION)
    assert world.placed_all() == {INSTANCE: {"a": {"VCPU": 1}}, MIGRATION: PINNED_ON_A}
    assert world.b.moving() is MoveState.BEGUN


def test_a_rebuild_whose_instance_moved_away_is_over(world: World) -> None:
    """Else its host would never look where the instance went."""
    world.a.tracker.claim(asks(**PINNED))
    rebuilt = replace(asks(**PINNED), name="rebuilt")
    world.a.tracker.begin_move(rebuilt, MoveKind.REBUILD, MIGRATION)
    world.b.tracker.begin_move(rebuilt, MoveKind.COLD_MIGRATE, OTHER_MIGRATION)
    world.settle()
    assert world.a.moving() is MoveState.CONFIRMED
    source = world.a.move(OTHER_MIGRATION)
    assert source is not None and (source.role, source.old.request) == (MoveRole.SOURCE, rebuilt)
    world.check_settled()


def test_a_same_host_resize_whose_instance_moved_on_is_confirmed_with_the_move_onward(world: World) -> None:
    world.a.tracker.claim(asks(PCPU=1))
    world.a.tracker.begin_move(asks(PCPU=2), MoveKind.RESIZE, MIGRATION)
    world.b.tracker.begin_move(asks(PCPU=2), MoveKind.COLD_MIGRATE, OTHER_MIGRATION)
    world.settle()
    assert world.a.moving() is MoveState.BEGUN
    assert world.placed_all() == {
        INSTANCE: {"b": {"PCPU": 2}},
        MIGRATION: {"a": {"PCPU": 1}},
        OTHER_MIGRATION: {"a": {"PCPU": 2}},
    }
    world.b.tracker.confirm_move(OTHER_MIGRATION)
    world.settle()
    assert world.a.moving() is MoveState.CONFIRMED
    assert world.placed_all() == {INSTANCE: {"b": {"PCPU": 2}}}
    world.check_settled()


@pytest.mark.parametrize("wish", [PINNED, {"VCPU": 3, "PCPU": 1}], ids=["alike", "other amounts"])
def test_a_release_where_another_move_took_the_instance_away_frees_only_the_first_migration(
    world: World, wish: dict[str, int]
) -> None:
    """What the instance had there is the second migration's, which may still be reverted."""
    world.b.tracker.claim(asks(**wish))
    world.b.tracker.begin_move(asks(**PINNED), MoveKind.RESIZE, MIGRATION)
    at_b = world.b.tracker.claim_of(INSTANCE)
    world.a.tracker.begin_move(asks(**PINNED), MoveKind.COLD_MIGRATE, OTHER_MIGRATION)
    assert world.b.tracker.release(INSTANCE)
    world.settle()
    assert world.placed_all() == {INSTANCE: PINNED_ON_A, OTHER_MIGRATION: PINNED_ON_B}
    world.check_settled()
    world.a.tracker.revert_move(OTHER_MIGRATION)
    world.settle()
    assert world.b.tracker.claim_of(INSTANCE) == at_b
    world.check_settled()


@pytest.mark.parametrize("reads", range(1, 7))
def test_a_release_frees_what_a_revert_brings_back_meanwhile(world: World, reads: int) -> None:
    """The source does not know of the move, and reads on while its destination reverts it."""
    world.a.tracker.claim(asks(**PINNED))
    world.b.tracker.begin_move(asks(**PINNED), MoveKind.EVACUATE, MIGRATION)
    left = reads

    def reverted(call: str) -> None:
        nonlocal left
        left -= call.startswith("GET ")
        if left == 0 and world.b.moving() is MoveState.BEGUN:
            world.b.tracker.revert_move(MIGRATION)

    world.a.tap.after = reverted
    with suppress(ClaimConflict):  # it has met the move, and keeps the claim
        assert world.a.tracker.release(INSTANCE)
        assert world.placed_all() == {}
    assert world.b.moving() is not MoveState.BEGUN, "the release made fewer reads"
    world.a.tap.after = lambda _: None
    world.settle()
    world.check_settled()


@pytest.mark.parametrize("reads", range(1, 6))
def test_a_release_frees_what_the_revert_of_a_move_onward_brings_back_meanwhile(
    world: World, reads: int
) -> None:
    """The host in between knows the first move alone. A revert after its last read is after the release."""
    world.b.tracker.claim(asks(**PINNED))
    world.a.tracker.begin_move(asks(**PINNED), MoveKind.EVACUATE, MIGRATION)
    world.b.tracker.confirm_move(MIGRATION)
    world.b.tracker.begin_move(asks(**PINNED), MoveKind.COLD_MIGRATE, OTHER_MIGRATION)
    left = reads

    def reverted(call: str) -> None:
        nonlocal left
        left -= call.startswith("GET ")
        if left == 0:
            world.b.tracker.revert_move(OTHER_MIGRATION)

    world.a.tap.after = reverted
    assert world.a.tracker.release(INSTANCE)
    world.a.tap.after = lambda _: None
    assert left <= 0, "the release made fewer reads"
    assert world.placed_all() == {}
    world.settle()
    world.check_settled()


def test_a_release_does_not_mix_up_moves_that_look_the_same(world: World) -> None:
    """Whose the one migration is that is left is not certain, so nothing is freed, now or later."""
    for consumer in (INSTANCE, OTHER):
        world.b.tracker.claim(asks(consumer, **PINNED))
    before = world.b.tracker.claim_of(INSTANCE)
    world.a.tracker.begin_move(asks(**PINNED), MoveKind.COLD_MIGRATE, MIGRATION)
    world.a.tracker.begin_move(asks(OTHER, **PINNED), MoveKind.COLD_MIGRATE, OTHER_MIGRATION)
    world.settle()
    with pytest.raises(ClaimConflict, match="not certain"):
        world.b.tracker.release(INSTANCE)
    assert world.b.tracker.claim_of(INSTANCE) == before
    world.a.tracker.release(OTHER)
    world.a.tracker.claim(asks(OTHER, VCPU=1))
    world.settle()
    world.a.tracker.revert_move(MIGRATION)
    world.settle()
    assert world.b.tracker.claim_of(INSTANCE) == before
    assert world.placed_all()[INSTANCE] == PINNED_ON_B


# A claim that is asked for again


@pytest.mark.parametrize("microversion", ["1.39", "1.37"])
def test_asking_again_for_a_claim_whose_instance_moved_away_says_so(
    any_placement: Placement, tmp_path: Path, microversion: str
) -> None:
    """Before the source has looked by itself. A consumer without a type is named, and not bound."""
    with World(tmp_path, any_placement, microversion) as world:
        world.a.tracker.claim(asks(**PINNED))
        world.b.tracker.begin_move(asks(**PINNED), MoveKind.COLD_MIGRATE, MIGRATION)
        with pytest.raises(ClaimConflict, match=MIGRATION):
            world.a.tracker.claim(asks(**PINNED))
        assert world.a.moving() is (MoveState.BEGUN if microversion == "1.39" else None)


@pytest.mark.parametrize("end", ["confirm", "release"])
def test_a_claim_that_placement_does_not_hold_any_more_is_not_claimed_again_from_memory(
    world: World, end: str
) -> None:
    world.a.tracker.claim(asks(**PINNED))
    world.b.tracker.begin_move(asks(**PINNED), MoveKind.COLD_MIGRATE, MIGRATION)
    if end == "confirm":
        world.b.tracker.confirm_move(MIGRATION)
    else:
        world.b.tracker.release(INSTANCE)
    with pytest.raises(ClaimConflict, match="another host" if end == "confirm" else "holds nothing"):
        world.a.tracker.claim(asks(**PINNED))
    if end == "release":
        world.a.tracker.release(INSTANCE)
        world.a.tracker.claim(asks(**PINNED))
        assert world.placed_all() == {INSTANCE: PINNED_ON_A}


def test_a_claim_that_is_held_is_repeated_with_one_request(world: World) -> None:
    claim = world.a.tracker.claim(asks(**PINNED)).claim
    world.a.tap.calls.clear()
    assert world.a.tracker.claim(asks(**PINNED)).claim == claim
    assert world.a.tap.calls == [f"GET /allocations/{INSTANCE}"]


PORT = {"SRIOV_NET_VF": 1}
PORTS = ClaimRequest(
    INSTANCE,
    (RequestGroup("", {"VCPU": 1, "MEMORY_MB": 64}), RequestGroup("red", PORT), RequestGroup("blue", PORT)),
    group_policy="none",
)


def dealt(red: str, blue: str) -> Restriction:
    """Not the order in which equal groups get units by themselves."""
    return Restriction(dealt={"red": {"SRIOV_NET_VF": (red,)}, "blue": {"SRIOV_NET_VF": (blue,)}})


def ports(claim: Claim | None) -> dict[str, str]:
    """{group: its unit}, by the units that the claim keeps alone."""
    assert claim is not None
    return {
        mapping.label: unit
        for mapping in claim.mappings(ProviderTree())
        for classes in mapping.units.values()
        for (unit,) in classes.values()
    }


@pytest.mark.parametrize("kind", [MoveKind.COLD_MIGRATE, MoveKind.RESIZE, MoveKind.LIVE_MIGRATE])
def test_through_a_move_and_its_revert(tmp_path: Path, placement: Placement, kind: MoveKind) -> None:
    with World(tmp_path, placement) as world:
        here = {"red": "a:vf0", "blue": "a:vf1"}
        assert ports(world.a.tracker.claim(PORTS, dealt(**here)).claim) == here
        move = world.b.tracker.begin_move(PORTS, kind, MIGRATION).move
        there = ports(move.new)
        assert set(there) == {"red", "blue"} and set(there.values()) == {"b:vf0", "b:vf1"}
        world.settle()
        world.b.restart()
        world.b.come_back()
        assert ports(world.b.tracker.claim_of(INSTANCE)) == there
        assert ports(world.a.tracker.moves()[MIGRATION].old) == here, "the migration holds the old place"
        world.b.tracker.revert_move(MIGRATION)
        world.settle()
        world.a.restart()
        world.a.come_back()
        assert ports(world.a.tracker.claim_of(INSTANCE)) == here
        world.b.tracker.begin_move(PORTS, kind, MIGRATION)
        world.b.tracker.confirm_move(MIGRATION)
        world.settle()
        assert ports(world.b.tracker.claim_of(INSTANCE)) == there


def test_through_a_reshape_and_its_undoing(tmp_path: Path, placement: Placement) -> None:
    with opened(told(tmp_path, placement)) as world:
        world.driver.change(**{each.name: getattr(FLAT, each.name) for each in fields(FLAT)})
        world.agent.reconcile("the start")
        tracker = world.agent._tracker
        here = {"red": "0000:41:02.3", "blue": "0000:41:02.1"}
        root = tracker.view.host.root
        assert root is not None
        named = {root.uuid: {"SRIOV_NET_VF": tuple(here.values())}}
        claim = tracker.claim(PORTS, Restriction(named, dealt=dealt(**here).dealt)).claim
        assert ports(claim) == here
        world.driver.change(flat_devices=False)
        world.agent.reconcile("the cards have providers")
        moved = tracker.claim_of(INSTANCE)
        assert moved is not None and moved.allocations != claim.allocations
        assert ports(moved) == here
        world.driver.change(flat_devices=True)
        world.agent.reconcile("the cards have none again")
        back = tracker.claim_of(INSTANCE)
        assert back is not None and back.allocations == claim.allocations
        assert ports(back) == here
