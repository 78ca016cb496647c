"""What a guest needs that starts here or comes in, and what is reserved for it while that is decided.

The caller has the consumer's turn, so no second call for the same guest lifts what the first one reserved.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from agent.claims.book import Book
from agent.claims.claim import Shortfall
from agent.claims.parse_request import ClaimRequest
from agent.claims.refusal import does_not_fit
from agent.driver import Guest
from agent.errors import PlimsollError
from agent.shapes import Units
from agent.tracker.register import Register


@dataclass(frozen=True, slots=True)
class GuestDemand:
    """The request for a guest, the exact units that its claim must have, and no others of their classes.

    `bound` {group suffix: provider uuid} restricts groups of the request to one provider each.
    """

    guest: Guest
    request: ClaimRequest
    units: Units = field(default_factory=dict)
    bound: Mapping[str, str] = field(default_factory=dict)


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
        register.under_lock(lambda book: book.restrict_units(consumer, None))


def _reserve(book: Book, demand: GuestDemand) -> None:
    shortfalls = (*book.memory_shortfalls(demand.guest), *_foreign_units(book, demand))
    if shortfalls:
        raise does_not_fit(demand.request, shortfalls)
    book.expect_guest(demand.request.consumer, demand.guest)
    book.restrict_units(demand.request.consumer, demand.units, demand.bound)


def _foreign_units(book: Book, demand: GuestDemand) -> Iterator[Shortfall]:
    for uuid, classes in demand.units.items():
        provider = book.host.tree[uuid]
        for name, exact in classes.items():
            for unit in exact:
                owner = book.owner(name, unit)
                if owner not in (None, demand.request.consumer):
                    yield Shortfall(name, 1, 0, provider.name, uuid, f"{unit} belongs to {owner}")
