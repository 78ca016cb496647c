"""When to try again."""

import random

import pytest

from agent.backoff import (
    BASE_S,
    BUSY_MAX_S,
    CONFLICTS_MAX,
    DELAY_MIN_S,
    MAX_S,
    PAUSE_MAX_S,
    RETRY_AFTER_MAX_S,
    Backoff,
    pause,
    retry_conflicts,
)
from agent.errors import PlacementConflict


def test_the_bound_doubles_up_to_a_cap_and_starts_over_after_a_success() -> None:
    backoff = Backoff(clock=lambda: 0.0, uniform=lambda _, high: high)
    assert [backoff.failed() for _ in range(4)] == [2 * BASE_S, 4 * BASE_S, 8 * BASE_S, 16 * BASE_S]
    assert max(backoff.failed() for _ in range(2000)) == MAX_S
    backoff.succeeded()
    assert backoff.left_s() == 0.0
    assert backoff.failed() == 2 * BASE_S


def test_where_somebody_is_there_and_cannot_keep_up_the_cap_is_higher() -> None:
    backoff = Backoff(clock=lambda: 0.0, uniform=lambda _, high: high)
    assert max(backoff.failed() for _ in range(20)) == MAX_S
    assert backoff.failed(busy=True) == BUSY_MAX_S


def test_the_jitter_is_full_but_never_nothing() -> None:
    dice = random.Random(7)
    backoff = Backoff(clock=lambda: 0.0, uniform=dice.uniform)
    delays = [backoff.failed() for _ in range(500)][20:]
    assert min(delays) >= DELAY_MIN_S and max(delays) <= MAX_S
    thirds = [sum(low <= each < low + MAX_S / 3 for each in delays) for low in (0, MAX_S / 3, 2 * MAX_S / 3)]
    assert min(thirds) > len(delays) / 4


def test_what_the_other_side_asks_for_is_kept_within_reason() -> None:
    backoff = Backoff(clock=lambda: 0.0, uniform=lambda low, _: low)
    assert backoff.failed(30.0) == 30.0 + DELAY_MIN_S
    assert backoff.failed(1e9) == RETRY_AFTER_MAX_S + DELAY_MIN_S
    assert backoff.failed(-5.0) == DELAY_MIN_S


def test_more_requests_of_one_failure_do_not_count_and_what_they_are_told_is_kept() -> None:
    now = [100.0]
    backoff = Backoff(clock=lambda: now[0], uniform=lambda _, high: high)
    delay = backoff.failed()
    assert [backoff.failed_in_flight() for _ in range(10)] == [delay] * 10
    now[0] += 1
    assert backoff.failed_in_flight() == delay - 1
    assert backoff.failed_in_flight(30.0) == backoff.failed_in_flight(29.0) == 30.0 + 2 * BASE_S
    now[0] += delay + 30.0
    assert backoff.failed() == 4 * BASE_S


def test_the_rest_of_the_time_is_told() -> None:
    now = [100.0]
    backoff = Backoff(clock=lambda: now[0], uniform=lambda _, high: high)
    assert backoff.left_s() == 0.0
    backoff.failed()
    now[0] += 0.5
    assert backoff.left_s() == 2 * BASE_S - 0.5
    now[0] += 5
    assert backoff.left_s() == 0.0


def test_the_pauses_between_two_tries_are_short_and_none_before_the_second() -> None:
    slept: list[float] = []
    for attempt in range(40):
        pause(attempt, slept.append)
    assert len(slept) == 39
    assert all(0 <= each <= PAUSE_MAX_S for each in slept)


def test_a_step_is_done_again_after_a_conflict_until_that_happened_too_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent.backoff.pause", lambda attempt: None)
    conflicts = iter(range(CONFLICTS_MAX - 1))

    def step() -> str:
        for _ in conflicts:
            raise PlacementConflict("Another client was faster.")
        return "done"

    assert retry_conflicts(step, "The agent gave up.") == "done"
    conflicts = iter(range(CONFLICTS_MAX))
    with pytest.raises(PlacementConflict, match=r"^The agent gave up\.$"):
        retry_conflicts(step, "The agent gave up.")
