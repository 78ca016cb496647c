"""The reshape in the pass: what is due, what stands in its way, the one request, and what became of it.

    desired -> prepare (reads, proves) -> the pass stages the tree -> perform (journals, asks once) -> finish

Before anything is asked the intent is on disk. Whatever happens then, `settle` reads what placement holds and
knows whether it was done; it is asked again only if it was not. A conflict reads again who holds what on the
touched providers, and those consumers alone that changed there; unrelated claims change nothing of the plan,
so the request follows at once, and gets through between two of them.
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
from agent.moves import states
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.providers.plan import same_inventories
from agent.reconcile.desired import Desired
from agent.reconcile.reshape_outcome import done_after_all, expected, put_off, refused, was_done
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

ROUNDS_MAX = 24
PAUSE_MAX_S = 0.2
SUSPECT_EVERY = 3

Sight = tuple[dict[str, int], dict[str, Holders], dict[str, ConsumerAllocations]]
"""({provider: generation}, {provider: {consumer: {class: amount}}}, {mover: all that it holds})"""
_JITTER = SystemRandom()


@dataclass(frozen=True, slots=True)
class ProvedReshape:
    """A reshape that is proved: what was seen, and what follows from it.

    `generations` {provider uuid: generation}; `consumers` are those that hold something of what moves.
    """

    instructions: tuple[Instruction, ...]
    generations: Mapping[str, int]
    consumers: Mapping[str, ConsumerAllocations]
    reshape: Reshape


class ReshapeRunner:
    """One for each pass' runner, which calls from one thread at a time."""

    def __init__(
        self,
        client: PlacementClient,
        tracker: ResourceTracker,
        journal: Journal,
        root: str,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        new_id: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        self._client = client
        self._tracker = tracker
        self._journal = journal
        self._root = root
        self._clock = clock
        self._sleep = sleep
        self._new_id = new_id
        self._in_doubt = True
        self._late_until = 0.0

    # Before: read and prove

    def prepare(self, current: ProviderTree, desired: Desired) -> ProvedReshape:
        """What would be asked, proved; nothing is written. Raises ReshapeRefused, PlacementError."""
        return self._planned(current, desired, self._look(current, desired, self._own_allocations()))

    def _own_allocations(self) -> Mapping[str, ConsumerAllocations]:
        return expected(self._tracker.claims(), self._tracker.moves(), self._journal.reshapes(done=True))

    def _look(self, tree: ProviderTree, desired: Desired, known: Mapping[str, ConsumerAllocations]) -> Sight:
        """Generations, who holds what on the touched providers, and all that the movers hold.

        Of `known` movers only those are read again that hold something else on these providers by now.
        """
        generations, held = {}, {}
        for uuid in touched_providers(desired.due):
            if uuid in tree:
                generations[uuid], held[uuid] = self._client.provider_allocations(uuid)
        leaving, _ = moving_slots(desired.due)
        movers = {
            who
            for slot in leaving
            for who, amounts in held.get(slot.provider, {}).items()
            if slot.resource_class in amounts
        }
        consumers = {}
        for who in sorted(movers):
            before = known.get(who)
            if before is None or any(
                before.allocations.get(uuid, {}) != there.get(who, {}) for uuid, there in held.items()
            ):
                before = self._client.allocations_of(who)
            consumers[who] = before
        return generations, held, consumers

    def _planned(self, tree: ProviderTree, desired: Desired, seen: Sight) -> ProvedReshape:
        generations, held, consumers = seen
        holdings: dict[str, Allocations] = {}
        for uuid, there in held.items():
            for who, amounts in there.items():
                holdings[who] = {**holdings.get(who, {}), uuid: amounts}
        holdings |= {who: each.allocations for who, each in consumers.items()}
        migrations = {who for who, each in consumers.items() if each.consumer_type == states.MIGRATION_TYPE}
        instructions = (
            *with_stand_ins(desired.moves, holdings, migrations),
            *still_held(desired.back, held),
        )
        reshape = plan_reshape(tree, desired.tree, instructions, holdings, may_grow=not desired.back)
        return ProvedReshape(instructions, generations, consumers, reshape)

    # The one request

    def perform(
        self,
        current: ProviderTree,
        stage: ProviderTree,
        desired: Desired,
        proved: ProvedReshape,
        exact: ExactUnits,
    ) -> ProviderTree:
        """Do it, once; the tree as placement then has it. `current` is the tree before it was staged.

        Raises ReshapeRefused: nothing of it was done. PlacementConflict: somebody changed the inventories
        that are to move, plan anew. PlacementUnavailable: not done, or not known; then `settle` will know.
        """
        leaving, coming = moving_slots(proved.instructions)
        for name in new_custom_classes(coming, current):
            self._client.ensure_resource_class(name)
        receipt = self._intend(current, stage, desired, proved, self._new_id())
        try:
            with self._tracker.turns_on(leaving):
                receipt = self._get_through(current, stage, desired, proved, receipt)
                self._finish(receipt, exact)
        except (ClaimConflict, ReshapeRefused) as refusal:
            self._forget(receipt)
            if isinstance(refusal, ReshapeRefused):
                raise
            raise put_off(refusal.message) from refusal
        return self._client.read_tree(self._root, stage)

    def _get_through(
        self,
        current: ProviderTree,
        stage: ProviderTree,
        desired: Desired,
        proved: ProvedReshape,
        receipt: Receipt,
    ) -> Receipt:
        conflicts, doubted = 0, False
        believed = int(not proved.consumers.keys().isdisjoint(self._own_allocations()))
        for _ in range(ROUNDS_MAX):
            seen = self._look(stage, desired, {} if doubted else proved.consumers)
            stage = self._same_inventories(stage, seen[0])
            if seen[2] != proved.consumers:
                proved = self._planned(stage, desired, seen)
                receipt = self._intend(current, stage, desired, proved, receipt.id)
                doubted = False
                continue  # that took its time: look once more whether it still stands
            try:
                self._ask(proved.reshape, seen[0], proved.consumers)
                return receipt
            except PlacementConflict:
                conflicts += 1
                # Nobody can see which consumer is in conflict where only what it holds elsewhere has changed,
                # and what the journal said of our own may be out of date.
                doubted = conflicts % SUSPECT_EVERY == believed
                self._sleep(_JITTER.uniform(0, min(PAUSE_MAX_S, 0.01 * 2**conflicts)))
            except PlacementUnavailable as silence:
                if may_still_execute(silence):
                    self._late_until = self._clock() + EXECUTED_WITHIN_S
                if self._was_done(receipt):
                    return receipt
                if not self._may_come_late():
                    self._forget(receipt)
                raise
            except PlacementError as error:
                raise refused(error) from error
        raise put_off(f"others wrote to the touched providers {conflicts} times while it was being asked for")

    def _same_inventories(self, stage: ProviderTree, generations: Mapping[str, int]) -> ProviderTree:
        """`stage` with these generations. Raises PlacementConflict where the inventories changed, too."""
        for uuid, generation in generations.items():
            provider = stage[uuid]
            if provider.generation == generation:
                continue
            _, inventories = self._client.provider_inventories(uuid)
            if not same_inventories(inventories, provider.inventories):
                raise PlacementConflict(
                    f"Somebody changed the inventories of provider {provider.name} ({uuid}), which is to be "
                    "reshaped: read the tree and plan again."
                )
            stage = stage.with_provider(replace(provider, generation=generation))
        return stage

    def _ask(
        self, reshape: Reshape, generations: Mapping[str, int], consumers: Mapping[str, ConsumerAllocations]
    ) -> None:
        offers = {uuid: (generations[uuid], wanted) for uuid, wanted in reshape.inventories.items()}
        writes = (
            replace(consumers[who], allocations=allocations)
            for who, allocations in reshape.allocations.items()
        )
        self._client.reshape(offers, *writes)

    def _intend(
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

    def _forget(self, receipt: Receipt) -> None:
        self._journal.drop_reshape(receipt.id).wait()
        self._in_doubt = False

    # After: what became of it

    def settle(self, exact: ExactUnits) -> bool:
        """Learn what became of a reshape that was interrupted, and finish or forget it. True: it was done.

        Raises PlacementError, StateError: it is still not known.
        """
        if not self._in_doubt:
            return False
        finished = False
        for receipt in self._journal.reshapes(done=False).values():
            if self._was_done(receipt):
                with self._tracker.turns_on({each.slots[0] for each in receipt.relocations}):
                    self._finish(receipt, exact)
                finished = True
            elif self._may_come_late():
                raise PlacementUnavailable(
                    "Placement did not answer a reshape in time and may still be at it: nothing else is "
                    f"asked of it for up to {EXECUTED_WITHIN_S:g} s."
                )
            else:
                self._forget(receipt)
        self._in_doubt = False
        return finished

    def _was_done(self, receipt: Receipt) -> bool:
        """Whether it was done; if not, and if it may not come late, it never will be."""
        known = was_done(self._client, self._root, receipt)
        return known or (not self._may_come_late() and done_after_all(self._client, self._root, receipt))

    def _may_come_late(self) -> bool:
        return 0 < self._late_until - self._clock() <= EXECUTED_WITHIN_S  # a clock may be set back

    # While it is pending

    def reserved(self, current: ProviderTree, desired: Desired) -> ProviderTree:
        """The tree as it stays while the reshape cannot be done. Raises StateError."""
        stage = staged_tree(current, desired.tree, desired.due, reserve=True)
        leaving, _ = moving_slots(desired.due)
        known = read_slots(self._journal.reserved_slots())
        slots = {slot: known[slot] if slot in known else inventory_at(current, slot) for slot in leaving}
        if slots != known:
            self._journal.remember_reserved_slots(slots_to_json(slots))
        return stage
