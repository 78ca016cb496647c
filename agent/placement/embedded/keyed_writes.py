"""Writes by their idempotency keys: a write that is repeated with its key is answered with what became of it.

A caller that stopped waiting for a write does not know its outcome. It repeats the write with the same key:
the core does not run it again, but waits for the first one and gives its outcome. Outcomes are kept in
memory only: after a restart no write of before is under way, so a read shows what became of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

from agent.durable.group_commit import Ticket

T = TypeVar("T")

KEPT_MAX = 1024


class KeyReused(Exception):
    """The key belongs to another write."""


class _Entry(NamedTuple):
    what: object
    ticket: Ticket[Any]


class KeyedWrites:
    """The tickets of the newest writes by key. Any thread may call."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    def ticket(self, key: str, what: object, submit: Callable[[], Ticket[T]]) -> Ticket[T]:
        """The ticket of the write with that key; `submit` makes it where the key is new.

        `what` is the write, to be compared with the one that had the key before. Raises KeyReused.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and not entry.ticket.cancelled:
                if entry.what != what:
                    raise KeyReused
                return cast("Ticket[T]", entry.ticket)
            ticket = submit()
            self._entries[key] = _Entry(what, ticket)
            if len(self._entries) > self._kept_max:
                self._forget_oldest()
            return ticket

    def _forget_oldest(self) -> None:
        """Forget the oldest write that has ended; one that has not stays, as its outcome is to be told."""
        oldest = next((key for key, entry in self._entries.items() if entry.ticket.answered), None)
        if oldest is not None:
            del self._entries[oldest]
