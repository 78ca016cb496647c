"""Units of which the driver says that no device has them: they stay, the rest moves."""

from __future__ import annotations

import pytest
from kits.reshape import HOST, ROOT, World, host, provider, uuid_of
from kits.tracker import request

from agent.api.views import preview_view
from agent.cli.output import Style
from agent.cli.status import preview_lines
from agent.driver import MoveInstruction
from agent.errors import DoesNotFit

FLAT = (host(VGPU=8),)
ONE_LEFT = (host(), provider("gpu0", VGPU=4))
NESTED = (*ONE_LEFT, provider("gpu1", VGPU=4))


def to_gpu(number: int, **owners: int) -> MoveInstruction:
    return MoveInstruction(
        HOST, {"VGPU": 4}, f"gpu{number}", {uuid_of(w): {"VGPU": n} for w, n in owners.items()}
    )


def gone(**owners: int) -> MoveInstruction:
    """These use units of which no device is there."""
    shares = {uuid_of(who): {"VGPU": amount} for who, amount in owners.items()}
    return MoveInstruction(HOST, {"VGPU": sum(owners.values())}, HOST, shares)


def test_a_unit_whose_device_is_gone_is_told_and_parked_and_the_rest_moves(world: World) -> None:
    """Scenario 88: reported and parked, the rest moved; it follows when its device is back."""
    world.see(*FLAT)
    for who, amount in (("a", 2), ("b", 1), ("untold", 1)):
        world.hold(who, node1={"VGPU": amount, "VCPU": 1})
    moves = (to_gpu(0, a=2), gone(b=1))
    for _ in range(2):
        report = world.see(*ONE_LEFT, moves=moves)
        assert (report.error, report.pending) == (None, None)
        (problem,) = report.problems
        assert uuid_of("b") in problem and "1 VGPU of node1 whose device is not there" in problem
        assert world.placed("a") == {HOST: {"VCPU": 1}, "gpu0": {"VGPU": 2}}
        assert world.placed("b") == {HOST: {"VCPU": 1, "VGPU": 1}}
        assert world.placed("untold") == {HOST: {"VCPU": 1}, "gpu0": {"VGPU": 1}}
        assert world.totals() == {HOST: {"VCPU": 64, "VGPU": 1}, "gpu0": {"VGPU": 4}}
    assert len(world.journal.reshapes(done=True)) == 1
    assert world.again().operations == 0
    world.tracker.claim(request(VGPU=1))
    with pytest.raises(DoesNotFit):
        world.tracker.claim(request(VGPU=1))
    report = world.see(*NESTED, moves=(to_gpu(0, a=2), to_gpu(1, b=1)))
    assert (report.error, report.pending, report.problems) == (None, None, ())
    assert world.placed("b") == {HOST: {"VCPU": 1}, "gpu1": {"VGPU": 1}}
    assert world.totals() == {HOST: {"VCPU": 64}, "gpu0": {"VGPU": 4}, "gpu1": {"VGPU": 4}}
    world.check()


def test_what_was_parked_goes_with_its_consumer(world: World) -> None:
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 2})
    world.hold("b", node1={"VGPU": 1})
    moves = (to_gpu(0, a=2), gone(a=0, b=1))
    world.see(*ONE_LEFT, moves=moves)
    world.raw.delete_allocations(uuid_of("b"))
    report = world.see(*ONE_LEFT, moves=(to_gpu(0, a=2),))
    assert (report.error, report.problems) == (None, ())
    assert world.totals() == {HOST: {"VCPU": 64}, "gpu0": {"VGPU": 4}}


def test_a_unit_that_a_card_there_must_be_good_for_is_placed_as_any_that_nobody_tells_of(
    world: World,
) -> None:
    """Eight were counted, and eight are on the cards: to park one as well would offer it twice."""
    world.see(*FLAT)
    world.hold("b", node1={"VGPU": 1})
    report = world.see(*NESTED, moves=(to_gpu(0), to_gpu(1), gone(b=1)))
    assert (report.error, report.pending, report.problems) == (None, None, ())
    assert world.placed("b") == {"gpu0": {"VGPU": 1}}


def test_what_is_parked_does_not_stop_a_refusal_of_the_rest(world: World) -> None:
    """Scenario 89 beside 88: what cannot be placed is named and stops the whole, nothing half."""
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 5})
    world.hold("b", node1={"VGPU": 1})
    before = world.placed("a"), world.placed("b")
    report = world.see(*ONE_LEFT, moves=(to_gpu(0, a=5), gone(b=1)))
    assert report.pending is not None and "gpu0 would hold 5 VGPU" in report.pending.message
    assert (world.placed("a"), world.placed("b")) == before
    assert world.totals() == {HOST: {"VCPU": 64, "VGPU": 8}, "gpu0": {}}
    assert world.tree()[ROOT].inventories["VGPU"].capacity <= 6


def test_what_travels_together_is_parked_together_and_an_undo_finds_it(world: World) -> None:
    """A virtual function that is gone keeps its bandwidth."""
    nic = {"SRIOV_NET_VF": 4, "NET_BW_EGR_KILOBIT_PER_SEC": 1000}
    both = {name: 2 * total for name, total in nic.items()}
    world.see(host(**both))
    for who in ("a", "b"):
        world.hold(who, node1={"SRIOV_NET_VF": 1, "NET_BW_EGR_KILOBIT_PER_SEC": 300})
    vf = {"SRIOV_NET_VF": 1}
    moves = (
        MoveInstruction(HOST, nic, "nic0", {uuid_of("a"): vf}),
        MoveInstruction(HOST, vf, HOST, {uuid_of("b"): vf}),
    )
    report = world.see(host(), provider("nic0", **nic), moves=moves)
    assert (report.error, report.pending) == (None, None)
    held = {"SRIOV_NET_VF": 1, "NET_BW_EGR_KILOBIT_PER_SEC": 300}
    assert world.placed("a") == {"nic0": held} and world.placed("b") == {HOST: held}
    assert world.totals() == {HOST: {"VCPU": 64, **held}, "nic0": nic}
    (receipt,) = world.journal.reshapes(done=True)
    world.ask(receipt)
    assert world.placed("a") == world.placed("b") == {HOST: held}
    assert world.totals()[HOST] == {"VCPU": 64, **both}
    world.ask()
    assert world.placed("a") == {"nic0": held} and world.placed("b") == {HOST: held}


def test_a_preview_shows_what_is_parked(world: World) -> None:
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 1})
    world.hold("b", node1={"VGPU": 1})
    world.driver.description = type(world.driver.description)(ONE_LEFT, (to_gpu(0, a=1), gone(b=1)))
    preview = world.reconciler.preview_reshape()
    assert preview.refused is None
    (sentence,) = preview.parked
    assert uuid_of("b") in sentence and "parked, and no other consumer gets it" in sentence
    lines = list(preview_lines(preview_view(preview), Style()))
    assert lines[lines.index("parked:") + 1] == sentence
    assert [each.consumer for each in preview.relocations] == [uuid_of("a")]
    assert preview.after[ROOT].inventories["VGPU"].total == preview.used_after[ROOT]["VGPU"] == 1
    world.again()
    done = world.reconciler.preview_reshape()
    assert (done.moves, done.parked) == ((), (sentence,)), "done, it is told still"
