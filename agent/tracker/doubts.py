"""The doubts of one host: its writes to Placement whose outcome is unknown, in memory and in the journal."""

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from itertools import count
from uuid import uuid4

from agent.claims.doubt import Doubt, DoubtfulWrite, DoubtKind, DoubtState, doubt_of_bar
from agent.state.journal import Journal

KEPT_S = 86_400.0
"""How long a fenced doubt is kept: no server executes a request that is older."""
ANSWERED_KEPT_S = 600.0
"""How long an answered write is kept: no proxy holds a request longer whose client has its answer."""
FORGET_EVERY_S = 60.0
WATCHED_CLOSELY_S = 600.0
"""Requests seldom come later than that."""

DoubtObserver = Callable[[Collection[str], Collection[Doubt]], None]
"""Takes consumers, and all open doubts of them."""


class Doubts:
    """Any thread may call; `clock` returns seconds since 1970 (UTC), `age_s` how long ago that was.

    A write is entered before it is sent, so that it is known after a kill of the agent, too. `on_change` is
    called after each change of the open doubts of some consumers.
    """

    def __init__(
        self,
        journal: Journal,
        clock: Callable[[], float],
        on_change: DoubtObserver = lambda *_: None,
        age_s: Callable[[float], float] | None = None,
    ) -> None:
        """Raises StateError where the journal cannot be read."""
        self._journal = journal
        self._clock = clock
        self._age_s = age_s or (lambda stamp: clock() - stamp)
        self._on_change = on_change
        self._lock = threading.Lock()
        self._doubts: dict[str, Doubt] = {}
        self._ids: dict[str, dict[str, int]] = {}
        """Consumer -> the ids of its doubts, with the order of their entry."""
        self._order = count()
        self._in_flight: set[str] = set()
        self._forgotten_at = 0.0
        self._looked_s: dict[str, float] = {}
        """The age of a watched doubt when the agent looked at it last."""
        for doubt in journal.doubts().values():
            self._enter(doubt)
        for doubt in tuple(self._doubts.values()):
            self._report(doubt.consumers)

    # Questions

    def of(self, consumers: Iterable[str]) -> tuple[Doubt, ...]:
        """The doubts whose writes change one of the consumers, in any state, in the order of their entry."""
        with self._lock:
            return self._of(consumers)

    def open(self) -> tuple[Doubt, ...]:
        """The doubts to be ended: not fenced, and not under way at this moment."""
        with self._lock:
            return tuple(
                doubt
                for doubt in self._doubts.values()
                if not doubt.fenced and doubt.id not in self._in_flight
            )

    def watched(self) -> tuple[Doubt, ...]:
        """The writes to be looked at again: another client may have let them through.

        Placement rejects them while it has their consumers, which other clients may delete, with a bar that
        the agent wrote before. Those sent some minutes ago are due always, then at each doubling of the age.
        """
        with self._lock:
            return tuple(
                doubt
                for doubt in self._doubts.values()
                if doubt.state in (DoubtState.FENCED, DoubtState.BARRED)
                and doubt.meets_next_life
                and (
                    self.age_s(doubt) < WATCHED_CLOSELY_S
                    or self.age_s(doubt) >= 2 * self._looked_s.get(doubt.id, 0.0)
                )
            )

    def looked(self, doubts: Iterable[Doubt]) -> None:
        """The agent has looked at these `watched` doubts now."""
        with self._lock:
            self._looked_s.update({doubt.id: self.age_s(doubt) for doubt in doubts})

    def age_s(self, doubt: Doubt) -> float:
        """How long ago the write was sent last, in seconds."""
        return self._age_s(doubt.since)

    # Changes

    def begin(
        self, kind: DoubtKind, writes: tuple[DoubtfulWrite, ...], *, durable: bool
    ) -> tuple[Doubt, Doubt | None]:
        """Enter a write that is about to be sent; and the doubt of the same write that was sent before.

        `durable`: it is on disk when this returns. Raises StateError: then the write must not be sent.
        """
        self.forget_old()
        consumers = [write.consumer for write in writes]
        with self._lock:
            before = next((one for one in self._of(consumers) if one.is_same_write(kind, writes)), None)
        doubt = Doubt(before.id if before is not None else str(uuid4()), kind, writes, self._clock())
        if durable:
            self._journal.put_doubt(doubt).wait()
        with self._lock:
            self._enter(doubt)
            self._in_flight.add(doubt.id)
        self._report(doubt.consumers)
        return doubt, before

    def expect(self, write: DoubtfulWrite) -> None:
        """Enter what a bar tells that this first write has met; on disk when this returns.

        Raises StateError.
        """
        doubt = doubt_of_bar(str(uuid4()), write, self._clock())
        self._journal.put_doubt(doubt).wait()
        with self._lock:
            self._enter(doubt)

    def end(self, doubt: Doubt) -> None:
        """Forget the doubt: Placement has answered, and does not execute the write any more.

        It is removed from the disk later: a doubt too many costs a read after a restart.
        """
        with self._lock:
            self._in_flight.discard(doubt.id)
            self._remove(doubt.id)
        self._journal.remove_doubts([doubt.id])
        self._report(doubt.consumers)

    def settle(self, doubt: Doubt, state: DoubtState) -> None:
        """Keep the doubt in a state in which Placement rejects the write now."""
        settled = replace(doubt, state=state)
        with self._lock:
            self._in_flight.discard(doubt.id)
            self._enter(settled)
        self._journal.put_doubt(settled)
        self._report(doubt.consumers)

    def restore(self, before: Doubt) -> None:
        """Enter what was known of a write before it was sent again, and that was rejected."""
        with self._lock:
            self._in_flight.discard(before.id)
            self._enter(before)
        self._journal.put_doubt(before)
        self._report(before.consumers)

    def keep(self, doubt: Doubt) -> None:
        """Keep the doubt open: no answer of Placement ended it. Raises StateError."""
        with self._lock:
            self._in_flight.discard(doubt.id)
        self._journal.put_doubt(doubt).wait()

    def forget_old(self) -> None:
        """Forget the doubts whose writes are too old to come, at most once in `FORGET_EVERY_S`."""
        with self._lock:
            if self._age_s(self._forgotten_at) < FORGET_EVERY_S:
                return
            self._forgotten_at = self._clock()
            old = [one.id for one in self._doubts.values() if one.fenced and self.age_s(one) > _kept_s(one)]
            for doubt_id in old:
                self._remove(doubt_id)
        if old:
            self._journal.remove_doubts(old)

    # The caller holds the lock.

    def _of(self, consumers: Iterable[str]) -> tuple[Doubt, ...]:
        ids: dict[str, int] = {}
        for consumer in consumers:
            ids.update(self._ids.get(consumer, {}))
        return tuple(self._doubts[doubt_id] for doubt_id in sorted(ids, key=ids.__getitem__))

    def _enter(self, doubt: Doubt) -> None:
        self._doubts[doubt.id] = doubt
        order = next(self._order)
        for consumer in doubt.consumers:
            self._ids.setdefault(consumer, {}).setdefault(doubt.id, order)

    def _remove(self, doubt_id: str) -> None:
        self._looked_s.pop(doubt_id, None)
        doubt = self._doubts.pop(doubt_id, None)
        for consumer in doubt.consumers if doubt is not None else ():
            ids = self._ids[consumer]
            del ids[doubt_id]
            if not ids:
                del self._ids[consumer]

    def _report(self, consumers: frozenset[str]) -> None:
        related = consumers.union(*(doubt.consumers for doubt in self.of(consumers)))
        self._on_change(related, [doubt for doubt in self.of(related) if not doubt.fenced])


def _kept_s(doubt: Doubt) -> float:
    return ANSWERED_KEPT_S if doubt.state is DoubtState.ANSWERED else KEPT_S
