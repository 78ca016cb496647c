"""What is delivered later: releases that wait for Placement, and consumers that it does not answer for."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from kits.tracker import Kit, request

from agent.backoff import BUSY_MAX_S, Backoff
from agent.claims.claim import ClaimState
from agent.errors import (
    DoesNotFit,
    PlacementConflict,
    PlacementError,
    PlacementUnavailable,
)


def owed(kit: Kit, number: int) -> list[str]:
    """Consumers whose releases were journaled while placement was away."""
    consumers = [kit.tracker.claim(request(VCPU=1)).claim.consumer for _ in range(number)]
    with kit.away():
        assert not any(kit.tracker.release(each) for each in consumers)
    kit.tap.calls.clear()
    return consumers


def never_answered(kit: Kit, *consumers: str, **told: float) -> list[PlacementUnavailable]:
    """What the tracker tells of that, from now on."""

    def silent(call: str) -> None:
        if any(each in call for each in consumers):
            raise PlacementUnavailable("Placement did not answer in time.", busy=True, **told)

    found: list[PlacementUnavailable] = []
    kit.tap.before = silent
    kit.tracker.placement.report_unavailable = found.append
    return found


def test_one_consumer_that_is_never_answered_for_keeps_nobody_waiting(kit: Kit) -> None:
    poison, *others = owed(kit, 4)
    told = never_answered(kit, poison)
    assert (kit.tracker.deliver(), kit.tracker.pending, told) == (len(others), 1, [])
    kit.tap.calls.clear()
    kit.tracker.deliver()
    assert kit.tap.calls == [], "it is not asked for again at once"
    for _ in range(3):
        kit.later_s += BUSY_MAX_S
        kit.tracker.deliver()
    assert (len(kit.tap.calls), kit.tracker.pending, told) == (3, 1, [])
    kit.tap.before = lambda _: None
    kit.later_s += BUSY_MAX_S
    assert (kit.tracker.deliver(), kit.tracker.pending, kit.placed_all()) == (1, 0, {})


def test_what_was_refused_is_told_until_it_is_delivered(kit: Kit) -> None:
    (consumer,) = owed(kit, 1)

    def refuse(_: str) -> None:
        raise PlacementError("The role was taken away.", status=403)

    kit.tap.before = refuse
    assert (kit.tracker.deliver(), kit.tracker.refusals()) == (0, {consumer: "The role was taken away."})
    kit.tap.before = lambda _: None
    assert (kit.tracker.deliver(again=True), kit.tracker.refusals()) == (1, {})


def test_threads_that_deliver_at_once_take_note_of_each_refusal(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate delivers, too, beside the agent: here a thread looks at each refusal while others come."""

    class Paused(Backoff):
        """Lets another thread run while one looks."""

        def left_s(self) -> float:
            time.sleep(0.0005)
            return super().left_s()

    monkeypatch.setattr("agent.tracker.tracker.Backoff", Paused)
    consumers = owed(kit, 16)

    def refuse(call: str) -> None:
        raise PlacementError(f"No role for {call}.", status=403)

    kit.tap.before = refuse
    with ThreadPoolExecutor(4) as pool:
        assert {*pool.map(lambda _: kit.tracker.deliver(limit=1), range(60))} == {0}
    kit.tracker.deliver(again=True)
    assert kit.tracker.refusals().keys() == {*consumers}


def test_placement_is_away_where_it_does_not_answer_for_two_and_those_go_last(kit: Kit) -> None:
    first, second, *others = owed(kit, 5)
    told = never_answered(kit, first, second)
    assert (kit.tracker.deliver(), len(told), len(kit.tap.calls)) == (0, 1, 2)
    assert kit.tracker.deliver() == len(others)
    assert (kit.tracker.pending, len(told)) == (2, 2)


def test_where_placement_asks_to_be_left_alone_nobody_else_gets_a_turn(kit: Kit) -> None:
    first, *_ = owed(kit, 3)
    told = never_answered(kit, first, retry_after=120.0)
    assert (kit.tracker.deliver(), len(told), len(kit.tap.calls)) == (0, 1, 1)


def test_a_release_while_placement_is_away_is_journaled_and_delivered_later(kit: Kit) -> None:
    claim = kit.tracker.claim(request(PCPU=4)).claim
    with kit.away():
        assert kit.tracker.release(claim.consumer) is False
        assert kit.tracker.release(claim.consumer) is False
    assert kit.tracker.pending == 1
    with pytest.raises(DoesNotFit):
        kit.tracker.claim(request(PCPU=1))
    kit.restart()
    assert kit.tracker.pending == 1
    kit.refresh()
    assert kit.tracker.recover([]) == 1
    assert (kit.tracker.pending, kit.placed_all()) == (0, {})
    kit.tracker.admission.open()
    kit.tracker.claim(request(PCPU=4))


def test_claiming_again_what_is_to_be_released_delivers_the_release_first(kit: Kit) -> None:
    asked = request(VCPU=4)
    kit.tracker.claim(asked)
    with kit.away():
        assert kit.tracker.release(asked.consumer) is False
        with pytest.raises(PlacementUnavailable):
            kit.tracker.claim(asked)
    assert kit.tracker.claim(asked).claim.state is ClaimState.CLAIMED


@pytest.mark.parametrize("writes", [6, 99], ids=["for a while", "for ever"])
def test_a_release_that_others_write_between_goes_through_or_is_delivered_later(
    kit: Kit, writes: int
) -> None:
    claim = kit.tracker.claim(request(VCPU=2)).claim
    left = [writes]

    def touch(call: str) -> None:
        if call.startswith("PUT") and left[0]:
            left[0] -= 1
            kit.schedule(claim.consumer, host={"VCPU": 2})

    kit.tap.before = touch
    if writes == 6:
        assert kit.tracker.release(claim.consumer)
    else:
        with pytest.raises(PlacementConflict, match=r"8 times .* tries again later"):
            kit.tracker.release(claim.consumer)
        left[0] = 0
        assert (kit.tracker.pending, kit.tracker.deliver()) == (1, 1)
    assert (kit.tracker.pending, kit.placed_all()) == (0, {})


def test_deliver_is_bounded(kit: Kit) -> None:
    asked = [request(VCPU=1) for _ in range(5)]
    for each in asked:
        kit.tracker.claim(each)
    with kit.away():
        for each in asked:
            kit.tracker.release(each.consumer)
    assert kit.tracker.deliver(limit=2) == 2
    assert kit.tracker.pending == 3
    assert kit.tracker.deliver() == 3
