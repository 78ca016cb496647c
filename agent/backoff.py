"""When to try again: full jitter under a bound that doubles with each failure, and a cap.

All hosts lose placement at the same moment; without jitter they would all come back at the same moment, too.
And a service that is there but cannot keep up must see fewer requests with each one that it leaves
unanswered: there the cap is higher, or thousands of hosts would keep it down (benchmarks/comeback.py).
Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
"""

import time
from collections.abc import Callable
from random import SystemRandom

BASE_S = 1.0
MAX_S = 60.0
BUSY_MAX_S = 600.0
LEAST_S = 0.25
TOLD_MAX_S = 600.0
DOUBLINGS_MAX = 10
PAUSE_BASE_S = 0.02
PAUSE_MAX_S = 0.5

_JITTER = SystemRandom()


def pause(attempt: int, sleep: Callable[[float], None] = time.sleep) -> None:
    """Let whoever overtook a write go ahead: no time after the first try (0), longer after each later one."""
    if attempt > 0:
        sleep(_JITTER.uniform(0, min(PAUSE_MAX_S, PAUSE_BASE_S * 2 ** min(attempt, DOUBLINGS_MAX))))


class Backoff:
    """Counts failures in a row. `clock` is in seconds, `uniform(low, high)` draws a number."""

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

    def failed(self, told_s: float = 0.0, *, busy: bool = False) -> float:
        """Seconds until the next try. `busy`: somebody is there, and did not get round to an answer.

        `told_s`: the other side asked not to be asked sooner (Retry-After). That is kept to up to TOLD_MAX_S,
        with the jitter on top: everybody was told the same.
        """
        self._failures += 1
        delay = self._delay(told_s, BUSY_MAX_S if busy else MAX_S)
        self._due = self._clock() + delay
        return delay

    def failed_too(self, told_s: float = 0.0) -> float:
        """Seconds until the next try, after one more request of a failure that was counted: one that was in
        flight with it. Only what the other side asks for puts the next try off."""
        if told_s > self.left_s():
            self._due = self._clock() + self._delay(told_s, MAX_S)
        return self.left_s()

    def _delay(self, told_s: float, max_s: float) -> float:
        bound = min(max_s, BASE_S * 2 ** min(self._failures, DOUBLINGS_MAX))
        return min(max(told_s, 0.0), TOLD_MAX_S) + max(LEAST_S, self._uniform(0, bound))

    def succeeded(self) -> None:
        self._failures = 0
        self._due = 0.0

    def left_s(self) -> float:
        """Seconds until the next try is due, 0 if it is."""
        return max(0.0, self._due - self._clock())
