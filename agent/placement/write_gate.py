"""Holds the agent's own writes of allocations back for the moment in which it writes inventories.

A provider's generation guards both, and each write raises it. So a host on which claims are made all the time
would meet conflicts with itself. A hold lasts as long as one request, and never longer than HOLD_MAX_S: while
Placement does not answer that request, claims go on.
"""

import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager

HOLD_MAX_S = 2.0


class WriteGate:
    """Any thread may call. A writer of allocations passes; a writer of inventories holds the others back."""

    def __init__(self, hold_max_s: float = HOLD_MAX_S) -> None:
        self._hold_max_s = hold_max_s
        self._condition = threading.Condition()
        self._held: Counter[str] = Counter()
        self._passing: Counter[str] = Counter()

    @contextmanager
    def passing(self, providers: Collection[str]) -> Iterator[None]:
        """Run a block that writes allocations on these providers, after the hold on them has ended."""
        with self._condition:
            if self._held:
                self._condition.wait_for(lambda: self._held.keys().isdisjoint(providers), self._hold_max_s)
            self._passing.update(providers)
        try:
            yield
        finally:
            with self._condition:
                for uuid in providers:
                    self._passing[uuid] -= 1
                self._condition.notify_all()

    @contextmanager
    def held(self, providers: Collection[str]) -> Iterator[None]:
        """Run a block that writes inventories of these providers, once the writes under way on them end."""
        names = frozenset(providers)
        with self._condition:
            self._held.update(names)
        try:
            with self._condition:
                self._condition.wait_for(
                    lambda: not any(self._passing[uuid] for uuid in names), self._hold_max_s
                )
            yield
        finally:
            with self._condition:
                self._held -= Counter(names)  # without zeros, so that nothing held is an empty counter
                self._condition.notify_all()
