"""The host's claims and moves, in memory and in the journal: they change together, under one lock."""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from agent.claims.attribution import Place
from agent.claims.book import Book, Reading, Survey
from agent.claims.claim import (
    CLAIM_TRANSITIONS,
    Claim,
    ClaimState,
    ClaimStep,
    Fit,
    Maker,
    claims_until_durable,
)
from agent.claims.doubt import Doubt
from agent.claims.fit import ProviderIndex
from agent.claims.host_cells import HostCells, HostLayout
from agent.claims.request import ClaimRequest
from agent.claims.rows import Row
from agent.driver import Guest
from agent.errors import PlimsollError, StateError, StateUnknown
from agent.moves.states import MOVE_TRANSITIONS, Move, MoveKind, MoveState, MoveStep, claims_of
from agent.placement.client import AllocationObserver, ConsumerAllocations
from agent.providers.divided_cards import Card
from agent.providers.limits import Caps
from agent.providers.resolve import OwnedProviders
from agent.reshape.claimed_units import ExactUnits
from agent.reshape.laws import Relocation
from agent.reshape.receipt import Receipt
from agent.reshape.relocate import Passage, RelocatedRecords, passages, relocate_records, whereabouts
from agent.shapes import Allocations, Held, Units, Usages
from agent.state.journal import ENDED_MOVES_MAX, RESHAPE_EVENT, WAIT_EVENT, Journal, PendingWrite
from agent.state.operators import current_caller
from agent.tree import ProviderTree

SNAPSHOT_WAIT_S = 2.0

T = TypeVar("T")

StepObserver = Callable[[str, MoveKind | None], None]
"""Takes the step of a claim (None), of a move (its kind), or RESHAPE_EVENT (None); called under the lock."""


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """The host at one moment: `host` as the last pass read it, `used` by all rows together.

    `rows` are the book's, by instance. `offered` are the exact units that exist, `others` {consumer without
    a claim: its allocations here}.
    """

    host: ProviderIndex
    used: Usages
    offered: Units
    claims: Mapping[str, Claim]
    others: Mapping[str, Allocations]
    moves: tuple[Move, ...]
    rows: Mapping[str, Row]


class Pending(NamedTuple):
    """Claims in doubt or to be released, and moves to be finished."""

    claims: tuple[Claim, ...]
    moves: tuple[Move, ...]


class ClaimAndMove(NamedTuple):
    """A consumer's claim, and the unfinished move in which it is the instance or the migration."""

    claim: Claim | None
    move: Move | None


class _StagedStep(NamedTuple):
    """A step on its way to the disk: {consumer: its claim, None for none} before and after it.

    `moves` are {migration: move} likewise. Until the outcome is known, memory counts both sides.
    """

    name: str
    kind: MoveKind | None
    before: Mapping[str, Claim | None]
    after: Mapping[str, Claim | None]
    moves_before: Mapping[str, Move | None]
    written: PendingWrite


