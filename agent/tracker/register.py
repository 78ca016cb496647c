"""The one place where a claim changes its state: in memory and in the journal together, under one lock."""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from agent.claims.claim import CLAIM_TRANSITIONS, Claim, ClaimState, ClaimStep
from agent.claims.fit import ProviderIndex
from agent.claims.ledger import DepartedConsumers, Ledger
from agent.claims.numa.host_cells import HostCells, HostLayout
from agent.claims.parse_request import ClaimRequest
from agent.claims.pci_alias import Aliases, with_device_groups, without_device_groups
from agent.errors import StateError
from agent.moves.states import MOVE_TRANSITIONS, Move, MoveKind, MoveStep, claims_of
from agent.reshape.receipt import Receipt
from agent.reshape.relocate import ExactUnits, follow
from agent.shapes import Allocations, Held, Units, Usages
from agent.state.journal import ENDED_MOVES_MAX, RESHAPE_EVENT, Journal, Written
from agent.tree import ProviderTree

PICTURE_WAIT_S = 2.0

Seen = Callable[[str, MoveKind | None], None]
"""Takes a step of a claim (None), of a move (its kind), or RESHAPE_EVENT (None)."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The host at one moment: `tree` as placement had it at the last pass, `used` by whomever since then.

    `offered` are the exact units there are, `others` {consumer without a claim: what it holds}.
    """

    tree: ProviderTree
    used: Usages
    offered: Units
    claims: Mapping[str, Claim]
    others: Mapping[str, Allocations]
    moves: tuple[Move, ...]


def _told(claim: Claim) -> str:
    """For the history: once it is released nobody else knows its name."""
    amounts = ", ".join(f"{amount} {name}" for name, amount in sorted(claim.request.resources.items()))
    return f"{claim.request.name}: {amounts}" if claim.request.name else amounts


