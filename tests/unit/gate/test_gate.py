"""How long a guest that was let in is expected, and when one counts as ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from agent.gate.gate import ExpectedGuests
from agent.tracker.tracker import ResourceTracker


class Tracker:
    """The methods of a tracker that are called."""

    def __init__(self) -> None:
        self.now = [100.0]
        self.forgotten: list[str] = []
        self.guests = SimpleNamespace(forget=self.forgotten.append)
        self.unexpected: list[str] = []

    def age_s(self, stamp: float) -> float:
        return self.now[0] - stamp

    def expect_no_more(self, uuid: str) -> None:
        self.unexpected.append(uuid)


def made() -> tuple[ExpectedGuests, Tracker, list[float]]:
    tracker = Tracker()
    now = tracker.now
    return ExpectedGuests(cast(ResourceTracker, tracker), lambda: now[0]), tracker, now


def test_a_guest_is_expected_for_the_grace_period() -> None:
    expected, tracker, _ = made()
    expected.let_in("a")
    expected.give_up(160.0, 60.0)
    assert expected.is_let_in("a") and tracker.unexpected == []
    expected.give_up(160.5, 60.0)
    assert not expected.is_let_in("a") and tracker.unexpected == ["a"]


def test_a_guest_that_ended_is_not_expected_and_one_that_comes_again_has_not_ended() -> None:
    expected, tracker, now = made()
    expected.let_in("a")
    expected.end("a")
    assert not expected.is_let_in("a")
    assert (tracker.forgotten, tracker.unexpected) == (["a"], ["a"])
    assert expected.ended_before(100.0) == frozenset()
    assert expected.ended_before(100.5) == {"a"}
    now[0] = 101.0
    expected.let_in("a")
    assert expected.ended_before(200.0) == frozenset()


def test_an_end_is_remembered_until_it_is_settled() -> None:
    expected, _, _ = made()
    for uuid in "ab":
        expected.end(uuid)
    expected.forget_ended(frozenset({"a", "c"}))
    assert expected.ended_before(200.0) == {"b"}
