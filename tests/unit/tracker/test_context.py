"""What the tracker's parts share: turns, seen guests, admission, and whether Placement may be asked."""

from __future__ import annotations

import threading

import pytest

from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import Guest, GuestState
from agent.errors import ClaimConflict, ClaimsClosed
from agent.tracker.context import Admission, SeenGuests, Turns


def test_a_guest_is_seen_until_it_is_forgotten_or_no_longer_reported() -> None:
    guests = SeenGuests()
    reported = [Guest(uuid, uuid, GuestState.RUNNING, {}) for uuid in ("a", "b")]
    guests.replace(reported)
    guests.forget("a")
    assert guests.uuids == {"b"} and "a" not in guests
    guests.replace(reported)
    assert "a" in guests
    guests.replace([])
    assert not guests.uuids


def test_claims_are_refused_with_the_reason_until_they_open() -> None:
    admission = Admission("waiting for the first inventory")
    with pytest.raises(ClaimsClosed, match=r"^Claims are closed: waiting for the first inventory\.$"):
        admission.check()
    admission.open()
    admission.check()
    admission.close("the agent is stopping")
    assert admission.closed_reason == "the agent is stopping"


def never_closed() -> None:
    pass


def closed() -> None:
    raise ClaimsClosed("Claims are closed: the agent is stopping.")


def turns(wait_s: float = 0.01) -> Turns:
    return Turns(threading.Condition(threading.Lock()), wait_s, never_closed)


def ask(vcpus: int) -> ClaimRequest:
    return ClaimRequest("a", (RequestGroup("", {"VCPU": vcpus}),), name="web1")


def test_a_turn_is_given_back_also_when_the_block_raises() -> None:
    taken = turns()
    with pytest.raises(ZeroDivisionError), taken.take("a"):
        assert taken.is_taken("a") and not taken.is_taken("b")
        raise ZeroDivisionError
    with taken.take("a"):
        pass
    assert not taken.is_taken("a")


def test_the_wait_for_a_turn_has_an_end() -> None:
    taken = turns()
    with taken.take("a"), pytest.raises(ClaimConflict, match=r"under way for 0\.01 s"), taken.take("a"):
        pass


def test_a_different_claim_is_refused_without_waiting() -> None:
    taken = turns(wait_s=60.0)
    with taken.take("a", ask(1)), pytest.raises(ClaimConflict, match="web1"), taken.take("a", ask(2)):
        pass


def test_a_claim_does_not_wait_while_claims_are_closed_and_a_release_does() -> None:
    """One that need not wait may be answered all the same: it may be there already."""
    taken = Turns(threading.Condition(threading.Lock()), 0.01, closed)
    with taken.take("a", ask(1)):
        with pytest.raises(ClaimsClosed), taken.take("a", ask(1)):
            pass
        with pytest.raises(ClaimConflict, match="try again later"), taken.take("a"):
            pass
    with taken.take("a"):
        assert taken.is_taken("a")


def test_only_the_idle_consumers_are_taken() -> None:
    taken = turns()
    with taken.take("a"):
        with taken.take_idle(["a", "b"]) as idle:
            assert idle == {"b"} and taken.is_taken("b")
        assert taken.is_taken("a") and not taken.is_taken("b")


def test_two_turns_are_taken_in_one_order() -> None:
    """Each thread names them the other way round; neither waits for the other's second turn."""
    taken = turns(wait_s=10.0)
    both = 0

    def run(first: str, second: str) -> None:
        nonlocal both
        for _ in range(200):
            with taken.take_both(first, second):
                both += 1

    threads = [threading.Thread(target=run, args=pair) for pair in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert both == 400
