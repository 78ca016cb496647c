"""The tracker's writes to Placement: each is guarded by generations, and none is believed without an
answer.

A write that Placement did not answer leaves a doubt, in memory and in the journal. No other write is sent
for its consumers before `secure` has ended the doubt with a fence: a write after which Placement rejects
the late one. `secure` also protects a consumer that was made anew, which has a low generation again, from
the writes of its former life: those that come late, and answered ones that a proxy has executed once more.

A first write is rejected while its consumer exists. What the consumer holds then, be it another client's,
proves nothing of the write: that client may delete the consumer, and a bar with it. So `look_again` is
called regularly as long as the write may come.

Another host that makes a consumer anew knows nothing of this host's doubts. So a consumer that is deleted
stays barred as long as a write of this host may come. The other host's first write meets the bar; that host
then protects its claim as if the doubt were its own: it writes on until the generation is past
`BAR_GENERATION_MAX`, and leaves a bar itself when it releases the consumer. Where the consumer was made anew
before the bar, or by a client that writes over it, this host raises its generation (`protect`).
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from itertools import count
from uuid import uuid4

from agent import log
from agent.backoff import CONFLICTS_MAX, retry_conflicts
from agent.claims.doubt import (
    BAR_GENERATION_MAX,
    BARRED,
    Doubt,
    DoubtfulWrite,
    DoubtKind,
    DoubtState,
    doubt_of_bar,
)
from agent.errors import PlacementConflict, PlacementError, PlacementFull, PlacementUnavailable
from agent.moves.states import MIGRATION_TYPE
from agent.placement.client import UNTYPED, ConsumerAllocations, PlacementClient
from agent.placement.transport import WriteDone, WriteOutcome, WriteRefused, WriteUnknown
from agent.shapes import Allocations
from agent.state.journal import Journal
from agent.tree import Inventory

LOG = log.get(__name__)

Inventories = Mapping[str, tuple[int, Mapping[str, Inventory]]]
"""{provider uuid: (its generation, {class: inventory})}"""

RAISES_MAX = 64
"""Bound of the writes that raise one consumer's generation: more than an instance's life has seen so far."""
STALLED_S = 5.0
"""How long the disk may take to note a write before it is sent; later, what it overwrites is read anew."""
HALF_DONE_S = 60.0
"""How long Placement may be in the midst of a consumer's first write."""
REPEATED_GENERATION_MAX = 8
"""The highest generation of an answered release that a later claim is written past.

To reach a higher one, the consumer would have to be written more often than that within some minutes.
"""
KEPT_S = 86_400.0
"""How long a fenced doubt is kept: no server executes a request that is older."""
ANSWERED_KEPT_S = 600.0
"""How long an answered write is kept: no proxy holds a request longer whose client has its answer."""
FORGET_EVERY_S = 60.0
WATCHED_CLOSELY_S = 600.0
"""Requests seldom come later than that."""

_OF_MOVES = (DoubtKind.BEGIN, DoubtKind.CONFIRM, DoubtKind.REVERT, DoubtKind.DELETE)
"""Their consumers may have nothing on this host."""

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
        self.restore(replace(doubt, state=state))

    def restore(self, known: Doubt) -> None:
        """Enter what is known of a write: that of an earlier time, where one was sent again and rejected."""
        with self._lock:
            self._in_flight.discard(known.id)
            self._enter(known)
        self._journal.put_doubt(known)
        self._report(known.consumers)

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
            kept_s = {DoubtState.ANSWERED: ANSWERED_KEPT_S}
            fenced = [one for one in self._doubts.values() if one.fenced]
            old = [one.id for one in fenced if self.age_s(one) > kept_s.get(one.state, KEPT_S)]
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


