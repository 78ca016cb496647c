"""One claim, step by step: choose and reserve, journal the intent, write to Placement, journal the result.

The caller has the consumer's turn, so no other operation changes the consumer meanwhile. No request is sent
while the register's lock is held.
"""

from collections.abc import Collection
from dataclasses import replace

from agent.backoff import pause
from agent.claims.book import Book
from agent.claims.claim import Claim, ClaimState, ClaimStep, Fit
from agent.claims.fit import ProviderIndex
from agent.claims.parse_request import ClaimRequest
from agent.claims.refusal import does_not_fit, label, not_covered_conflict
from agent.errors import DoesNotFit, PlacementConflict, PlacementFull, PlimsollError
from agent.moves.ownership import separate_allocations
from agent.placement.client import ConsumerAllocations
from agent.shapes import Allocations
from agent.tracker.context import TrackerContext
from agent.tracker.guarded_write import GuardedWrite, Outcome
from agent.tracker.holdings import allocations_for, is_allocation_of, split_by_host

ATTEMPTS_MAX = 8
EMPTIED_GENERATION = 0


def expected_generation(conflict: PlacementConflict, generation: int | None) -> int | None:
    """The generation to write an empty consumer with, after a write with `generation` met that conflict.

    OpenStack Placement keeps a record, at generation 0, of a consumer that was emptied before it held
    anything. No request shows the record, and the first claim fails unless it names that generation, which
    the conflict names. Any other conflict (a lost race at a provider) leaves the generation as it is.
    """
    expected = conflict.details.get("expected_generation", generation)
    return expected if expected in (None, EMPTIED_GENERATION) else generation


