"""Receipts: what was done is undone by its receipt, stays undone until asked for, and is shown before."""

from __future__ import annotations

from pathlib import Path

import pytest
from kits.placements import Placement
from kits.reshape import HOST, ROOT, World, host, provider, uuid_of
from kits.tracker import Crash, Death, fast_directory, request

from agent.driver import MoveInstruction
from agent.errors import ApplyError, PlacementUnavailable, ReshapeRefused, UsageError

FLAT = (host(VGPU=8),)
NESTED = (host(), provider("gpu0", VGPU=4), provider("gpu1", VGPU=4))
MOVES = (
    MoveInstruction(HOST, {"VGPU": 4}, "gpu0", {}),
    MoveInstruction(HOST, {"VGPU": 4}, "gpu1", {uuid_of("a"): {"VGPU": 1}}),
)


def done(world: World) -> str:
    """A reshape with one consumer of a scheduler's and one of the agent's own; its receipt."""
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 1})
    world.tracker.claim(request(uuid_of("own"), VGPU=2, VCPU=1))
    assert world.see(*NESTED, moves=MOVES).pending is None
    (receipt,) = world.journal.reshapes(done=True)
    return receipt


def test_an_undone_reshape_stays_undone_until_it_is_asked_for(world: World) -> None:
    receipt = done(world)
    late = world.hold("late", gpu0={"VGPU": 1})
    (undone,) = world.ask(receipt)
    assert undone.undoes == receipt
    assert world.totals() == {HOST: {"VCPU": 64, "VGPU": 8}, "gpu0": {}, "gpu1": {}}
    assert world.tree()[ROOT].inventories["VGPU"].reserved == 0
    assert world.placed("a") == {HOST: {"VGPU": 1}}
    assert world.placed(late) == {HOST: {"VGPU": 1}}, "who came later goes back, too"
    world.check()
    for _ in range(2):
        report = world.see(*NESTED, moves=MOVES)
        assert (report.operations, report.pending, report.error) == (0, None, None)
        assert any(receipt in problem for problem in report.problems), "it is said"
    world.restart()
    assert world.again().operations == 0
    world.tracker.claim(request(VGPU=2))
    (again,) = world.ask()
    assert again.undoes is None
    assert world.placed("a") == {"gpu1": {"VGPU": 1}}
    assert world.totals() == {HOST: {"VCPU": 64}, "gpu0": {"VGPU": 4}, "gpu1": {"VGPU": 4}}
    world.check()
    assert world.ask() == ()


def test_a_host_that_counted_more_than_its_cards_have_is_as_it_was_when_that_is_undone(world: World) -> None:
    """Seen on a hypervisor: 40 on the root, by whoever put them there, and cards that have 36."""
    world.see(host(VGPU=11))
    world.hold("a", node1={"VGPU": 1})
    world.see(*NESTED, moves=MOVES)
    (receipt,) = world.journal.reshapes(done=True)
    world.ask(receipt)
    assert world.totals() == {HOST: {"VCPU": 64, "VGPU": 11}, "gpu0": {}, "gpu1": {}}
    assert world.placed("a") == {HOST: {"VGPU": 1}}
    world.ask()
    assert world.totals() == {HOST: {"VCPU": 64}, "gpu0": {"VGPU": 4}, "gpu1": {"VGPU": 4}}
    assert world.placed("a") == {"gpu1": {"VGPU": 1}}


def test_what_undid_a_reshape_is_undone_by_its_own_receipt(world: World) -> None:
    receipt = done(world)
    (undone,) = world.ask(receipt)
    with pytest.raises(UsageError, match="already undone"):
        world.ask(receipt)
    (again,) = world.ask(undone.id)
    assert world.placed("a") == {"gpu1": {"VGPU": 1}}
    with pytest.raises(UsageError, match="has been done again since"):
        world.ask(undone.id)
    with pytest.raises(UsageError, match=f"The reshape {again.id} has moved what"):
        world.ask(receipt)
    with pytest.raises(UsageError, match="There is no receipt 'nonsense'"):
        world.ask("nonsense")


def test_providers_that_went_away_come_back_when_that_is_undone(world: World) -> None:
    """Nested to flat, undone: the cards are made again, and each owner is back on its own."""
    world.see(*NESTED)
    world.hold("a", gpu1={"VGPU": 1})
    world.hold("b", gpu0={"VGPU": 4})
    before = world.placed("a"), world.placed("b"), world.totals()
    world.see(*FLAT, moves=tuple(MoveInstruction(gpu, {"VGPU": 4}, HOST) for gpu in ("gpu0", "gpu1")))
    assert set(world.totals()) == {HOST}
    (receipt,) = world.journal.reshapes(done=True)
    world.ask(receipt)
    assert (world.placed("a"), world.placed("b"), world.totals()) == before
    assert world.again().operations == 0
    assert world.see(*FLAT).operations == 0, "also once the driver no longer mentions it"
    with pytest.raises(ApplyError, match="says that it moved there"):
        world.ask()
    assert world.again().operations == 0, "nobody says any more where it went: it stays"
    assert (world.placed("a"), world.placed("b"), world.totals()) == before


