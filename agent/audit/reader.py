"""Reads what the audit compares, and judges one consumer or one move while nothing else changes it.

No request is made under the tracker's lock.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from agent.audit.cases import ConsumerCase, MoveCase, RowCase
from agent.audit.finding import Finding
from agent.audit.findings import judge_consumer, judge_move, judge_row
from agent.audit.observation import Observation
from agent.claims.claim import Claim, ClaimState
from agent.claims.fit import ProviderIndex
from agent.driver import Guest
from agent.errors import ClaimConflict, PlacementError
from agent.moves.ownership import may_be_migration
from agent.moves.states import MIGRATION_TYPE, Move
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.providers.unclaimed import without_reservations
from agent.reshape.laws import Instruction
from agent.shapes import Allocations
from agent.tracker.tracker import ResourceTracker
from agent.tree import ProviderTree


class AuditReader:
    """Reads the driver, the agent's claims and moves, and Placement.

    `root` is the uuid of the host's root provider. `guests` asks the driver. `devices` returns {provider
    uuid: device}. `known_tree` returns the tree as it was read last, which makes reading it again cheaper.
    `leads` returns the driver's move instructions.
    """

    def __init__(
        self,
        tracker: ResourceTracker,
        client: PlacementClient,
        root: str,
        guests: Callable[[], tuple[Guest, ...]],
        devices: Callable[[], Mapping[str, str]],
        known_tree: Callable[[], ProviderTree | None],
        leads: Callable[[], Sequence[Instruction]] = tuple,
    ) -> None:
        self._tracker = tracker
        self._client = client
        self._root = root
        self._guests = guests
        self._devices = devices
        self._known_tree = known_tree
        self._leads = leads

    def observe(self) -> Observation:
        """Read the host once. Raises DriverError, PlacementError, StateError."""
        guests = self._guests()
        with self._tracker.reading() as reading:
            tree, allocations = self._client.read_tree_with(
                self._root, self._known_tree(), self._client.provider_allocations
            )
            if self._root not in tree and self._tracker.claims():
                raise PlacementError(
                    f"Placement has no provider of this host ({self._root}), and the agent has claims: its "
                    "database was lost or replaced. Nothing was compared; `plimsoll status` has the remedy."
                )
            holders = {uuid: each.consumers for uuid, each in allocations.items()}
            self._tracker.observe(holders, reading)  # what somebody deleted raised no generation
        known = self._tracker.snapshot()
        _, cells = self._tracker.host_and_cells()
        shared = [provider for provider in known.host.tree if not known.host.is_own(provider.uuid)]
        with_shared = ProviderTree([*tree, *(provider for provider in shared if provider.uuid not in tree)])
        observation = Observation(
            host=replace(ProviderIndex.of(with_shared, self._root), caps=known.host.caps),
            unreserved=ProviderIndex.of(without_reservations(with_shared, known.host.tree), self._root),
            unclaimed=self._tracker.unclaimed(),
            moved_away=self._tracker.circumstances().moved_away,
            guests={guest.uuid: guest for guest in guests},
            claims=known.claims,
            moves=known.moves,
            whereabouts=self._tracker.whereabouts(),
            leads=self._leads(),
            lost=self._tracker.note_lost(),
            holders=holders,
            devices={device: uuid for uuid, device in self._devices().items()},
            offered=known.offered,
            cells=cells,
            shared={
                consumer: {uuid: amounts for uuid, amounts in held.items() if not known.host.is_own(uuid)}
                for consumer, held in known.others.items()
            },
            ages={consumer: self._tracker.age_s(claim.since) for consumer, claim in known.claims.items()},
            unhealthy=self._tracker.cordons.unhealthy(),
            found=self._tracker.found_guests(),
            left=self._tracker.departed(),
        )
        observation = replace(observation, elsewhere=self._elsewhere(observation))
        return replace(observation, types=self._types(observation))

    def _elsewhere(self, observation: Observation) -> Mapping[str, Allocations]:
        """Read what the instances have whose claims have no allocation here, if another consumer may have it.

        Raises PlacementError.
        """
        known = observation.claims.keys() | observation.guests.keys() | observation.consumers_in_moves
        if observation.consumers <= known:
            return {}
        instances = observation.instances
        lost = {instances.get(claim.consumer, claim.consumer) for claim in observation.lost_claims()}
        held = {instance: self._client.allocations_of(instance).allocations for instance in sorted(lost)}
        return {
            instance: allocations
            for instance, allocations in held.items()
            if allocations and not any(map(observation.host.is_own, allocations))
        }

    def _types(self, observation: Observation) -> Mapping[str, str]:
        """Read the types of the consumers that may hold the place of an instance that is elsewhere.

        Raises PlacementError.
        """
        if not observation.elsewhere:
            return {}
        known = observation.claims.keys() | observation.guests.keys() | observation.consumers_in_moves
        return {
            consumer: self._client.allocations_of(consumer).consumer_type
            for consumer in sorted(observation.consumers - known)
        }

    def guests_now(self) -> frozenset[str]:
        """The uuids of the guests that the driver has now. Raises DriverError."""
        return frozenset(guest.uuid for guest in self._guests())

    def judge_row(self, observation: Observation, instance: str) -> tuple[Finding, ...]:
        """Judge the instance's row; none while an operation on one of its consumers is under way.

        Raises StateError.
        """
        moving = {move.instance: move.migration for move in observation.moves if not move.ended}
        turns = (
            self._tracker.turns(instance, moving[instance])
            if instance in moving
            else self._tracker.turn(instance)
        )
        try:
            with turns:
                return self.judge_row_alone(observation, instance)
        except ClaimConflict:
            return ()

    def judge_row_alone(self, observation: Observation, instance: str) -> tuple[Finding, ...]:
        """The same for a caller that has the turns of the row's consumers. Raises StateError."""
        known = self._tracker.snapshot()
        present = replace(observation, claims=known.claims, moves=known.moves)
        return tuple(judge_row(RowCase.of(present, instance)))

    def judge_consumer(self, observation: Observation, consumer: str) -> Finding | None:
        """Judge the consumer; None also while an operation on it is under way.

        Raises PlacementError, StateError.
        """
        try:
            with self._tracker.turn(consumer):
                return self.judge_consumer_alone(observation, consumer)
        except ClaimConflict:
            return None

    def judge_consumer_alone(self, observation: Observation, consumer: str) -> Finding | None:
        """The same for a caller that has the consumer's turn. Raises PlacementError, StateError."""
        known = self._tracker.snapshot()
        placed = self._client.allocations_of(consumer)
        departed = self._departed(observation, placed, known.claims)
        present = replace(
            observation,
            claims=known.claims,
            moves=known.moves,
            settling=self._tracker.settling(),
            departed=departed,
            migrations=self._migrations(observation, placed, known.claims),
        )
        ended = observation.claims.keys() - known.claims.keys()
        return judge_consumer(ConsumerCase.of(present.without(ended), placed))

    def _departed(
        self, observation: Observation, placed: ConsumerAllocations, claims: Mapping[str, Claim]
    ) -> Mapping[str, ConsumerAllocations]:
        """The guests whose place here the consumer may hold, as a migration that a control plane made.

        They have no allocation here, and no claim but one that is not granted yet. Read after the consumer:
        then its migration is over if its instance is back. Raises PlacementError.
        """
        consumer = placed.consumer
        if consumer in claims or consumer in observation.guests:
            return {}
        here = {name for amounts in observation.own_part(placed.allocations).values() for name in amounts}
        if not here or not may_be_migration(placed.consumer_type):
            return {}
        granted = {uuid for uuid, claim in claims.items() if claim.state is not ClaimState.CLAIMING}
        return {
            uuid: self._client.allocations_of(uuid)
            for uuid, guest in observation.guests.items()
            if uuid not in granted and uuid not in observation.consumers and here & guest.resources.keys()
        }

    def _migrations(
        self, observation: Observation, placed: ConsumerAllocations, claims: Mapping[str, Claim]
    ) -> int:
        """How many migrations the owner of a consumer has that only Placement knows. Raises PlacementError.

        Which of them is of which instance Placement does not say.
        """
        here = claims.keys() | observation.guests.keys() | observation.consumers_in_moves
        is_migration = placed.consumer_type == MIGRATION_TYPE
        if placed.consumer in here or is_migration or not observation.own_part(placed.allocations):
            return 0
        return self._client.count_consumers(MIGRATION_TYPE, placed.project_id, placed.user_id)

    def judge_move(self, observation: Observation, move: Move) -> Finding | None:
        """Judge the move; None also while an operation on it is under way.

        Raises PlacementError, StateError.
        """
        try:
            with self._tracker.turns(move.instance, move.migration):
                present = self._tracker.moves().get(move.migration)
                if present is None or present.instance != move.instance:
                    return None
                instance = self._client.allocations_of(move.instance)
                migration = self._client.allocations_of(move.migration)
                return judge_move(MoveCase(observation, present, instance, migration))
        except ClaimConflict:
            return None
