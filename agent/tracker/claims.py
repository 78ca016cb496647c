"""Claims, as the tracker offers them: claim, explain, release, extend, and resolve what is in doubt.

A guest that starts here or comes in needs exact units. They are reserved for it while its claim is decided;
the caller has the consumer's turn, so no second call for the same guest lifts what the first one reserved.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from agent import errors, log
from agent.backoff import CONFLICTS_MAX, pause
from agent.claims.book import Book
from agent.claims.claim import (
    UNRESTRICTED,
    Claim,
    ClaimState,
    ClaimStep,
    Fit,
    Restriction,
    Shortfall,
    fit_of_claim,
)
from agent.claims.domain_demand import GATE_USER
from agent.claims.doubt import DoubtKind
from agent.claims.fit import check_placeable
from agent.claims.refusal import does_not_fit, other_claim_conflict
from agent.claims.request import PLACE_PREFIX, ClaimRequest, named_as
from agent.driver import Guest
from agent.errors import by_force
from agent.moves.states import Move, moving_conflict
from agent.placement.client import ConsumerAllocations
from agent.tracker.claim_attempt import ClaimAttempt, replace_claim, withdraw
from agent.tracker.context import TrackerContext
from agent.tracker.follow_guest import extend_claim
from agent.tracker.follow_moves import MigrationLinker
from agent.tracker.guarded_write import checked
from agent.tracker.register import Register

LOG = log.get(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class GuestDemand:
    """The request for a guest, and what its claim must have because the guest's domain names it."""

    guest: Guest
    request: ClaimRequest
    restriction: Restriction = UNRESTRICTED


@contextmanager
def reserved_for(register: Register, demand: GuestDemand) -> Iterator[None]:
    """In the block, the request gets exactly the units; the guest's pages and its cells' memory are counted.

    No provider has those pages. They count until the driver reports the guest, or until the tracker expects
    it no more; not if the block raises. Raises DoesNotFit where another consumer has a unit, or the memory is
    not there.
    """
    consumer = demand.request.consumer

    def reserve(book: Book) -> None:
        shortfalls = (
            *book.memory_shortfalls(demand.guest.uuid, demand.guest.memory),
            *book.unit_shortfalls(consumer, demand.restriction.units),
        )
        if shortfalls:
            raise does_not_fit(demand.request, shortfalls)
        book.expect_guest(consumer, demand.guest)
        book.restrict(consumer, demand.restriction)

    register.under_lock(reserve)
    try:
        yield
    except errors.PlimsollError:
        register.expect(consumer, None)
        raise
    finally:
        register.under_lock(lambda book: book.restrict(consumer, None))


@contextmanager
def restricted(register: Register, request: ClaimRequest, restriction: Restriction) -> Iterator[None]:
    """In the block, the request gets what the restriction says.

    Raises DoesNotFit as `restrict` does.
    """
    register.under_lock(lambda book: restrict(book, request, restriction))
    try:
        yield
    finally:
        register.under_lock(lambda book: book.restrict(request.consumer, None))


def restrict(book: Book, request: ClaimRequest, restriction: Restriction) -> None:
    """Restrict later fits of the request.

    Raises DoesNotFit where another consumer has a named unit, or where the memory is not there, as the gate
    does.
    """
    memory = () if request.consumer in book.claims else restriction.memory
    shortfalls = (
        *book.memory_shortfalls(request.consumer, memory),
        *book.unit_shortfalls(request.consumer, restriction.units),
    )
    if shortfalls:
        raise does_not_fit(request, shortfalls)
    book.restrict(request.consumer, restriction)


StartDecision = Callable[[Claim | None, Move | None], tuple[GuestDemand, bool]]
"""Takes the granted claim of a guest that starts and its move; returns what it needs, and whether the claim
covers that. Raises Refused where it does not and may not be replaced."""


class Admitted(NamedTuple):
    """A claim, as of a guest that starts; `was_held`: its consumer had it already."""

    claim: Claim
    was_held: bool