def test_an_undo_that_is_refused_changes_nothing(world: World) -> None:
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 1})
    more = (host(), provider("gpu0", VGPU=4), provider("gpu1", VGPU=4), provider("gpu2", VGPU=4))
    world.see(*NESTED, moves=MOVES)
    (receipt,) = world.journal.reshapes(done=True)
    world.see(*more, moves=MOVES)
    world.raw.put_inventories(  # an operator lowered what the root may give to one
        ROOT, world.tree()[ROOT].generation or 0, dict(world.tree()[ROOT].inventories)
    )
    big = world.hold("big", gpu0={"VGPU": 4}, gpu1={"VGPU": 3}, gpu2={"VGPU": 4})
    world.hold("z", node1={"VCPU": 1})
    before = world.totals(), world.placed(big), world.placed("a")
    world.tap.before = _full
    with pytest.raises(ReshapeRefused):
        world.ask(receipt)
    world.tap.before = lambda _: None
    assert (world.totals(), world.placed(big), world.placed("a")) == before
    assert all(i.reserved == 0 for each in world.tree() for i in each.inventories.values())
    assert world.journal.undone_reshapes() == ()
    assert world.again().operations == 0


def test_an_undo_for_which_there_is_no_room_any_more_is_refused_with_who_it_is(world: World) -> None:
    """A card grew since, and is full: more is held now than was ever counted where it came from."""
    receipt = done(world)
    grown = (host(), provider("gpu0", VGPU=8), provider("gpu1", VGPU=4))
    world.see(*grown, moves=MOVES)
    big = world.hold("big", gpu0={"VGPU": 6})
    before = world.totals(), world.placed(big), world.placed("a")
    preview = world.reconciler.preview_reshape(receipt)
    assert preview.refused is not None and preview.relocations == ()
    with pytest.raises(ReshapeRefused, match=f"{big} holds 6 VGPU of gpu0.*free on node1: 5 VGPU"):
        world.ask(receipt)
    assert (world.totals(), world.placed(big), world.placed("a")) == before
    assert world.journal.undone_reshapes() == () and len(world.journal.reshapes(done=True)) == 1
    assert world.again().operations == 0
    world.raw.delete_allocations(big)
    (undone,) = world.ask(receipt)
    assert undone.undoes == receipt and world.placed("a") == {HOST: {"VGPU": 1}}


def _full(call: str) -> None:
    from agent.errors import PlacementFull

    if call == "POST /reshaper":
        raise PlacementFull("it does not fit, as it was told", status=409)


def test_a_preview_shows_all_and_writes_nothing(world: World) -> None:
    """Scenario 92: each move with class, amount, consumer, from and to; the trees before and after."""
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 1})
    world.driver.description = type(world.driver.description)(NESTED, MOVES)
    before = world.everything(), world.journal.reshapes(done=False)
    world.tap.calls.clear()
    preview = world.reconciler.preview_reshape()
    assert not any(call.startswith(("P", "D")) for call in world.tap.calls)
    assert (world.everything(), world.journal.reshapes(done=False)) == before
    assert preview.refused is None
    (move,) = preview.relocations
    gpu1 = preview.after.by_name("gpu1")
    assert gpu1 is not None
    assert (move.consumer, move.resource_class, move.amount) == (uuid_of("a"), "VGPU", 1)
    assert (move.source, move.target) == (ROOT, gpu1.uuid)
    assert preview.used_before[ROOT]["VGPU"] == 1 and preview.used_after[gpu1.uuid] == {"VGPU": 1}
    world.again()
    assert world.reconciler.preview_reshape().moves == ()
    (receipt,) = world.journal.reshapes(done=True)
    back = world.reconciler.preview_reshape(receipt)
    assert [(each.source, each.target) for each in back.relocations] == [(gpu1.uuid, ROOT)]


def test_while_placement_is_away_an_undo_stays_asked_for(world: World) -> None:
    receipt = done(world)

    def away(_: str) -> None:
        raise PlacementUnavailable("placement is away, as it was told")

    world.tap.before = away
    with pytest.raises(PlacementUnavailable):
        world.ask(receipt)
    world.tap.before = lambda _: None
    assert world.again().error is None
    assert world.placed("a") == {HOST: {"VGPU": 1}}


def test_death_at_every_boundary_of_an_undo(any_placement: Placement) -> None:
    for number in range(1, 120):
        with fast_directory() as directory, World(Path(directory), any_placement) as world:
            receipt = done(world)
            with world.taps(Death(number)):
                try:
                    world.ask(receipt)
                    crashed = False
                except Crash:
                    crashed = True
            if not crashed:
                assert number > 20
                return
            world.restart()
            report = world.again()
            assert (report.error, report.pending) == (None, None)
            world.check()
            asked = receipt in world.journal.undone_reshapes()
            assert world.placed("a") == ({HOST: {"VGPU": 1}} if asked else {"gpu1": {"VGPU": 1}})
            assert sum(each.get("VGPU", 0) for each in world.totals().values()) == 8
            assert len(world.journal.reshapes(done=True)) == (2 if asked else 1)
    raise AssertionError("more boundaries than that")
