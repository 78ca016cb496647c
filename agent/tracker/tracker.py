"""The resource tracker: the only writer of the host's claims.

One process-wide lock guards what is claimed, and no network request is made while it is held. For each
consumer one operation is under way at a time, the others wait their turn for a bounded time: so a release
that comes while the claim is still in flight waits for it, and then releases it; the same claim asked for
again waits, and gets the same answer; another claim for the consumer is refused at once.

    with tracker.claim(request) as held:   # released again if the block raises
        start_the_guest(held.claim.units)
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

from agent import log
from agent.backoff import Backoff
from agent.claims.claim import Claim, ClaimState, ClaimStep, Fit, fit_of_claim
from agent.claims.fit import check_placeable
from agent.claims.ledger import DepartedConsumers
from agent.claims.numa.host_cells import HostLayout
from agent.claims.parse_request import ClaimRequest
from agent.claims.refusal import late_claim_conflict, other_claim_conflict
from agent.driver import Guest
from agent.errors import (
    ClaimsClosed,
    PlacementUnavailable,
    UnknownConsumer,
)
from agent.moves.states import Move, MoveKind, MoveRole, moving_conflict
from agent.placement.client import PlacementClient
from agent.reshape.receipt import Receipt
from agent.reshape.relocate import ExactUnits
from agent.shapes import Held, Units, Usages
from agent.state.journal import Journal
from agent.tracker.claim_attempt import ClaimAttempt
from agent.tracker.delivery import DELIVERED_MAX, Delivery
from agent.tracker.follow_guest import follow_guests
from agent.tracker.handles import ClaimHandle, MoveHandle
from agent.tracker.late_answers import LateAnswers, may_come_late
from agent.tracker.moves import Mover
from agent.tracker.register import Register
from agent.tracker.turns import Turns
from agent.tracker.withdraw import withdraw
from agent.tree import ProviderTree

LOG = log.get(__name__)

NOT_YET = "waiting for the first full inventory"
TURN_WAIT_S = 60.0


class ResourceTracker:
    """See the module's docstring. Any thread may call; nothing blocks without a bound.

    Claims are closed at first: `refresh` must have told what there is, and `open` been called. `silent` is
    told where placement does not answer and what was asked is journaled, to be done later; `spares` tells
    whether placement is known to be away, and is not to be asked again yet.
    """

    def __init__(
        self,
        journal: Journal,
        client: PlacementClient,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        turn_wait_s: float = TURN_WAIT_S,
    ) -> None:
        """Raises StateError where the journal cannot be read."""
        self.register = self._register = Register(journal)
        self._client = client
        self._clock = clock
        self._lock = self._register.lock
        self._turns = Turns(self._lock, turn_wait_s, self._check_open)
        self._guests: frozenset[str] = frozenset()
        self._closed: str | None = NOT_YET
        self.silent: Callable[[PlacementUnavailable], None] = lambda _: None
        self.spares: Callable[[], bool] = lambda: False
        self._late = LateAnswers(monotonic)
        self._mover = Mover(
            self._register,
            client,
            clock,
            self._turns.of,
            lambda: self._guests,
            self._check_open,
            self._was_silent,
        )
        self._delivery = Delivery(
            self._register,
            self._turns,
            self._mover,
            self._late,
            lambda: self._guests,
            self._attempt,
            self._resolve,
            self._was_silent,
            Backoff(clock=monotonic),
        )

    # What there is

    def refresh(
        self,
        tree: ProviderTree,
        held: Held,
        units: Units,
        layout: HostLayout | None = None,
        departed: DepartedConsumers | None = None,
    ) -> None:
        """Learn the tree, what placement holds on it, and which exact units the driver offers, in order.

        `departed` is what `departed` said before `held` was read, None: `held` is of this moment.
        Without the host's `layout` no guest that asks for NUMA cells, pinned CPUs or pages can be placed.
        """
        self._register.refresh(tree, held, units, layout, departed)
        follow_guests(self._register, self._turns)

    def departed(self) -> DepartedConsumers:
        """Where what placement was read to hold is to be read again: claims have gone from there since."""
        with self._lock:
            return self._register.ledger.departed

    def in_use(self) -> Usages:
        """{provider uuid: {class: in use, by whomever}}"""
        with self._lock:
            return {uuid: dict(amounts) for uuid, amounts in self._register.ledger.used.items()}

    def saw(self, guests: Collection[Guest]) -> None:
        """Learn which exact units guests use: nobody else gets them, whether they are claimed or not."""
        with self._lock:
            self._guests = frozenset(guest.uuid for guest in guests)
            self._register.ledger.observe_guests(guests)

    def gone(self, consumer: str) -> None:
        """The consumer's guest has ended, whatever `saw` was told before, and until it is told again."""
        with self._lock:
            self._guests -= {consumer}

    def open(self) -> None:
        with self._lock:
            self._closed = None

    def close(self, reason: str) -> None:
        """Refuse claims from now on, with this reason; releases go on, and so do claims in flight."""
        with self._lock:
            self._closed = reason

    @property
    def closed_reason(self) -> str | None:
        return self._closed

    # Claims

    def claim(self, request: ClaimRequest) -> ClaimHandle:
        """Claim for the request's consumer, or give it the very claim that it has already.

        Raises ClaimsClosed, DoesNotFit, ClaimConflict; UsageError for what this agent cannot place;
        PlacementError and StateError where placement or the journal fail.
        """
        check_placeable(request)
        with self._turns.of(request.consumer, request):
            return ClaimHandle(self._claim(request), self.release)

    def _claim(self, request: ClaimRequest) -> Claim:
        with self._lock:
            self._check_open()
            present = self._register.ledger.claims.get(request.consumer)
            moving = self._register.move_of(request.consumer)
        if moving is not None and (present is None or present.request != request):
            raise moving_conflict(moving)
        if present is not None and present.state is ClaimState.CLAIMED:
            if present.request != request:
                raise other_claim_conflict(present)
            return present
        if moving is not None:
            raise moving_conflict(moving)
        leftover = present
        if present is not None and (present.state is ClaimState.RELEASING or present.request != request):
            if self._is_late(request.consumer):
                raise late_claim_conflict(present)
            self._resolve(present)
            leftover = None
        return self._attempt(request, leftover)

    def _attempt(self, request: ClaimRequest, leftover: Claim | None) -> Claim:
        if leftover is not None:
            self._check_not_taken_over(leftover)
        late = leftover is not None and self._is_late(request.consumer)
        attempt = ClaimAttempt(self._register, self._client, self._clock, request, leftover, late=late)
        try:
            claim = attempt.run()
        except PlacementUnavailable as error:
            if may_come_late(error):
                with self._lock:
                    self._late.note(request.consumer)
            raise
        if attempt.came:
            with self._lock:
                self._late.came(request.consumer)
        return claim

    def _is_late(self, consumer: str) -> bool:
        with self._lock:
            return consumer in self._late

    def _check_not_taken_over(self, claim: Claim) -> None:
        """Raises ClaimConflict where a migration has what the claim wrote, and now the claim, too."""
        move = self._mover.took_over(claim)
        if move is not None:
            raise moving_conflict(move)

    def explain(self, request: ClaimRequest) -> Fit:
        """What `claim` would do, by what is known now: no request is made. Also while claims are closed."""
        check_placeable(request)
        with self._lock:
            ledger = self._register.ledger
            present = ledger.claims.get(request.consumer)
            if present is not None and present.request == request:
                return fit_of_claim(present)
            known = ledger.other_allocations(request.consumer)
            return ledger.cover(request, known, exact=True) if known else ledger.fit(request)

    def release(self, consumer: str, *, now: bool = True) -> bool:
        """Give back what the consumer claimed; `now` is False while placement is known to be away.

        True: it is out of placement. False: it is not yet; it is journaled, and `deliver` will see to it.
        Raises UnknownConsumer, PlacementError (placement refused; journaled all the same), StateError.
        """
        with self._lock:
            moving = self._register.move_of(consumer)
        if moving is not None:
            if moving.instance != consumer or moving.role is MoveRole.SOURCE:
                raise moving_conflict(moving)
            if moving.kind is not MoveKind.REBUILD:
                return self._mover.delete(moving, now=now)
            self._mover.confirm(moving.migration)  # it holds nothing of its own: what is left is a claim
        with self._turns.of(consumer):
            with self._lock:
                present = self._register.ledger.claims.get(consumer)
                moving = self._register.move_of(consumer)
            if moving is not None:
                raise moving_conflict(moving)  # since just now
            if present is None:
                raise UnknownConsumer(
                    f"No claim of consumer {consumer} is known on this host: nothing to release.",
                    consumer=consumer,
                )
            if present.state is not ClaimState.RELEASING:
                self._register.move_durably(ClaimStep.RELEASE, consumer)
            if not now or self._is_late(consumer):
                return False
            try:
                self._resolve(self._of(consumer))
            except PlacementUnavailable as error:
                LOG.warning("The release of %s waits for placement: %s", consumer, error.message)
                self._was_silent(error)
                return False
            return True

    def claims(self) -> Mapping[str, Claim]:
        """{consumer: claim}, those in flight and those to be released too."""
        with self._lock:
            return dict(self._register.ledger.claims)

    def get(self, consumer: str) -> Claim | None:
        with self._lock:
            return self._register.ledger.claims.get(consumer)

    # Moves

    @property
    def mover(self) -> Mover:
        """Confirms and reverts moves, and knows them; `move` begins one."""
        return self._mover

    def move(self, request: ClaimRequest, kind: MoveKind, migration: str) -> MoveHandle:
        """Begin a move of the request's consumer to this host; see `Mover.begin`.

        with tracker.move(request, MoveKind.COLD_MIGRATE, migration):  # reverted if the block raises
            copy_the_guest()
        """
        return MoveHandle(self._mover.begin(kind, migration, request), self._mover.revert)

    def moves(self) -> Mapping[str, Move]:
        """{migration: move}, those that ended lately too."""
        return self._mover.moves()

    def follow_moves(self) -> int:
        """Learn from placement what became of moves and moved claims; returns how many changed.

        Raises PlacementError, StateError.
        """
        return self._mover.follow()

    # What is left to do

    @property
    def pending(self) -> int:
        """How many releases, intents in doubt and ends of moves wait for placement, or for a guest to go."""
        return self._delivery.pending

    def recover(self, guests: Collection[Guest]) -> int:
        """After a start: finish the intents whose guests are there, undo the others, deliver the releases.

        What placement is not there for stays pending. Returns how many were resolved. Raises StateError.
        """
        self.saw(guests)
        return self.deliver(limit=None)

    def deliver(self, limit: int | None = DELIVERED_MAX) -> int:
        """Resolve what is pending, at most `limit`; returns how many. Raises StateError.

        Stops where placement is away; one consumer that alone gets no answer goes last. What placement
        refuses is logged, and stays pending.
        """
        return self._delivery.deliver(limit)

    def _resolve(self, present: Claim) -> None:
        """Take a claim that shall go, or an intent in doubt, out of placement and out of the journal."""
        moved = withdraw(self._register, self._client, present)
        if moved:
            self._check_not_taken_over(present)
        step = ClaimStep.GONE if present.state is ClaimState.RELEASING else ClaimStep.REFUSE
        self._register.move_durably(step, present.consumer)

    def _was_silent(self, error: PlacementUnavailable) -> None:
        self.silent(error)

    def _of(self, consumer: str) -> Claim:
        with self._lock:
            return self._register.ledger.claims[consumer]

    def _check_open(self) -> None:
        if self._closed is not None:
            raise ClaimsClosed(f"Claims are closed: {self._closed}.", reason=self._closed)

    # A reshape

    @contextmanager
    def standing(self, slots: Collection[tuple[str, str]]) -> Iterator[None]:
        """Have every consumer alone, as long as the block lasts, whose claim is on one of these slots.

        `slots` are (provider uuid, class). Raises ClaimConflict.
        """
        with self._lock:
            affected = [
                consumer
                for consumer, claim in self._register.ledger.claims.items()
                if any(name in claim.allocations.get(uuid, ()) for uuid, name in slots)
            ]
        with ExitStack() as turns:
            for consumer in sorted(affected):
                turns.enter_context(self._turns.of(consumer))
            yield

    def follow(self, receipt: Receipt, units: Units, guests: Collection[Guest]) -> None:
        """The reshape is done: claims and moves go to their new places, on disk together with its receipt.

        The caller is `standing` on what moved. Raises StateError: then all is as it was.
        """
        self._register.follow(receipt, ExactUnits(units, guests))

    # Turns

    def alone(self, consumer: str) -> AbstractContextManager[None]:
        """Have the consumer alone, as an audit must. Raises ClaimConflict."""
        return self._turns.of(consumer)
