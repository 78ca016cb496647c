"""The reshape in the pass: what is due, what stands in its way, the one request, and what became of it.

    goal -> prepare (reads, proves) -> the pass stages the tree -> perform (journals, asks once) -> finish

Before anything is asked the intent is on disk. Whatever happens then, `settle` reads what placement holds and
knows whether it was done; it is asked again only if it was not. A conflict reads again who holds what on the
touched providers, and those consumers alone that changed there; unrelated claims change nothing of the plan,
so the request follows at once, and gets through between two of them.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from random import SystemRandom
from typing import Protocol
from uuid import uuid4

from agent.claims.claim import Claim
from agent.driver import Description, Guest, MoveInstruction
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
from agent.providers.resolve import OwnedProviders, ResolvedDescription
from agent.reconcile.reshape_outcome import done_after_all, expected, put_off, refused, was_done
from agent.reconcile.undone_reshapes import ReshapeStore, UndoneReshapes
from agent.reshape.numa_shares import located
from agent.reshape.parking import parked
from agent.reshape.plan import plan_reshape, touched
from agent.reshape.receipt import Receipt, make_receipt, read_slots, slots_to_json
from agent.reshape.stage import due_moves, moving_slots, staged, still_held, with_stand_ins, without_sources
from agent.reshape.types import Instruction, Reshape, instructions, inventory_at, new_classes
from agent.shapes import Allocations, Holders, Units
from agent.tracker.late_answers import LATE_S, may_come_late
from agent.tree import ProviderTree

ROUNDS_MAX = 24
PAUSE_MAX_S = 0.2
SUSPECT_EVERY = 3

Sight = tuple[dict[str, int], dict[str, Holders], dict[str, ConsumerAllocations]]
"""({provider: generation}, {provider: {consumer: {class: amount}}}, {mover: all that it holds})"""
_JITTER = SystemRandom()


class Tracker(Protocol):
    """The one whose claims must follow."""

    def claims(self) -> Mapping[str, Claim]: ...

    def moves(self) -> Mapping[str, states.Move]: ...

    def standing(self, slots: Collection[tuple[str, str]]) -> AbstractContextManager[None]: ...

    def follow(self, receipt: Receipt, units: Units, guests: Collection[Guest]) -> None: ...


@dataclass(frozen=True, slots=True)
class Exact:
    """The exact units that the driver offers, and the guests that use some."""

    units: Units
    guests: Collection[Guest]


@dataclass(frozen=True, slots=True)
class Goal:
    """`tree` is what the pass shall reach, with what is withheld as it was; `owned` what is ours in it;
    `told` are sentences on what is withheld, `parked` on what is parked.

    `moves` are due by the driver's word, `back` by an operator's, who undid the receipt `undoes`.
    """

    tree: ProviderTree
    owned: OwnedProviders
    moves: tuple[MoveInstruction, ...] = ()
    back: tuple[MoveInstruction, ...] = ()
    undoes: str | None = None
    told: tuple[str, ...] = ()
    parked: tuple[str, ...] = ()

    @property
    def due(self) -> tuple[MoveInstruction, ...]:
        return (*self.moves, *self.back)


@dataclass(frozen=True, slots=True)
class ProvedReshape:
    """A reshape that is proved: what was seen, and what follows from it.

    `generations` {provider uuid: generation}; `consumers` are those that hold something of what moves.
    """

    told: tuple[Instruction, ...]
    generations: Mapping[str, int]
    consumers: Mapping[str, ConsumerAllocations]
    reshape: Reshape


class ReshapeRunner:
    """One for each pass' runner, which calls from one thread at a time."""

    def __init__(
        self,
        client: PlacementClient,
        tracker: Tracker,
        book: ReshapeStore,
        root: str,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        new_id: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        self._client = client
        self._tracker = tracker
        self._book = book
        self.undone = UndoneReshapes(book)
        self._root = root
        self._clock = clock
        self._sleep = sleep
        self._new_id = new_id
        self._in_doubt = True
        self._late_until = 0.0

    # What is due

    def goal(
        self,
        description: Description,
        current: ProviderTree,
        resolved: ResolvedDescription,
        withheld: Sequence[str] | None = None,
    ) -> Goal:
        """What the pass shall reach, and what must be reshaped for it.

        `withheld` are receipts' ids, those that are withheld unless others are given. Raises ReshapeRefused
        for an instruction that makes no sense; PlacementError.
        """
        description = located(description, self._tracker.claims(), self._tracker.moves())
        kept = self.undone.of(self.undone.ids() if withheld is None else withheld)
        if not description.moves and not kept.receipts:
            return Goal(resolved.tree, resolved.owned)
        described = {each.name: each.inventories for each in description.providers}
        tree = without_sources(resolved.tree, described, description.moves)
        tree = kept.restored(tree, current, description)
        owned = resolved.owned | kept.owned()
        moves, back = kept.moves(description), kept.back()
        held = self._held_on_sources((*moves, *back), current, tree)
        parking = parked(moves, described, current, tree, held)
        back = due_moves(still_held(back, held, current), current, parking.tree, held)
        return Goal(
            parking.tree,
            (owned | parking.owned).within(parking.tree),
            due_moves(parking.moves, current, parking.tree, held),
            back,
            kept.undone_by(back),
            kept.told(),
            parking.told,
        )

    def _held_on_sources(
        self, moves: Iterable[MoveInstruction], current: ProviderTree, desired: ProviderTree
    ) -> dict[str, Holders]:
        """Who holds what on both ends of the moves whose source still has something of what moves."""
        ends: set[str] = set()
        for move in moves:
            source = current.by_name(move.from_resource_provider)
            if source is None or not source.inventories.keys() & move.moved_resources.keys():
                continue
            ends.add(source.uuid)
            target = desired.by_name(move.to_resource_provider)
            if target is not None and target.uuid in current:
                ends.add(target.uuid)
        return {uuid: self._client.provider_allocations(uuid).consumers for uuid in sorted(ends)}

    # Before: read and prove

    def prepare(self, current: ProviderTree, goal: Goal) -> ProvedReshape:
        """What would be asked, proved; nothing is written. Raises ReshapeRefused, PlacementError."""
        return self._planned(current, goal, self._look(current, goal, self._journaled()))

    def _journaled(self) -> Mapping[str, ConsumerAllocations]:
        return expected(self._tracker.claims(), self._tracker.moves(), self._book.reshapes(done=True))

    def _look(self, tree: ProviderTree, goal: Goal, known: Mapping[str, ConsumerAllocations]) -> Sight:
        """Generations, who holds what on the touched providers, and all that the movers hold.

        Of `known` movers only those are read again that hold something else on these providers by now.
        """
        told = instructions(goal.due, tree, goal.tree)
        generations, held = {}, {}
        for uuid in touched(told):
            if uuid in tree:
                generations[uuid], held[uuid] = self._client.provider_allocations(uuid)
        leaving, _ = moving_slots(told)
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

    def _planned(self, tree: ProviderTree, goal: Goal, seen: Sight) -> ProvedReshape:
        generations, held, consumers = seen
        holdings: dict[str, Allocations] = {}
        for uuid, there in held.items():
            for who, amounts in there.items():
                holdings[who] = {**holdings.get(who, {}), uuid: amounts}
        holdings |= {who: each.allocations for who, each in consumers.items()}
        migrations = {who for who, each in consumers.items() if each.consumer_type == states.MIGRATION_TYPE}
        moves = (
            *with_stand_ins(instructions(goal.moves, tree, goal.tree), holdings, migrations),
            *still_held(goal.back, held, tree),
        )
        reshape = plan_reshape(tree, goal.tree, moves, holdings, may_grow=not goal.back)
        return ProvedReshape(instructions(moves, tree, goal.tree), generations, consumers, reshape)

    # The one request

    def perform(
        self, current: ProviderTree, stage: ProviderTree, goal: Goal, step: ProvedReshape, exact: Exact
    ) -> ProviderTree:
        """Do it, once; the tree as placement then has it. `current` is the tree before it was staged.

        Raises ReshapeRefused: nothing of it was done. PlacementConflict: somebody changed the inventories
        that are to move, plan anew. PlacementUnavailable: not done, or not known; then `settle` will know.
        """
        leaving, coming = moving_slots(step.told)
        for name in new_classes(coming, current):
            self._client.ensure_resource_class(name)
        receipt = self._intend(current, stage, goal, step, self._new_id())
        try:
            with self._tracker.standing(leaving):
                receipt = self._get_through(current, stage, goal, step, receipt)
                self._finish(receipt, exact)
        except (ClaimConflict, ReshapeRefused) as refusal:
            self._forget(receipt)
            if isinstance(refusal, ReshapeRefused):
                raise
            raise put_off(refusal.message) from refusal
        return self._client.read_tree(self._root, stage)

    def _get_through(
        self, current: ProviderTree, stage: ProviderTree, goal: Goal, step: ProvedReshape, receipt: Receipt
    ) -> Receipt:
        conflicts, doubted = 0, False
        believed = int(not step.consumers.keys().isdisjoint(self._journaled()))
        for _ in range(ROUNDS_MAX):
            seen = self._look(stage, goal, {} if doubted else step.consumers)
            stage = self._same_inventories(stage, seen[0])
            if seen[2] != step.consumers:
                step = self._planned(stage, goal, seen)
                receipt = self._intend(current, stage, goal, step, receipt.id)
                doubted = False
                continue  # that took its time: look once more whether it still stands
            try:
                self._ask(step.reshape, seen[0], step.consumers)
                return receipt
            except PlacementConflict:
                conflicts += 1
                # Nobody can see which consumer is in conflict where only what it holds elsewhere has changed,
                # and what the journal said of our own may be out of date.
                doubted = conflicts % SUSPECT_EVERY == believed
                self._sleep(_JITTER.uniform(0, min(PAUSE_MAX_S, 0.01 * 2**conflicts)))
            except PlacementUnavailable as silence:
                if may_come_late(silence):
                    self._late_until = self._clock() + LATE_S
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
        self, current: ProviderTree, stage: ProviderTree, goal: Goal, step: ProvedReshape, receipt_id: str
    ) -> Receipt:
        originals = read_slots(self._book.reserved_slots())
        receipt = make_receipt(
            receipt_id,
            self._clock(),
            (current, stage, goal.tree),
            step.told,
            step.reshape,
            {slot: inventory for slot, inventory in originals.items() if inventory is not None},
            goal.undoes,
        )
        self._in_doubt = True
        self._book.put_reshape(receipt).wait()
        return receipt

    def _finish(self, receipt: Receipt, exact: Exact) -> None:
        self._tracker.follow(receipt, exact.units, exact.guests)
        if self._book.reserved_slots():
            self._book.remember_reserved_slots([])
        self._in_doubt = False

    def _forget(self, receipt: Receipt) -> None:
        self._book.drop_reshape(receipt.id).wait()
        self._in_doubt = False

    # After: what became of it

    def settle(self, exact: Exact) -> bool:
        """Learn what became of a reshape that was interrupted, and finish or forget it. True: it was done.

        Raises PlacementError, StateError: it is still not known.
        """
        if not self._in_doubt:
            return False
        finished = False
        for receipt in self._book.reshapes(done=False).values():
            if self._was_done(receipt):
                with self._tracker.standing({each.slots[0] for each in receipt.relocations}):
                    self._finish(receipt, exact)
                finished = True
            elif self._may_come_late():
                raise PlacementUnavailable(
                    "Placement did not answer a reshape in time and may still be at it: nothing else is "
                    f"asked of it for up to {LATE_S:g} s."
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
        return 0 < self._late_until - self._clock() <= LATE_S  # a clock may be set back

    # While it is pending

    def reserved(self, current: ProviderTree, goal: Goal) -> ProviderTree:
        """The tree as it stays while the reshape cannot be done. Raises StateError."""
        stage = staged(current, goal.tree, goal.due, reserve=True)
        leaving, _ = moving_slots(instructions(goal.due, current, goal.tree))
        known = read_slots(self._book.reserved_slots())
        slots = {slot: known[slot] if slot in known else inventory_at(current, slot) for slot in leaving}
        if slots != known:
            self._book.remember_reserved_slots(slots_to_json(slots))
        return stage