class GuardedWriter:
    """Sends the writes of one tracker. The caller has the turns of the consumers that it names."""

    def __init__(
        self, client: PlacementClient, doubts: Doubts, is_here: Callable[[Allocations], bool] = bool
    ) -> None:
        """`is_here`: whether some of these allocations are in this host's own tree."""
        self._client = client
        self._doubts = doubts
        self._is_here = is_here
        self._uncompared: set[str] = set()
        """See `uncompared`."""

    def given_in_doubt(self, consumer: str) -> tuple[Allocations, ...]:
        """What the writes of unknown outcome, fenced or not, give the consumer; none that gives nothing."""
        doubts = self._doubts.of([consumer])
        return tuple(given for doubt in doubts if (given := doubt.gives(consumer)))

    def send(
        self, kind: DoubtKind, *writes: ConsumerAllocations, inventories: Inventories | None = None
    ) -> WriteOutcome:
        """Send one write. Its doubt is on disk before, and is gone once Placement has answered.

        `inventories` {provider: (generation, inventories)} are replaced with it, in one transaction.

        Where no request outlives this process (`PlacementClient.certain`), nothing is entered before the
        write: a restart reads what became of it. Raises StateError where the doubt cannot be written before
        the write: then nothing was sent.
        """
        if not writes:
            return WriteDone()
        parts = tuple(map(_part, writes))
        doubt: Doubt | None = None
        before: Doubt | None = None
        if not self._client.certain or self._doubts.of(_consumers(writes)):
            doubt, before = self._doubts.begin(kind, parts, durable=not self._client.certain)
            if any(write.generation for write in writes) and self._doubts.age_s(doubt) > STALLED_S:
                return self._not_sent(doubt, before)
        outcome: WriteOutcome | None = None
        try:
            if inventories:
                outcome = self._client.send_reshape(inventories, *writes)
            else:
                outcome = self._client.send_allocations(*writes)
            if isinstance(outcome, WriteRefused) and is_barred(outcome.error):
                self._expect_writes_of_others(parts)
        finally:
            if outcome is None or isinstance(outcome, WriteUnknown):
                self._doubts.keep(doubt or self._doubts.begin(kind, parts, durable=False)[0])
            elif doubt is not None:
                self._answered(doubt, before, done=isinstance(outcome, WriteDone))
        if isinstance(outcome, WriteDone):
            self._fence_older(writes)
        return outcome

    def _not_sent(self, doubt: Doubt, before: Doubt | None) -> WriteRefused:
        """The disk stalled: another host may have made a consumer anew, with the generation that was read."""
        if before is None:
            self._doubts.end(doubt)
        else:
            self._doubts.restore(before)
        return WriteRefused(journal_stalled(doubt.consumers))

    def send_over_bar(
        self, kind: DoubtKind, write: ConsumerAllocations, inventories: Inventories | None = None
    ) -> WriteOutcome:
        """As `send`, for one consumer; a first write that meets a bar is sent from the generation of that.

        Raises as `send` and `secure`.
        """
        outcome = self.send(kind, write, inventories=inventories)
        if write.generation is None and isinstance(outcome, WriteRefused) and is_barred(outcome.error):
            outcome = self.send(kind, replace(write, generation=BARRED), inventories=inventories)
            if isinstance(outcome, WriteDone):
                self.secure(write.consumer, written=replace(write, generation=BARRED + 1))
        return outcome

    def doubt_again(self, kind: DoubtKind, write: ConsumerAllocations) -> None:
        """Open the doubt of a write that Placement has done and that the agent's journal did not follow.

        So the agent compares the claim with what Placement holds, as after a write without an answer.
        """
        self._doubts.restore(self._doubts.begin(kind, (_part(write),), durable=False)[0])

    def _expect_writes_of_others(self, parts: Iterable[DoubtfulWrite]) -> None:
        """The first write among the parts has met a bar. Of its own bars the agent knows the writes."""
        for part in parts:
            if part.generation is None and not any(
                doubt.state is DoubtState.BARRED or doubt.is_of_another_host
                for doubt in self._guarded_by(part.consumer)
            ):
                self._doubts.expect(part)

    def _fence_older(self, writes: Iterable[ConsumerAllocations]) -> None:
        """Placement has accepted these generations: it rejects the doubtful writes that name older ones."""
        for write in writes:
            accepted = write.generation or BARRED
            for doubt in self._guarded_by(write.consumer):
                if not doubt.fenced and doubt.rises and (doubt.guard.generation or BARRED) <= accepted:
                    self._doubts.settle(doubt, DoubtState.FENCED)

    def _answered(self, doubt: Doubt, before: Doubt | None, *, done: bool) -> None:
        """Placement has answered the write of `doubt`; `before` is the same write sent earlier."""
        is_first = before is None or before.state is DoubtState.ANSWERED
        # The write, executed once more, may take what a later claim of its consumers was given. While one of
        # its consumers exists, its generation has risen, and rejects the repetition.
        gives_nothing = doubt.rises and not any(write.allocations for write in doubt.writes)
        can_be_repeated = gives_nothing and (doubt.guard.generation or 0) <= REPEATED_GENERATION_MAX
        if done and is_first and can_be_repeated:
            self._doubts.settle(doubt, DoubtState.ANSWERED)
        elif before is None:
            self._doubts.end(doubt)
        elif done:
            # Of the two, one is done; the other meets a conflict.
            self._doubts.settle(doubt, DoubtState.FENCED)
        else:
            self._doubts.restore(before)  # the rejection says nothing of the earlier one

    def send_and_read(
        self,
        kind: DoubtKind,
        *writes: ConsumerAllocations,
        is_done: Callable[[], bool],
        inventories: Inventories | None = None,
    ) -> WriteOutcome:
        """As `send`; if the outcome is unknown, `is_done` reads whether Placement holds what was written.

        What Placement holds proves that the write is done. Anything else proves nothing as long as Placement
        may still do it.
        """
        outcome = self.send(kind, *writes, inventories=inventories)
        # Where Placement asked for a pause, nothing is read before its end.
        if not isinstance(outcome, WriteUnknown) or "retry_after" in outcome.error.details:
            return outcome
        parts = tuple(map(_part, writes))
        doubts = [doubt for doubt in self._doubts.of(_consumers(writes)) if doubt.is_same_write(kind, parts)]
        try:
            done = is_done()
        except PlacementUnavailable as second:
            outcome.error.__cause__ = second
            return outcome
        if done:
            for doubt in doubts:
                self._doubts.settle(doubt, DoubtState.FENCED)
            return WriteDone()
        if not outcome.late:
            for doubt in doubts:
                self._doubts.end(doubt)
            return WriteRefused(outcome.error)
        return outcome

    def in_doubt(self, consumer: str) -> bool:
        """Whether a write for the consumer has an unknown outcome."""
        return any(not doubt.fenced for doubt in self._doubts.of([consumer]))

    def may_have_replaced(self, consumer: str) -> bool:
        """Whether a write of unknown outcome gives the consumer something else than its claim has."""
        kinds = (DoubtKind.REPLACE, DoubtKind.EXTEND)
        is_open = any(doubt.kind in kinds and not doubt.fenced for doubt in self._doubts.of([consumer]))
        return is_open or consumer in self._uncompared

    def uncompared(self) -> frozenset[str]:
        """The consumers of which such a write has ended, and whose claims were not compared with it yet."""
        return frozenset(self._uncompared)

    def compared(self, consumer: str) -> None:
        """Note that the agent has compared the consumer's claim with what Placement holds for it."""
        self._uncompared.discard(consumer)

    # Fences

    def secure(
        self, *consumers: str, written: ConsumerAllocations | None = None
    ) -> ConsumerAllocations | None:
        """End the doubts of the consumers: no late write changes what they hold now.

        `written` is what Placement accepted for one of them just now, with the generation that this gave the
        consumer: then it is not read. Without doubts that costs nothing, and None is returned; else what the
        first consumer holds after it. Raises PlacementUnavailable where the outcome stays unknown;
        PlacementConflict, PlacementError, StateError.
        """
        doubts = [doubt for doubt in self._doubts.of(consumers) if not doubt.fenced or doubt.rises]
        if not doubts:
            return None
        self._uncompared.update(filter(self.may_have_replaced, consumers))
        known = {written.consumer: written} if written is not None else {}
        guards = dict.fromkeys(doubt.guard.consumer for doubt in self._end_certain(doubts))
        held = {guard: self._secure(guard, known.get(guard)) for guard in guards}
        first = consumers[0]
        return held[first] if first in held else self._client.allocations_of(first)

    def _end_certain(self, doubts: Sequence[Doubt]) -> tuple[Doubt, ...]:
        """Those that need a fence. Of the others no request is under way: they are forgotten."""
        uncertain = tuple(doubt for doubt in doubts if doubt.is_of_another_host or not self._client.certain)
        for doubt in doubts:
            if doubt not in uncertain:
                self._doubts.end(doubt)
        return uncertain

    def _secure(self, consumer: str, known: ConsumerAllocations | None) -> ConsumerAllocations:
        """End the doubts that this consumer guards; `known`: what Placement holds for it."""

        def fence() -> ConsumerAllocations:
            """Conflicts: another client wrote in between, or the late write was done just now."""
            nonlocal known
            doubts = self._guarded_by(consumer)
            held, known = known or self._client.allocations_of(consumer), None
            held = self._raise_past(doubts, held)
            self._bar(doubts, held)
            return held

        return retry_conflicts(
            fence,
            f"Other clients wrote the allocations of {consumer} {CONFLICTS_MAX} times while the agent made "
            "sure that no earlier write is executed late. The agent tries again later.",
        )

    def _guarded_by(self, consumer: str) -> list[Doubt]:
        return [doubt for doubt in self._doubts.of([consumer]) if doubt.guard.consumer == consumer]

    def _raise_past(self, doubts: Iterable[Doubt], held: ConsumerAllocations) -> ConsumerAllocations:
        """Write what the consumer holds until its generation is past those that guard the doubts.

        Placement rejects what does not fit any more, be it what the consumer holds already: units of it may
        have vanished. Then `_end_without_fence` ends the doubts.
        """
        rising = [doubt for doubt in doubts if doubt.rises]
        highest = max((doubt.guard.generation or 0 for doubt in rising), default=BARRED)
        for _ in range(RAISES_MAX):
            generation = held.generation
            if generation is None or generation > highest:
                self._settle_open(rising, DoubtState.FENCED)
                return held
            try:
                self.send(DoubtKind.FENCE, held).check()
            except PlacementFull as full:
                if not self._end_without_fence(rising, held, full):
                    return held
                held = self._client.allocations_of(held.consumer)
            else:
                held = replace(held, generation=generation + 1)
        raise PlacementError(
            f"A write for {held.consumer} may be executed late as long as the consumer's generation is at "
            f"most {highest}, and it is {held.generation}. The agent raises it further when it tries again."
        )

    def _end_without_fence(
        self, rising: Iterable[Doubt], held: ConsumerAllocations, full: PlacementFull
    ) -> bool:
        """End the doubts of a consumer whose allocations Placement does not take again; `full` says why.

        A late write that makes another consumer meets a bar of that one. A late fence of the present
        generation gives what the consumer holds. Any other write of that generation is repeated to the same
        end: of the two, Placement rejects the second. Not one that was for this host, where the consumer has
        nothing any more: that generation is of another life. Returns whether one was repeated. Raises `full`
        where a doubt stays, also because Placement does not take that write either; else as `secure`.
        """
        late = [doubt for doubt in rising if not (_is_past(doubt, held) or _is_out_of_reach(doubt, held))]
        self._settle_open([doubt for doubt in rising if doubt not in late], DoubtState.FENCED)
        for doubt in late:
            if doubt.first_made:
                # While the consumer that the write makes has a record, Placement rejects the write.
                try:
                    self._client.bar_first_write(doubt.first_made).check()
                except PlacementConflict as conflict:
                    if not is_barred(conflict):
                        raise  # the late write was done just now
                    self._wait_for_half_done([doubt], conflict)
                self._settle_open([doubt], DoubtState.FENCED)
        late = [doubt for doubt in late if not doubt.first_made]
        if not late:
            return False
        for doubt in late:
            is_its_life = doubt.kind in _OF_MOVES or self._is_here(held.allocations)
            if is_its_life and not doubt.fenced and doubt.guard.generation == held.generation:
                try:
                    self.send(doubt.kind, *map(_whole, doubt.writes)).check()
                except (PlacementConflict, PlacementUnavailable):
                    raise
                except PlacementError as refused:  # a provider that it names is gone, say
                    raise full from refused
                return True
        raise full

    def _bar(self, doubts: Iterable[Doubt], held: ConsumerAllocations) -> None:
        """Bar the consumer if it does not exist; while it exists, its generation rejects the writes."""
        late = [doubt for doubt in doubts if doubt.meets_next_life]
        firsts = [doubt for doubt in late if not doubt.rises]
        if held.generation is None and late:
            try:
                self._client.bar_first_write(held.consumer).check()
            except PlacementConflict as conflict:
                if not is_barred(conflict):
                    raise
                if firsts:
                    self._wait_for_half_done(firsts, conflict)
            else:
                self._settle_barred(late)
                firsts = [doubt for doubt in firsts if doubt.guard.generation is not None]
        self._settle_open(firsts, DoubtState.FENCED)

    def _wait_for_half_done(self, firsts: Sequence[Doubt], conflict: PlacementConflict) -> None:
        """The consumer is barred already, or Placement is in the midst of its first write.

        Raises PlacementUnavailable while it may be the latter.
        """
        known = any(doubt.fenced for doubt in firsts)
        age_s = max(self._doubts.age_s(doubt) for doubt in firsts)
        if not known and 0 <= age_s < HALF_DONE_S:
            made = firsts[0].first_made or firsts[0].guard.consumer
            raise PlacementUnavailable(
                f"Placement did not answer the first write for {made}, and may be in the midst of it. The "
                f"agent looks again; after {HALF_DONE_S:g} s it takes the write for not done.",
                busy=True,
            ) from conflict

    def _settle_open(self, doubts: Iterable[Doubt], state: DoubtState) -> None:
        for doubt in doubts:
            if not doubt.fenced:
                self._doubts.settle(doubt, state)

    def _settle_barred(self, late: Iterable[Doubt]) -> None:
        """Placement has accepted the bar: it rejects the writes, but for those that name its generation."""
        for doubt in late:
            if doubt.guard.generation != BARRED and doubt.state is not DoubtState.BARRED:
                self._doubts.settle(doubt, DoubtState.BARRED)

    def _late(self, consumer: str) -> tuple[Doubt, ...]:
        """The writes that may come when the consumer was deleted and made anew."""
        return self._end_certain([doubt for doubt in self._guarded_by(consumer) if doubt.meets_next_life])

    def settling(self) -> frozenset[str]:
        """The consumers of writes whose outcome is unknown, and that Placement may be in the midst of."""
        young = (doubt for doubt in self._doubts.open() if 0 <= self._doubts.age_s(doubt) < HALF_DONE_S)
        return frozenset[str]().union(*(doubt.consumers for doubt in young))

    def watched(self) -> tuple[str, ...]:
        """The consumers whose unanswered writes may still come, and are to be looked at again."""
        self._doubts.forget_old()
        return tuple(dict.fromkeys(doubt.guard.consumer for doubt in self._doubts.watched()))

    def look_again(self, consumer: str) -> ConsumerAllocations | None:
        """Bar a consumer again, which another client may have deleted; one request if it does not exist.

        If the consumer exists, it is read, too: returns what it holds if that is exactly what a first write
        gives, which was executed late then; None otherwise, and the consumer is protected. Another host may
        have raised the generation of what came late, as a write of its own might meet that. So does a control
        plane that moves an instance here: then its owner has a migration. Raises PlacementError.
        """
        late = self._late(consumer)
        held = None if self.bar_again(consumer) else self._client.allocations_of(consumer)
        self._doubts.looked(late)
        if held is None or not held.allocations:
            return None
        firsts = [doubt.guard for doubt in late if not doubt.rises]
        gives = [(write.allocations, write.project_id, write.user_id) for write in firsts]
        owner = (held.project_id, held.user_id)
        if (held.allocations, *owner) in gives and (
            held.generation == BARRED + 1
            or (held.consumer_type != UNTYPED and self._client.count_consumers(MIGRATION_TYPE, *owner) == 0)
        ):
            return held
        with suppress(PlacementConflict):  # it was written just now; the next look sees how often
            self.protect(held)
        return None

    def protect(self, held: ConsumerAllocations) -> None:
        """Keep late writes from a consumer that was made anew before the agent's bar.

        Its generation is as low as in its former life: the agent raises it. Raises PlacementError.
        """
        late = [doubt for doubt in self._late(held.consumer) if doubt.rises and not _is_past(doubt, held)]
        try:
            if late:
                self._raise_past(late, held)
        except PlacementError as refused:
            if refused.status != HTTPStatus.FORBIDDEN:
                raise  # else Placement refuses the late write, too: this host's token is for this host alone

    def bar_again(self, consumer: str) -> bool:
        """Bar a consumer that has just been deleted, if a write may come late. False: it exists again.

        Without a doubt that costs nothing. Raises PlacementError.
        """
        late = self._late(consumer)
        if not late:
            return True
        try:
            self._client.bar_first_write(consumer).check()
        except PlacementConflict as conflict:
            return is_barred(conflict)
        self._settle_barred(late)
        return True


