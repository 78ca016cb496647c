"""The source's side of a move: the agent learns from Placement that a migration holds what an instance
held.

The two agents of a move never talk to each other. A claim whose consumer holds nothing on this host any
more has moved: the consumer of type MIGRATION that holds just the same here is its migration, and the claim
becomes the migration's, with the same devices. Where several match, or one without a type, the agent links
none and frees no device, until only one matches or an operator names it.

A consumer that was listed here together with the instance's own allocation is not its migration. A migration
may also be that of an instance without a claim, which had just the same here and has left, too, or whose
guest is still here: then it is linked to none.

Only a consumer of type MIGRATION is taken for a migration. A consumer without a type may be one, or a new
instance of the same size: as long as there is one, nothing is freed.

A move may also have been reverted and begun again, under another uuid, since this host last looked. Then
the migration that this host knows holds nothing any more, and another one holds its place.

A reshape may have moved the place after the migration took it, and before this host knew that. So a place
is looked for wherever the reshapes of this host may have led it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TypeVar

from agent import log
from agent.claims.attribution import Place
from agent.claims.book import Book
from agent.claims.claim import Claim, ClaimState, ClaimStep
from agent.errors import ClaimConflict, ClaimsClosed, PlacementConflict, UnknownConsumer
from agent.moves import ownership
from agent.moves.states import Move, MoveKind, MoveRole, MoveState, MoveStep
from agent.placement.client import ConsumerAllocations
from agent.shapes import Allocations, beyond
from agent.tracker.context import TrackerContext

LOG = log.get(__name__)

T = TypeVar("T")

Judge = Callable[[ConsumerAllocations, ConsumerAllocations], bool]
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
        return ownership.has_left(instance.allocations, self._context.register.host.is_own)

    def instance_of(self, place: Claim) -> ConsumerAllocations:
        """What the place's instance has; where that is nothing, its owner is that of the claim."""
        held = self._client.allocations_of(place.consumer)
        if held.allocations:
            return held
        return replace(held, project_id=place.request.project_id, user_id=place.request.user_id)

    def own_part(self, allocations: Allocations) -> Allocations:
        """The part of these allocations that is on this host's own providers."""
        host = self._context.register.host
        return {uuid: amounts for uuid, amounts in allocations.items() if host.is_own(uuid)}

    def whereabouts(self, place: Claim) -> list[Allocations]:
        """The own parts of the allocations that the place may have now; see `Register.whereabouts`."""
        return [self.own_part(each.allocations) for each in self._wherever(place)]

    def _wherever(self, place: Claim) -> list[Claim]:
        """The place as it is recorded, as writes of unknown outcome give it, and where reshapes led these.

        The source of a move may have extended the place without an answer, and the migration has it so. A
        revert gives the instance a place on another host: that is none of this one's.
        """
        written = filter(self.own_part, self._context.writer.given_in_doubt(place.consumer))
        places = [place, *(replace(place, allocations=given) for given in written)]
        return list(chain.from_iterable(map(self._context.register.whereabouts, places)))

    def read_holders(self, places: Iterable[Claim]) -> None:
        """Read who holds what on the own providers of these places. Read their instances before.

        No consumer holds anything on a provider that Placement has no more.
        """
        self._context.read_consumers(
            sorted({uuid for place in places for part in self.whereabouts(place) for uuid in part}),
            may_be_gone=True,
        )

    def successors(self, place: Claim, instance: ConsumerAllocations) -> list[str]:
        """The migrations, by their type, that hold exactly the place; as of the last `read_holders`."""
        return self._takers(place, instance, ownership.is_migration)

    def lookalikes(self, place: Claim, instance: ConsumerAllocations) -> list[str]:
        """As `successors`, with the consumers without a type."""
        return self._takers(place, instance, ownership.resembles_migration)

    def taken(
        self, place: Claim, instance: ConsumerAllocations, other: ConsumerAllocations, judge: Judge
    ) -> Claim | None:
        """The place where the other consumer, the instance's migration by `judge`, holds exactly that.

        A reshape may have moved it there. None: it holds something else, or is no migration of the instance.
        """
        if other.consumer in self._context.guests:
            return None  # an instance, even if Placement says MIGRATION
        if not judge(other, instance):
            return None
        is_own = self._context.register.host.is_own
        return next(
            (
                each
                for each in self._wherever(place)
                if ownership.has_taken_over(each.allocations, instance, other, is_own)
            ),
            None,
        )

    def taken_in_part(
        self, place: Claim, instance: ConsumerAllocations, other: ConsumerAllocations
    ) -> Claim | None:
        """The place of which the other consumer, a migration by its type, holds a part here and no more."""
        part = self.own_part(other.allocations)
        is_its = self.has_left(instance) and ownership.is_migration(other, instance)
        if not part or not is_its or other.consumer in self._context.guests:
            return None
        return next(
            (each for each in self._wherever(place) if not beyond(part, self.own_part(each.allocations))),
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
        found = self._judged(holders, instance, ownership.resembles_migration)
        if self._client.allocations_of(instance.consumer) != instance:
            raise PlacementConflict(f"Another client wrote the allocations of {instance.consumer} meanwhile.")
        return found

    def may_be_held(self, place: Claim) -> bool:
        """Whether a consumer without a claim may hold some of the place; reads the providers."""
        self.read_holders([place])
        return bool(self._holders(place, Book.possible_holders))

    def possible_migrations(self, instance: ConsumerAllocations) -> list[str]:
        """The consumers without a claim or a move that hold something here and may be its migration.

        For an instance whose place here the agent does not know.
        """
        strangers = self._context.register.under_lock(
            lambda book: [
                consumer for consumer, held in book.others.items() if any(map(book.host.is_own, held))
            ]
        )
        suspects = self._judged(strangers, instance, ownership.resembles_migration)
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
        """What `ask` says of the place wherever it may be now, each consumer once.

        Without those that had something here beside the place: none of them has taken it over.
        """
        places = self._wherever(place)
        found, beside = self._context.register.under_lock(
            lambda book: ([ask(book, each) for each in places], book.beside(place.consumer))
        )
        return [who for who in dict.fromkeys(chain.from_iterable(found)) if who not in beside]

    def _judged(self, consumers: Iterable[str], instance: ConsumerAllocations, judge: Judge) -> list[str]:
        guests = self._context.guests.uuids
        return [
            consumer
            for consumer in consumers
            if consumer not in guests and judge(self._client.allocations_of(consumer), instance)
        ]


class Departures:
    """Tells the book which instances live elsewhere while their place here is claimed or used."""

    def __init__(self, context: TrackerContext) -> None:
        self._context = context

    def find(self, place: Place | None = None) -> None:
        """Ask Placement, where a claim's place is not held, or another consumer may hold it for its guest.

        Where all hold their places, and beside guests that have none, that costs nothing. A consumer without
        a type counts as the migration only where it holds just the place. `place` is the host as it is
        described, for a pass before the first inventory. Raises PlacementError.
        """
        register, client = self._context.register, self._context.client
        copy = None if place is None else register.under_lock(lambda book: book.at(place))

        def ask(question: Callable[[Book], T]) -> T:
            return register.under_lock(question) if copy is None else question(copy)

        beside, claimed, is_own = ask(
            lambda book: (book.strangers_beside(), frozenset(book.claims), book.host.is_own)
        )
        departed: dict[str, list[str]] = {}
        for instance, strangers in beside.items():
            if not strangers and instance not in claimed and instance in self._context.guests:
                continue
            held = client.allocations_of(instance)
            if not ownership.has_left(held.allocations, is_own):
                continue
            departed[instance] = []
            others = register.under_lock(partial(Book.beside, instance=instance))
            for stranger in (each for each in strangers if each not in others):
                other = client.allocations_of(stranger)
                alike = ask(partial(Book.holds_place, consumer=stranger, instance=instance))
                if (ownership.resembles_migration if alike else ownership.is_migration)(other, held):
                    departed[instance].append(stranger)
        register.under_lock(lambda book: book.note_departed(departed))


@dataclass(frozen=True, slots=True)
class _Departure:
    """An instance that has left this host, and the place that it had here.

    `move` is the begun move that gave the place to its migration, which holds nothing any more; None: the
    place is still the instance's claim.
    """

    instance: ConsumerAllocations
    place: Claim
    move: Move | None = None


class MigrationLinker:
    """Links claims of this host to the migrations that took them over. Any thread may call."""

    def __init__(self, context: TrackerContext) -> None:
        self._context = context
        self._client = context.client
        self._places = LeftPlaces(context)
        self.emptied: frozenset[str] = frozenset()
        """The claims for which Placement held nothing anywhere at the last `link_all`, nor their place for a
        consumer without a claim: their instances may have moved, and were released there."""

    def link_all(self) -> None:
        """Link the claims that have moved to their migrations, and drop those that left for good.

        Raises PlacementError, StateError; ClaimConflict where another operation on the consumer does not end
        in time.
        """
        suspects = self._context.register.under_lock(
            lambda book: [
                claim
                for consumer, claim in sorted(book.claims.items())
                if consumer in book.suspects or claim.state is not ClaimState.CLAIMED
            ]
        )
        begun = [
            move
            for move in self._context.register.moves().values()
            if move.role is MoveRole.SOURCE and move.state is MoveState.BEGUN
        ]
        departures = self._departures(suspects, begun)
        gone = self._moved_away(departures)
        for claim in suspects:
            if claim.consumer not in departures and len(self._places.whereabouts(claim)) > 1:
                self._follow_returned(claim.consumer)
        self.emptied = frozenset(claim.consumer for claim in suspects if self._is_emptied(claim))
        if departures:
            gone |= self._follow(departures)
        self._context.guests.report_moved_away(gone)

    def _is_emptied(self, claim: Claim) -> bool:
        """Whether `emptied` has the claim; reads its instance before the holders of its place, and after."""
        is_here = claim.consumer in self._context.guests or self._is_moving(claim.consumer)
        if is_here or claim.state is not ClaimState.CLAIMED:
            return False
        if self._client.allocations_of(claim.consumer).allocations or self._places.may_be_held(claim):
            return False
        return not self._client.allocations_of(claim.consumer).allocations

    def look_for(self, migration: str) -> Move | None:
        """The move of a migration that this host does not know yet.

        None: Placement does not show whose migration it is.
        Raises ClaimsClosed before the first inventory; PlacementError, StateError, ClaimConflict.
        """
        self._check_known(migration)
        wanted = self._places.own_part(self._client.allocations_of(migration).allocations)
        if not wanted:
            return None
        alike = [
            claim
            for claim in self._context.register.claims().values()
            if wanted in self._places.whereabouts(claim)
        ]
        begun = [
            move
            for move in self._context.register.moves().values()
            if move.role is MoveRole.SOURCE
            and move.state is MoveState.BEGUN
            and wanted in self._places.whereabouts(move.old)
        ]
        self._link_pairs(self._departures(alike, begun))
        return self._context.register.move_by_migration(migration)

    def link(self, instance: str, migration: str) -> Move:
        """Link the two, as an operator names them, if Placement agrees.

        Raises UnknownConsumer, ClaimConflict; ClaimsClosed where the host must be read first; PlacementError,
        StateError.
        """
        claim = self._context.register.claim_of(instance)
        if claim is None or claim.state is ClaimState.CLAIMING:
            raise UnknownConsumer(f"{instance} has no claim on this host.", consumer=instance)
        move = self._link(instance, migration, ownership.resembles_migration, in_part=True)
        if move is None:
            self._check_known(migration)
            raise ClaimConflict(
                f"By what Placement shows, migration {migration} does not hold what {instance} claimed on "
                "this host.",
                consumer=instance,
                migration=migration,
            )
        return move

    def _check_known(self, migration: str) -> None:
        """Raises ClaimsClosed before the first inventory.

        The agent cannot say yet that Placement does not show whose migration it is.
        """
        if self._context.register.host.root is None:
            raise ClaimsClosed(
                "The agent has not read the whole host yet, so it does not know whose migration "
                f"{migration} is: try again when `plimsoll status` says that it is ready.",
                migration=migration,
            )

    def link_leaving(self, claim: Claim, *, deleted: bool = False) -> Move | None:
        """Link a claim to be removed, whose instance lives elsewhere, to the migration that holds its part.

        `deleted`: or was deleted there before this host looked. None: no consumer holds its part. The caller
        has the instance's turn. Raises ClaimConflict where it is not certain which migration it is: then the
        claim stays as it is; PlacementError, StateError.
        """
        held = self._places.instance_of(claim)
        if not (self._places.has_left(held) or (deleted and not held.allocations)):
            return None  # no consumer can have taken it over
        self._places.read_holders([claim])
        lookalikes = self._places.lookalikes(claim, held)
        if not lookalikes:
            return None
        migrations = self._places.successors(claim, held)
        certain = len(migrations) == len(lookalikes) == 1
        migration = self._client.allocations_of(lookalikes[0])
        taken = self._places.taken(claim, held, migration, ownership.is_migration)
        if (
            taken is None
            or not certain
            or self._has_twin(claim)
            or any(map(self._is_moving, migrations))
            or self._has_rival(claim.consumer, migration.consumer)
        ):
            if not (held.allocations or migrations):
                return None
            if claim.state is not ClaimState.CLAIMED:
                self._context.register.step_claim(ClaimStep.KEEP, claim.consumer)
            raise ClaimConflict(_uncertain(claim.consumer, migrations, lookalikes), consumer=claim.consumer)
        # This host does not know the migration yet, so no operation on it can be under way: no turn needed.
        return self._context.register.step_move(MoveStep.ADOPT, self._source_move(taken, held, migration))

    # Who has left

    def _departures(
        self, claims: Iterable[Claim], begun: Iterable[Move], *, deleted: bool = False
    ) -> dict[str, _Departure]:
        """{instance: departure} of the claims' and the moves' instances that live elsewhere.

        Claims in doubt or to be released are among them: a migration may hold their part, too. `deleted`:
        also claims of instances that have nothing anywhere, and may have been deleted in a move. Of the begun
        moves only those whose migration holds nothing any more, and whose instance was written since this
        host learned of the move: without that, no host reverted it.
        """
        departures: dict[str, _Departure] = {}
        for claim in claims:
            if not self._is_moving(claim.consumer):
                held = self._places.instance_of(claim)
                if self._places.has_left(held) or (deleted and self._may_be_deleted(claim, held)):
                    departures[claim.consumer] = _Departure(held, claim)
        for move in begun:
            if self._client.allocations_of(move.migration).allocations:
                continue
            held = self._client.allocations_of(move.instance)
            if self._places.has_left(held) and ownership.may_be_superseded(move, held.generation):
                departures[move.instance] = _Departure(held, move.old, move)
        return departures

    def _has_twin(self, claim: Claim) -> bool:
        """Whether another claim has or had the same place, and its instance has left or was deleted, too."""
        places = self._places.whereabouts(claim)
        twins = [
            other
            for consumer, other in self._context.register.claims().items()
            if consumer != claim.consumer and any(part in places for part in self._places.whereabouts(other))
        ]
        held = {twin.consumer: self._client.allocations_of(twin.consumer) for twin in twins}
        return any(
            self._places.has_left(held[twin.consumer]) or self._may_be_deleted(twin, held[twin.consumer])
            for twin in twins
        )

    def _may_be_deleted(self, claim: Claim, held: ConsumerAllocations) -> bool:
        """Whether another client may have deleted the claim's instance; not before the claim is granted."""
        return claim.state is ClaimState.CLAIMED and not held.allocations

    def _has_rival(self, instance: str, migration: str) -> bool:
        """Whether the migration may as well be that of an instance without a claim, which has left, too.

        That had here just what the migration has, when the instance still had its place. Or its guest is
        still here, and what it had is not known.
        """
        moved_away, other = self._context.guests.moved_away, self._client.allocations_of(migration)
        claimed, had = self._context.register.under_lock(
            lambda book: (
                {*book.claims, *book.moves_under_way},
                {
                    **{who: {} for who in book.unclaimed().keys() - moved_away},
                    **book.unclaimed_beside(instance),
                },
            )
        )
        alike = {
            who
            for who, amounts_of in had.items()
            if all(other.allocations.get(uuid) == amounts for uuid, amounts in amounts_of.items())
        }
        return any(
            self._places.has_left(held) and ownership.is_migration(other, held)
            for held in map(self._client.allocations_of, sorted(alike - claimed))
        )

    def _is_moving(self, consumer: str) -> bool:
        return self._context.register.move_of(consumer) is not None

    def _moved_away(self, departures: Mapping[str, _Departure]) -> set[str]:
        """The guests that had moved away before, without a claim, and that are not back.

        Also guests that run here and of which neither the agent nor Placement has anything on this host's
        own providers: their disks may still be in a pool that the hosts share. Not those that may be on
        their way: a consumer here may be the migration of a move under way.
        """
        strays = self._context.register.under_lock(
            lambda book: {
                guest for guest in book.unclaimed() if not any(map(book.host.is_own, book.row(guest).has))
            }
        )
        return {
            guest
            for guest in sorted(self._context.guests.moved_away | strays)
            if guest not in departures
            and not self._is_moving(guest)
            and self._places.has_left(held := self._client.allocations_of(guest))
            and not self._places.possible_migrations(held)
        }

    # What became of their places

    def _follow(self, departures: Mapping[str, _Departure]) -> set[str]:
        """Link or drop the claims of these instances, and return those that are known to have moved away."""
        linked, candidates = self._link_pairs(departures)
        gone: set[str] = set()
        for instance, departure in departures.items():
            if instance in linked or departure.move is not None:
                continue  # a move that has ended without a successor is finished as any other
            migrations = candidates[instance]
            lookalikes = migrations or self._places.lookalikes(departure.place, departure.instance)
            if not lookalikes:
                if self._client.allocations_of(instance) != departure.instance:
                    continue  # it was written after it was read: perhaps its move was reverted just now
                gone.add(instance)
                if instance in self._context.guests:
                    LOG.warning(
                        "The guest %s is still on this host, and by Placement it has moved away. Remove the "
                        "guest: then the agent frees what the guest uses here.",
                        instance,
                        fields={"consumer": instance},
                    )
                    continue
                # No consumer holds its part of this host: the move was confirmed meanwhile.
                with self._context.turns.take(instance):
                    self._drop_left(instance)
            else:
                LOG.warning(
                    "%s",
                    _uncertain(instance, migrations, lookalikes),
                    fields={"consumer": instance},
                )
        return gone

    def _link_pairs(
        self, departures: Mapping[str, _Departure]
    ) -> tuple[set[str], Mapping[str, Collection[str]]]:
        """(the instances that were linked, {instance: the migrations that hold just its place})."""
        self._places.read_holders(departure.place for departure in departures.values())
        candidates = self._candidates(departures)
        if any(candidates.values()):
            # Also of those that left a place just like one of these: a migration may be theirs as well.
            # They are read after the migrations, so that the instance of each migration is among them.
            places = [part for each in departures.values() for part in self._places.whereabouts(each.place)]
            twins = [
                claim
                for consumer, claim in sorted(self._context.register.claims().items())
                if consumer not in departures
                and any(part in places for part in self._places.whereabouts(claim))
            ]
            candidates |= self._candidates(self._departures(twins, (), deleted=True))
        pairs = ownership.unambiguous_pairs(candidates)
        linked = {
            instance
            for instance, migration in pairs.items()
            if not self._has_rival(instance, migration)
            and self._link(instance, migration, ownership.is_migration) is not None
        }
        return linked, candidates

    def _candidates(self, departures: Mapping[str, _Departure]) -> dict[str, list[str]]:
        return {
            instance: self._places.successors(departure.place, departure.instance)
            for instance, departure in departures.items()
        }

    def _link(self, instance: str, migration: str, judge: Judge, *, in_part: bool = False) -> Move | None:
        """`in_part`: the migration may hold a part of the place, as where another client has narrowed it."""
        with self._context.turns.take_both(instance, migration):
            claim, move = self._context.register.claim_and_move_of(instance)
            place = move.old if move is not None else claim
            if place is None or self._is_moving(migration):
                return None
            held, other = self._places.instance_of(place), self._client.allocations_of(migration)
            taken, handed = self._places.taken(place, held, other, judge), other.allocations
            if taken is None and in_part:
                taken = self._places.taken_in_part(place, held, other)
                handed = self._places.own_part(taken.allocations) if taken is not None else {}
            if taken is None:
                return None
            if move is not None:
                # End a move that was reverted and begun again under another uuid. The instance's turn, which
                # each operation on the move needs, is taken.
                if move.role is not MoveRole.SOURCE or move.state is not MoveState.BEGUN:
                    return None
                former = self._client.allocations_of(move.migration)
                if former.allocations or not ownership.may_be_superseded(move, held.generation):
                    return None
                self._context.register.step_move(MoveStep.RESTORED, move)
            source = replace(self._source_move(taken, held, other), handed=handed)
            return self._context.register.step_move(MoveStep.ADOPT, source)

    def _source_move(
        self, place: Claim, instance: ConsumerAllocations, migration: ConsumerAllocations
    ) -> Move:
        return Move(
            migration.consumer,
            place.consumer,
            MoveKind.UNKNOWN,
            MoveRole.SOURCE,
            MoveState.BEGUN,
            replace(place, state=ClaimState.CLAIMED),
            None,
            migration.allocations,
            self._context.clock(),
            adopted=True,
            instance_generation=instance.generation,
        )

    def _follow_returned(self, consumer: str) -> None:
        """Put the claim where its instance has its place again.

        A migration had the place, a reshape moved it, and the move was reverted, all unknown to this host.
        """
        with self._context.turns.take(consumer):
            claim = self._context.register.claim_of(consumer)
            if claim is None or claim.state is not ClaimState.CLAIMED or self._is_moving(consumer):
                return
            place = self._places.returned(claim, self._client.allocations_of(consumer))
            if place is not None:
                self._context.register.step_claim(ClaimStep.RELOCATE, consumer, place)

    def drop_left_places(self, instance: str) -> bool:
        """Drop the claims of those that left for good and whose places only `instance` may have; whether any.

        The caller claims for `instance` on this host: so it is no migration, with a type or without.
        The caller has its turn. Raises PlacementError, StateError.
        """
        gone = self._context.register.under_lock(lambda book: sorted(book.suspects - {instance}))
        if not gone or not self._places.own_part(self._client.allocations_of(instance).allocations):
            return False
        suspects = self._context.register.under_lock(
            lambda book: [
                consumer
                for consumer in gone
                if consumer in book.claims and instance in book.possible_holders(book.claims[consumer])
            ]
        )
        dropped = False
        for consumer in suspects:
            if consumer not in self._context.guests:
                # Only where no operation on the consumer is under way: the caller has another turn already.
                with self._context.turns.take_idle([consumer]) as idle:
                    dropped |= bool(idle) and self._drop_left(consumer, known=instance)
        return dropped

    def _drop_left(self, consumer: str, known: str = "") -> bool:
        """Drop the claim if no consumer but the instance `known` may hold its place.

        The caller has the consumer's turn.
        """
        claim, move = self._context.register.claim_and_move_of(consumer)
        if claim is None or claim.state is not ClaimState.CLAIMED or move is not None:
            return False
        held = self._client.allocations_of(consumer)
        if not self._places.has_left(held):
            return False
        try:
            holders = self._places.possible_holders(claim, held)
        except PlacementConflict as conflict:
            LOG.info("%s The agent looks again later.", conflict.message)
            return False
        holders = [holder for holder in holders if holder != known]
        if holders:
            LOG.warning("%s", _uncertain(consumer, [], holders), fields={"consumer": consumer})
            return False
        self._context.register.step_claim(ClaimStep.LEFT, consumer)
        return True


def _uncertain(instance: str, migrations: Collection[str], lookalikes: Collection[str]) -> str:
    """Why nothing is freed. No end of a move is advised where no migration is known to be one."""
    if len(migrations) == len(lookalikes):
        return (
            f"{instance} has moved away, and it is not certain which of {', '.join(migrations)} holds its "
            "part of this host. The agent frees nothing until an operator names the migration: "
            f"`plimsoll move confirm MIGRATION --instance {instance}`, or `revert`."
        )
    return (
        f"{instance} has moved away, and it is not certain whether {', '.join(lookalikes)} holds its part "
        "of this host or is an instance of its own. The agent frees nothing until that consumer has a claim "
        "or a guest on this host, or holds nothing on it any more."
    )
