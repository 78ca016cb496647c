"""Claims that Placement did not answer in time, and that it may still execute.

The first write for a consumer carries no generation that guards it. If the agent read too soon that the
consumer holds nothing, and forgot the claim, Placement could execute the write afterwards: an allocation that
no agent knows.
"""

import threading
from collections.abc import Callable

from agent.errors import PlacementUnavailable

EXECUTED_WITHIN_S = 60.0
"""How long Placement may still execute a write that it did not answer."""
GATEWAY_TIMEOUT = 504


def may_still_execute(error: PlacementUnavailable) -> bool:
    """Whether Placement may still work on the request: the agent or a proxy stopped waiting for it."""
    return bool(error.details.get("busy")) and error.status in (0, GATEWAY_TIMEOUT)


class UnansweredWrites:
    """The consumers of such claims. Any thread may call; `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}

    def add(self, consumer: str) -> None:
        """Remember a claim that Placement has just not answered."""
        now = self._clock()
        with self._lock:
            self._until = {other: until for other, until in self._until.items() if now < until}
            self._until[consumer] = now + EXECUTED_WITHIN_S

    def discard(self, consumer: str) -> None:
        """Forget the claim: Placement has executed it, and does not execute it twice."""
        with self._lock:
            self._until.pop(consumer, None)

    def __contains__(self, consumer: str) -> bool:
        with self._lock:
            until = self._until.get(consumer)
        return until is not None and self._clock() < until