def journal_stalled(consumers: Iterable[str]) -> PlacementConflict:
    """The error of a write that was not sent, as the journal took more than `STALLED_S` after the read."""
    return PlacementConflict(
        f"The agent's journal took more than {STALLED_S:g} s, so what was read of "
        f"{' and '.join(sorted(consumers))} before may have changed: nothing was written. The agent reads it "
        "again."
    )


def is_barred(error: PlacementError) -> bool:
    """Whether the error says that Placement keeps a record of the consumer, at the generation BARRED."""
    return error.details.get("expected_generation") == BARRED


def checked(outcome: WriteOutcome, subject: str, while_unknown: str) -> None:
    """Do nothing if the write is done. Raises its error; if the outcome is unknown, in a sentence about that.

    `subject` names the operation ("claim of web1"), `while_unknown` says what happens until it is known.
    """
    if not isinstance(outcome, WriteUnknown):
        outcome.check()
        return
    error = outcome.error
    raise PlacementUnavailable(
        f"Placement did not answer the {subject}, and the outcome is not known yet: {while_unknown}. "
        f"({error.message})",
        status=error.status,
        placement_code=error.placement_code,
        **{key: error.details[key] for key in ("retry_after", "busy") if key in error.details},
    ) from error


def _is_past(doubt: Doubt, held: ConsumerAllocations) -> bool:
    """Whether the write changes nothing of what the consumer that guards it holds, should it come now."""
    guard, present = doubt.guard, held.generation or BARRED
    gives_the_same = doubt.consumers == {held.consumer} and guard.allocations == held.allocations
    return (guard.generation or BARRED) < present or (guard.generation == present and gives_the_same)


def _is_out_of_reach(doubt: Doubt, held: ConsumerAllocations) -> bool:
    """Whether the consumer was made anew, and is not written often enough for the write to be accepted.

    See `BAR_GENERATION_MAX`.
    """
    return (doubt.guard.generation or BARRED) > max(held.generation or BARRED, BAR_GENERATION_MAX)


def _part(write: ConsumerAllocations) -> DoubtfulWrite:
    return DoubtfulWrite(
        write.consumer,
        write.generation,
        write.allocations,
        write.project_id,
        write.user_id,
        write.consumer_type,
    )


def _whole(part: DoubtfulWrite) -> ConsumerAllocations:
    return ConsumerAllocations(
        part.consumer,
        part.allocations,
        part.generation,
        part.project_id,
        part.user_id,
        part.consumer_type,
    )


def _consumers(writes: Iterable[ConsumerAllocations]) -> list[str]:
    return [write.consumer for write in writes]