class ClaimAttempt:
    """One attempt at one request; `run` once.

    `leftover` is an earlier intent whose outcome is unknown; it is written again as it is. `late`: Placement
    may still execute the earlier write. Then the attempt chooses nothing else: the leftover's allocations are
    the only way to recognise that write.
    """

    def __init__(
        self,
        context: TrackerContext,
        request: ClaimRequest,
        leftover: Claim | None = None,
        *,
        late: bool = False,
    ) -> None:
        self._context = context
        self._request = request
        self._consumer = request.consumer
        self._leftover = leftover
        self._late = late
        self.leftover_executed = False
        """Whether the earlier attempt's write turned up in Placement."""
        self._write = GuardedWrite(
            context.client,
            f"claim of {label(request)}",
            "the resources stay reserved until it answers, then the claim is undone",
            Outcome.REFUSED if leftover is None else Outcome.UNKNOWN,
        )
        self._generation: int | None = None
        self._held: ConsumerAllocations | None = None

    def run(self) -> Claim:
        """The claim, in Placement and on disk.

        Raises DoesNotFit, ClaimConflict, PlacementError, StateError, UsageError; the consumer has no claim
        then, unless the outcome is unknown: then the intent stays, to be resolved later.
        """
        try:
            return self._try_until_done()
        except PlimsollError as error:
            if not self._late:
                reason = error.message
                self._write.undo_intent(error, lambda: self._refuse_intent(reason))
            raise

    def _try_until_done(self) -> Claim:
        intent = self._leftover
        failure: PlimsollError | None = None
        for attempt in range(ATTEMPTS_MAX):
            suspects: Collection[str] = ()
            try:
                if intent is None or (attempt > 0 and not self._late):
                    intent = self._reserve()
                return self._write_intent(intent)
            except PlacementConflict as conflict:
                failure = conflict
                pause(attempt)
            except PlacementFull as full:
                # Placement took the consumer for new, so the consumer holds nothing.
                allocations = intent.allocations if intent else {}
                failure = self._context.refused_by_placement(self._request, allocations, full)
                named = [uuid for uuid in allocations if uuid in full.message]
                self._read_again(named or allocations)
                if self._late:
                    break
                continue
            except DoesNotFit as error:
                suspects = {shortfall["provider_uuid"] for shortfall in error.details["shortfalls"]}
                if isinstance(failure, DoesNotFit) or not self._context.may_be_stale(suspects):
                    raise
                failure = error
            held = self._context.client.allocations_of(self._consumer)
            if held.allocations:
                return self._adopt(held)
            self._read_again(suspects)
        raise failure or PlacementConflict(
            f"The claim of {label(self._request)} met other writers {ATTEMPTS_MAX} times: try again."
        )

    # Step 1: choose, reserve, journal the intent

    def _reserve(self) -> Claim:
        """Raises DoesNotFit; PlacementConflict where the consumer is known to hold something already."""
        return self._context.register.step_chosen_claim(ClaimStep.BEGIN, self._choose)

    def _choose(self, book: Book) -> Claim:
        if book.other_allocations(self._consumer):
            raise PlacementConflict(f"{label(self._request)} already holds an allocation in Placement.")
        fit = book.fit(self._request)
        if not fit.fits:
            raise does_not_fit(self._request, fit.shortfalls)
        return self._claim(ClaimState.CLAIMING, fit)

    def _claim(self, state: ClaimState, fit: Fit, *, adopted: bool = False) -> Claim:
        return Claim(
            self._consumer,
            state,
            self._request,
            fit.allocations,
            fit.units,
            self._context.clock(),
            adopted=adopted,
            cells=fit.cells,
            makings=fit.makings,
        )

    def _read_again(self, providers: Collection[str]) -> None:
        """Read who holds what on these providers; the consumer itself is known to hold nothing."""
        self._context.read_consumers(providers)

    # Step 2: write to Placement

    def _write_intent(self, intent: Claim) -> Claim:
        allocations = replace(allocations_for(intent), generation=self._generation)
        try:
            outcome = self._write.run(allocations, read_outcome=lambda late: self._read_outcome(intent, late))
        except PlacementConflict as conflict:
            self._generation = expected_generation(conflict, self._generation)
            raise
        if outcome is Outcome.DONE:
            return self._grant(intent)
        if self._held is not None and self._held.allocations:
            return self._adopt(self._held)
        raise self._write.not_executed()

    def _read_outcome(self, intent: Claim, late: bool) -> Outcome:
        self._held = self._context.client.allocations_of(self._consumer)
        if is_allocation_of(self._held, intent):
            return Outcome.DONE
        return Outcome.UNKNOWN if late and not self._held.allocations else Outcome.REFUSED

    # Step 3: journal the result

    def _grant(self, intent: Claim) -> Claim:
        self._context.register.step_claim(ClaimStep.GRANT, self._consumer)
        return replace(intent, state=ClaimState.CLAIMED)

    def _adopt(self, held: ConsumerAllocations) -> Claim:
        """Take over what another client wrote for the consumer. Raises ClaimConflict, DoesNotFit (units)."""
        if self._leftover is not None and is_allocation_of(held, self._leftover):
            self.leftover_executed = True
            return self._grant(self._leftover)
        return self._context.register.step_chosen_claim(
            ClaimStep.ADOPT, lambda book: self._choose_held(book, held.allocations)
        )

    def _choose_held(self, book: Book, held: Allocations) -> Claim:
        part = self._part_here(book.host, held)
        fit = book.cover(self._request, part, exact=False)
        if not fit.fits:
            raise not_covered_conflict(self._request, held, fit.shortfalls, book.host.tree)
        fit = book.cover(self._request, part, exact=True)
        if not fit.fits:
            raise does_not_fit(self._request, fit.shortfalls)
        return self._claim(ClaimState.CLAIMED, fit, adopted=True)

    def _part_here(self, host: ProviderIndex, held: Allocations) -> Allocations:
        """All of it; of a doubled allocation this host's part, with shared providers counted once."""
        split = split_by_host(held, host)
        return separate_allocations(split, self._request.resources)[0] if split.doubled else held

    def _refuse_intent(self, reason: str) -> None:
        claim = self._context.register.claim_of(self._consumer)
        if claim is not None and claim.state is ClaimState.CLAIMING:
            self._context.register.step_claim(ClaimStep.REFUSE, self._consumer, detail=reason)
