"""Claims that placement did not answer in time: they wait there, or are at work, and may be done yet.

A write for a consumer that placement does not know is guarded by nothing but that: whoever reads too soon
that there is nothing, and forgets, leaves what is done later behind as an allocation that nobody knows.
"""

from collections.abc import Callable

from agent.errors import PlacementUnavailable

LATE_S = 60.0
"""For how long what was not answered may still be done."""
GATEWAY_TIMEOUT = 504


def may_come_late(silence: PlacementUnavailable) -> bool:
    """Whether somebody may still be at work on what was asked: we, or a proxy, waited for it no longer."""
    return bool(silence.details.get("busy")) and silence.status in (0, GATEWAY_TIMEOUT)


class LateAnswers:
    """The consumers of such claims. The caller holds the register's lock; `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def note(self, consumer: str) -> None:
        moment = self._clock()
        self._until = {each: until for each, until in self._until.items() if moment < until}
        self._until[consumer] = moment + LATE_S

    def came(self, consumer: str) -> None:
        """It was done: it will not be done once more."""
        self._until.pop(consumer, None)

    def __contains__(self, consumer: str) -> bool:
        until = self._until.get(consumer)
        return until is not None and self._clock() < until
