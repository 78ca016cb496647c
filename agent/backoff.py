"""Delays between attempts: full jitter under a bound that doubles with each failure, up to a cap.

All hosts lose Placement at the same moment; without jitter they would also return at the same moment. The cap
is higher for a service that runs but cannot keep up: it must get fewer requests with each one that it does
not answer, or thousands of hosts keep it down (benchmarks/comeback.py).
Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
"""

import time
from collections.abc import Callable
from random import SystemRandom
from typing import TypeVar

from agent.errors import PlacementConflict

BASE_S = 1.0
MAX_S = 60.0
BUSY_MAX_S = 600.0
DELAY_MIN_S = 0.25
RETRY_AFTER_MAX_S = 600.0
DOUBLINGS_MAX = 10
CONFLICTS_MAX = 8
"""How often an operation on a consumer meets other writers before the agent puts it off, or says so.

Placement refuses with a conflict, too, where others wrote to the same providers and it gave up itself.
"""
PAUSE_BASE_S = 0.02
PAUSE_MAX_S = 0.5

_JITTER = SystemRandom()

Result = TypeVar("Result")


def pause(attempt: int, sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait after a write conflict, so that the other writer can finish.

    There is no wait after the first attempt (0), and a longer one after each later attempt.
    """
    if attempt > 0:
        sleep(_JITTER.uniform(0, min(PAUSE_MAX_S, PAUSE_BASE_S * 2 ** min(attempt, DOUBLINGS_MAX))))


def retry_conflicts(step: Callable[[], Result], gave_up: str) -> Result:
    """What `step` returns; it is done again from a fresh read each time that another writer was faster.

    Raises PlacementConflict with the sentence `gave_up` where that happens `CONFLICTS_MAX` times.
    """
    for attempt in range(CONFLICTS_MAX):
        try:
            return step()
        except PlacementConflict:
            pause(attempt)
    raise PlacementConflict(gave_up)


class Backoff:
    """The delay until the next attempt, which grows with each failure in a row.

    `clock` gives seconds of a steady clock, `uniform(low, high)` a random number.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = _JITTER.uniform,
    ) -> None:
        self._clock = clock
        self._uniform = uniform
        self._failures = 0
        self._due = 0.0

    def failed(self, retry_after_s: float = 0.0, *, busy: bool = False) -> float:
        """Count a failure; returns the seconds until the next attempt.

        `busy`: the service runs, but did not answer in time. `retry_after_s` is the service's Retry-After,
        which is honoured up to RETRY_AFTER_MAX_S; the jitter comes on top, because all clients get the same.
        """
        self._failures += 1
        delay_s = self._delay_s(retry_after_s, BUSY_MAX_S if busy else MAX_S)
        self._due = self._clock() + delay_s
        return delay_s

    def failed_in_flight(self, retry_after_s: float = 0.0) -> float:
        """As `failed`, for a request that was under way when the failure was counted, and failed as well.

        Only a longer Retry-After postpones the next attempt.
        """
        if retry_after_s > self.left_s():
            self._due = self._clock() + self._delay_s(retry_after_s, MAX_S)
        return self.left_s()

    def _delay_s(self, retry_after_s: float, max_s: float) -> float:
        bound = min(max_s, BASE_S * 2 ** min(self._failures, DOUBLINGS_MAX))
        return min(max(retry_after_s, 0.0), RETRY_AFTER_MAX_S) + max(DELAY_MIN_S, self._uniform(0, bound))

    def succeeded(self) -> None:
        """Forget the failures; the next attempt is due now."""
        self._failures = 0
        self._due = 0.0

    def left_s(self) -> float:
        """Seconds until the next attempt is due, 0 if it is due now."""
        return max(0.0, self._due - self._clock())
