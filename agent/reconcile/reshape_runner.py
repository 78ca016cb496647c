"""Carries out a reshape: proves it, records the intent, sends the one request, and learns the outcome.

    prepare -> the pass writes the staged tree -> perform; after a crash or an outage: settle

The intent is on disk before the request is sent. After an outage or a crash, `settle` reads from Placement
whether the request was executed; it is sent again only if it was not. After a conflict the runner reads the
touched providers again, and of the consumers only those whose allocations changed. Claims of other consumers
change nothing in the plan, so the request follows at once and succeeds between two of them.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import SystemRandom
from uuid import uuid4

from agent.errors import (
    ClaimConflict,
    PlacementConflict,
    PlacementError,
    PlacementUnavailable,
    ReshapeRefused,
)
from agent.moves.states import MIGRATION_TYPE
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.providers.plan import same_inventories
from agent.reconcile.desired import Desired
from agent.reconcile.known_allocations import known_allocations
from agent.reconcile.reshape_outcome import fence_and_check, was_executed
from agent.reshape.due_instructions import still_held, with_stand_ins
from agent.reshape.plan import plan_reshape, touched_providers
from agent.reshape.receipt import Receipt, make_receipt, read_slots, slots_to_json
from agent.reshape.relocate import ExactUnits
from agent.reshape.staged_tree import moving_slots, staged_tree
from agent.reshape.types import Instruction, Reshape, inventory_at, new_custom_classes
from agent.shapes import Allocations, Holders
from agent.state.journal import Journal
from agent.tracker.tracker import ResourceTracker
from agent.tracker.unanswered_writes import EXECUTED_WITHIN_S, may_still_execute
from agent.tree import ProviderTree

ATTEMPTS_MAX = 24
PAUSE_MAX_S = 0.2
REREAD_EVERY = 3
"""After so many conflicts, all moving consumers are read again."""

_JITTER = SystemRandom()


@dataclass(frozen=True, slots=True)
class Allocated:
    """What is allocated on the touched providers: {provider: generation}, {provider: its holders}.

    `consumers` {consumer: its whole allocation} are those that hold some of the inventory that moves.
    """

    generations: Mapping[str, int]
    holders: Mapping[str, Holders]
    consumers: Mapping[str, ConsumerAllocations]


@dataclass(frozen=True, slots=True)
class ProvedReshape:
    """A reshape that breaks no law, with the instructions and the allocations that it was planned from."""

    instructions: tuple[Instruction, ...]
    allocated: Allocated
    reshape: Reshape


class ReshapeRunner:
    """Carries out the reshapes of one host; the pass calls from one thread at a time."""

    def __init__(
        self,
        client: PlacementClient,
        tracker: ResourceTracker,
        journal: Journal,
        root_uuid: str,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        new_id: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        self._client = client
        self._tracker = tracker
        self._journal = journal
        self._root_uuid = root_uuid
        self._clock = clock
        self._sleep = sleep
        self._new_id = new_id
        self._in_doubt = True
        self._may_execute_until = 0.0

    # Before the request

    def prepare(self, current: ProviderTree, desired: Desired) -> ProvedReshape:
        """Plan and prove the reshape; nothing is written. Raises ReshapeRefused, PlacementError."""
        return self._plan(current, desired, self._read_allocated(current, desired, self._own_allocations()))

    def reserve_sources(self, current: ProviderTree, desired: Desired) -> ProviderTree:
        """The staged tree, with the inventory to move reserved while the reshape is pending.

        What was reserved before is journaled, so that the reshape can restore it. Raises StateError.
        """
        leaving, _ = moving_slots(desired.due)
        known = read_slots(self._journal.reserved_slots())
        slots = {slot: known[slot] if slot in known else inventory_at(current, slot) for slot in leaving}
        if slots != known:
            self._journal.remember_reserved_slots(slots_to_json(slots))
        return staged_tree(current, desired.tree, desired.due, reserve=True)

    def _own_allocations(self) -> Mapping[str, ConsumerAllocations]:
        return known_allocations(
            self._tracker.claims(), self._tracker.moves(), self._journal.reshapes(done=True)
        )

    def _read_allocated(
        self, tree: ProviderTree, desired: Desired, known: Mapping[str, ConsumerAllocations]
    ) -> Allocated:
        """A consumer in `known` is read again only if its allocations on the touched providers changed."""
        generations, holders = {}, {}
        for uuid in touched_providers(desired.due):
            if uuid in tree:
                generations[uuid], holders[uuid] = self._client.provider_allocations(uuid)
        leaving, _ = moving_slots(desired.due)
        moving = {
            consumer
            for slot in leaving
            for consumer, amounts in holders.get(slot.provider, {}).items()
            if slot.resource_class in amounts
        }
        consumers = {}
        for consumer in sorted(moving):
            allocations = known.get(consumer)
            if allocations is None or any(
                allocations.allocations.get(uuid, {}) != on_provider.get(consumer, {})
                for uuid, on_provider in holders.items()
            ):
                allocations = self._client.allocations_of(consumer)
            consumers[consumer] = allocations
        return Allocated(generations, holders, consumers)

    def _plan(self, tree: ProviderTree, desired: Desired, allocated: Allocated) -> ProvedReshape:
        held: dict[str, Allocations] = {}
        for uuid, holders in allocated.holders.items():
            for consumer, amounts in holders.items():
                held[consumer] = {**held.get(consumer, {}), uuid: amounts}
        migrations = set()
        for consumer, whole in allocated.consumers.items():
            held[consumer] = whole.allocations
            if whole.consumer_type == MIGRATION_TYPE:
                migrations.add(consumer)
        instructions = (
            *with_stand_ins(desired.moves, held, migrations),
            *still_held(desired.back, allocated.holders),
        )
        reshape = plan_reshape(tree, desired.tree, instructions, held, may_grow=not desired.back)
        return ProvedReshape(instructions, allocated, reshape)

    # The request

    def perform(
        self,
        current: ProviderTree,
        stage: ProviderTree,
        desired: Desired,
        proved: ProvedReshape,
        exact: ExactUnits,
    ) -> ProviderTree:
        """Carry out the reshape and return Placement's tree.

        `current` is Placement's tree before the pass staged it as `stage`. Raises ReshapeRefused where
        nothing was changed, PlacementConflict where another writer changed the inventories that move,
        PlacementUnavailable where the outcome may be unknown; then `settle` finds it out.
        """
        leaving, coming = moving_slots(proved.instructions)
        for resource_class in new_custom_classes(coming, current):
            self._client.ensure_resource_class(resource_class)
        receipt = self._record_intent(current, stage, desired, proved, self._new_id())
        try:
            with self._tracker.turns_on(leaving):
                receipt = self._request(current, stage, desired, proved, receipt)
                self._finish(receipt, exact)
        except (ClaimConflict, ReshapeRefused) as refusal:
            self._drop(receipt)
            if isinstance(refusal, ReshapeRefused):
                raise
            raise _postponed(refusal.message) from refusal
        return self._client.read_tree(self._root_uuid, stage)

    def _request(
        self,
        current: ProviderTree,
        stage: ProviderTree,
        desired: Desired,
        proved: ProvedReshape,
        receipt: Receipt,
    ) -> Receipt:
        """Send the request until Placement accepts it; returns the receipt of what it executed."""
        conflicts, reread = 0, False
        reread_after = int(not proved.allocated.consumers.keys().isdisjoint(self._own_allocations()))
        for _ in range(ATTEMPTS_MAX):
            known = {} if reread else proved.allocated.consumers
            allocated = self._read_allocated(stage, desired, known)
            stage = self._with_generations(stage, allocated.generations)
            if allocated.consumers != proved.allocated.consumers:
                proved = self._plan(stage, desired, allocated)
                receipt = self._record_intent(current, stage, desired, proved, receipt.id)
                reread = False
                continue  # planning and recording took time: read again before the request
            try:
                self._send(proved.reshape, allocated)
                return receipt
            except PlacementConflict:
                conflicts += 1
                # The conflict may be with a consumer's allocations on other providers, which only a read of
                # the consumer shows, or with a consumer that is not as the journal has it.
                reread = conflicts % REREAD_EVERY == reread_after
                self._sleep(_JITTER.uniform(0, min(PAUSE_MAX_S, 0.01 * 2**conflicts)))
            except PlacementUnavailable as error:
                if may_still_execute(error):
                    self._may_execute_until = self._clock() + EXECUTED_WITHIN_S
                if self._was_executed(receipt):
                    return receipt
                if not self._may_still_execute():
                    self._drop(receipt)
                raise
            except PlacementError as error:
                raise ReshapeRefused(
                    f"Placement refused the reshape, so nothing was changed: {error.message}",
                    reasons=[error.message],
                ) from error
        raise _postponed(f"others wrote to the touched providers {conflicts} times during the attempts")

    def _with_generations(self, stage: ProviderTree, generations: Mapping[str, int]) -> ProviderTree:
        """`stage` with these generations. Raises PlacementConflict where inventories changed, too."""
        for uuid, generation in generations.items():
            provider = stage[uuid]
            if provider.generation == generation:
                continue
            _, inventories = self._client.provider_inventories(uuid)
            if not same_inventories(inventories, provider.inventories):
                raise PlacementConflict(
                    f"The inventories of provider {provider.name} ({uuid}) changed while its reshape was "
                    "prepared; the agent reads the tree and plans again."
                )
            stage = stage.with_provider(replace(provider, generation=generation))
        return stage

    def _send(self, reshape: Reshape, allocated: Allocated) -> None:
        inventories = {
            uuid: (allocated.generations[uuid], wanted) for uuid, wanted in reshape.inventories.items()
        }
        writes = (
            replace(allocated.consumers[consumer], allocations=allocations)
            for consumer, allocations in reshape.allocations.items()
        )
        self._client.reshape(inventories, *writes)

    def _record_intent(
        self,
        current: ProviderTree,
        stage: ProviderTree,
        desired: Desired,
        proved: ProvedReshape,
        receipt_id: str,
    ) -> Receipt:
        originals = read_slots(self._journal.reserved_slots())
        receipt = make_receipt(
            receipt_id,
            self._clock(),
            (current, stage, desired.tree),
            proved.instructions,
            proved.reshape,
            {slot: inventory for slot, inventory in originals.items() if inventory is not None},
            desired.undoes,
        )
        self._in_doubt = True
        self._journal.put_reshape(receipt).wait()
        return receipt

    def _finish(self, receipt: Receipt, exact: ExactUnits) -> None:
        self._tracker.relocate(receipt, exact)
        if self._journal.reserved_slots():
            self._journal.remember_reserved_slots([])
        self._in_doubt = False

    def _drop(self, receipt: Receipt) -> None:
        self._journal.drop_reshape(receipt.id).wait()
        self._in_doubt = False

    # After an interruption

    def settle(self, exact: ExactUnits) -> bool:
        """End the reshapes whose outcome is unknown; returns whether Placement had executed one.

        Raises PlacementError, StateError where the outcome is still unknown.
        """
        if not self._in_doubt:
            return False
        executed = False
        for receipt in self._journal.reshapes(done=False).values():
            if self._was_executed(receipt):
                with self._tracker.turns_on({relocation.slots[0] for relocation in receipt.relocations}):
                    self._finish(receipt, exact)
                executed = True
            elif self._may_still_execute():
                raise PlacementUnavailable(
                    "Placement did not answer a reshape in time and may still execute it: the agent sends no "
                    f"other request for up to {EXECUTED_WITHIN_S:g} s."
                )
            else:
                self._drop(receipt)
        self._in_doubt = False
        return executed

    def _was_executed(self, receipt: Receipt) -> bool:
        """Whether Placement executed the request; False is final unless it may still execute it."""
        if was_executed(self._client, self._root_uuid, receipt):
            return True
        return not self._may_still_execute() and fence_and_check(self._client, self._root_uuid, receipt)

    def _may_still_execute(self) -> bool:
        return 0 < self._may_execute_until - self._clock() <= EXECUTED_WITHIN_S  # the clock may be set back


def _postponed(why: str) -> ReshapeRefused:
    return ReshapeRefused(
        f"The reshape is postponed, {why.rstrip('.')}; nothing was changed, and the agent tries again.",
        reasons=[why],
    )
