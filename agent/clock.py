"""The host's clocks: the wall clock is for people, and every wait and every age is by the monotonic one.

NTP, an operator or a dead battery may set the wall clock to any time. What the agent records is stamped with
the wall clock, since it is shown and outlives the process; how old a stamp is never follows from what the
wall clock says later.
"""

import threading
import time
from collections.abc import Callable
from math import inf
from typing import NamedTuple

STEP_S = 0.5
"""The wall clock was set if its lead over the monotonic one changed by so much: both are slewed alike."""
_READ_WITHIN_S = 0.05
_READS_MAX = 20


class _Span(NamedTuple):
    """From `begin` to `end` (of the monotonic clock) the wall clock was `ahead` of the monotonic one."""

    begin: float
    end: float
    ahead: float


class HostClock:
    """Stamps and their ages. Any thread may call.

    Between two steps the wall clock is ahead of the monotonic clock by a constant. The steps that were
    noticed say which constant a stamp was made with.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._lock = threading.Lock()
        self._looked, ahead = self._read()
        self._spans = [_Span(self._looked, inf, ahead)]

    def now(self) -> float:
        """A stamp: seconds since the epoch, UTC, as the wall clock says."""
        return self._wall()

    def ahead_s(self) -> float:
        """How far the wall clock is ahead of the monotonic one; a step of the wall clock changes it."""
        with self._lock:
            at, ahead = self._read()
            last = self._spans[-1]
            if abs(ahead - last.ahead) >= STEP_S:
                self._spans[-1] = last._replace(end=at)
                self._spans.append(_Span(self._looked, inf, ahead))
            self._looked = at
            return self._spans[-1].ahead

    def age_s(self, stamp: float) -> float:
        """How long ago the stamp was made, in seconds, never negative.

        A stamp of an earlier run is as old as it was when this run began, and one that lies ahead was made
        then at the latest. Where the wall clock was set back it says the same time twice: the later one
        counts, so that nothing is over too early.
        """
        self.ahead_s()
        now = self._steady()
        for span in reversed(self._spans):
            if span.begin <= stamp - span.ahead <= min(span.end, now) + STEP_S:
                return max(0.0, now - (stamp - span.ahead))
        first = self._spans[0]
        return now - first.begin + max(0.0, first.begin + first.ahead - stamp)

    def _read(self) -> tuple[float, float]:
        """(the monotonic clock, how far the wall clock is ahead of it), both read at one moment."""
        for _ in range(_READS_MAX):
            before = self._steady()
            wall = self._wall()
            if self._steady() - before < _READ_WITHIN_S:
                break
        return before, wall - before
