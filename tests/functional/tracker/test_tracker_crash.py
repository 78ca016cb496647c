"""The process is gone at any request and at any journal write: each resource has exactly one right owner.

Every operation is run again and again, dying one boundary later each time, until it runs to its end. After
each death a new tracker starts on the same files, once with placement there, once with it away at first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from kits.placements import Placement
from kits.tracker import Crash, Death, Kit, dies, fast_directory, guest, request, uuid_of

from agent.claims.claim import ClaimState
from agent.claims.request import ClaimRequest, TopologyRequest
from agent.errors import DoesNotFit

BOUNDARIES_MAX = 60

CONSUMER = uuid_of("the consumer")
MIXED = TopologyRequest("mixed", "require", dedicated_cpus=frozenset({1, 3}))
ASKED = replace(request(CONSUMER, VCPU=2, PCPU=2, VGPU=3), topology=MIXED)
"""With a NUMA cell of its own."""
SOMEBODY = uuid_of("somebody")


def claim(kit: Kit) -> None:
    kit.tracker.claim(ASKED)


def claim_where_somebody_was_faster(kit: Kit) -> None:
    """Placement refuses the first choice; the second card has room."""
    kit.schedule(SOMEBODY, gpu0={"VGPU": 2})
    kit.tracker.claim(ASKED)


def claim_that_does_not_fit(kit: Kit) -> None:
    kit.schedule(SOMEBODY, gpu0={"VGPU": 2}, gpu1={"VGPU": 2})
    with pytest.raises(DoesNotFit):
        kit.tracker.claim(ASKED)


def adopt(kit: Kit) -> None:
    """A scheduler wrote another choice than ours."""
    kit.schedule(CONSUMER, host={"VCPU": 2, "PCPU": 2}, gpu1={"VGPU": 3})
    kit.tracker.claim(ASKED)


def release(kit: Kit) -> None:
    kit.tracker.release(CONSUMER)


def abort(kit: Kit) -> None:
    """The spawn fails inside the block."""
    with pytest.raises(RuntimeError), kit.tracker.claim(ASKED):
        raise RuntimeError("no such image")


OPERATIONS = (claim, claim_where_somebody_was_faster, claim_that_does_not_fit, adopt, release, abort)


def died(kit: Kit, operation: Callable[[Kit], None], number: int) -> bool:
    if operation is release:
        kit.tracker.claim(ASKED)
    return dies(kit.taps(Death(number)), lambda: operation(kit))


def come_back(kit: Kit, *, running: bool, away: bool) -> None:
    kit.restart()
    kit.refresh()
    guests = [guest(CONSUMER)] if running else []
    if away:
        with kit.away():
            kit.tracker.recover(guests)
            kit.check()
        kit.tracker.deliver()
    else:
        kit.tracker.recover(guests)
    kit.refresh()
    kit.tracker.admission.open()


def right_owner(kit: Kit, operation: Callable[[Kit], None]) -> None:
    """Nothing waits, memory, disk and placement agree, and whoever is there has what it asked for."""
    kit.check()
    assert kit.tracker.pending == 0
    mine = kit.tracker.claim_of(CONSUMER)
    held = kit.placed(CONSUMER)
    if mine is None:
        # Nothing of ours is left; what the scheduler wrote is the scheduler's.
        assert held == ({"host": {"VCPU": 2, "PCPU": 2}, "gpu1": {"VGPU": 3}} if operation is adopt else {})
    else:
        assert mine.state is ClaimState.CLAIMED
        assert sum(sum(amounts.values()) for amounts in held.values()) == 7
        (cell,) = mine.cells
        assert (set(cell.pinning), set(cell.floating)) == ({1, 3}, {0, 2})


@pytest.mark.parametrize("away", [False, True], ids=["placement there", "placement away at first"])
@pytest.mark.parametrize("running", [False, True], ids=["no guest", "guest there"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.__name__)
def test_death_at_every_boundary(
    operation: Callable[[Kit], None], running: bool, away: bool, any_placement: Placement
) -> None:
    """Scenario 38: killed between placement's claim and ours, and at every other point."""
    for number in range(1, BOUNDARIES_MAX):
        with fast_directory() as directory, Kit(Path(directory), placement=any_placement) as kit:
            if not died(kit, operation, number):
                assert number > 4
                return
            come_back(kit, running=running, away=away)
            right_owner(kit, operation)
            try_again(kit, ASKED)
    raise AssertionError(f"{operation.__name__} has more than {BOUNDARIES_MAX} boundaries")


def try_again(kit: Kit, asked: ClaimRequest) -> None:
    """The caller, who never got an answer, asks again: granted, unless somebody else has it by right."""
    try:
        kit.tracker.claim(asked)
    except DoesNotFit:
        assert kit.placed(SOMEBODY)
    kit.check()


def test_a_granted_claim_is_there_after_death_whatever_runs(placement: Placement) -> None:
    with fast_directory() as directory, Kit(Path(directory), placement=placement) as kit:
        granted = kit.tracker.claim(ASKED).claim
        kit.restart()
        kit.refresh()
        kit.tracker.recover([])
        assert kit.tracker.claim_of(CONSUMER) == granted
        kit.check()


@pytest.mark.parametrize("sent", [False, True], ids=["before the request", "after the request"])
@pytest.mark.parametrize("running", [False, True], ids=["no guest", "guest there"])
def test_an_interrupted_claim_is_finished_if_its_guest_is_there_and_else_undone(
    placement: Placement, running: bool, sent: bool
) -> None:
    """Scenario 38: what the build never learned about is freed; what runs keeps what was chosen for it."""

    def die(call: str) -> None:
        if call.startswith("PUT"):
            raise Crash

    with fast_directory() as directory, Kit(Path(directory), placement=placement) as kit:
        setattr(kit.tap, "after" if sent else "before", die)
        with pytest.raises(Crash):
            kit.tracker.claim(ASKED)
        chosen = kit.journal.claims()[CONSUMER]
        come_back(kit, running=running, away=False)
        found = kit.tracker.claim_of(CONSUMER)
        assert (found is not None) == running == bool(kit.placed(CONSUMER))
        if found is not None:
            assert (found.state, found.units) == (ClaimState.CLAIMED, chosen.units)
        kit.check()


def test_an_intent_does_not_take_back_what_somebody_else_wrote_for_the_consumer(
    placement: Placement,
) -> None:
    with fast_directory() as directory, Kit(Path(directory), placement=placement) as kit:

        def die(call: str) -> None:
            if call.startswith("PUT"):
                raise Crash

        kit.tap.before = die
        with pytest.raises(Crash):
            kit.tracker.claim(ASKED)
        kit.schedule(CONSUMER, host={"VCPU": 2, "PCPU": 2}, gpu1={"VGPU": 3})
        before = kit.placed_all()
        come_back(kit, running=False, away=False)
        assert kit.placed_all() == before
        assert kit.tracker.claims() == {}
