"""What a guest needs that starts here or comes in, and what is reserved for it while that is decided.

The caller has the consumer's turn, so no second call for the same guest lifts what the first one reserved.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agent.claims.book import Book
from agent.claims.claim import UNRESTRICTED, Restriction, Shortfall
from agent.claims.refusal import does_not_fit
from agent.claims.request import ClaimRequest
from agent.driver import Guest
from agent.errors import PlimsollError
from agent.tracker.register import Register


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
    register.under_lock(lambda book: _reserve(book, demand))
    try:
        yield
    except PlimsollError:
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
        *_foreign_units(book, request, restriction),
    )
    if shortfalls:
        raise does_not_fit(request, shortfalls)
    book.restrict(request.consumer, restriction)


def _reserve(book: Book, demand: GuestDemand) -> None:
    shortfalls = (
        *book.memory_shortfalls(demand.guest.uuid, demand.guest.memory),
        *_foreign_units(book, demand.request, demand.restriction),
    )
    if shortfalls:
        raise does_not_fit(demand.request, shortfalls)
    book.expect_guest(demand.request.consumer, demand.guest)
    book.restrict(demand.request.consumer, demand.restriction)


def _foreign_units(book: Book, request: ClaimRequest, restriction: Restriction) -> Iterator[Shortfall]:
    for uuid, classes in restriction.units.items():
        provider = book.host.tree[uuid]
        for name, exact in classes.items():
            for unit in exact:
                owner = book.owner(name, unit, beside=(request.consumer,))
                if owner is not None:
                    reason = f"{unit} belongs to {book.label(owner)}"
                    yield Shortfall(name, 1, 0, provider.name, uuid, reason)
