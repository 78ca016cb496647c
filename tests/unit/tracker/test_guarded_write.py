"""One write whose answer may be lost: what is known of it, what is raised, and when the intent is undone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agent.errors import PlacementConflict, PlacementError, PlacementUnavailable, StateError
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.tracker.guarded_write import GuardedWrite, Outcome

WRITE = ConsumerAllocations("consumer", {"host": {"VCPU": 1}})
SILENCE = PlacementUnavailable("Placement did not answer.", busy=True)
GONE = PlacementUnavailable("Placement is away.")


class Answers(PlacementClient):
    """A client that only fails as it is flags to."""

    def __init__(self, error: PlacementError | None = None) -> None:
        self.error = error
        self.written: list[ConsumerAllocations] = []

    def write_allocations(self, *writes: ConsumerAllocations) -> None:
        self.written += writes
        if self.error is not None:
            raise self.error


def guarded(error: PlacementError | None = None) -> GuardedWrite:
    return GuardedWrite(Answers(error), "claim of web1", "the resources stay reserved")


def never(_: bool) -> Outcome:
    raise AssertionError("an answered write needs no read")


def undone(write: GuardedWrite) -> bool:
    steps: list[str] = []
    write.undo_intent(PlacementError("It failed."), lambda: steps.append("undo"))
    return steps == ["undo"]


def test_an_answered_write_is_done_and_its_intent_stays() -> None:
    write = guarded()
    assert undone(write), "nothing was sent yet"
    assert write.run(WRITE, read_outcome=never) is write.outcome is Outcome.DONE
    assert not undone(write)


def test_a_rejected_write_is_refused_and_its_intent_is_undone() -> None:
    write = guarded(PlacementConflict("Another client was faster."))
    with pytest.raises(PlacementConflict):
        write.run(WRITE, read_outcome=never)
    assert write.outcome is Outcome.REFUSED and undone(write)


@pytest.mark.parametrize(("silence", "may_still_execute"), [(SILENCE, True), (GONE, False)])
def test_the_read_decides_and_knows_whether_the_write_may_still_be_executed(
    silence: PlacementUnavailable, may_still_execute: bool
) -> None:
    flags: list[bool] = []

    def read(outcome: Outcome) -> Callable[[bool], Outcome]:
        return lambda late: (flags.append(late), outcome)[1]

    for outcome in (Outcome.DONE, Outcome.REFUSED):
        write = guarded(silence)
        assert write.run(WRITE, read_outcome=read(outcome)) is outcome
        assert undone(write) is (outcome is Outcome.REFUSED)
    assert flags == [may_still_execute] * 2
    assert write.not_executed().message.startswith("Placement did not answer the claim of web1 and holds")
    assert write.not_executed().__cause__ is silence


def test_an_outcome_that_the_read_cannot_tell_keeps_the_intent() -> None:
    write = guarded(SILENCE)
    with pytest.raises(PlacementUnavailable, match="not known yet: the resources stay reserved") as error:
        write.run(WRITE, read_outcome=lambda _: Outcome.UNKNOWN)
    assert write.outcome is Outcome.UNKNOWN and not undone(write)
    assert error.value.details["busy"] is True


def test_a_read_that_is_not_answered_either_keeps_the_intent() -> None:
    def read(_: bool) -> Outcome:
        raise GONE

    write = guarded(SILENCE)
    with pytest.raises(PlacementUnavailable, match="not known yet") as error:
        write.run(WRITE, read_outcome=read)
    assert write.outcome is Outcome.UNKNOWN and error.value.__cause__ is GONE


def test_where_placement_asks_for_a_pause_nothing_is_read() -> None:
    write = guarded(PlacementUnavailable("Try again later.", retry_after=30.0))
    with pytest.raises(PlacementUnavailable, match="not known yet") as error:
        write.run(WRITE, read_outcome=never)
    assert error.value.details["retry_after"] == 30.0


def test_an_intent_that_cannot_be_undone_is_noted_on_the_error() -> None:
    def undo() -> None:
        raise StateError("The disk is full.")

    error = PlacementConflict("Another client was faster.")
    guarded().undo_intent(error, undo)
    assert error.__notes__ == ["The intent could not be undone either: The disk is full."]