def _as_claimed(
    present: Claim | None, request: ClaimRequest, restriction: Restriction, book: Book
) -> ClaimRequest:
    """The request of the present claim where that answers this one, too; else this one, with its name.

    A claim that the agent made from what a guest uses has groups for the places of that. It answers a
    request for the same amounts whose groups its places can serve.
    """
    if present is None:
        return request
    known, request = present.request, named_as(request, present.request)
    if request == known or present.state is not ClaimState.CLAIMED:
        return request
    is_gates = known.user_id == GATE_USER
    is_made = is_gates or any(group.suffix.startswith(PLACE_PREFIX) for group in known.groups)
    is_owner = is_gates or (known.project_id, known.user_id) == (request.project_id, request.user_id)
    has_units = all(
        set(exact) <= set(present.units.get(uuid, {}).get(name, ()))
        for uuid, classes in restriction.units.items()
        for name, exact in classes.items()
    )
    answers = (
        is_made
        and is_owner
        and (request.name, request.resources) == (known.name, known.resources)
        and (request.topology, request.consumer_type) == (known.topology, known.consumer_type)
        and has_units
        and book.cover(request, present.allocations, exact=False).fits
    )
    return known if answers else request


class ClaimOperations:
    """The operations on claims of one tracker. Any thread may call."""

    def __init__(self, context: TrackerContext, linker: MigrationLinker) -> None:
        self._context = context
        self._register = context.register
        self._linker = linker

    def claim(self, request: ClaimRequest, restriction: Restriction = UNRESTRICTED) -> Admitted:
        """See `ResourceTracker.claim`."""
        check_placeable(request)
        consumer, name = request.consumer, request.name
        with self._context.turns.take(consumer, request):
            before, asked = self._register.under_lock(
                lambda book: (
                    (known := book.claims.get(consumer)),
                    _as_claimed(known, request, restriction, book),
                )
            )
            was_held = before is not None and before.state is ClaimState.CLAIMED

            def claim() -> Claim:
                if restriction == UNRESTRICTED:
                    return self._claim(asked)
                with restricted(self._register, asked, restriction):
                    return self._claim(asked)

            claimed = self._with_left_places(consumer, claim)
            if not name or claimed.request.name:
                return Admitted(claimed, was_held)
            move = self._register.move_of(consumer)
            if move is not None:
                raise moving_conflict(move)
            named = replace(claimed, request=replace(claimed.request, name=name))
            return Admitted(self._register.step_claim(ClaimStep.FOUND, consumer, named) or named, was_held)

    def explain(self, request: ClaimRequest, restriction: Restriction = UNRESTRICTED) -> Fit:
        """See `ResourceTracker.explain`."""
        check_placeable(request)

        def explain(book: Book) -> Fit:
            present = book.claims.get(request.consumer)
            asked = _as_claimed(present, request, restriction, book)
            if present is not None and present.request == asked:
                return fit_of_claim(present)
            held = book.other_allocations(request.consumer)
            in_force = book.restriction(request.consumer)
            try:
                restrict(book, request, restriction)
                return book.cover(request, held, exact=True) if held else book.fit(request)
            except errors.DoesNotFit as error:
                return Fit(False, {}, {}, tuple(Shortfall(**each) for each in error.details["shortfalls"]))
            finally:
                book.restrict(request.consumer, in_force)

        return self._register.under_lock(explain)

    def release(self, consumer: str, *, now: bool, unless: Callable[[], bool] = lambda: False) -> bool:
        """See `ResourceTracker.release`, for a consumer that is in no move."""
        with self._context.turns.take(consumer):
            if unless():
                return False
            claim, moving = self._register.claim_and_move_of(consumer)
            if moving is not None:
                raise moving_conflict(moving)
            if claim is None:
                raise errors.UnknownConsumer(
                    f"Consumer {consumer} has no claim on this host: there is nothing to release.",
                    consumer=consumer,
                )
            if claim.state is not ClaimState.RELEASING:
                self._register.step_claim(ClaimStep.RELEASE, consumer)
                claim = replace(claim, state=ClaimState.RELEASING)
            if not now:
                return False
            try:
                self._resolve(claim)
            except errors.PlacementUnavailable as error:
                LOG.warning("The release of %s waits for Placement: %s", consumer, error.message)
                self._context.placement.report_unavailable(error)
                return False
            return True

    def admit(self, consumer: str, decide: StartDecision) -> Admitted:
        """See `ResourceTracker.admit`."""

        def attempt() -> Admitted:
            claim, move = self._register.claim_and_move_of(consumer)
            is_new = claim is None or claim.state is not ClaimState.CLAIMED
            demand, is_held = decide(None if is_new else claim, move)
            with reserved_for(self._register, demand):
                if claim is not None and not is_new and is_held:
                    return Admitted(claim, True)
                self._context.admission.check()
                if is_new:
                    claim = self._claim(demand.request)
                    # An earlier attempt may have chosen other units, and its write may have been done.
                    if decide(claim, move)[1]:
                        return Admitted(claim, False)
                return Admitted(replace_claim(self._context, demand.request), False)

        with self._context.turns.take(consumer):
            return self._with_left_places(consumer, attempt)

    def _with_left_places(self, consumer: str, attempt: Callable[[], Result]) -> Result:
        """What `attempt` returns, tried again where it frees places that the consumer may have been given.

        A scheduler may put an instance where another one was that moved away. While the agent could take the
        new one for the migration of the other, it keeps the place; a claim for it says that it is none.
        """
        try:
            return attempt()
        except errors.DoesNotFit:
            if not self._linker.drop_left_places(consumer):
                raise
        return attempt()

    def extend(self, claim: Claim, request: ClaimRequest) -> Claim | None:
        """See `ResourceTracker.extend`."""
        with self._context.turns.take(claim.consumer):
            if self._register.claim_of(claim.consumer) != claim:
                return None
            return extend_claim(self._context, request)

    def drop(self, consumer: str, reason: str) -> None:
        """See `ResourceTracker.drop_claim`."""
        self._check_not_taken_over(self._register.claims()[consumer], deleted=True)
        self._register.step_claim(ClaimStep.RELEASE, consumer, detail=reason)
        withdraw(self._context, self._register.claims()[consumer])
        self._register.step_claim(ClaimStep.GONE, consumer)

    def deliver(self, consumer: str) -> bool:
        """Resolve a claim that is in doubt or to be released; whether there was something to resolve.

        Raises ClaimConflict where another operation on the consumer does not end in time; PlacementError,
        StateError.
        """
        with self._context.turns.take(consumer):
            claim = self._register.claim_of(consumer)
            if claim is None or claim.state is ClaimState.CLAIMED:
                return False
            if claim.state is not ClaimState.CLAIMING or consumer not in self._context.guests:
                self._resolve(claim)
                return True
            # The guest of an interrupted claim runs: it keeps what was chosen for it. Not where Placement
            # holds something else for it, as on another host: then what the guest uses counts.
            try:
                self._attempt(claim.request, claim)
            except errors.Refused as error:
                LOG.error(
                    "A guest runs on this host, and its interrupted claim could not be completed: %s",
                    error.message,
                    fields={"consumer": consumer},
                )
                if self._register.claim_of(consumer) == claim:
                    self._resolve(claim)
            return True

    def end_doubts(self, consumer: str) -> bool:
        """End the doubts of a consumer that has no pending claim. Raises as `deliver`."""
        with self._context.turns.take(consumer):
            writer = self._context.writer
            may_differ = writer.may_have_replaced(consumer)
            if may_differ:
                # Before the doubts end: they bring the agent back here where this is not answered.
                self._hold_as_claimed(self._context.client.allocations_of(consumer))
            held = writer.secure(consumer)
            if may_differ and held is not None:
                self._hold_as_claimed(held)
            writer.compared(consumer)
            return True

    def _hold_as_claimed(self, held: ConsumerAllocations) -> None:
        """A write for another claim of the consumer was done unseen, and its claim stayed: write that again.

        Raises PlacementError; where others hold the place by now, only log it: the audit shows it.
        """
        claim, move = self._register.claim_and_move_of(held.consumer)
        if claim is None or claim.state is not ClaimState.CLAIMED or move is not None:
            return
        is_here = any(self._register.host.is_own(uuid) for uuid in held.allocations)
        if not is_here or held.allocations == claim.allocations:
            return
        outcome = self._context.writer.send(DoubtKind.HEAL, replace(held, allocations=claim.allocations))
        try:
            checked(outcome, f"allocation of {held.consumer}", "the agent looks again")
        except errors.PlacementFull as full:
            LOG.error(
                "%s holds something else than its claim: %s",
                held.consumer,
                full.message,
                fields={"consumer": held.consumer},
            )

    def watch(self, consumer: str) -> bool:
        """Look again whether an earlier first write of the consumer came late; whether it did.

        Then the consumer holds exactly what that write gives, and this host has neither a claim nor a guest
        of it: the agent takes it back. Raises as `deliver`.
        """
        with self._context.turns.take(consumer):
            claim, move = self._register.claim_and_move_of(consumer)
            if claim is not None or move is not None or consumer in self._context.guests:
                return False  # it is here, and its release bars the write
            held = self._context.writer.look_again(consumer)
            if held is None:
                return False
            outcome = self._context.writer.send(DoubtKind.RELEASE, replace(held, allocations={}))
            checked(outcome, f"release of {consumer}", "the agent looks again")
            self._context.writer.bar_again(consumer)
            LOG.warning("Placement executed an abandoned claim of %s late; it is released.", consumer)
            return True

    def _claim(self, request: ClaimRequest) -> Claim:
        """The caller has the consumer's turn."""
        present, moving = self._register.claim_and_move_of(request.consumer)
        is_same = present is not None and (present.state, present.request) == (ClaimState.CLAIMED, request)
        self._context.admission.check(is_new=not is_same)
        if moving is not None and (present is None or present.request != request):
            raise moving_conflict(moving)
        if present is not None and present.state is ClaimState.CLAIMED:
            if present.request != request:
                raise other_claim_conflict(present)
            self._check_held(present, is_moving=moving is not None)
            return present
        if moving is not None:
            raise moving_conflict(moving)
        leftover = present
        if present is not None and (present.state is ClaimState.RELEASING or present.request != request):
            self._resolve(present)
            leftover = None
        return self._attempt(request, leftover)

    def _check_held(self, claim: Claim, *, is_moving: bool) -> None:
        """Of a claim that is asked for again: Placement still holds it here. One request where it does.

        Raises ClaimConflict where it does not: its instance may have moved since this host last looked. While
        Placement is away, the journal's answer stands, as it does for a guest that starts.
        """
        is_own = self._register.host.is_own
        try:
            held = self._context.client.allocations_of(claim.consumer).allocations
        except errors.PlacementUnavailable as error:
            LOG.warning(
                "The claim of %s is confirmed from the journal alone: %s", claim.consumer, error.message
            )
            return
        needs_own = any(is_own(uuid) for uuid in claim.allocations)
        if any(not needs_own or is_own(uuid) for uuid in held):
            return
        if not is_moving:
            self._check_not_taken_over(claim)
        if held:
            reason = (
                f"{claim.consumer} has moved away: by Placement it is on another host now. The agent drops "
                "its claim here at the next verification, unless its guest is still on this host."
            )
        else:
            reason = (
                f"Placement holds nothing for {claim.consumer} any more, although it was claimed on this "
                f"host: release it {by_force(claim.consumer)}, then claim it again."
            )
        raise errors.ClaimConflict(reason, consumer=claim.consumer)

    def _attempt(self, request: ClaimRequest, leftover: Claim | None) -> Claim:
        if leftover is not None:
            self._check_not_taken_over(leftover)
        return ClaimAttempt(self._context, request, leftover).run()

    def _resolve(self, claim: Claim) -> None:
        """Remove a claim to be released, or an intent in doubt, from Placement and from the journal.

        Raises ClaimConflict where a migration holds what the claim wrote; PlacementError, StateError.
        """
        for attempt in range(CONFLICTS_MAX):
            elsewhere = withdraw(self._context, claim)
            if elsewhere is None:
                break
            # Withdraw it again where a move that is reverted meanwhile brings its instance back here.
            self._check_not_taken_over(claim, deleted=not elsewhere.allocations)
            if self._context.client.allocations_of(claim.consumer) == elsewhere:
                break
            pause(attempt)
        else:
            raise errors.PlacementConflict(
                f"Other clients moved {claim.consumer} {CONFLICTS_MAX} times while the agent released it. "
                "The agent tries again later."
            )
        step = ClaimStep.GONE if claim.state is ClaimState.RELEASING else ClaimStep.REFUSE
        self._register.step_claim(step, claim.consumer)

    def _check_not_taken_over(self, claim: Claim, *, deleted: bool = False) -> None:
        """Raises ClaimConflict where a migration holds what the claim wrote; then it has the claim.

        `deleted` as of `link_leaving`.
        """
        move = self._linker.link_leaving(claim, deleted=deleted)
        if move is not None:
            self._context.writer.secure(claim.consumer)
            raise moving_conflict(move)