class BookView:
    """What the host's claims, moves and rows are, each answer at one moment. Any thread may call.

    It changes nothing; what it returns does not change afterwards. What is one value in memory is read
    without the lock: it is of one moment anyhow.
    """

    def __init__(self, book: Book, moves: dict[str, Move]) -> None:
        self._lock = threading.Lock()
        self._book = book
        self._moves = moves

    @property
    def host(self) -> ProviderIndex:
        """The providers that serve this host; empty before the first inventory."""
        return self._book.host

    def claims(self) -> dict[str, Claim]:
        """{consumer: claim}"""
        with self._lock:
            return dict(self._book.claims)

    def moves(self) -> dict[str, Move]:
        """{migration: move}, the newest ended ones too."""
        with self._lock:
            return dict(self._moves)

    def claim_of(self, consumer: str) -> Claim | None:
        """The consumer's claim."""
        with self._lock:
            return self._book.claims.get(consumer)

    def move_of(self, consumer: str) -> Move | None:
        """The unfinished move in which the consumer is the instance or the migration."""
        with self._lock:
            return self._move_of(consumer)

    def claim_and_move_of(self, consumer: str) -> ClaimAndMove:
        """Both at one moment."""
        with self._lock:
            return ClaimAndMove(self._book.claims.get(consumer), self._move_of(consumer))

    def move_by_migration(self, migration: str) -> Move | None:
        """The move of this migration's uuid, ended or not."""
        return self._moves.get(migration)

    def snapshot(self) -> HostSnapshot:
        """The whole register at one moment.

        Raises StateError where the lock is not free within SNAPSHOT_WAIT_S: a status request must not hang
        because of the very fault that an operator looks for.
        """
        if not self._lock.acquire(timeout=SNAPSHOT_WAIT_S):
            raise StateError(
                f"The agent's claims have been locked for {SNAPSHOT_WAIT_S:g} s. If /livez fails, too, "
                "restart the agent."
            )
        try:
            book = self._book
            return HostSnapshot(
                book.host,
                {uuid: dict(amounts) for uuid, amounts in book.used.items()},
                book.offered,
                dict(book.claims),
                dict(book.others),
                tuple(self._moves.values()),
                book.rows(),
            )
        finally:
            self._lock.release()

    def host_and_cells(self) -> tuple[ProviderIndex, HostCells]:
        """The providers and the host's NUMA cells, of the same inventory."""
        with self._lock:
            return self._book.host, self._book.cells

    @property
    def place(self) -> Place:
        """The host as the book sees it: its providers, exact units and cells, of the same inventory."""
        with self._lock:
            return self._book.place

    def host_and_units(self) -> tuple[ProviderIndex, Units]:
        """The providers that serve this host, and all exact units that they offer, free or not."""
        with self._lock:
            return self._book.host, self._book.offered

    def rows(self) -> Mapping[str, Row]:
        """{instance: row of the book}"""
        with self._lock:
            return self._book.rows()

    def held(self) -> Held:
        """What Placement holds on the providers that serve this host, as read last or written since."""
        with self._lock:
            return self._book.held()

    def in_use(self) -> Usages:
        """{provider uuid: {class: in use by all consumers}}"""
        with self._lock:
            return {uuid: dict(amounts) for uuid, amounts in self._book.used.items()}

    def fit(self, request: ClaimRequest) -> Fit:
        """Where the request fits, as if its consumer held nothing."""
        with self._lock:
            return self._book.fit(request)

    def survey(self, place: Place) -> Survey:
        """What all rows need, and what of it Placement does not hold, on a host with these providers."""
        with self._lock:
            return self._book.survey(place)

    def unclaimed(self) -> Mapping[str, Usages]:
        """{instance: {provider: {class: amount}}} that guests use, and that is neither held nor claimed."""
        with self._lock:
            return self._book.unclaimed()

    def unheld(self) -> Mapping[str, Usages]:
        """{instance: {provider: {class: amount}}} that is claimed or used, and not held in Placement."""
        with self._lock:
            return self._book.unheld()

    def departed(self) -> Mapping[str, Collection[str]]:
        """{instance on another host: the consumers that may hold its place here}; see `Departures`."""
        with self._lock:
            return self._book.departed()

    def away(self) -> Mapping[str, str]:
        """{instance on another host: the migration that holds a part of its place here, or ""}"""
        with self._lock:
            return self._book.away()

    def doubtful(self) -> frozenset[str]:
        """The providers of which the last refresh contradicted what the agent wrote: read them again."""
        with self._lock:
            return self._book.doubtful

    def found_guests(self) -> frozenset[str]:
        """The guests that were here before the state directory, and that nothing is claimed for yet."""
        with self._lock:
            return self._book.place.found

    def left_on_cards(self, cards: Mapping[str, Card], offered: Units) -> Usages:
        """{provider uuid: {class: number}} that these cards can still give, see `Book.left_on_cards`."""
        with self._lock:
            return self._book.left_on_cards(cards, offered)

    def _move_of(self, consumer: str) -> Move | None:
        for move in self._moves.values():
            if not move.ended and consumer in (move.instance, move.migration):
                return move
        return None


