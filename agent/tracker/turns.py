"""Turns at consumers: for each one operation is under way at a time, the others wait for a bounded time."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from agent.claims.parse_request import ClaimRequest
from agent.claims.refusal import label
from agent.errors import ClaimConflict


class Turns:
    """`lock` is the register's; `check_open` is called with it held, and raises ClaimsClosed."""

    def __init__(self, lock: threading.Lock, wait_s: float, check_open: Callable[[], None]) -> None:
        self.wait_s = wait_s
        self._lock = lock
        self._check_open = check_open
        self._ended = threading.Condition(lock)
        self._busy: dict[str, ClaimRequest | None] = {}

    def under_way(self, consumer: str) -> bool:
        """Whether somebody has the consumer. The caller holds the lock."""
        return consumer in self._busy

    @contextmanager
    def of(self, consumer: str, request: ClaimRequest | None = None) -> Iterator[None]:
        """Have the consumer alone; `request` is what is being claimed. Raises ClaimConflict, ClaimsClosed."""
        with self._lock:
            self._await(consumer, request)
            self._busy[consumer] = request
        try:
            yield
        finally:
            with self._lock:
                del self._busy[consumer]
                self._ended.notify_all()

    @contextmanager
    def of_idle(self, consumers: Iterable[str]) -> Iterator[frozenset[str]]:
        """Have those of the consumers alone that nobody else has just now; which ones."""
        with self._lock:
            mine = frozenset(consumer for consumer in consumers if consumer not in self._busy)
            self._busy |= dict.fromkeys(mine)
        try:
            yield mine
        finally:
            with self._lock:
                for consumer in mine:
                    del self._busy[consumer]
                self._ended.notify_all()

    def _await(self, consumer: str, request: ClaimRequest | None) -> None:
        end = time.monotonic() + self.wait_s
        while True:
            if request is not None:
                self._check_open()
            if consumer not in self._busy:
                return
            under_way = self._busy[consumer]
            if request is not None and under_way is not None and under_way != request:
                raise ClaimConflict(
                    f"{label(under_way)} is being claimed for with another request just now: "
                    "release it first.",
                    consumer=consumer,
                )
            if not self._ended.wait(end - time.monotonic()):
                raise ClaimConflict(
                    f"An operation on consumer {consumer} has been under way for {self.wait_s:g} s: "
                    "try again later.",
                    consumer=consumer,
                )
