"""Turns at consumers: one operation at a time for each consumer; the others wait for a bounded time."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from agent.claims.refusal import label
from agent.claims.request import ClaimRequest
from agent.errors import ClaimConflict


class Turns:
    """The turns of one tracker; any thread may call.

    `condition` is a condition of the register's lock. `check_open` raises ClaimsClosed while claims are
    closed; it is called with the lock held.
    """

    def __init__(self, condition: threading.Condition, wait_s: float, check_open: Callable[[], None]) -> None:
        self.wait_s = wait_s
        self._condition = condition
        self._check_open = check_open
        self._taken: dict[str, ClaimRequest | None] = {}

    def is_taken(self, consumer: str) -> bool:
        """Whether an operation on the consumer is under way. The caller holds the register's lock."""
        return consumer in self._taken

    @contextmanager
    def take(self, consumer: str, request: ClaimRequest | None = None) -> Iterator[None]:
        """Run the block as the only operation on the consumer; `request` is set for a claim.

        Raises ClaimConflict where another operation does not end in time, or claims something else;
        ClaimsClosed where claims close while a claim waits.
        """
        with self._condition:
            self._wait(consumer, request)
            self._taken[consumer] = request
        try:
            yield
        finally:
            self._give_back({consumer})

    @contextmanager
    def take_idle(self, consumers: Iterable[str]) -> Iterator[frozenset[str]]:
        """Take the turns of those consumers that no operation is under way on; yields which ones."""
        with self._condition:
            idle = frozenset(consumer for consumer in consumers if consumer not in self._taken)
            self._taken |= dict.fromkeys(idle)
        try:
            yield idle
        finally:
            self._give_back(idle)

    @contextmanager
    def take_both(self, first: str, second: str) -> Iterator[None]:
        """Take two turns in a fixed order, so that two operations never wait for each other."""
        earlier, later = sorted((first, second))
        with self.take(earlier), self.take(later):
            yield

    def _give_back(self, consumers: Iterable[str]) -> None:
        with self._condition:
            for consumer in consumers:
                del self._taken[consumer]
            self._condition.notify_all()

    def _wait(self, consumer: str, request: ClaimRequest | None) -> None:
        end = time.monotonic() + self.wait_s
        while True:
            if request is not None:
                self._check_open()
            if consumer not in self._taken:
                return
            under_way = self._taken[consumer]
            if request is not None and under_way is not None and under_way != request:
                raise ClaimConflict(
                    f"Another claim for {label(under_way)} is under way, with a different request: release "
                    "it first.",
                    consumer=consumer,
                )
            if not self._condition.wait(end - time.monotonic()):
                raise ClaimConflict(
                    f"Another operation on consumer {consumer} has been under way for {self.wait_s:g} s: "
                    "try again later.",
                    consumer=consumer,
                )
