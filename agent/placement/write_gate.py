"""Holds the agent's own writes of allocations back while a write of inventories is out.

A provider's generation guards both, and each write raises it. So a host on which claims are made all the time
would meet conflicts with itself. A hold lasts as long as the requests within it, each of which has a deadline
of its own. A write that waits says so in the log, and its consumer's history says what it waited for.
"""

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from agent import log

LOG = log.get(__name__)

HOLD_MAX_S = 600.0
"""No wait is longer: the greatest [placement] timeout."""
TELL_AFTER_S = 1.0
ANYWHERE = ""
"""Stands for the providers of a write that names none: a release."""


class WriteGate:
    """Any thread may call. A writer of allocations passes; a writer of inventories holds the others back.

    `passed` is how many writes of allocations have ended on each provider.
    """

    def __init__(self, hold_max_s: float = HOLD_MAX_S) -> None:
        self._hold_max_s = hold_max_s
        self._condition = threading.Condition()
        self._held: Counter[str] = Counter()
        self._reasons: list[str] = []
        self._passing: Counter[str] = Counter()
        self.passed: Counter[str] = Counter()

    @contextmanager
    def passing(self, providers: Collection[str], what: str = "a write") -> Iterator[str]:
        """Run a block that writes allocations on these providers, after the hold on them has ended.

        Yields what the block, which `what` names for the log, has waited for and how long; "" for a short
        wait.
        """
        waited = ""
        with self._condition:
            if self._is_held(providers):
                waited = self._wait(providers, what)
            self._passing.update(providers)
        try:
            yield waited
        finally:
            with self._condition:
                self.passed.update(providers)
                for uuid in providers:
                    self._passing[uuid] -= 1
                self._condition.notify_all()

    def _is_held(self, providers: Collection[str]) -> bool:
        return bool(self._held) and (ANYWHERE in providers or not self._held.keys().isdisjoint(providers))

    def _wait(self, providers: Collection[str], what: str) -> str:
        began, why = time.monotonic(), "; ".join(self._reasons)
        short = min(TELL_AFTER_S, self._hold_max_s)
        if self._condition.wait_for(lambda: not self._is_held(providers), short):
            return ""
        LOG.info("%s waits: %s.", what, why)
        self._condition.wait_for(lambda: not self._is_held(providers), self._hold_max_s - short)
        return f"waited {time.monotonic() - began:.1f} s: {why}"

    @contextmanager
    def held(
        self, providers: Collection[str], why: str = "Placement is sent the inventories of the same provider"
    ) -> Iterator[None]:
        """Run a block that writes inventories of these providers, once the writes under way on them end."""
        names = frozenset(providers)
        with self._condition:
            self._held.update(names)
            self._reasons.append(why)
        try:
            with self._condition:
                self._condition.wait_for(
                    lambda: not any(self._passing[uuid] for uuid in (*names, ANYWHERE)), self._hold_max_s
                )
            yield
        finally:
            with self._condition:
                self._held -= Counter(names)  # without zeros, so that nothing held is an empty counter
                self._reasons.remove(why)
                self._condition.notify_all()
