"""The guests that the gate let in and that are expected to appear, and the guests that have ended.

An expected guest's pages and memory on cells count as used although the driver does not report it yet.
"""

import threading
from collections.abc import Callable

from agent.tracker.tracker import ResourceTracker


class ExpectedGuests:
    """Any thread may call. Guests are named by uuid; times are in seconds since the epoch."""

    def __init__(self, tracker: ResourceTracker, clock: Callable[[], float]) -> None:
        self._tracker = tracker
        self._clock = clock
        self._lock = threading.Lock()
        self._let_in: dict[str, float] = {}
        self._ended: dict[str, float] = {}

    def let_in(self, uuid: str) -> None:
        """The gate lets the guest in, or is about to."""
        with self._lock:
            self._ended.pop(uuid, None)
            self._let_in[uuid] = self._clock()

    def end(self, uuid: str) -> None:
        """The guest has ended: it is not expected any more, and holds no units."""
        self._tracker.forget_guest(uuid)
        with self._lock:
            self._tracker.expect_no_more(uuid)
            self._let_in.pop(uuid, None)
            self._ended[uuid] = self._clock()

    def is_let_in(self, uuid: str) -> bool:
        """Whether the gate let the guest in and still expects it."""
        with self._lock:
            return uuid in self._let_in

    def ended_before(self, at: float) -> frozenset[str]:
        """The guests that ended before this time and were not let in again."""
        with self._lock:
            return frozenset(
                uuid
                for uuid, when in self._ended.items()
                if self._tracker.age_s(when) > self._tracker.age_s(at)
            )

    def give_up(self, at: float, grace_s: float) -> None:
        """Do not expect the guests any longer that were let in more than `grace_s` seconds before this time.

        The lock is held throughout: a guest that is let in again meanwhile stays expected.
        """
        with self._lock:
            least_s = self._tracker.age_s(at) + grace_s
            for uuid in [uuid for uuid, when in self._let_in.items() if self._tracker.age_s(when) > least_s]:
                self._tracker.expect_no_more(uuid)
                del self._let_in[uuid]

    def forget_ended(self, uuids: frozenset[str]) -> None:
        """Forget that these guests have ended."""
        with self._lock:
            for uuid in uuids:
                self._ended.pop(uuid, None)
