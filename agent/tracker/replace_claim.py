"""Replacing a claim by another one for the same consumer, in one write to Placement."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from agent.backoff import CONFLICTS_MAX, pause
from agent.claims.book import Book
from agent.claims.claim import Claim, ClaimState, ClaimStep, Shortfall, claim_of_fit
from agent.claims.doubt import DoubtKind
from agent.claims.refusal import does_not_fit, label
from agent.claims.request import ClaimRequest
from agent.errors import ClaimConflict, PlacementConflict, PlacementFull
from agent.placement.client import ConsumerAllocations
from agent.shapes import Allocations, Units
from agent.tracker.context import TrackerContext
from agent.tracker.guarded_write import checked
from agent.tracker.holdings import allocations_for


def replace_claim(context: TrackerContext, request: ClaimRequest) -> Claim:
    """Give the consumer what the request asks for, in place of what its claim has, in one guarded write.

    What the old and the new claim have is reserved until the write is done and journaled. If the agent stops
    in between, the next attempt reads what Placement holds. The caller has the consumer's turn, and the
    consumer has a claim and is in no move. Raises DoesNotFit, ClaimConflict, PlacementError, StateError: the
    old claim stays.
    """

    def choose(book: Book, held: ConsumerAllocations) -> Claim:
        after = _choose(book, request, context.clock())
        if held.allocations:
            _check_unchanged(held, book.claims[request.consumer], after)
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
            raise ClaimConflict(f"The claim of {label(after.request)} has changed.", consumer=consumer)
        _check_unchanged(held, before, after)
        shortfalls = (*_beyond_capacity(book, before, after), *_of_others(book, after))
        if shortfalls:
            raise does_not_fit(after.request, shortfalls)
        return after

    return _replace(context, after.request, choose)


_Choose = Callable[[Book, ConsumerAllocations], Claim]
"""Takes the book and what Placement holds; returns the new claim."""


def _replace(context: TrackerContext, request: ClaimRequest, choose: _Choose) -> Claim:
    for attempt in range(CONFLICTS_MAX):
        try:
            return _replace_once(context, request, choose)
        except PlacementConflict:
            pause(attempt)  # another client wrote in between
    raise PlacementConflict(
        f"Other clients wrote {CONFLICTS_MAX} times while the agent replaced the claim of {label(request)}: "
        "try again."
    )


def _replace_once(context: TrackerContext, request: ClaimRequest, choose_new: _Choose) -> Claim:
    consumer = request.consumer
    held = context.writer.secure(consumer) or context.client.allocations_of(consumer)
    chosen: list[Claim] = []

    def choose(book: Book) -> Claim:
        after = choose_new(book, held)
        before = book.claims[consumer]
        chosen.append(after)
        return replace(
            before,
            allocations=_larger(before.allocations, after.allocations),
            units=_both(before.units, after.units),
        )

    unheld = context.register.under_lock(lambda book: book.row(consumer).unheld)
    with context.register.reserved(choose):
        (after,) = chosen
        if held.allocations != after.allocations:
            write = allocations_for(after, held.generation)
            outcome = context.send_in_reserved(
                consumer,
                unheld,
                lambda inventories: context.writer.send_over_bar(DoubtKind.REPLACE, write, inventories),
            )
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
    return claim_of_fit(request, fit, ClaimState.CLAIMED, now)


def _check_unchanged(held: ConsumerAllocations, before: Claim, after: Claim) -> None:
    if held.allocations not in (before.allocations, after.allocations):
        raise ClaimConflict(
            f"Placement holds something else for {label(after.request)} than its claim: repair that first; "
            "`plimsoll audit` shows the difference.",
            consumer=after.consumer,
        )


def _beyond_capacity(book: Book, before: Claim, after: Claim) -> Iterator[Shortfall]:
    for uuid, amounts in after.allocations.items():
        for name, amount in amounts.items():
            if amount <= before.allocations.get(uuid, {}).get(name, 0):
                continue
            provider, free = book.host.tree.get(uuid), book.free(uuid, name, after.consumer)
            inventory = provider.inventories.get(name) if provider else None
            if amount > free:
                yield Shortfall.at(provider, name, amount, free, "its guest uses it already")
            elif inventory is not None and amount > inventory.max_unit:
                yield Shortfall.at(provider, name, amount, free, f"max_unit is {inventory.max_unit}")


def _of_others(book: Book, after: Claim) -> Iterator[Shortfall]:
    for uuid, name, unit in after.exact:
        owner = book.owner(name, unit, beside=(after.consumer,))
        if owner is not None:
            yield Shortfall.at(book.host.tree.get(uuid), name, 1, 0, f"{unit} belongs to {book.label(owner)}")


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
