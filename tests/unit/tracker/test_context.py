"""What the tracker's parts share: seen guests, admission, and whether Placement may be asked."""

from __future__ import annotations

import pytest

from agent.driver import Guest, GuestState
from agent.errors import ClaimsClosed, PlacementUnavailable
from agent.tracker.context import Admission, PlacementState, SeenGuests


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


def test_the_observer_says_whether_placement_may_be_asked_and_learns_of_its_silence() -> None:
    placement = PlacementState()
    error = PlacementUnavailable("Placement did not answer.")
    placement.report_unavailable(error)
    assert not placement.is_paused()
    reported: list[PlacementUnavailable] = []
    placement.observe(lambda: bool(reported), reported.append, lambda _: None)
    placement.report_unavailable(error)
    assert placement.is_paused() and reported == [error]
