"""What the source's agent does: it learns from placement that a migration has what an instance held here.

The two agents of a move never talk to each other. A claim whose consumer holds nothing on this host any more
has moved: the consumer that holds just the same here is its migration, and the claim becomes the migration's,
with the same devices. Where several could be meant, nothing is linked and no device is freed until it is
certain, or until somebody says which.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from agent import log
from agent.claims.claim import Claim, ClaimState, ClaimStep
from agent.errors import ClaimConflict, UnknownConsumer
from agent.moves.ownership import MoveConsumer, has_taken_over, may_be_migration, unambiguous_pairs
from agent.moves.states import Move, MoveKind, MoveRole, MoveState, MoveStep
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.shapes import Allocations
from agent.tracker.register import Register

LOG = log.get(__name__)

Turn = Callable[[str], AbstractContextManager[None]]


class MoveFollower:
    """`turn` gives a consumer alone; `guests` tells the uuids of the guests on this host."""

    def __init__(
        self,
        register: Register,
        client: PlacementClient,
        turn: Turn,
        guests: Callable[[], Collection[str]],
        clock: Callable[[], float],
    ) -> None:
        self._register = register
        self._client = client
        self._turn = turn
        self._guests = guests
        self._clock = clock

    def follow(self) -> int:
        """Link the claims that have moved to their migrations, and drop those that left for good.

        Returns how many changed. Raises PlacementError, StateError, ClaimConflict (another operation goes on
        without an end).
        """
        left = self._moved_away()
        if not left:
            return 0
        self._read_again(left.values())
        candidates = {claim.consumer: self._candidates(claim, instance) for claim, instance in left.values()}
        done = sum(
            self._link(instance, migration) is not None
            for instance, migration in unambiguous_pairs(candidates).items()
        )
        for consumer, found in candidates.items():
            if not found:
                done += self._leave(consumer)
            elif consumer not in unambiguous_pairs(candidates):
                LOG.warning(
                    "%s has moved, and which of %s holds its part of this host is not certain: nothing is "
                    "freed. `plimsoll move confirm MIGRATION --instance %s` tells.",
                    consumer,
                    ", ".join(found),
                    consumer,
                    fields={"consumer": consumer},
                )
        return done

    def hint(self, instance: str, migration: str) -> Move:
        """Link the two on somebody's word, if placement does not speak against it.

        Raises UnknownConsumer, ClaimConflict, PlacementError, StateError.
        """
        with self._register.lock:
            claim = self._register.ledger.claims.get(instance)
        if claim is None or claim.state is ClaimState.CLAIMING:
            raise UnknownConsumer(f"No claim of {instance} is known on this host.", consumer=instance)
        move = self._link(instance, migration)
        if move is None:
            raise ClaimConflict(
                f"Migration {migration} does not hold what {instance} claimed on this host: placement shows "
                "something else.",
                consumer=instance,
                migration=migration,
            )
        return move

    def took_over(self, claim: Claim) -> Move | None:
        """Link a claim that shall go, whose instance lives elsewhere, to the migration that has its part.

        None: nobody has it. The caller has its turn at the instance. Raises ClaimConflict where it is not
        certain which migration it is: then the claim is kept as it is; PlacementError, StateError.
        """
        held = self._client.allocations_of(claim.consumer)
        if not self._lives_elsewhere(held):
            return None
        self._read_again([(claim, held)])
        found = self._candidates(claim, held)
        with self._register.lock:
            alike = [
                other.consumer
                for other in self._register.ledger.claims.values()
                if other.consumer != claim.consumer and other.allocations == claim.allocations
            ]
            free = not any(self._register.move_of(each) for each in found)
        if not found:
            return None
        # Only who lives elsewhere, too, can be meant.
        alike = [each for each in alike if self._lives_elsewhere(self._client.allocations_of(each))]
        if len(found) > 1 or alike or not free:
            if claim.state is not ClaimState.CLAIMED:
                self._register.move_durably(ClaimStep.KEEP, claim.consumer)
            raise ClaimConflict(
                f"{claim.consumer} has moved, and which of {', '.join(found)} holds its part of this host is "
                "not certain: nothing is freed. `plimsoll move confirm MIGRATION --instance UUID` tells."
            )
        # Nobody on this host knows the migration yet, so there is no turn at it to have.
        return self._register.take(
            MoveStep.ADOPT,
            self._as_source(claim, self._client.allocations_of(found[0])),
        )

    # Below

    def _moved_away(self) -> Mapping[str, tuple[Claim, ConsumerAllocations]]:
        """{consumer: (claim, what it holds)} of those that live elsewhere, and hold nothing here.

        Among them those that shall go and those in doubt: a migration may be theirs just as well.
        """
        with self._register.lock:
            ledger = self._register.ledger
            suspects = [
                claim
                for consumer, claim in sorted(ledger.claims.items())
                if (consumer in ledger.suspects or claim.state is not ClaimState.CLAIMED)
                and self._register.move_of(consumer) is None
            ]
        held = {claim.consumer: self._client.allocations_of(claim.consumer) for claim in suspects}
        return {
            claim.consumer: (claim, held[claim.consumer])
            for claim in suspects
            if self._lives_elsewhere(held[claim.consumer])
        }

    def _read_again(self, left: Collection[tuple[Claim, ConsumerAllocations]]) -> None:
        """Who holds what now on the providers of these claims: read after the instances, so that no migration
        is missed."""
        uuids = {uuid for claim, _ in left for uuid in self._own(claim.allocations)}
        found = {uuid: self._client.provider_allocations(uuid).consumers for uuid in sorted(uuids)}
        with self._register.lock:
            for uuid, consumers in found.items():
                self._register.ledger.observe_provider(uuid, consumers)

    def _candidates(self, claim: Claim, instance: ConsumerAllocations) -> list[str]:
        with self._register.lock:
            likely = self._register.ledger.holders_of(claim.allocations)
        return [
            name for name in likely if self._took_over(claim, instance, self._client.allocations_of(name))
        ]

    def _took_over(self, claim: Claim, instance: ConsumerAllocations, other: ConsumerAllocations) -> bool:
        if other.consumer in self._guests():
            return False  # an instance, whatever its type
        with self._register.lock:
            host = self._register.ledger.host
        return has_taken_over(claim.allocations, holder(instance), holder(other), host.is_own)

    def _link(self, instance: str, migration: str) -> Move | None:
        first, second = sorted((instance, migration))
        with self._turn(first), self._turn(second):
            with self._register.lock:
                claim = self._register.ledger.claims.get(instance)
                free = not any(self._register.move_of(each) for each in (instance, migration))
            if claim is None or not free:
                return None
            held, other = self._client.allocations_of(instance), self._client.allocations_of(migration)
            if not self._took_over(claim, held, other):
                return None
            return self._register.take(MoveStep.ADOPT, self._as_source(claim, other))

    def _as_source(self, claim: Claim, migration: ConsumerAllocations) -> Move:
        return Move(
            migration.consumer,
            claim.consumer,
            MoveKind.UNKNOWN,
            MoveRole.SOURCE,
            MoveState.BEGUN,
            replace(claim, state=ClaimState.CLAIMED),
            None,
            migration.allocations,
            self._clock(),
            adopted=True,
        )

    def _leave(self, consumer: str) -> bool:
        """It lives elsewhere and nobody holds its part of this host: the move was confirmed meanwhile."""
        if consumer in self._guests():
            LOG.warning(
                "The guest %s is still on this host, and placement says that it moved away: it must go, then "
                "what it has here is freed.",
                consumer,
                fields={"consumer": consumer},
            )
            return False
        with self._turn(consumer):
            with self._register.lock:
                claim = self._register.ledger.claims.get(consumer)
            held = self._client.allocations_of(consumer)
            if claim is None or claim.state is not ClaimState.CLAIMED:
                return False
            if not self._lives_elsewhere(held):
                return False
            self._read_again([(claim, held)])
            if self._may_be_reverted(claim, held):
                return False
            self._register.move_durably(ClaimStep.LEFT, consumer)
            return True

    def _may_be_reverted(self, claim: Claim, instance: ConsumerAllocations) -> bool:
        """Whether somebody who may be its migration may have what it has here."""
        with self._register.lock:
            likely = self._register.ledger.possible_holders(claim)
        guests = self._guests()
        return any(
            may_be_migration(holder(self._client.allocations_of(each)), holder(instance))
            for each in likely
            if each not in guests
        )

    def _lives_elsewhere(self, held: ConsumerAllocations) -> bool:
        return bool(held.allocations) and not self._own(held.allocations)

    def _own(self, allocations: Allocations) -> Allocations:
        with self._register.lock:
            host = self._register.ledger.host
            return {uuid: amounts for uuid, amounts in allocations.items() if host.is_own(uuid)}


def holder(held: ConsumerAllocations) -> MoveConsumer:
    """The consumer as the arithmetic of ownership wants it."""
    return MoveConsumer(held.consumer, held.allocations, held.project_id, held.user_id, held.consumer_type)
