"""One claim, step by step: choose and reserve, journal the intent, write to Placement, journal the result.

The caller has the consumer's turn, so no other operation changes the consumer meanwhile. No request is sent
while the register's lock is held.

`withdraw` takes a claim out of Placement again: what the consumer holds on this host and on the pools that
serve it. `replace_claim` puts another claim in its place, in one write.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from agent import errors
from agent.backoff import CONFLICTS_MAX, pause, retry_conflicts
from agent.claims.book import Book
from agent.claims.claim import Claim, ClaimState, ClaimStep, claim_of_fit
from agent.claims.doubt import DoubtKind
from agent.claims.refusal import does_not_fit, label, not_covered_conflict
from agent.claims.request import ClaimRequest
from agent.moves.ownership import separate_allocations
from agent.placement.client import ConsumerAllocations
from agent.placement.transport import WriteRefused
from agent.shapes import Allocations, Units, Usages, largest
from agent.tracker.context import TrackerContext, allocations_for, is_allocation_of, split_by_host
from agent.tracker.guarded_write import checked

EMPTIED_GENERATION = 0
FIRST_GENERATION = EMPTIED_GENERATION + 1
"""Of a consumer that has been given its first allocations."""


def expected_generation(conflict: errors.PlacementConflict, generation: int | None) -> int | None:
    """The generation to write an empty consumer with, after a write with `generation` met that conflict.

    OpenStack Placement keeps a record, at generation 0, of a consumer that was emptied before it held
    anything. No request shows the record, and the first claim fails unless it names that generation, which
    the conflict names. Any other conflict (a lost race at a provider) leaves the generation as it is.
    """
    expected = conflict.details.get("expected_generation", generation)
    return expected if expected in (None, EMPTIED_GENERATION) else generation


class ClaimAttempt:
    """One attempt at one request; `run` once.

    `leftover` is an earlier intent whose outcome is unknown: it is written again as it is. The attempt
    chooses something else only once Placement rejects the earlier write for good.
    """

    def __init__(
        self,
        context: TrackerContext,
        request: ClaimRequest,
        leftover: Claim | None = None,
    ) -> None:
        self._context = context
        self._request = request
        self._consumer = request.consumer
        self._leftover = leftover
        self._generation: int | None = None
        self._nothing_sent = leftover is None
        """Whether Placement holds nothing of the intent, and will not."""
        self._unheld: Usages = {}

    def run(self) -> Claim:
        """The claim, in Placement and on disk.

        Raises DoesNotFit, ClaimConflict, PlacementError, StateError, UsageError; the consumer has no claim
        then, unless the outcome is unknown: then the intent stays, to be resolved later.
        """
        try:
            return self._try_until_done()
        except errors.PlimsollError as error:
            if self._nothing_sent and not self._context.writer.in_doubt(self._consumer):
                claim = self._context.register.claim_of(self._consumer)
                if claim is not None and claim.state is ClaimState.CLAIMING:
                    try:
                        self._context.register.step_claim(
                            ClaimStep.REFUSE, self._consumer, detail=error.message
                        )
                    except errors.StateError as unwritten:
                        error.add_note(f"The intent could not be undone either: {unwritten.message}")
            raise

    def _try_until_done(self) -> Claim:
        intent = self._leftover
        failure: errors.PlimsollError | None = None
        missing: tuple[str, ...] = ()
        for attempt in range(CONFLICTS_MAX):
            suspects: Collection[str] = ()
            try:
                if intent is None or attempt > 0:
                    intent = self._reserve()
                return self._write_intent(intent)
            except errors.PlacementConflict as conflict:
                failure = conflict
                pause(attempt)
            except errors.PlacementFull as full:
                # The consumer holds nothing: Placement took it for new, or the claim was withdrawn.
                allocations = intent.allocations if intent else {}
                failure = self._context.refused_by_placement(self._request, allocations, full)
                full_ones = [uuid for uuid in allocations if uuid in full.message]
                self._context.read_consumers(full_ones or allocations)
                continue
            except errors.DoesNotFit as error:
                if missing:
                    raise errors.DoesNotFit(
                        f"{error.message.rstrip('.')}. Another client deleted {', '.join(missing)} of this "
                        "host in Placement: the agent writes it again; then try again.",
                        **error.details,
                    ) from error
                suspects = error.providers
                if isinstance(failure, errors.DoesNotFit) or not self._context.may_be_stale(suspects):
                    raise
                failure = error
            except errors.PlacementUnavailable:
                raise
            except errors.PlacementError:
                named = self._context.leave_out_missing(intent.allocations) if intent else ()
                if not named:
                    raise
                missing += named
                continue
            held = self._context.client.allocations_of(self._consumer)
            if held.allocations:
                return self._adopt(held)
            self._context.read_consumers(suspects)  # the consumer itself is known to hold nothing
        raise failure or errors.PlacementConflict(
            f"The claim of {label(self._request)} met other writers {CONFLICTS_MAX} times: try again."
        )

    # Step 1: choose, reserve, journal the intent

    def _reserve(self) -> Claim:
        """End the doubts first: Placement then holds nothing of an earlier attempt, and will not."""
        writer = self._context.writer
        if writer.in_doubt(self._consumer):
            writer.secure(self._consumer)
        self._nothing_sent = True
        return self._context.register.step_chosen_claim(ClaimStep.BEGIN, self._choose)

    def _choose(self, book: Book) -> Claim:
        """Raises DoesNotFit; PlacementConflict where the consumer is known to hold something already."""
        if book.other_allocations(self._consumer):
            raise errors.PlacementConflict(
                f"{label(self._request)} already holds an allocation in Placement."
            )
        self._unheld = self._unheld or book.unheld_by(self._consumer)
        fit = book.fit(self._request)
        if not fit.fits:
            raise does_not_fit(self._request, fit.shortfalls)
        return claim_of_fit(self._request, fit, ClaimState.CLAIMING, self._context.clock())

    # Step 2: write to Placement

    def _write_intent(self, intent: Claim) -> Claim:
        writer, client = self._context.writer, self._context.client
        write = allocations_for(intent, self._generation)
        outcome = self._context.send_in_reserved(
            self._consumer,
            self._unheld,
            lambda inventories: writer.send_and_read(
                DoubtKind.CLAIM,
                write,
                is_done=lambda: is_allocation_of(client.allocations_of(self._consumer), intent),
                inventories=inventories,
            ),
        )
        self._nothing_sent = self._nothing_sent and isinstance(outcome, WriteRefused)
        if isinstance(outcome, WriteRefused) and isinstance(outcome.error, errors.PlacementConflict):
            self._generation = expected_generation(outcome.error, self._generation)
        checked(
            outcome,
            f"claim of {label(self._request)}",
            "the resources stay reserved until it answers, then the claim is undone",
        )
        try:
            held = writer.secure(self._consumer, written=allocations_for(intent, FIRST_GENERATION))
        except errors.PlacementFull:
            # The inventory shrank after the claim, which cannot be written again to protect it.
            withdraw(self._context, intent)
            raise
        if held is not None and not is_allocation_of(held, intent):
            self._generation = held.generation if held.allocations else None
            raise errors.PlacementConflict(
                f"An earlier write for {label(self._request)} was executed after the claim: try again."
            )
        return self._grant(intent)

    # Step 3: journal the result

    def _grant(self, intent: Claim) -> Claim:
        return self._context.register.step_claim(ClaimStep.GRANT, self._consumer) or intent

    def _adopt(self, held: ConsumerAllocations) -> Claim:
        """Take over what another client wrote for the consumer. Raises ClaimConflict, DoesNotFit (units)."""
        held = self._context.writer.secure(self._consumer) or held
        if self._leftover is not None and is_allocation_of(held, self._leftover):
            return self._grant(self._leftover)
        try:
            return self._take_over(held)
        except errors.DoesNotFit as error:
            suspects = error.providers
            if not self._context.may_be_stale(suspects):
                raise
            self._context.read_consumers(suspects)
            return self._take_over(held)

    def _take_over(self, held: ConsumerAllocations) -> Claim:
        def choose(book: Book) -> Claim:
            # A reshape may have moved the allocation since it was read; the book has followed that.
            elsewhere = {
                uuid: amounts for uuid, amounts in held.allocations.items() if uuid not in book.host.tree
            }
            here = {**elsewhere, **book.held_by(self._consumer)}
            # Of a doubled allocation this host's part counts, with shared providers counted once.
            split = split_by_host(here, book.host)
            part = separate_allocations(split, self._request.resources)[0] if split.doubled else here
            fit = book.cover(self._request, part, exact=False)
            if not fit.fits:
                raise not_covered_conflict(self._request, here, fit.shortfalls, book.host.tree)
            fit = book.cover(self._request, part, exact=True)
            if not fit.fits:
                raise does_not_fit(self._request, fit.shortfalls)
            return claim_of_fit(self._request, fit, ClaimState.CLAIMED, self._context.clock(), adopted=True)

        return self._context.register.step_chosen_claim(ClaimStep.ADOPT, choose)


def withdraw(context: TrackerContext, claim: Claim) -> ConsumerAllocations | None:
    """Remove what the claim's consumer holds here; guarded by the consumer's generation, idempotent.

    Returns what the consumer holds elsewhere, where Placement held nothing of it here: it has moved, or was
    deleted where that is nothing.

    An intent (CLAIMING) is only removed where Placement holds exactly what the agent would have written:
    anything else was written by another client. Raises PlacementError; PlacementUnavailable: not done, or
    not known.
    """
    consumer, writer = claim.consumer, context.writer
    secured: ConsumerAllocations | None = None
    if writer.in_doubt(consumer):
        # What is released needs no protection from the writes of a former life. Where the inventory shrank,
        # what the consumer holds cannot be written again: then the release is the only fence.
        with suppress(errors.PlacementFull):
            secured = writer.secure(consumer)
    writer.compared(consumer)  # no claim stays that could differ

    def release() -> ConsumerAllocations | None:
        nonlocal secured
        known, secured = secured, None
        if known is not None and not known.allocations:
            return None
        held = known or context.client.allocations_of(consumer)
        rest = _remainder(context, claim, held)
        if rest and rest == held.allocations:
            writer.protect(held)
            return held
        if held.allocations:
            outcome = writer.send(DoubtKind.RELEASE, replace(held, allocations=rest))
            checked(outcome, f"release of {consumer}", "the agent releases it again")
        if not rest and not writer.bar_again(consumer):
            raise errors.PlacementConflict(f"{consumer} was written again right after its release.")
        return None if held.allocations or claim.state is ClaimState.CLAIMING else held

    return retry_conflicts(
        release,
        f"Other clients wrote the allocations of {consumer}, or to its providers, {CONFLICTS_MAX} times "
        "while the agent released it. The agent tries again later.",
    )


def _remainder(context: TrackerContext, claim: Claim, held: ConsumerAllocations) -> Allocations:
    """What the consumer keeps."""
    if claim.state is ClaimState.CLAIMING:
        return {} if is_allocation_of(held, claim) else held.allocations
    host = context.register.host
    if host.root is None:
        if held.allocations.keys() <= claim.allocations.keys():
            return {}
        raise errors.PlacementUnavailable(
            f"Before the first inventory the agent does not know which part of {claim.consumer}'s "
            "allocation is on this host. It tries again after the inventory."
        )
    serving = {provider.uuid for provider in host.providers} | claim.allocations.keys()
    if held.allocations.keys() <= serving:
        return {}
    # The consumer has moved, or is moving: shared providers (a storage pool) go with it.
    return {uuid: amounts for uuid, amounts in held.allocations.items() if not host.is_own(uuid)}


def replace_claim(context: TrackerContext, request: ClaimRequest) -> Claim:
    """Give the consumer what the request asks for, in place of what its claim has, in one guarded write.

    What the old and the new claim have is reserved until the write is done and journaled. If the agent stops
    in between, the next attempt reads what Placement holds. The caller has the consumer's turn, and the
    consumer has a claim and is in no move. Raises DoesNotFit, ClaimConflict, PlacementError, StateError: the
    old claim stays.
    """

    def choose(book: Book, held: ConsumerAllocations) -> Claim:
        fit = book.fit(request)
        if not fit.fits:
            raise does_not_fit(request, fit.shortfalls)
        after = claim_of_fit(request, fit, ClaimState.CLAIMED, context.clock())
        if held.allocations:
            check_unchanged(held, book.claims[request.consumer], after)
        return after

    return _replace(context, request, choose)


def follow_use(context: TrackerContext, before: Claim, after: Claim) -> Claim:
    """Replace the claim by what its guest uses now, as `replace_claim` does. The caller has the turn.

    Raises DoesNotFit where it would be more than the host has for it, ClaimConflict where the claim has
    changed, the consumer moves, Placement holds something else for it, or another consumer has one of the
    units; PlacementError, StateError: the old claim stays.
    """
    consumer = before.consumer

    def choose(book: Book, held: ConsumerAllocations) -> Claim:
        moving = {*book.moves_under_way, *book.moves_under_way.values()}
        if book.claims.get(consumer) != before or consumer in moving:
            raise errors.ClaimConflict(f"The claim of {label(after.request)} has changed.", consumer=consumer)
        check_unchanged(held, before, after)
        shortfalls = tuple(book.growth_shortfalls(before, after))
        if shortfalls:
            raise does_not_fit(after.request, shortfalls)
        return after

    return _replace(context, after.request, choose)


def _replace(
    context: TrackerContext, request: ClaimRequest, choose_new: Callable[[Book, ConsumerAllocations], Claim]
) -> Claim:
    """`choose_new` takes the book and what Placement holds; returns the new claim."""
    consumer = request.consumer

    def attempt() -> Claim:
        held = context.writer.secure(consumer) or context.client.allocations_of(consumer)

        def choose(book: Book) -> tuple[Claim, Claim]:
            before, after = book.claims[consumer], choose_new(book, held)
            allocations = largest((before.allocations, after.allocations))
            return after, replace(before, allocations=allocations, units=_both(before.units, after.units))

        return context.write_claim(
            held,
            choose,
            lambda after: allocations_for(after, held.generation),
            DoubtKind.REPLACE,
            f"new claim of {label(request)}",
            "the old claim stays until it is known",
        )

    return retry_conflicts(
        attempt,
        f"Other clients wrote {CONFLICTS_MAX} times while the agent replaced the claim of {label(request)}: "
        "try again.",
    )


def check_unchanged(held: ConsumerAllocations, before: Claim, after: Claim) -> None:
    """Raises ClaimConflict where Placement holds neither what the claim before nor what that after has."""
    if held.allocations not in (before.allocations, after.allocations):
        raise errors.ClaimConflict(
            f"Placement holds something else for {label(after.request)} than its claim: repair that first; "
            "`plimsoll audit` shows the difference.",
            consumer=after.consumer,
        )


def _both(first: Units, second: Units) -> Units:
    return {
        uuid: {
            name: tuple(
                dict.fromkeys((*first.get(uuid, {}).get(name, ()), *second.get(uuid, {}).get(name, ())))
            )
            for name in {**first.get(uuid, {}), **second.get(uuid, {})}
        }
        for uuid in {**first, **second}
    }
