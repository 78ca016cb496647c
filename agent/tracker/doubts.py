"""The doubts of one host: its writes to Placement whose outcome is unknown, in memory and in the journal."""

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from uuid import uuid4

from agent.claims.doubt import Doubt, DoubtfulWrite, DoubtKind
from agent.state.journal import Journal

KEPT_S = 86_400.0
"""How long a fenced doubt is kept: no server executes a request that is older."""

DoubtObserver = Callable[[Collection[str], Collection[Doubt]], None]
"""Takes consumers, and all open doubts of them."""


class Doubts:
    """Any thread may call; `clock` returns seconds since 1970 (UTC).

    A write is entered before it is sent, so that it is known after a kill of the agent, too. `on_change` is
    called after each change of the open doubts of some consumers.
    """

    def __init__(
        self, journal: Journal, clock: Callable[[], float], on_change: DoubtObserver = lambda *_: None
    ) -> None:
        """Raises StateError where the journal cannot be read."""
        self._journal = journal
        self._clock = clock
        self._on_change = on_change
        self._lock = threading.Lock()
        self._doubts = journal.doubts()
        self._in_flight: set[str] = set()
        for doubt in self._doubts.values():
            self._report(doubt.consumers)

    # Questions

    def of(self, consumers: Iterable[str]) -> tuple[Doubt, ...]:
        """The doubts whose writes change one of the consumers, the oldest first; the fenced ones, too."""
        wanted = frozenset(consumers)
        with self._lock:
            return tuple(doubt for doubt in self._doubts.values() if not wanted.isdisjoint(doubt.consumers))

    def open(self) -> tuple[Doubt, ...]:
        """The doubts to be ended: not fenced, and not under way at this moment."""
        with self._lock:
            return tuple(
                doubt
                for doubt in self._doubts.values()
                if not doubt.fenced and doubt.id not in self._in_flight
            )

    def fenced(self) -> tuple[Doubt, ...]:
        """The doubts whose writes may still come and are rejected then."""
        with self._lock:
            return tuple(doubt for doubt in self._doubts.values() if doubt.fenced)

    def age_s(self, doubt: Doubt) -> float:
        """How long ago the write was sent last, in seconds."""
        return self._clock() - doubt.since

    # Changes

    def begin(
        self, kind: DoubtKind, writes: tuple[DoubtfulWrite, ...], *, durable: bool
    ) -> tuple[Doubt, Doubt | None]:
        """Enter a write that is about to be sent; and the doubt of the same write that was sent before.

        `durable`: it is on disk when this returns. Raises StateError: then the write must not be sent.
        """
        with self._lock:
            before = next((one for one in self._doubts.values() if one.is_same_write(kind, writes)), None)
            doubt = self._new(kind, writes)
            if before is not None:
                doubt = replace(doubt, id=before.id)
        if durable:
            self._journal.put_doubt(doubt).wait()
        with self._lock:
            self._doubts[doubt.id] = doubt
            self._in_flight.add(doubt.id)
        self._report(doubt.consumers)
        return doubt, before

    def end(self, doubt: Doubt) -> None:
        """Forget the doubt: Placement has answered, and does not execute the write any more.

        It is removed from the disk later: a doubt too many costs a read after a restart.
        """
        with self._lock:
            self._in_flight.discard(doubt.id)
            self._doubts.pop(doubt.id, None)
        self._journal.remove_doubts([doubt.id])
        self._report(doubt.consumers)

    def fence(self, doubt: Doubt) -> None:
        """Keep the doubt as fenced: Placement rejects the write now."""
        with self._lock:
            self._in_flight.discard(doubt.id)
            self._doubts[doubt.id] = fenced = replace(doubt, fenced=True)
        self._journal.put_doubt(fenced)
        self._report(doubt.consumers)

    def restore(self, before: Doubt) -> None:
        """Enter what was known of a write before it was sent again, and that was rejected."""
        with self._lock:
            self._in_flight.discard(before.id)
            self._doubts[before.id] = before
        self._journal.put_doubt(before)
        self._report(before.consumers)

    def keep(self, doubt: Doubt) -> None:
        """Keep the doubt open: no answer of Placement ended it. Raises StateError."""
        with self._lock:
            self._in_flight.discard(doubt.id)
        self._journal.put_doubt(doubt).wait()

    def _new(self, kind: DoubtKind, writes: tuple[DoubtfulWrite, ...]) -> Doubt:
        """The caller holds the lock."""
        now = self._clock()
        old = [one.id for one in self._doubts.values() if one.fenced and one.since < now - KEPT_S]
        for doubt_id in old:
            del self._doubts[doubt_id]
        if old:
            self._journal.remove_doubts(old)
        return Doubt(str(uuid4()), kind, writes, now)

    def _report(self, consumers: frozenset[str]) -> None:
        related = consumers.union(*(doubt.consumers for doubt in self.of(consumers)))
        self._on_change(related, [doubt for doubt in self.of(related) if not doubt.fenced])
