"""Ages: by the monotonic clock, whatever the wall clock is set to, and never too large."""

from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent import clock
from agent.clock import STEP_S, HostClock

DAY_S = 86_400.0
STEPS_S = [sign * size for sign in (1, -1) for size in (1.0, 3600.0, 400 * DAY_S, 4 * 365 * DAY_S)]


class Clocks:
    """The two clocks of a host; the wall clock may be set."""

    def __init__(self, wall: float = 1_800_000_000.0) -> None:
        self.steady = 5_000.0
        self.ahead = wall - self.steady
        self.host = HostClock(lambda: self.steady + self.ahead, lambda: self.steady)


@pytest.mark.parametrize("step_s", STEPS_S)
def test_a_step_ages_nothing_and_keeps_nothing_young(step_s: float) -> None:
    clocks = Clocks()
    clocks.steady += 5
    before = clocks.host.now()
    clocks.steady += 10
    clocks.ahead += step_s
    assert clocks.host.age_s(before) == pytest.approx(10, abs=abs(step_s) if abs(step_s) < 10 else 0.1)
    after = clocks.host.now()
    assert clocks.host.age_s(after) == pytest.approx(0, abs=0.1)
    clocks.steady += 70
    assert clocks.host.age_s(after) == pytest.approx(70, abs=0.1)


@pytest.mark.parametrize("step_s", STEPS_S)
def test_a_step_is_noticed_once_with_its_size(step_s: float) -> None:
    clocks = Clocks()
    before = clocks.host.ahead_s()
    clocks.steady += 100
    clocks.ahead += 0.4  # slewed
    assert clocks.host.ahead_s() == before
    clocks.ahead += step_s - 0.4
    assert clocks.host.ahead_s() - before == pytest.approx(step_s)
    assert clocks.host.ahead_s() - before == pytest.approx(step_s)


def test_what_an_earlier_run_stamped_counts_from_the_start_and_is_shown_as_old_as_it_was_then() -> None:
    """The clock may have been 400 days ahead when this run began."""
    clocks = Clocks()
    yesterday = clocks.host.now() - DAY_S
    clocks.steady += 7
    for step_s in (0, -4 * 365 * DAY_S, 8 * 365 * DAY_S):
        clocks.ahead += step_s
        assert clocks.host.age_s(yesterday) == pytest.approx(7)
        assert [*clocks.host.ages_s([yesterday])] == [pytest.approx(DAY_S + 7)]


def test_a_start_with_the_clock_in_the_past_takes_stamps_that_lie_ahead_for_new() -> None:
    clocks = Clocks(wall=0.0)
    ahead = 1_800_000_000.0
    assert clocks.host.age_s(ahead) == 0
    clocks.steady += 65
    assert clocks.host.age_s(ahead) == pytest.approx(65)
    clocks.ahead += ahead + DAY_S  # NTP
    clocks.host.ahead_s()
    clocks.steady += 5
    assert clocks.host.age_s(ahead) == pytest.approx(70)


SETS = [*STEPS_S, 0.3, -0.3, STEP_S, -STEP_S]
"""Steps, and what is too small for one."""
RESOLUTION_S = 1e-6
"""A float of seconds since 1970 tells no microsecond from the next."""
EVENTS = st.one_of(
    st.tuples(st.just("wait"), st.floats(0, 1.0)),
    st.tuples(st.just("set"), st.sampled_from(SETS)),
    st.tuples(st.sampled_from(["stamp", "look", "age"]), st.just(0.0)),
)


@given(st.lists(EVENTS, max_size=40), st.integers(2, clock.SPANS_KEPT))
@example(
    [("stamp", 0.0), ("wait", 0.2682178255523589), ("age", 0.0), ("set", -1.0), ("age", 0.0), ("stamp", 0.0)],
    9,
)
@example(
    [("wait", 0.2682178255523589), ("look", 0.0), ("set", -STEPS_S[0]), ("look", 0.0), ("stamp", 0.0)], 9
)
@example([("set", 1.0), ("stamp", 0.0), ("set", -1.0), ("wait", 1.0), ("set", 1.0)], 9)
@example([("wait", 1.0), ("stamp", 0.0), ("set", 1.0), ("look", 0.0)], 9)
def test_no_stamp_of_this_run_is_ever_older_than_it_is(history: list[tuple[str, float]], kept: int) -> None:
    """Deadlines that end claims would be over too early. In doubt a stamp is taken for younger."""
    clocks = Clocks()
    stamps: list[tuple[float, float]] = []
    with patch.object(clock, "SPANS_KEPT", kept):
        for what, amount in [*history, ("age", 0.0)]:
            match what:
                case "wait":
                    clocks.steady += amount
                case "set":
                    clocks.ahead += amount
                case "look":
                    clocks.host.ahead_s()
                case "stamp":
                    stamps.append((clocks.host.now(), clocks.steady))
                case _:
                    for stamp, made in stamps:
                        assert 0 <= clocks.host.age_s(stamp) <= clocks.steady - made + STEP_S + RESOLUTION_S
        assert len(clocks.host._spans) <= kept
    assert all(a.most != b.most for a, b in pairwise(clocks.host._spans[1:]))


@given(st.lists(st.tuples(st.floats(0, 3.0), st.sampled_from(STEPS_S[:4])), max_size=10), st.floats(0, 100.0))
def test_a_clock_that_is_only_set_forward_leaves_each_age_exact(
    steps: list[tuple[float, float]], later_s: float
) -> None:
    """No time of day comes twice then; a step of a second may hide in what the readings are off."""
    clocks = Clocks()
    stamps: list[tuple[float, float]] = []
    for wait_s, step_s in steps:
        stamps.append((clocks.host.now(), clocks.steady))
        clocks.steady += wait_s
        stamps.append((clocks.host.now(), clocks.steady))
        clocks.ahead += step_s
        clocks.host.ahead_s()
    clocks.steady += later_s
    for stamp, made in stamps:
        assert clocks.host.age_s(stamp) == pytest.approx(clocks.steady - made, abs=1.0 + RESOLUTION_S)
