"""Who holds the place on this host of an instance that is on another one now, as Placement shows it.

Only a consumer of type MIGRATION is taken for a migration. A consumer without a type may be one, or a new
instance of the same size: as long as there is one, nothing is freed.

A reshape may have moved the place after the migration took it, and before this host knew that. So a place is
looked for wherever the reshapes of this host may have led it.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import chain

from agent.claims.book import Book
from agent.claims.claim import Claim
from agent.errors import PlacementConflict
from agent.moves.ownership import MoveConsumer, has_left, has_taken_over, is_migration, resembles_migration
from agent.placement.client import ConsumerAllocations
from agent.shapes import Allocations
from agent.tracker.context import TrackerContext
from agent.tracker.holdings import holder

Judge = Callable[[MoveConsumer, MoveConsumer], bool]
"""Whether the first consumer is, or may be, the migration of the second one."""


class LeftPlaces:
    """Asks Placement about the places of instances that have left. Any thread may call.

    A place is the claim that the instance had here. The methods raise PlacementError.
    """

    def __init__(self, context: TrackerContext) -> None:
        self._context = context
        self._client = context.client

    def has_left(self, instance: ConsumerAllocations) -> bool:
        """Whether the instance has resources, and none on this host's own providers."""
        return has_left(instance.allocations, self._context.register.host.is_own)

    def own_part(self, allocations: Allocations) -> Allocations:
        """The part of these allocations that is on this host's own providers."""
        host = self._context.register.host
        return {uuid: amounts for uuid, amounts in allocations.items() if host.is_own(uuid)}

    def whereabouts(self, place: Claim) -> list[Allocations]:
        """The own parts of the allocations that the place may have now; see `Register.whereabouts`."""
        return [self.own_part(each.allocations) for each in self._wherever(place)]

    def _wherever(self, place: Claim) -> list[Claim]:
        """The place as it is recorded, as writes of unknown outcome give it, and where reshapes led these.

        The source of a move may have extended the place without an answer, and the migration has it so.
        """
        written = self._context.writer.given_in_doubt(place.consumer)
        places = [place, *(replace(place, allocations=given) for given in written)]
        return list(chain.from_iterable(map(self._context.register.whereabouts, places)))

    def read_holders(self, places: Iterable[Claim]) -> None:
        """Read who holds what on the own providers of these places. Read their instances before."""
        self._context.read_consumers(
            sorted({uuid for place in places for part in self.whereabouts(place) for uuid in part})
        )

    def successors(self, place: Claim, instance: ConsumerAllocations) -> list[str]:
        """The migrations, by their type, that hold exactly the place; as of the last `read_holders`."""
        return self._takers(place, instance, is_migration)

    def lookalikes(self, place: Claim, instance: ConsumerAllocations) -> list[str]:
        """As `successors`, with the consumers without a type."""
        return self._takers(place, instance, resembles_migration)

    def taken(
        self, place: Claim, instance: ConsumerAllocations, other: ConsumerAllocations, judge: Judge
    ) -> Claim | None:
        """The place where the other consumer, the instance's migration by `judge`, holds exactly that.

        A reshape may have moved it there. None: it holds something else, or is no migration of the instance.
        """
        if other.consumer in self._context.guests:
            return None  # an instance, even if Placement says MIGRATION
        if not judge(holder(other), holder(instance)):
            return None
        is_own = self._context.register.host.is_own
        return next(
            (
                each
                for each in self._wherever(place)
                if has_taken_over(each.allocations, holder(instance), holder(other), is_own)
            ),
            None,
        )

    def returned(self, place: Claim, instance: ConsumerAllocations) -> Claim | None:
        """The place where its own instance holds it, after a reshape that moved it under another consumer.

        None: the instance holds something else, or holds the place as it is recorded.
        """
        if instance.allocations == place.allocations:
            return None
        return next(
            (each for each in self._wherever(place) if each.allocations == instance.allocations),
            None,
        )

    def possible_holders(self, place: Claim, instance: ConsumerAllocations) -> list[str]:
        """The consumers that may be the instance's migration and may hold some of the place.

        Reads the providers, and the instance again. Raises PlacementConflict where another client wrote the
        instance meanwhile: then the place may have gone from one migration to another unseen.
        """
        self.read_holders([place])
        holders = self._holders(place, Book.possible_holders)
        found = self._judged(holders, instance, resembles_migration)
        if self._client.allocations_of(instance.consumer) != instance:
            raise PlacementConflict(f"Another client wrote the allocations of {instance.consumer} meanwhile.")
        return found

    def possible_migrations(self, instance: ConsumerAllocations) -> list[str]:
        """The consumers without a claim or a move that hold something here and may be its migration.

        For an instance whose place here the agent does not know.
        """
        strangers = self._context.register.under_lock(
            lambda book: [
                consumer for consumer, held in book.others.items() if any(map(book.host.is_own, held))
            ]
        )
        suspects = self._judged(strangers, instance, resembles_migration)
        return [
            consumer
            for consumer in suspects
            if self.own_part(self._client.allocations_of(consumer).allocations)
        ]

    def _takers(self, place: Claim, instance: ConsumerAllocations, judge: Judge) -> list[str]:
        holders = self._holders(place, lambda book, each: book.holders_of(each.allocations))
        return [
            consumer
            for consumer in holders
            if self.taken(place, instance, self._client.allocations_of(consumer), judge) is not None
        ]

    def _holders(self, place: Claim, ask: Callable[[Book, Claim], Iterable[str]]) -> list[str]:
        """What `ask` says of the place wherever it may be now, each consumer once."""
        places = self._wherever(place)
        found = self._context.register.under_lock(lambda book: [ask(book, each) for each in places])
        return list(dict.fromkeys(chain.from_iterable(found)))

    def _judged(self, consumers: Iterable[str], instance: ConsumerAllocations, judge: Judge) -> list[str]:
        guests = self._context.guests.uuids
        return [
            consumer
            for consumer in consumers
            if consumer not in guests
            and judge(holder(self._client.allocations_of(consumer)), holder(instance))
        ]


class Departures:
    """Tells the book which instances live elsewhere while their place here is claimed or used."""

    def __init__(self, context: TrackerContext) -> None:
        self._context = context
        self._places = LeftPlaces(context)

    def find(self) -> None:
        """Ask Placement, where a claim's place is not held, or another consumer may hold it for its guest.

        Where all hold their places, and beside guests that have none, that costs nothing. A consumer without
        a type counts as the migration only where it holds just the place. Raises PlacementError.
        """
        register, client = self._context.register, self._context.client
        beside, claimed = register.under_lock(lambda book: (book.strangers_beside(), frozenset(book.claims)))
        departed: dict[str, list[str]] = {}
        for instance, strangers in beside.items():
            if not strangers and instance not in claimed and instance in self._context.guests:
                continue
            held = client.allocations_of(instance)
            if not self._places.has_left(held):
                continue
            departed[instance] = []
            for stranger in strangers:
                other = client.allocations_of(stranger)
                alike = register.under_lock(partial(Book.holds_place, consumer=stranger, instance=instance))
                if (resembles_migration if alike else is_migration)(holder(other), holder(held)):
                    departed[instance].append(stranger)
        register.under_lock(lambda book: book.note_departed(departed))
