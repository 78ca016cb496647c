"""What a finding is judged from: one consumer, or one move, with everything that is known about it. Pure.

Each case is one frozen value, so that a judgement is a function of it alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent.audit.observation import Observation
from agent.claims.claim import Claim, ClaimState
from agent.driver import Guest
from agent.moves.ownership import SplitAllocations, split_allocations
from agent.moves.states import MIGRATION_TYPE, Move
from agent.placement.client import ConsumerAllocations
from agent.shapes import Allocations


@dataclass(frozen=True, slots=True)
class ConsumerCase:
    """One consumer, which no operation of the agent changes while it is judged.

    `placed` is everything that Placement has for it, on any host, read after the observation. `parts` divides
    that into this host's providers, the providers shared with it, and those elsewhere.
    """

    observation: Observation
    placed: ConsumerAllocations
    parts: SplitAllocations

    @classmethod
    def of(cls, observation: Observation, placed: ConsumerAllocations) -> "ConsumerCase":
        """The case of the consumer that `placed` names."""
        claim = observation.claims.get(placed.consumer)
        claimed_on = claim.allocations.keys() if claim else ()
        shared = {*(provider.uuid for provider in observation.host.providers), *claimed_on}
        return cls(
            observation,
            placed,
            split_allocations(placed.allocations, observation.host.is_own, shared.__contains__),
        )

    @property
    def consumer(self) -> str:
        """The consumer's uuid."""
        return self.placed.consumer

    @property
    def claim(self) -> Claim | None:
        """The consumer's claim on this host."""
        return self.observation.claims.get(self.consumer)

    @property
    def guest(self) -> Guest | None:
        """The consumer's guest on this host."""
        return self.observation.guests.get(self.consumer)

    @property
    def move(self) -> Move | None:
        """The move whose migration the consumer is, if the agent knows it."""
        return next((move for move in self.observation.moves if move.migration == self.consumer), None)

    @property
    def is_migration(self) -> bool:
        """Whether the consumer is a migration, without a guest and a claim of its own."""
        if self.claim is not None or self.guest is not None:
            return False
        return self.move is not None or self.placed.consumer_type == MIGRATION_TYPE

    @property
    def claimed_otherwise(self) -> Allocations | None:
        """The allocations of the claim, where Placement has others on this host.

        None: they agree, or Placement has none on this host, because the consumer has moved away.
        """
        if self.claim is None or not self.parts.here or self._placed_here == self._claimed:
            return None
        return self._claimed

    @property
    def is_on_other_providers(self) -> bool:
        """Whether the claim and Placement name different providers."""
        return self._placed_here.keys() != self._claimed.keys()

    @property
    def remainder(self) -> Allocations:
        """The allocations without those on this host; shared providers stay only with those elsewhere."""
        if not self.parts.elsewhere:
            return {}
        return {**self.parts.shared, **self.parts.elsewhere}

    @property
    def is_comparable(self) -> bool:
        """Whether a difference means anything.

        False while the consumer moves; without a claim also where its guest could not be read, and for an
        allocation that a claim of this host may have handed to it in a move. A judgement that uses the state
        of a claimed guest must check `guest.problem` itself.
        """
        if self.consumer in self.observation.consumers_in_moves:
            return False
        if self.claim is not None:
            return True
        if self.guest is not None:
            return self.guest.problem is None
        return bool(self.parts.here) and not self._may_be_a_move()

    @property
    def evidence(self) -> Mapping[str, Any]:
        """What the three sources show, JSON-ready."""
        return {
            "guest": dict(self.guest.resources) if self.guest else None,
            "claim": _copy(self.claim.allocations) if self.claim else None,
            "placement": _copy(self.placed.allocations),
            "generation": self.placed.generation,
        }

    @property
    def _placed_here(self) -> Allocations:
        return {**self.parts.here, **self.parts.shared}

    @property
    def _claimed(self) -> Allocations:
        allocations = self.claim.allocations if self.claim else {}
        return {uuid: amounts for uuid, amounts in allocations.items() if amounts}

    def _may_be_a_move(self) -> bool:
        """Whether a claim that has no allocation here any more may have handed it to this consumer."""
        moving = self.observation.consumers_in_moves
        return any(
            self._may_come_from(claim, in_a_move=claim.consumer in moving)
            for claim in self.observation.claims.values()
            if not self.observation.allocations_here(claim.consumer)
        )

    def _may_come_from(self, claim: Claim, *, in_a_move: bool) -> bool:
        """A claim that is in doubt or on its way out may have moved, too: then the amounts are the same."""
        placed = self.parts.here
        if claim.state is not ClaimState.CLAIMED:
            return not in_a_move and self.observation.own_part(claim.allocations) == placed
        return any(
            name in amounts for uuid, amounts in claim.allocations.items() for name in placed.get(uuid, ())
        )


@dataclass(frozen=True, slots=True)
class MoveCase:
    """One move, whose two consumers no operation of the agent changes while it is judged.

    `instance` and `migration` are everything that Placement has for the two.
    """

    observation: Observation
    move: Move
    instance: ConsumerAllocations
    migration: ConsumerAllocations

    @property
    def evidence(self) -> Mapping[str, Any]:
        """What the agent and Placement show, JSON-ready."""
        return {
            "move": f"{self.move.kind}, {self.move.role}, {self.move.state}",
            "instance": self.move.instance,
            "placement": {
                placed.consumer: _copy(placed.allocations) for placed in (self.instance, self.migration)
            },
            "generation": self.migration.generation,
        }


def _copy(allocations: Allocations) -> dict[str, dict[str, int]]:
    return {uuid: dict(amounts) for uuid, amounts in allocations.items()}
