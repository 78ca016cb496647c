"""Replacing a claim by another one for the same consumer, in one write to Placement."""

from collections.abc import Mapping
from dataclasses import replace

from agent.backoff import pause
from agent.claims.book import Book
from agent.claims.claim import Claim, ClaimState, ClaimStep
from agent.claims.doubt import DoubtKind
from agent.claims.parse_request import ClaimRequest
from agent.claims.refusal import does_not_fit, label
from agent.errors import ClaimConflict, PlacementConflict, PlacementFull
from agent.placement.client import ConsumerAllocations
from agent.shapes import Allocations, Units
from agent.tracker.context import TrackerContext
from agent.tracker.guarded_write import checked
from agent.tracker.holdings import allocations_for

ATTEMPTS_MAX = 4


def replace_claim(context: TrackerContext, request: ClaimRequest) -> Claim:
    """Give the consumer what the request asks for, in place of what its claim has, in one guarded write.

    What the old and the new claim have is reserved until the write is done and journaled. If the agent stops
    in between, the next attempt reads what Placement holds. The caller has the consumer's turn, and the
    consumer has a claim and is in no move. Raises DoesNotFit, ClaimConflict, PlacementError, StateError: the
    old claim stays.
    """
    for attempt in range(ATTEMPTS_MAX):
        try:
            return _replace_once(context, request)
        except PlacementConflict:
            pause(attempt)  # another client wrote in between
    raise PlacementConflict(
        f"Other clients wrote {ATTEMPTS_MAX} times while the agent replaced the claim of {label(request)}: "
        "try again."
    )


def _replace_once(context: TrackerContext, request: ClaimRequest) -> Claim:
    consumer = request.consumer
    held = context.writer.secure(consumer) or context.client.allocations_of(consumer)
    chosen: list[Claim] = []

    def choose(book: Book) -> Claim:
        before = book.claims[consumer]
        after = _choose(book, request, context.clock())
        _check_unchanged(request, held, before, after)
        chosen.append(after)
        return replace(
            before,
            allocations=_larger(before.allocations, after.allocations),
            units=_both(before.units, after.units),
        )

    unclaimed = context.register.under_lock(lambda book: book.row(consumer).unclaimed)
    with context.register.reserved(choose):
        (after,) = chosen
        if held.allocations != after.allocations:
            context.take_back_reserved(unclaimed)
            write = replace(allocations_for(after), generation=held.generation)
            outcome = context.writer.send(DoubtKind.REPLACE, write)
            try:
                checked(outcome, f"new claim of {label(request)}", "the old claim stays until it is known")
            except PlacementFull as full:
                raise context.refused_by_placement(request, after.allocations, full) from full
            context.writer.secure(consumer)
        context.register.step_claim(ClaimStep.REPLACE, consumer, after)
    return after


def _choose(book: Book, request: ClaimRequest, now: float) -> Claim:
    fit = book.fit(request)
    if not fit.fits:
        raise does_not_fit(request, fit.shortfalls)
    return Claim(
        request.consumer,
        ClaimState.CLAIMED,
        request,
        fit.allocations,
        fit.units,
        now,
        cells=fit.cells,
        makings=fit.makings,
        group_units=fit.group_units,
    )


def _check_unchanged(request: ClaimRequest, held: ConsumerAllocations, before: Claim, after: Claim) -> None:
    if held.allocations not in ({}, before.allocations, after.allocations):
        raise ClaimConflict(
            f"Placement holds something else for {label(request)} than its claim: repair that first; "
            "`plimsoll audit` shows the difference.",
            consumer=request.consumer,
        )


def _larger(first: Allocations, second: Allocations) -> Allocations:
    return {uuid: _larger_amounts(first.get(uuid, {}), second.get(uuid, {})) for uuid in {**first, **second}}


def _larger_amounts(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {name: max(first.get(name, 0), second.get(name, 0)) for name in {**first, **second}}


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