class Register(BookView):
    """The lock, the book and the moves, private to this module. Any thread may call.

    No request is sent while the lock is held. A function that a method takes runs under the lock: it must
    not call the register, and must not wait.
    """

    def __init__(self, journal: Journal, on_step: StepObserver = lambda step, kind: None) -> None:
        """Raises StateError where the journal cannot be read."""
        super().__init__(Book(journal.claims().values()), journal.moves())
        self._journal = journal
        self._passages = passages(journal.reshapes(done=True).values())
        self._led: Mapping[str, Collection[Passage]] = {}
        self._on_step = on_step
        self._lost = journal.lost_claims()
        self._found_on_disk = journal.found_guests()
        self._finds_all = self._found_on_disk is None and not journal.owned().providers
        self._book.observe_guests((), self._found_on_disk or frozenset())
        self._book.follow_moves(self._migrations())

    def _migrations(self) -> Mapping[str, str]:
        """{instance: migration} of the moves under way."""
        return {move.instance: move.migration for move in self._moves.values() if not move.ended}

    def condition(self) -> threading.Condition:
        """A condition of the register's lock, for `Turns`: what is pending and whose turn it is agree."""
        return threading.Condition(self._lock)

    def under_lock(self, action: Callable[[Book], T]) -> T:
        """The result of `action`, which reads or changes the book under the lock."""
        with self._lock:
            return action(self._book)

    def owned(self) -> OwnedProviders:
        """What the agent has written in Placement, as of the last pass. Raises StateError."""
        return self._journal.owned()

    def pending(self, is_taken: Callable[[str], bool]) -> Pending:
        """What is to be resolved. Leaves out claims whose turn is taken, and those of moves.

        `is_taken` is called under the lock.
        """
        with self._lock:
            migrations = self._migrations()
            moving = {*migrations, *migrations.values()}
            claims = tuple(
                claim
                for consumer, claim in self._book.claims.items()
                if claim.state is not ClaimState.CLAIMED and not is_taken(consumer) and consumer not in moving
            )
            moves = tuple(
                move for move in self._moves.values() if not move.ended and move.state is not MoveState.BEGUN
            )
            return Pending(claims, moves)

    # What Placement and the driver report

    def refresh(
        self,
        tree: ProviderTree,
        held: Held,
        units: Units,
        layout: HostLayout | None,
        kept: Collection[str],
        reading: Reading | None,
        caps: Caps,
    ) -> None:
        """See `ResourceTracker.refresh`. Raises StateError where the journal cannot be read."""
        index = ProviderIndex.of(tree, self._journal.host_uuid(), layout.ways if layout else None)
        host = replace(index, caps=caps)
        if layout is not None:
            host = replace(host, withheld=layout.withheld, unit_drivers=layout.unit_drivers)
        cells = HostCells.of(layout, host)
        with self._lock:
            self._book.refresh(host, held, units, cells, kept=kept, reading=reading)
            self._book.units.to_make = layout.to_make if layout else {}
            self._book.units.cards = layout.cards if layout else {}
        self._keep_found()

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """Read Placement in the block, and enter the result there; what the agent writes meanwhile wins."""
        with self._lock:
            reading = self._book.begin_reading()
        try:
            yield reading
        finally:
            with self._lock:
                self._book.end_reading(reading)

    def observe(self, held: Held, reading: Reading) -> None:
        """Enter what Placement says of some providers: {provider uuid: {consumer: {class: amount}}}."""
        with self._lock:
            for uuid, amounts_of in held.items():
                self._book.observe_provider(uuid, amounts_of, reading)

    def enter_held(self, consumer: str, allocations: Allocations, reading: Reading) -> None:
        """Enter all that Placement holds for the consumer, as it was read since `reading` began."""
        with self._lock:
            self._book.enter_held(consumer, allocations, reading)

    def enter_written(self, allocations: Mapping[str, Allocations]) -> None:
        """Enter what the agent has just written to Placement: {consumer: all its allocations}."""
        with self._lock:
            for consumer, of_consumer in allocations.items():
                self._book.enter_written(consumer, of_consumer)

    def note_wait(self, consumers: Iterable[str], why: str) -> None:
        """Write into the history that a write for these consumers waited; a failing disk loses only that."""
        with suppress(StateError):
            for consumer in consumers:
                self._journal.record_event(consumer, WAIT_EVENT, why)

    def enter_doubts(self, consumers: Collection[str], doubts: Collection[Doubt]) -> None:
        """Enter the writes in doubt of these consumers; `doubts` are all of them."""
        writes = [{write.consumer: write.allocations for write in doubt.writes} for doubt in doubts]
        with self._lock:
            for consumer in consumers:
                self._book.enter_doubts(consumer, writes)

    def enter_guests(self, guests: Collection[Guest]) -> None:
        """Enter the exact units and the cells' memory that guests use."""
        with self._lock:
            present = frozenset(guest.uuid for guest in guests)
            found = present if self._finds_all else self._book.place.found & present
            self._finds_all = False
            self._book.observe_guests(guests, found - self._book.claims.keys())
        self._keep_found()

    def _keep_found(self) -> None:
        """Write which guests a new state directory found, where that has changed."""
        found = self.found_guests()
        if found != (self._found_on_disk or frozenset()):
            self._journal.remember_found_guests(found)
            self._found_on_disk = found

    def note_lost(self, *, restored: bool = False) -> frozenset[str]:
        """The claims that a restored database of Placement does not have, until it has them again.

        `restored`: it was restored just now. Raises StateError.
        """
        with self._lock:
            known = self._book.claims.keys() if restored else self._lost
            lost = frozenset(
                consumer
                for consumer in known
                if consumer in self._book.claims
                and self._book.claims[consumer].state is ClaimState.CLAIMED
                and not self._book.holds(consumer)
            )
        if lost != self._lost:
            self._journal.remember_lost_claims(lost)
            self._lost = lost
        return lost

    def expect(self, consumer: str, guest: Guest | None) -> None:
        """Count the memory of a guest that is about to start; None: it does not start."""
        with self._lock:
            self._book.expect_guest(consumer, guest)

    # Steps of claims

    def step_claim(
        self, step: ClaimStep, consumer: str, claim: Claim | None = None, detail: str = ""
    ) -> Claim | None:
        """The claim after the step, once it is on disk; `claim` replaces the present one if it is given.

        The caller has the consumer's turn. Raises StateError where the journal fails, or the table of
        transitions does not have the step: then the claim is unchanged, in memory and on disk. Raises
        StateUnknown where the disk does not answer: see `read_back`.
        """
        with self._lock:
            staged = self._stage_claim(step, consumer, claim, detail)
        self._wait_for_disk([staged])
        return staged.after[consumer]

    def step_chosen_claim(self, step: ClaimStep, choose: Callable[[Book], Claim]) -> Claim:
        """As `step_claim`, with the claim that `choose` makes under the lock; the claim after the step.

        An error of `choose` changes nothing.
        """
        with self._lock:
            chosen = choose(self._book)
            staged = self._stage_claim(step, chosen.consumer, chosen)
        self._wait_for_disk([staged])
        return staged.after[chosen.consumer] or chosen

    def step_chosen_claims(self, step: ClaimStep, choose: Callable[[Book], Iterable[Claim]]) -> None:
        """As `step_chosen_claim`, for several claims at once. Each that fails is unchanged."""
        staged: list[_StagedStep] = []
        try:
            with self._lock:
                for claim in list(choose(self._book)):
                    staged.append(self._stage_claim(step, claim.consumer, claim))
        finally:
            self._wait_for_disk(staged)

    @contextmanager
    def reserved(self, choose: Callable[[Book], tuple[Claim, Claim]]) -> Iterator[Claim]:
        """Yield the first of the two claims that `choose` makes, for the block to journal.

        In the block the second one counts, in memory only; if the block raises, the old one does. The
        consumer has a claim, and the caller has its turn.
        """
        with self._lock:
            after, chosen = choose(self._book)
            before = self._book.claims[chosen.consumer]
            after = _made(after, before)
            self._book.grow(chosen.consumer, on=True)
            self._book.put(chosen)
        try:
            yield after
        except StateUnknown:
            raise  # what is on disk is read back
        except PlimsollError:
            with self._lock:
                self._book.put(before)
            raise
        finally:
            with self._lock:
                self._book.grow(chosen.consumer, on=False)

    def _stage_claim(
        self, step: ClaimStep, consumer: str, claim: Claim | None = None, detail: str = ""
    ) -> _StagedStep:
        """Hand the step to the journal. The caller holds the lock."""
        before = self._book.claims.get(consumer)
        key = (before.state if before else None, step)
        if key not in CLAIM_TRANSITIONS:
            raise StateError(f"The claim of {consumer} cannot {step} while it is {key[0] or 'not there'}.")
        state = CLAIM_TRANSITIONS[key]
        chosen = claim or before
        if chosen and not detail:
            # The journal's history outlives the claim: it has the claim's name and amounts.
            amounts = sorted(chosen.request.resources.items())
            detail = ", ".join(f"{amount} {name}" for name, amount in amounts)
            detail = f"{chosen.request.name}: {detail}" if chosen.request.name else detail
        after = _made(chosen.in_state(state), before) if chosen is not None and state is not None else None
        if after is None:
            written = self._journal.remove_claim(consumer, step, detail)
        elif claim is None:
            written = self._journal.set_claim_state(consumer, after.state, step, detail)
        else:
            written = self._journal.put_claim(after, step, detail)
        return self._staged(_StagedStep(step, None, {consumer: before}, {consumer: after}, {}, written))

    # Between memory and the disk

    def _staged(self, staged: _StagedStep) -> _StagedStep:
        """Count what either side of the step has. The caller holds the lock."""
        before = [claim for claim in staged.before.values() if claim is not None]
        after = [claim for claim in staged.after.values() if claim is not None]
        self._put_claims({**staged.after, **claims_until_durable(before, after)})
        return staged

    def _wait_for_disk(self, steps: Iterable[_StagedStep]) -> None:
        """Wait for each step: memory then has what is on disk.

        Raises StateUnknown where the disk does not answer: memory counts both sides until `read_back`.
        Raises StateError where it refused a step, which changes nothing.
        """
        failure: StateError | None = None
        for staged in steps:
            try:
                staged.written.wait()
            except StateUnknown as unknown:
                failure = unknown
            except StateError as error:
                failure = failure or error
                with self._lock:
                    self._put_claims(staged.before)
                    self._put_moves(staged.moves_before)
            else:
                with self._lock:
                    self._put_claims(staged.after)
                    self._on_step(staged.name, staged.kind)
        if failure is not None:
            raise failure

    def _put_claims(self, claims: Mapping[str, Claim | None]) -> None:
        """Enter these claims; None removes the consumer's one. The caller holds the lock."""
        for consumer, claim in claims.items():
            if claim is None:
                self._book.remove(consumer)
        for consumer, claim in claims.items():
            if claim is not None and self._book.claims.get(consumer) is not claim:
                self._book.put(claim)

    def _put_moves(self, moves: Mapping[str, Move | None]) -> None:
        for migration, move in moves.items():
            if move is None:
                self._moves.pop(migration, None)
            else:
                self._moves[migration] = move
        self._book.follow_moves(self._migrations())

    def read_back(self) -> None:
        """After a journal write whose outcome was unknown: continue with what is on disk.

        Without effect where there was none. Raises StateUnknown while the disk does not answer, StateError
        where the journal cannot be read.
        """
        unknown = self._journal.unknown_writes()
        if not unknown:
            return
        claims, moves = self._journal.claims(), self._journal.moves()
        reshaped = passages(self._journal.reshapes(done=True).values())
        with self._lock:
            self._journal.take_writes(unknown)
            gone = self._book.claims.keys() - claims.keys()
            self._put_claims(dict.fromkeys(gone))
            self._put_claims(claims)
            self._moves, self._passages = moves, reshaped
            self._book.follow_moves(self._migrations())

    @property
    def unknown_reason(self) -> str | None:
        """Why nothing can be decided, a clause: the disk did not answer. None while it does."""
        return self._journal.unknown_reason

    # Steps of moves

    def step_move(self, step: MoveStep, move: Move) -> Move:
        """Take the step with this move and wait for the disk; the move after the step.

        The caller has the turns of both consumers. Raises StateError where the journal fails, or the table
        of transitions does not have the step: then nothing is changed, in memory and on disk.
        """
        return self.step_chosen_move(lambda _: (step, move))

    def step_chosen_move(self, choose: Callable[[Book], tuple[MoveStep, Move]]) -> Move:
        """As `step_move`, with what `choose` makes under the lock. An error of `choose` changes nothing."""
        with self._lock:
            step, move = choose(self._book)
            before = self._moves.get(move.migration)
            state_before = before.state if before else None
            state = MOVE_TRANSITIONS.get((state_before, step))
            if state is None:
                raise StateError(
                    f"The move {move.migration} cannot {step} while it is {state_before or 'not there'}."
                )
            new = move.new and _made(move.new, before.new if before else None)
            after = replace(move, state=state, new=new)
            claims = claims_of(after)
            consumers = {after.instance, after.migration}
            written = self._journal.put_move(after, claims.values(), consumers - claims.keys(), step)
            staged = _StagedStep(
                step,
                after.kind,
                {consumer: self._book.claims.get(consumer) for consumer in consumers},
                {consumer: claims.get(consumer) for consumer in consumers},
                {after.migration: before},
                written,
            )
            self._moves[after.migration] = after
            if after.ended:
                ended = [migration for migration, known in self._moves.items() if known.ended]
                for migration in ended[:-ENDED_MOVES_MAX]:
                    del self._moves[migration]
            self._book.follow_moves(self._migrations())
            staged = self._staged(staged)
        self._wait_for_disk([staged])
        return after

    # A reshape

    def relocate(self, receipt: Receipt, exact: ExactUnits) -> None:
        """Put claims and moves where the reshape put them: on disk with its receipt, then in memory.

        The caller has the turns of all these consumers. Raises StateError: then nothing is changed.
        """
        self._put_relocated(
            (*receipt.relocations, *receipt.records),
            exact,
            lambda relocated: self._journal.finish_reshape(receipt, relocated.claims, relocated.moves),
            passages([receipt]),
        )

    def follow_placement(self, relocations: Collection[Relocation], exact: ExactUnits) -> None:
        """Put claims and moves where a reshape put them that the journal does not have.

        As `relocate`, without a receipt: the journal was restored from a copy that is older.
        """
        self._put_relocated(
            relocations,
            exact,
            lambda relocated: self._journal.put_relocated(relocated.claims, relocated.moves),
        )

    def _put_relocated(
        self,
        relocations: Collection[Relocation],
        exact: ExactUnits,
        write: Callable[[RelocatedRecords], PendingWrite],
        reshaped: tuple[Passage, ...] = (),
    ) -> None:
        with self._lock:
            relocated = relocate_records(relocations, self._book.claims, self._moves, exact)
            written = write(relocated)
        written.wait()
        with self._lock:
            self._moves.update({move.migration: move for move in relocated.moves})
            self._passages += reshaped
            for claim in relocated.claims:
                self._book.put(claim)
            self._on_step(RESHAPE_EVENT, None)

    def whereabouts(self, place: Claim) -> tuple[Claim, ...]:
        """The place as it is recorded, and wherever the reshapes of this host may have led it since.

        They may have moved it under another consumer, as that of a migration which this host does not know.
        """
        with self._lock:
            guests = [row.guest for row in self._book.rows().values() if row.guest is not None]
            exact = ExactUnits(self._book.offered, guests)
            known = (*self._passages, *self._led.get(place.consumer, ()))
            return whereabouts(place, known, self._book.claims, exact)

    def note_led(self, led: Mapping[str, Collection[Passage]]) -> None:
        """Also look for the places of these consumers where the move instructions lead: {consumer: how}."""
        if led != self._led:
            with self._lock:
                self._led = led


