"""The host's clocks: the wall clock is for people, and every wait and every age is by the monotonic one.

NTP, an operator or a dead battery may set the wall clock to any time. What the agent records is stamped with
the wall clock, since it is shown and outlives the process; how old a stamp is never follows from what the
wall clock says later. What is decided by an age counts that of a stamp of an earlier run from the start.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from math import inf
from typing import NamedTuple

STEP_S = 0.5
"""The wall clock was set if its lead over the monotonic one changed by so much: both are slewed alike."""
SPANS_KEPT = 64
"""Two services that fight over the clock set it for ever: the oldest steps are kept as one."""
_SLACK_S = 2 * STEP_S
"""A lead may be off by less than STEP_S, and the clocks are read one after the other."""
_READ_WITHIN_S = 0.05
_READS_MAX = 20


def suspended_s() -> float:
    """For how long the host has been suspended since its boot: the monotonic clock stood still meanwhile."""
    for _ in range(_READS_MAX):
        before = time.monotonic()
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        if time.monotonic() - before < _READ_WITHIN_S:
            break
    return since_boot - before


def exact_moment(seconds: float) -> str:
    """Seconds since 1970 as RFC 3339 to the millisecond, UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Span(NamedTuple):
    """From `begin` to `end` (of the monotonic clock) the wall clock led by `least` to `most` seconds."""

    begin: float
    end: float
    least: float
    most: float


class HostClock:
    """Stamps and their ages. Any thread may call.

    Between two steps the wall clock is ahead of the monotonic clock by a constant. The steps that were
    noticed say which constant a stamp was made with; `now` notices one before it makes a stamp.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._lock = threading.Lock()
        self._looked, stamp = self._read()
        self._began, self._began_ahead = self._looked, stamp - self._looked
        self._spans: tuple[_Span, ...] = (_Span(self._began, inf, self._began_ahead, self._began_ahead),)

    def now(self) -> float:
        """A stamp: seconds since the epoch, UTC, as the wall clock says."""
        at, stamp = self._read()
        return self._look()[1] if self._is_step(stamp - at) else stamp

    def ahead_s(self) -> float:
        """How far the wall clock is ahead of the monotonic one; a step of the wall clock changes it."""
        self._look()
        return self._spans[-1].most

    def ages_s(self, stamps: Iterable[float]) -> Iterator[float]:
        """How long ago each of the stamps was made, the newest first; for people.

        Their order says more than each alone: where the wall clock said the same time twice, one that was
        made before another is not younger than it. A stamp of an earlier run is as old as the wall clock said
        when this run began, and one that lies ahead was made then at the latest.
        """
        least_s = 0.0
        for stamp in stamps:
            least_s = self._age_s(stamp, least_s, max(0.0, self._began + self._began_ahead - stamp))
            yield least_s

    def age_s(self, stamp: float) -> float:
        """For how long it is certain that the stamp was made, in seconds; never negative.

        At most STEP_S more than it is: where the wall clock said the same time twice, the later one counts,
        so that nothing is over too early. A stamp of an earlier run counts from when this run began: the wall
        clock may have been set in between, or may be wrong now.
        """
        return self._age_s(stamp, 0.0, 0.0)

    def _age_s(self, stamp: float, least_s: float, before_s: float) -> float:
        """The age, at least `least_s`; `before_s` is that of an earlier run's stamp when this run began."""
        now = self._look()[0]
        made = [
            min(stamp - span.least, span.end, now)
            for span in self._spans
            if span.begin - _SLACK_S <= stamp - span.least
            and stamp - span.most <= min(span.end, now) + _SLACK_S
        ]
        known = [now - at for at in made if now - at >= least_s - _SLACK_S]
        if known:
            return max(least_s, min(known))
        return max(least_s, now - self._began + before_s)

    def _look(self) -> tuple[float, float]:
        """Read the clocks, and keep a step that happened since the last look."""
        with self._lock:
            at, stamp = self._read()
            if self._is_step(stamp - at):
                *before, last = self._spans
                spans = (
                    *before,
                    last._replace(end=at),
                    _Span(self._looked, inf, stamp - at, stamp - at),
                )
                if len(spans) > SPANS_KEPT:
                    first, second, *rest = spans
                    least, most = min(first.least, second.least), max(first.most, second.most)
                    spans = (_Span(first.begin, second.end, least, most), *rest)
                self._spans = spans
            self._looked = at
            return at, stamp

    def _is_step(self, ahead_s: float) -> bool:
        return abs(ahead_s - self._spans[-1].most) >= STEP_S

    def _read(self) -> tuple[float, float]:
        """The monotonic clock and the wall clock at one moment."""
        for _ in range(_READS_MAX):
            before = self._steady()
            wall = self._wall()
            if self._steady() - before < _READ_WITHIN_S:
                break
        return before, wall
