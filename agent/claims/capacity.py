"""How many guests of a flavor the host can still get, why not one more, and what is stranded by whom. Pure.

Something that the flavor asks for is stranded while it is free and no such guest can have it, because what
else the guest needs is not free near it, or because a part of another size stands in its place on a card.
Every search here ends: so many guests, so many holders.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from agent.claims.book import Book
from agent.claims.claim import Shortfall, claim_of_fit
from agent.claims.request import ClaimRequest
from agent.shapes import Allocations

GUESTS_MAX = 256
"""After so many guests the count ends."""
HOLDERS_MAX = 512
"""So many guests are looked at, one by one, as the cause of what is stranded."""


@dataclass(frozen=True, slots=True)
class Stranded:
    """An amount of a class that is free on a provider, and that no guest of the flavor can have.

    `holders` are the consumers each of which alone strands some of it: without it, one more guest fits there.
    """

    provider: str
    provider_uuid: str
    resource_class: str
    free: int
    holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many guests fit one after the other; `more`: maybe further ones. `shortfalls`: why not one more."""

    guests: int
    more: bool = False
    shortfalls: tuple[Shortfall, ...] = ()
    stranded: tuple[Stranded, ...] = ()


def capacity(book: Book, request: ClaimRequest) -> Capacity:
    """The host's capacity for guests that ask for this. Raises UsageError as a fit does."""
    trial = book.without()
    for number in range(GUESTS_MAX):
        next_guest = numbered(request, number)
        fit = trial.fit(next_guest)
        if not fit.fits:
            return Capacity(number, False, fit.shortfalls, tuple(_stranded(trial, book, next_guest)))
        trial.put(claim_of_fit(next_guest, fit))
    return Capacity(GUESTS_MAX, more=True)


def numbered(request: ClaimRequest, number: int) -> ClaimRequest:
    """The request of another guest of the flavor; its consumer is in no journal and not in Placement."""
    return replace(request, consumer=f"{request.consumer} #{number}")


def _stranded(trial: Book, book: Book, request: ClaimRequest) -> Iterator[Stranded]:
    """`trial` is the host with as many guests as fit, `book` the host as it is."""
    on_cards = {(uuid, name) for uuid, card in trial.cards.items() for name in card.model.shapes}
    free = {place: amount for place, amount in _free_parts(trial, request) if place not in on_cards}
    if not free and request.resources.keys().isdisjoint(name for _, name in on_cards):
        return
    holders: dict[tuple[str, str], list[str]] = {}
    for instance in book.movable()[:HOLDERS_MAX]:
        alone = trial.without([instance])
        for uuid, name in _taken_by(alone.fit(request).allocations):
            if (uuid, name) in on_cards:
                if name in book.claims[instance].allocations.get(uuid, {}):
                    continue  # it has a part of this size itself
                free[uuid, name] = alone.left_on_cards({uuid: trial.cards[uuid]})[uuid][name]
            holders.setdefault((uuid, name), []).append(instance)
    for (uuid, name), amount in free.items():
        provider = trial.host.tree[uuid]
        yield Stranded(provider.name, uuid, name, amount, tuple(holders.get((uuid, name), ())))


def _free_parts(trial: Book, request: ClaimRequest) -> Iterator[tuple[tuple[str, str], int]]:
    """What is free of each class that is asked for, where that is as much as a group, or a cell, needs."""
    for name, needed in _least(request).items():
        for provider in trial.host.by_class.get(name, ()):
            free = trial.free(provider.uuid, name, request.consumer)
            if free >= needed:
                yield (provider.uuid, name), free


def _least(request: ClaimRequest) -> Mapping[str, int]:
    """{class: the smallest amount that one group asks for, or one cell of the guest}"""
    least: dict[str, int] = {}
    for group in request.groups:
        for name, amount in group.resources.items():
            part = max(1, amount // max(1, request.topology.cells))
            least[name] = min(part, least.get(name, part))
    return least


def _taken_by(allocations: Allocations) -> Iterator[tuple[str, str]]:
    for uuid, amounts in allocations.items():
        for name in amounts:
            yield uuid, name
