"""The source's side of a move: the agent learns from Placement that a migration holds what an instance held.

The two agents of a move never talk to each other. A claim whose consumer holds nothing on this host any more
has moved: the consumer that holds just the same here is its migration, and the claim becomes the migration's,
with the same devices. Where several consumers match, the agent links none and frees no device, until only one
matches or an operator names it.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from agent import log
from agent.claims.claim import Claim, ClaimState, ClaimStep
from agent.errors import ClaimConflict, UnknownConsumer
from agent.moves.ownership import has_taken_over, may_be_migration, unambiguous_pairs
from agent.moves.states import Move, MoveKind, MoveRole, MoveState, MoveStep
from agent.placement.client import ConsumerAllocations
from agent.shapes import Allocations
from agent.tracker.context import TrackerContext
from agent.tracker.holdings import holder

LOG = log.get(__name__)


class MigrationLinker:
    """Links claims of this host to the migrations that took them over. Any thread may call."""

    def __init__(self, context: TrackerContext) -> None:
        self._context = context
        self._client = context.client

    def link_all(self) -> int:
        """Link the claims that have moved to their migrations, and drop those that left for good.

        Returns how many changed. Raises PlacementError, StateError; ClaimConflict where another operation on
        the consumer does not end in time.
        """
        moved_away = self._moved_away()
        if not moved_away:
            return 0
        self._read_providers(moved_away.values())
        candidates = {
            claim.consumer: self._candidates(claim, instance) for claim, instance in moved_away.values()
        }
        pairs = unambiguous_pairs(candidates)
        changed = sum(self._link(instance, migration) is not None for instance, migration in pairs.items())
        for consumer, migrations in candidates.items():
            if not migrations:
                changed += self._drop_departed(consumer)
            elif consumer not in pairs:
                LOG.warning(
                    "%s has moved away, and it is not certain which of %s holds its part of this host. The "
                    "agent frees nothing until an operator names the migration: `plimsoll move confirm "
                    "MIGRATION --instance %s`.",
                    consumer,
                    ", ".join(migrations),
                    consumer,
                    fields={"consumer": consumer},
                )
        return changed

    def link(self, instance: str, migration: str) -> Move:
        """Link the two, as an operator names them, if Placement agrees.

        Raises UnknownConsumer, ClaimConflict, PlacementError, StateError.
        """
        claim = self._context.register.claim_of(instance)
        if claim is None or claim.state is ClaimState.CLAIMING:
            raise UnknownConsumer(f"{instance} has no claim on this host.", consumer=instance)
        move = self._link(instance, migration)
        if move is None:
            raise ClaimConflict(
                f"By what Placement shows, migration {migration} does not hold what {instance} claimed on "
                "this host.",
                consumer=instance,
                migration=migration,
            )
        return move

    def link_leaving(self, claim: Claim) -> Move | None:
        """Link a claim to be removed, whose instance lives elsewhere, to the migration that holds its part.

        None: no consumer holds it. The caller has the instance's turn. Raises ClaimConflict where it is not
        certain which migration it is: then the claim stays as it is; PlacementError, StateError.
        """
        held = self._client.allocations_of(claim.consumer)
        if not self._lives_elsewhere(held):
            return None
        self._read_providers([(claim, held)])
        migrations = self._candidates(claim, held)
        if not migrations:
            return None
        if len(migrations) > 1 or self._has_twin(claim) or any(map(self._is_moving, migrations)):
            if claim.state is not ClaimState.CLAIMED:
                self._context.register.step_claim(ClaimStep.KEEP, claim.consumer)
            raise ClaimConflict(
                f"{claim.consumer} has moved away, and it is not certain which of {', '.join(migrations)} "
                "holds its part of this host. The agent frees nothing until an operator names the migration: "
                f"`plimsoll move confirm MIGRATION --instance {claim.consumer}`."
            )
        # This host does not know the migration yet, so no operation on it can be under way: no turn needed.
        return self._context.register.step_move(
            MoveStep.ADOPT,
            self._source_move(claim, self._client.allocations_of(migrations[0])),
        )

    # What Placement shows

    def _moved_away(self) -> Mapping[str, tuple[Claim, ConsumerAllocations]]:
        """{consumer: (claim, what it holds)} of the consumers that live elsewhere, and hold nothing here.

        Claims in doubt or to be released are among them: a migration may hold their part, too.
        """
        suspects = self._context.register.under_lock(
            lambda book: [
                claim
                for consumer, claim in sorted(book.claims.items())
                if consumer in book.suspects or claim.state is not ClaimState.CLAIMED
            ]
        )
        suspects = [claim for claim in suspects if not self._is_moving(claim.consumer)]
        held = {claim.consumer: self._client.allocations_of(claim.consumer) for claim in suspects}
        return {
            claim.consumer: (claim, held[claim.consumer])
            for claim in suspects
            if self._lives_elsewhere(held[claim.consumer])
        }

    def _read_providers(self, moved_away: Collection[tuple[Claim, ConsumerAllocations]]) -> None:
        """Read the claims' providers, after the instances, so that no migration is missed."""
        self._context.read_consumers(
            sorted({uuid for claim, _ in moved_away for uuid in self._own(claim.allocations)})
        )

    def _candidates(self, claim: Claim, instance: ConsumerAllocations) -> list[str]:
        """The consumers that may be the migration of the claim's instance."""
        holders = self._context.register.under_lock(lambda book: book.holders_of(claim.allocations))
        return [
            consumer
            for consumer in holders
            if self._took_over(claim, instance, self._client.allocations_of(consumer))
        ]

    def _has_twin(self, claim: Claim) -> bool:
        """Whether another claim has the same allocations, and its instance lives elsewhere, too."""
        twins = [
            other
            for consumer, other in self._context.register.claims().items()
            if consumer != claim.consumer and other.allocations == claim.allocations
        ]
        return any(self._lives_elsewhere(self._client.allocations_of(twin.consumer)) for twin in twins)

    def _is_moving(self, consumer: str) -> bool:
        return self._context.register.move_of(consumer) is not None

    def _took_over(self, claim: Claim, instance: ConsumerAllocations, other: ConsumerAllocations) -> bool:
        if other.consumer in self._context.guests:
            return False  # an instance, even if Placement says MIGRATION
        is_own = self._context.register.host.is_own
        return has_taken_over(claim.allocations, holder(instance), holder(other), is_own)

    def _link(self, instance: str, migration: str) -> Move | None:
        with self._context.turns.take_both(instance, migration):
            claim = self._context.register.claim_of(instance)
            if claim is None or self._is_moving(instance) or self._is_moving(migration):
                return None
            held, other = self._client.allocations_of(instance), self._client.allocations_of(migration)
            if not self._took_over(claim, held, other):
                return None
            return self._context.register.step_move(MoveStep.ADOPT, self._source_move(claim, other))

    def _source_move(self, claim: Claim, migration: ConsumerAllocations) -> Move:
        return Move(
            migration.consumer,
            claim.consumer,
            MoveKind.UNKNOWN,
            MoveRole.SOURCE,
            MoveState.BEGUN,
            replace(claim, state=ClaimState.CLAIMED),
            None,
            migration.allocations,
            self._context.clock(),
            adopted=True,
        )

    def _drop_departed(self, consumer: str) -> bool:
        """Drop the claim of an instance that lives elsewhere, when no consumer holds its part of this host:
        the move was confirmed meanwhile."""
        if consumer in self._context.guests:
            LOG.warning(
                "The guest %s is still on this host, and by Placement it has moved away. Remove the guest: "
                "then the agent frees what the guest uses here.",
                consumer,
                fields={"consumer": consumer},
            )
            return False
        with self._context.turns.take(consumer):
            claim = self._context.register.claim_of(consumer)
            held = self._client.allocations_of(consumer)
            if claim is None or claim.state is not ClaimState.CLAIMED:
                return False
            if not self._lives_elsewhere(held):
                return False
            self._read_providers([(claim, held)])
            if self._may_be_reverted(claim, held):
                return False
            self._context.register.step_claim(ClaimStep.LEFT, consumer)
            return True

    def _may_be_reverted(self, claim: Claim, instance: ConsumerAllocations) -> bool:
        """Whether a consumer that may be the instance's migration may hold its part of this host."""
        holders = self._context.register.under_lock(lambda book: book.possible_holders(claim))
        guests = self._context.guests.uuids
        return any(
            may_be_migration(holder(self._client.allocations_of(consumer)), holder(instance))
            for consumer in holders
            if consumer not in guests
        )

    def _lives_elsewhere(self, held: ConsumerAllocations) -> bool:
        return bool(held.allocations) and not self._own(held.allocations)

    def _own(self, allocations: Allocations) -> Allocations:
        host = self._context.register.host
        return {uuid: amounts for uuid, amounts in allocations.items() if host.is_own(uuid)}
