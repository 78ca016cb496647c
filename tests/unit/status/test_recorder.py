"""What is watched is counted and noted, and never fails because of that."""

import pytest

from agent.claims.request import ClaimRequest, RequestGroup
from agent.errors import DoesNotFit, PlacementUnavailable, StateError
from agent.status.metrics import Metrics
from agent.status.recorder import REPEATED_MAX, REPEATED_S, UNEXPECTED, Recorder

CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"


class Watched:
    def __init__(self) -> None:
        self.now = 0.0
        self.notes: list[tuple[str, str, str]] = []
        self.metrics = Metrics()
        self.recorder = Recorder(self.metrics, self._note, lambda: self.now)
        self.broken = False

    def _note(self, consumer: str, event: str, detail: str, name: str) -> None:
        if self.broken:
            raise StateError("The disk is full.")
        self.notes.append((consumer, event, detail))

    def claim(self, consumer: str = CONSUMER, error: Exception | None = None) -> None:
        with self.recorder.record_claim(ClaimRequest(consumer, (RequestGroup("", {"VCPU": 1}),))):
            self.now += 0.5
            if error is not None:
                raise error

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"plimsoll_{name}", labels) or 0.0


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_claim_is_counted_and_timed(watched: Watched) -> None:
    watched.claim()
    assert watched.counted("claim_requests_total", outcome="granted") == 1
    assert watched.counted("claim_duration_seconds_sum") == 0.5
    assert watched.notes == []


def test_the_same_refusal_is_noted_once_an_hour(watched: Watched) -> None:
    for _ in range(3):
        with pytest.raises(DoesNotFit):
            watched.claim(error=DoesNotFit("Too much."))
    assert watched.notes == [(CONSUMER, "refused", "Too much.")]
    with pytest.raises(DoesNotFit):
        watched.claim(error=DoesNotFit("Too much of another."))
    watched.now += REPEATED_S
    with pytest.raises(DoesNotFit):
        watched.claim(error=DoesNotFit("Too much."))
    assert [each[2] for each in watched.notes] == ["Too much.", "Too much of another.", "Too much."]
    assert watched.counted("claim_requests_total", outcome="plimsoll.claim.does_not_fit") == 5


def test_what_is_remembered_of_refusals_is_bounded(watched: Watched) -> None:
    for number in range(REPEATED_MAX + 50):
        with pytest.raises(DoesNotFit):
            watched.claim(f"consumer {number}", DoesNotFit("Too much."))
    assert len(watched.recorder._recent_refusals) == REPEATED_MAX


def test_an_outage_is_counted_and_not_noted(watched: Watched) -> None:
    with pytest.raises(PlacementUnavailable):
        watched.claim(error=PlacementUnavailable("It is away."))
    assert watched.notes == []
    assert watched.counted("claim_requests_total", outcome="plimsoll.placement.unavailable") == 1


def test_a_history_that_cannot_be_written_fails_nobody(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.broken = True
    with pytest.raises(DoesNotFit, match="Too much"):
        watched.claim(error=DoesNotFit("Too much."))
    assert "The event refused was not written to the history: The disk is full." in caplog.text


def test_the_gate_s_verdicts_are_counted_and_its_refusals_noted(watched: Watched) -> None:
    with watched.recorder.record_gate() as decided:
        decided("claimed")
    with pytest.raises(DoesNotFit), watched.recorder.record_gate():
        raise DoesNotFit("Too much.", consumer=CONSUMER)
    with pytest.raises(ZeroDivisionError), watched.recorder.record_gate():
        raise ZeroDivisionError
    assert watched.notes == [(CONSUMER, "gate_refused", "Too much.")]
    for outcome in ("claimed", "plimsoll.claim.does_not_fit", UNEXPECTED):
        assert watched.counted("gate_requests_total", outcome=outcome) == 1


def test_a_failure_that_nobody_foresaw_is_not_counted_as_granted(watched: Watched) -> None:
    with pytest.raises(ZeroDivisionError):
        watched.claim(error=ZeroDivisionError())
    assert watched.counted("claim_requests_total", outcome="granted") == 0
    assert watched.counted("claim_requests_total", outcome=UNEXPECTED) == 1