class Register:
    """`lock` guards `ledger` and `moves` {migration: move}; no request is made while it is held.

    Raises StateError if made from a journal that cannot be read.
    """

    def __init__(self, journal: Journal) -> None:
        self.lock = threading.Lock()
        self.journal = journal
        self.ledger = Ledger(journal.claims().values())
        self.moves = journal.moves()
        self.ledger.moves_under_way = self._moving
        self.seen: Seen = lambda step, kind: None
        """Told each step that was taken, with the lock held."""

    def _moving(self) -> Mapping[str, str]:
        """{instance: migration} of the moves under way."""
        return {move.instance: move.migration for move in self.moves.values() if not move.ended}

    def refresh(
        self,
        tree: ProviderTree,
        held: Held,
        units: Units,
        layout: HostLayout | None,
        departed: DepartedConsumers | None,
    ) -> None:
        """See `ResourceTracker.refresh`. Takes the lock."""
        host = ProviderIndex.of(tree, self.journal.host_uuid(), layout.ways if layout else None)
        cells = HostCells.of(layout, host)
        with self.lock:
            self.ledger.refresh(host, held, units, cells, departed)
            self.ledger.to_make = layout.to_make if layout else {}

    def picture(self) -> "Picture":
        """All that there is, at one moment. Raises StateError where the lock cannot be had in time.

        Whoever looks must not be kept waiting by what is stuck: it may be that which is looked for.
        """
        if not self.lock.acquire(timeout=PICTURE_WAIT_S):
            raise StateError(
                f"The agent has been busy with its claims for {PICTURE_WAIT_S:g} s without a break; if "
                "/livez fails, too, restart it."
            )
        try:
            return Picture(
                self.ledger.host.tree,
                {uuid: dict(amounts) for uuid, amounts in self.ledger.used.items()},
                self.ledger.offered,
                dict(self.ledger.claims),
                dict(self.ledger.others),
                tuple(self.moves.values()),
            )
        finally:
            self.lock.release()

    def state_of(self, consumer: str) -> ClaimState | None:
        """The caller holds the lock."""
        claim = self.ledger.claims.get(consumer)
        return claim.state if claim else None

    def move(self, step: ClaimStep, consumer: str, claim: Claim | None = None, detail: str = "") -> Written:
        """Take the step, with another claim than the present one if it is given. The caller holds the lock.

        In memory it is done at once; on disk when the answer's `wait` returns. Raises StateError where the
        journal refuses, or the table of transitions does not have the step; nothing is changed then.
        """
        present = self.ledger.claims.get(consumer)
        key = (present.state if present else None, step)
        if key not in CLAIM_TRANSITIONS:
            raise StateError(f"The claim of {consumer} cannot {step} while it is {key[0] or 'not there'}.")
        after = CLAIM_TRANSITIONS[key]
        chosen = claim or present
        detail = detail or (_told(chosen) if chosen else "")
        if after is None or chosen is None:
            written = self.journal.remove(consumer, step, detail)
            self.ledger.remove(consumer)
        elif claim is None:
            written = self.journal.set_state(consumer, after, step, detail)
            self.ledger.put(replace(chosen, state=after))
        else:
            chosen = replace(chosen, state=after)
            written = self.journal.put(chosen, step, detail)
            self.ledger.put(chosen)
        self.seen(step, None)
        return written

    def move_durably(
        self, step: ClaimStep, consumer: str, claim: Claim | None = None, detail: str = ""
    ) -> None:
        """`move`, and wait for the disk; the caller does not hold the lock, and has its turn at the consumer.

        Raises StateError: then the claim is in memory what it was before, as it is on disk.
        """
        with self.lock:
            before = self.ledger.claims.get(consumer)
            written = self.move(step, consumer, claim, detail)
        self.settle(written, consumer, before)

    def settle(self, written: Written, consumer: str, before: Claim | None) -> None:
        """Wait for the disk; if it fails, memory goes back to what was before. Raises StateError."""
        try:
            written.wait()
        except StateError:
            with self.lock:
                if before is None:
                    self.ledger.remove(consumer)
                else:
                    self.ledger.put(before)
            raise

    # What others hold

    def may_be_stale(self, providers: Collection[str]) -> bool:
        """Our own claims are known for certain; what others hold here may have changed since it was read."""
        with self.lock:
            return self.ledger.others_on(providers)

    # Moves

    def move_of(self, consumer: str) -> Move | None:
        """The unfinished move in which the consumer is the instance or the migration; with the lock held."""
        for move in self.moves.values():
            if not move.ended and consumer in (move.instance, move.migration):
                return move
        return None

    def take(self, step: MoveStep, move: Move) -> Move:
        """Take the step with this move, and wait for the disk; the move as it is afterwards.

        The caller does not hold the lock, and has its turn at both consumers. Raises StateError where the
        journal fails, or the table does not have the step: then all is as it was, in memory and on disk.
        """
        return self.take_chosen(lambda: (step, move))

    def take_chosen(self, choose: Callable[[], tuple[MoveStep, Move]]) -> Move:
        """As `take`, with what `choose` finds under the lock; what it raises changes nothing."""
        with self.lock:
            taken, written, undo = self._take(*choose())
        try:
            written.wait()
        except StateError:
            with self.lock:
                undo()
            raise
        return taken

    def _take(self, step: MoveStep, move: Move) -> tuple[Move, Written, Callable[[], None]]:
        """With the lock held: the move as it is in memory, what to wait for, and how to take it back."""
        present = self.moves.get(move.migration)
        before = present.state if present else None
        after = MOVE_TRANSITIONS.get((before, step))
        if after is None:
            raise StateError(f"The move {move.migration} cannot {step} while it is {before or 'not there'}.")
        taken = replace(move, state=after)
        claims = claims_of(taken)
        consumers = {taken.instance, taken.migration}
        old_claims = {name: self.ledger.claims.get(name) for name in consumers}
        written = self.journal.put_move(taken, claims.values(), consumers - claims.keys(), step)
        self._put(taken.migration, taken, {name: claims.get(name) for name in consumers})
        self.seen(step, taken.kind)
        return taken, written, lambda: self._put(move.migration, present, old_claims)

    def _put(self, migration: str, move: Move | None, claims: Mapping[str, Claim | None]) -> None:
        if move is None:
            del self.moves[migration]
        else:
            self.moves[migration] = move
            if move.ended:
                self._forget_ended()
        for consumer, claim in claims.items():
            if claim is None:
                self.ledger.remove(consumer)
        for claim in claims.values():
            if claim is not None:
                self.ledger.put(claim)

    def _forget_ended(self) -> None:
        ended = [move for move in self.moves.values() if move.ended]
        ended.sort(key=lambda move: (move.since, move.migration), reverse=True)
        for move in ended[ENDED_MOVES_MAX:]:
            del self.moves[move.migration]

    # A reshape

    def follow(self, receipt: Receipt, exact: ExactUnits) -> None:
        """Claims and moves go where the reshape put them, on disk together with its receipt, then in memory.

        The caller does not hold the lock, and has its turn at all these consumers. Raises StateError: then
        all is as it was.
        """
        with self.lock:
            found = follow(receipt.relocations, self.ledger.claims, self.moves, exact)
            written = self.journal.finish_reshape(receipt, found.claims, found.moves)
        written.wait()
        with self.lock:
            self.moves.update({move.migration: move for move in found.moves})
            for claim in found.claims:
                self.ledger.put(claim)
            self.seen(RESHAPE_EVENT, None)


def entered(request: ClaimRequest, aliases: Aliases, register: Register) -> ClaimRequest:
    """The request with a group for each device. Takes the register's lock.

    Raises UsageError for an alias that is not configured.
    """
    if not request.pci:
        return request
    with register.lock:
        ledger = register.ledger
        present, move = ledger.claims.get(request.consumer), register.move_of(request.consumer)
        for claim in (present, move.new if move else None):
            if claim is not None and without_device_groups(claim.request) == request:
                return claim.request
        return with_device_groups(request, aliases, ledger.host.tree, ledger.offered)