class HeldColumn(AllocationObserver):
    """Enters into the register what one client reads and writes. Any thread may call.

    So the book's held column follows all that the agent's client reads and writes of consumers' allocations.
    """

    def __init__(self, register: Register) -> None:
        self._register = register

    def read(self, consumer: str, ask: Callable[[], ConsumerAllocations]) -> ConsumerAllocations:
        """Enter what Placement says, unless the agent wrote the consumer while Placement answered."""
        with self._register.reading() as reading:
            held = ask()
            self._register.enter_held(consumer, held.allocations, reading)
        return held

    def wrote(self, writes: Iterable[ConsumerAllocations]) -> None:
        """Enter what Placement holds from now on."""
        self._register.enter_written({write.consumer: write.allocations for write in writes})

    def waited(self, consumers: Iterable[str], why: str) -> None:
        """Enter it into the history: who looks for the reason of a late answer finds it there."""
        self._register.note_wait(consumers, why)


def _made(claim: Claim, before: Claim | None) -> Claim:
    """The claim with its maker: that of the claim before it, else the caller for whom the agent works."""
    if claim.maker is not None or (before is not None and before.maker is None):
        return claim
    caller = current_caller()
    if before is not None:
        return replace(claim, maker=before.maker)
    return claim if caller is None else replace(claim, maker=Maker(caller.uid, caller.program))
