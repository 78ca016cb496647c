"""Carries out a reshape: proves it, records the intent, sends the one request, and learns the outcome.

    prepare -> the pass writes the staged tree -> perform; after a crash or an outage: settle

The staged tree reserves what is to leave its provider, so no client can claim that before the request is
answered. Only then does the runner read the consumers: one that was read cannot be deleted and made anew in
between. The intent is on disk before the request is sent.

After a conflict the runner reads the inventories of the providers that another client has written, and sends
the request again: claims of other consumers change nothing in the plan. During each attempt it holds the
agent's own claims on the touched providers back.

Where others write so often, or Placement is so slow, that attempts go on to fail, the runner closes the
touched providers: it reserves all that the agent owns there, and sends the request then. Placement refuses
claims there meanwhile, without a change of generation. The request itself opens the providers again; where it
is given up, the runner does. After a crash the next pass finds the inventories other than desired, and writes
them.

A request that was not answered is fenced: a write that raises the generation of a touched provider makes
Placement reject a late execution, and what Placement then shows is final.
"""

import re
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import SystemRandom
from uuid import uuid4

from agent import errors
from agent.claims.refusal import label
from agent.errors import counted
from agent.moves.states import MIGRATION_TYPE, MoveState
from agent.placement.client import ANYWHERE, ConsumerAllocations, PlacementClient
from agent.placement.transport import WriteDone, WriteRefused, WriteUnknown
from agent.providers.plan import same_inventories
from agent.reconcile.desired_state import Desired
from agent.reshape.claimed_units import (
    ExactUnits,
    HostRecords,
    claimed_places,
    places_of_units,
)
from agent.reshape.due_instructions import still_held, with_stand_ins
from agent.reshape.laws import Instruction, Reshape, Slot, inventory_at, new_custom_classes, total_at
from agent.reshape.plan import moving_slots, plan_reshape, staged_tree, touched_providers
from agent.reshape.receipt import Receipt, make_receipt, read_slots, slots_to_json
from agent.reshape.relocate import claims_of_migrations, places_of_claims, unheld_claims
from agent.shapes import Allocations, Holders, total
from agent.state.journal import Journal
from agent.tracker.tracker import ResourceTracker
from agent.tree import Inventory, ProviderTree

ATTEMPTS_MAX = 24
CLOSE_AFTER = 2
CLOSE_AFTER_S = 3.0
"""After so many conflicts, and so many seconds, the touched providers are closed for the next attempts."""
CLOSED_ATTEMPTS_MAX = 8
TURN_ATTEMPTS_MAX = 4
PAUSE_MAX_S = 0.05
REREAD_EVERY = 4
"""After so many conflicts, all moving consumers are read again."""
FENCE_ATTEMPTS_MAX = 8
CONSUMERS_READ_MAX = 64

MIGRATION_TYPES = frozenset({MIGRATION_TYPE, "unknown", ""})

_CONSUMER = re.compile(r"\bconsumer ([0-9a-f-]{36})\b")
_JITTER = SystemRandom()


@dataclass(frozen=True, slots=True)
class Allocated:
    """What is allocated on the touched providers: {provider: generation}, {provider: its holders}.

    `consumers` {consumer: its whole allocation} are those that hold some of the inventory that moves.
    """

    generations: Mapping[str, int]
    holders: Mapping[str, Holders]
    consumers: Mapping[str, ConsumerAllocations]

    @property
    def all_holders(self) -> frozenset[str]:
        """The consumers that hold something on a touched provider."""
        return frozenset(consumer for holders in self.holders.values() for consumer in holders)


@dataclass(frozen=True, slots=True)
class ProvedReshape:
    """A reshape that breaks no law, with the instructions and the allocations that it was planned from."""

    instructions: tuple[Instruction, ...]
    allocated: Allocated
    reshape: Reshape


@dataclass(frozen=True, slots=True)
class _Request:
    """One reshape on its way: `current` is the tree before the pass, `stage` Placement's now.

    `passed` is what the client's gate had let pass before the consumers were read. `closed` {provider: its
    inventories} are those that are closed for the request.
    """

    current: ProviderTree
    stage: ProviderTree
    desired: Desired
    allocated: Allocated
    exact: ExactUnits
    receipt_id: str
    passed: Mapping[str, int]
    closed: dict[str, Mapping[str, Inventory]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Sent:
    """The reshape of a request, and its intent on disk."""

    proved: ProvedReshape
    receipt: Receipt


@dataclass(eq=False)
class ReshapeRunner:
    """Carries out the reshapes of one host; the pass calls from one thread at a time."""

    client: PlacementClient
    tracker: ResourceTracker
    journal: Journal
    root_uuid: str
    clock: Callable[[], float] = field(default=time.time, kw_only=True)
    sleep: Callable[[float], None] = field(default=time.sleep, kw_only=True)
    _in_doubt: bool = field(default=True, init=False)

    # Before the request

    def prepare(self, current: ProviderTree, desired: Desired, exact: ExactUnits) -> ProvedReshape:
        """Plan and prove the reshape; nothing is written. Raises ReshapeRefused, PlacementError."""
        allocated = self._read_holders(current, desired)
        named = {consumer for due in desired.moves for consumer in (due.move.consumers or {})}
        claims = self.tracker.claims()
        movers = self._movers(desired, allocated)
        if not (named | claims.keys()) <= allocated.all_holders:  # a migration may hold their part
            allocated = replace(allocated, consumers=self.client.allocations_of_all(movers - claims.keys()))
        return self._plan(current, desired, allocated, exact)

    def reserve_sources(self, current: ProviderTree, desired: Desired) -> ProviderTree:
        """The staged tree, with the inventory to move reserved while the reshape is pending.

        What was reserved before is journaled, so that the reshape can restore it. Raises StateError.
        """
        leaving, _ = moving_slots(desired.due)
        known = read_slots(self.journal.reserved_slots())
        slots = {slot: known[slot] if slot in known else inventory_at(current, slot) for slot in leaving}
        if slots != known:
            self.journal.remember_reserved_slots(slots_to_json(slots))
        return staged_tree(current, desired.tree, desired.due, reserve=True)

    def forget_sources(self) -> None:
        """No reshape is due, and the desired tree is written: nothing is reserved for one. Raises StateError.

        A later reshape of the same inventory restores what it is then, not what it was before this one.
        """
        if self.journal.reserved_slots():
            self.journal.remember_reserved_slots([])

    def _read_holders(self, tree: ProviderTree, desired: Desired) -> Allocated:
        """Who holds what on the touched providers; an empty provider has no holders, and needs no read."""
        generations, holders = {}, {}
        for uuid in touched_providers(desired.due):
            provider = tree.get(uuid)
            if provider is None:
                continue
            if provider.inventories:
                generations[uuid], holders[uuid] = self.client.provider_allocations(uuid)
            else:
                generations[uuid], holders[uuid] = provider.generation or 0, {}
        return Allocated(generations, holders, {})

    def _movers(self, desired: Desired, allocated: Allocated) -> frozenset[str]:
        """The consumers that hold some of the inventory that moves."""
        leaving, _ = moving_slots(desired.due)
        return frozenset(
            consumer
            for slot in leaving
            for consumer, amounts in allocated.holders.get(slot.provider, {}).items()
            if slot.resource_class in amounts
        )

    def _read_allocated(self, tree: ProviderTree, desired: Desired) -> Allocated:
        """As `_read_holders`, with the whole allocation of each consumer that moves."""
        allocated = self._read_holders(tree, desired)
        consumers = self.client.allocations_of_all(self._movers(desired, allocated))
        gone = {who for who, each in consumers.items() if not each.allocations}  # released in between
        return replace(
            allocated,
            holders={
                uuid: {who: amounts for who, amounts in holders.items() if who not in gone}
                for uuid, holders in allocated.holders.items()
            },
            consumers={who: each for who, each in consumers.items() if who not in gone},
        )

    def _plan(
        self, tree: ProviderTree, desired: Desired, allocated: Allocated, exact: ExactUnits
    ) -> ProvedReshape:
        held: dict[str, Allocations] = {}
        for uuid, holders in allocated.holders.items():
            for consumer, amounts in holders.items():
                held[consumer] = {**held.get(consumer, {}), uuid: amounts}
        held |= {consumer: whole.allocations for consumer, whole in allocated.consumers.items()}
        records = self.tracker.records(exact)
        guests = {guest.uuid for guest in exact.guests}
        migrations = {
            consumer
            for consumer, whole in allocated.consumers.items()
            if whole.consumer_type in MIGRATION_TYPES and consumer not in guests
        }
        # What claims have goes along, whether Placement holds it or not.
        others = sorted(migrations - records.claims.keys())
        unheld = unheld_claims(records, held, desired.due, others)
        together = {who: total((held.get(who, {}), unheld.get(who, {}))) for who in {**held, **unheld}}
        located = {
            **places_of_claims(records, held, desired.moves),
            **places_of_units(records, desired.moves, desired.back),
        }
        claimed = claimed_places(records, located, together, migrations)
        typed = {who for who in migrations if allocated.consumers[who].consumer_type == MIGRATION_TYPE}
        followers = claims_of_migrations(records, held, desired.due, others)
        returned = {move.instance for move in records.moves.values()} & followers.keys() & held.keys()
        instructions = (
            *with_stand_ins(
                desired.moves,
                together,
                typed - claimed.located.keys() | returned,
                self.tracker.view.departed(),
            ),
            *still_held(desired.back, together),
        )
        try:
            reshape = plan_reshape(
                tree,
                desired.tree,
                instructions,
                held,
                claimed=claimed,
                unheld=unheld,
                strangers=migrations - records.claims.keys() - claimed.located.keys(),
                followers=followers,
                may_grow=not desired.back,
            )
        except errors.ReshapeRefused as refused:
            raise _for_people(refused, records, held.keys()) from refused
        return ProvedReshape(instructions, allocated, reshape)

    # The request

    def perform(
        self,
        current: ProviderTree,
        stage: ProviderTree,
        desired: Desired,
        proved: ProvedReshape,
        exact: ExactUnits,
        refresh: Callable[[ProviderTree], object],
        *,
        claimed_at: Mapping[str, float],
    ) -> ProviderTree:
        """Carry out the reshape and return Placement's tree.

        `current` is Placement's tree before the pass staged it as `stage`. `refresh` hands the new tree to
        the tracker, before an operation on a consumer that has moved goes on. `claimed_at` {consumer: seconds
        since the epoch} are the claims before the driver described the host. Raises ReshapeRefused where
        nothing was changed, PlacementConflict where another writer changed the inventories that move, or a
        consumer that the driver names was claimed anew; PlacementUnavailable where the outcome may be
        unknown; then `settle` finds it out.
        """
        leaving, coming = moving_slots(proved.instructions)
        for resource_class in new_custom_classes(coming, current):
            self.client.ensure_resource_class(resource_class)
        consumers = self._movers(desired, proved.allocated)
        for _ in range(TURN_ATTEMPTS_MAX):
            try:
                with self.tracker.turns_on(leaving, consumers) as taken:
                    passed = dict(self.client.gate.passed)
                    allocated = self._read_allocated(stage, desired)
                    for uuid, generation in allocated.generations.items():
                        if generation != stage[uuid].generation:  # another client may have put a class there
                            stage, _ = self._with_generation(stage, uuid, None)
                    if allocated.consumers.keys() <= taken:
                        self._check_claimed_anew(desired, claimed_at)
                        request = _Request(current, stage, desired, allocated, exact, str(uuid4()), passed)
                        self._finish(self._send_until_done(request), exact)
                        tree = self.client.read_tree(self.root_uuid, stage)
                        refresh(tree)
                        return tree
                    consumers |= allocated.consumers.keys()
            except errors.ClaimConflict as conflict:
                raise _postponed(conflict.message) from conflict
        raise _postponed("other clients allocate what is to move")

    def _check_claimed_anew(self, desired: Desired, claimed_at: Mapping[str, float]) -> None:
        """Check that what the driver says of single consumers is about their present claims.

        The caller has their turns. Raises PlacementConflict.
        """
        claims = self.tracker.claims()
        for consumer in sorted({who for due in desired.moves for who in (due.move.consumers or {})}):
            now = claims[consumer].since if consumer in claims else None
            if now != claimed_at.get(consumer):
                raise errors.PlacementConflict(
                    f"{consumer} was claimed anew after the driver had described it; the agent asks the "
                    "driver again and plans anew."
                )

    def _send_until_done(self, request: _Request) -> Receipt:
        """Send the request until Placement accepts it; returns the receipt of what it executed."""
        first, began = request, time.monotonic()
        touched = touched_providers(request.desired.due)
        why = "Placement is sent a reshape of the same provider"
        sent = self._record(request)
        try:
            for attempt in range(ATTEMPTS_MAX):
                with self.client.gate.held(touched, why):
                    request, sent = self._renew(request, sent, attempt)
                    if self._send(sent, request):
                        return sent.receipt
                self._pause(attempt)
                if attempt + 1 >= CLOSE_AFTER and time.monotonic() - began >= CLOSE_AFTER_S:
                    break
            with self.client.gate.held(touched, why):
                return self._send_closed(request, sent, first)
        except (errors.ReshapeRefused, errors.PlacementConflict):
            self._drop(sent.receipt)
            raise

    def _send_closed(self, request: _Request, sent: _Sent, first: _Request) -> Receipt:
        """Close the touched providers, and send the request until Placement accepts it.

        The caller holds the agent's own writes back: they would be refused. `first` is the request before
        its first attempt.
        """
        try:
            for attempt in range(1, CLOSED_ATTEMPTS_MAX + 1):
                request, sent = self._renew(request, sent, attempt)
                request = self._close(request)
                if self._send(sent, request):
                    return sent.receipt
                self._pause(attempt)
            raise _postponed(self._whose_writes(first, len(request.closed)))
        except (errors.ReshapeRefused, errors.PlacementError) as error:
            # Where it is unknown what Placement did, the next pass settles that, and writes the inventories.
            if not (isinstance(error, errors.PlacementUnavailable) and self._in_doubt):
                # The inventories as they were; the next pass writes what this cannot.
                for uuid, closed in request.closed.items():
                    with suppress(errors.PlacementError):
                        self._put_instead(uuid, closed, request.stage[uuid].inventories)
            raise

    def _renew(self, request: _Request, sent: _Sent, conflicts: int) -> tuple[_Request, _Sent]:
        """The request by what Placement has now, planned and recorded anew where the consumers changed.

        At first as well: the agent's own claims may have come in before they were held back. What changed are
        generations; and consumers, which are read where they may have changed. A conflict where no generation
        has changed is about a consumer.

        Raises PlacementConflict where another client changed the inventories of a touched provider.
        """
        stage, allocated = request.stage, request.allocated
        now = self.client.generations(self.root_uuid)
        changed = [uuid for uuid, known in allocated.generations.items() if now.get(uuid) != known]
        leaving, _ = moving_slots(request.desired.due)
        # Where all of a slot is reserved, no consumer can get any of it.
        in_changed = (inventory_at(stage, slot) for slot in leaving if slot.provider in changed)
        open_slots = [left for left in in_changed if left is not None and left.capacity > 0]
        if open_slots or (conflicts and (conflicts % REREAD_EVERY == 0 or not changed)):
            allocated = self._read_allocated(stage, request.desired)
            changed = [
                uuid for uuid, known in allocated.generations.items() if stage[uuid].generation != known
            ]
        generations = dict(allocated.generations)
        for uuid in changed:
            stage, generations[uuid] = self._with_generation(stage, uuid, request.closed.get(uuid))
        renewed = replace(request, stage=stage, allocated=replace(allocated, generations=generations))
        if allocated.consumers != request.allocated.consumers:
            sent = self._record(renewed)
        return renewed, sent

    def _pause(self, attempt: int) -> None:
        self.sleep(_JITTER.uniform(0, min(PAUSE_MAX_S, 0.005 * 2**attempt)))

    def _close(self, request: _Request) -> _Request:
        """Reserve all that the agent owns on the touched providers, but what has just come to them.

        Raises PlacementConflict where another client changed their inventories.
        """
        _, coming = moving_slots(request.desired.due)
        generations = dict(request.allocated.generations)
        for uuid in sorted(generations.keys() - request.closed.keys()):
            mine = request.desired.owned.get(uuid).classes
            now = request.stage[uuid].inventories
            closed = {
                name: replace(inventory, reserved=inventory.total)
                if name in mine and Slot(uuid, name) not in coming
                else inventory
                for name, inventory in now.items()
            }
            if not same_inventories(closed, now):
                request.closed[uuid] = closed
                generations[uuid] = self._put_instead(uuid, now, closed)
        return replace(request, allocated=replace(request.allocated, generations=generations))

    def _put_instead(
        self, uuid: str, expected: Mapping[str, Inventory], wanted: Mapping[str, Inventory]
    ) -> int:
        """Write a provider's inventories where they are as expected; returns the new generation.

        Raises PlacementConflict where they are not, or others write each time.
        """
        for attempt in range(ATTEMPTS_MAX):
            generation, inventories = self.client.provider_inventories(uuid)
            if not same_inventories(inventories, expected):
                raise _changed(uuid)
            try:
                return self.client.put_inventories(uuid, generation, wanted)
            except errors.PlacementConflict as conflict:
                failure = conflict
                self._pause(attempt)
        raise failure

    def _whose_writes(self, first: _Request, closings: int) -> str:
        """Who has written to the touched providers since the request was planned first."""
        now = self.client.generations(self.root_uuid)
        touched = first.allocated.generations
        rises = sum(max(0, now.get(uuid, known) - known) for uuid, known in touched.items()) - closings
        passed = self.client.gate.passed
        own = sum(passed[uuid] - first.passed.get(uuid, 0) for uuid in (*touched, ANYWHERE))
        own = min(own, max(rises, 0))
        writers = [
            f"{counted(writes, 'time')} by {who}"
            for writes, who in (
                (rises - own, "other clients of Placement"),
                (own, "the agent's own claims and releases"),
            )
            if writes > 0
        ]
        if not writers:
            return "Placement answered each request with a conflict, but no client wrote to what it touches"
        return f"its requests met conflicts: the touched providers were written {' and '.join(writers)}"

    def _send(self, sent: _Sent, request: _Request) -> bool:
        """Send the request once; returns whether it was executed, False after a conflict.

        Raises ReshapeRefused where Placement rejects it, PlacementUnavailable where it did not execute it.
        """
        reshape, allocated, receipt = sent.proved.reshape, request.allocated, sent.receipt
        inventories = {
            uuid: (allocated.generations[uuid], wanted) for uuid, wanted in reshape.inventories.items()
        }
        writes = (
            replace(allocated.consumers[consumer], allocations=allocations)
            for consumer, allocations in reshape.allocations.items()
        )
        match self.client.send_reshape(inventories, *writes):
            case WriteDone():
                return True
            case WriteRefused(errors.PlacementConflict()):
                return False
            case WriteRefused(errors.PlacementUnavailable() as error):
                self._drop(receipt)
                raise error
            case WriteRefused(error):
                raise errors.ReshapeRefused(
                    f"Placement refused the reshape, so nothing was changed: {error.message}",
                    reasons=[error.message],
                ) from error
            case WriteUnknown(error):
                if self._was_executed(receipt):
                    return True
                self._drop(receipt)
                raise error

    def _with_generation(
        self, stage: ProviderTree, uuid: str, closed: Mapping[str, Inventory] | None
    ) -> tuple[ProviderTree, int]:
        """`stage` with the provider's generation of now, and that.

        Raises PlacementConflict where its inventories, or those that it is closed with, changed.
        """
        provider = stage[uuid]
        generation, inventories = self.client.provider_inventories(uuid)
        if not same_inventories(inventories, provider.inventories if closed is None else closed):
            raise _changed(uuid)
        return stage.with_provider(replace(provider, generation=generation)), generation

    def _record(self, request: _Request) -> _Sent:
        """Plan the request and put its intent on disk. Raises ReshapeRefused, StateError."""
        desired = request.desired
        proved = self._plan(request.stage, desired, request.allocated, request.exact)
        originals = read_slots(self.journal.reserved_slots())
        receipt = make_receipt(
            request.receipt_id,
            self.clock(),
            (request.current, request.stage, desired.tree),
            proved.instructions,
            proved.reshape,
            {slot: inventory for slot, inventory in originals.items() if inventory is not None},
            desired.undoes,
        )
        self._in_doubt = True
        self.journal.put_reshape(receipt).wait()
        return _Sent(proved, receipt)

    def _finish(self, receipt: Receipt, exact: ExactUnits) -> None:
        self.tracker.relocate(receipt, exact)
        self._in_doubt = False

    def _drop(self, receipt: Receipt) -> None:
        self.journal.drop_reshape(receipt.id).wait()
        self._in_doubt = False

    # After an interruption

    def settle(self, exact: ExactUnits) -> bool:
        """End the reshapes whose outcome is unknown; returns whether Placement had executed one.

        Raises PlacementError, StateError where the outcome is still unknown.
        """
        if not self._in_doubt:
            return False
        executed = False
        for receipt in self.journal.reshapes(done=False).values():
            if self._was_executed(receipt):
                relocations = (*receipt.relocations, *receipt.records)
                with self.tracker.turns_on({relocation.slots[0] for relocation in relocations}):
                    self._finish(receipt, exact)
                executed = True
            else:
                self._drop(receipt)
        self._in_doubt = False
        return executed

    def _was_executed(self, receipt: Receipt) -> bool:
        """Whether Placement executed the request; False is final.

        Raises PlacementError where it stays unknown.
        """
        if was_executed(self.client, self.root_uuid, receipt):
            return True
        return fence_and_check(self.client, self.root_uuid, receipt)


def was_executed(client: PlacementClient, root_uuid: str, receipt: Receipt) -> bool:
    """Whether Placement shows the reshape as executed. Raises PlacementError.

    Generations that are unchanged show that it was not; then the totals of the slots that exchange units
    decide, and where those are ambiguous the allocations of some consumers.
    """
    tree = client.read_tree(root_uuid)
    if any(
        uuid in tree and tree[uuid].generation == generation
        for uuid, generation in receipt.generations.items()
    ):
        return False
    now = [total_at(tree, slot) for slot in receipt.before]
    before = [inventory.total if inventory else 0 for inventory in receipt.before.values()]
    after = [inventory.total if inventory else 0 for inventory in receipt.after.values()]
    if before != after and now in (before, after):
        return now == after
    sample = list(receipt.allocations.items())[:CONSUMERS_READ_MAX]
    return any(client.allocations_of(consumer).allocations == held for consumer, held in sample)


def fence_and_check(client: PlacementClient, root_uuid: str, receipt: Receipt) -> bool:
    """Whether the reshape was executed; if not, Placement can no longer execute it.

    A request that Placement still has names the generations of its time. The fence raises one of them, by
    writing a provider's inventories as they are. Raises PlacementError where the outcome stays unknown.
    """
    touched = sorted(receipt.generations.keys() & client.generations(root_uuid).keys())
    for attempt in range(FENCE_ATTEMPTS_MAX if touched else 0):
        generation, inventories = client.provider_inventories(touched[0])
        try:
            client.put_inventories(touched[0], generation, inventories)
            break
        except errors.PlacementConflict:
            if attempt == FENCE_ATTEMPTS_MAX - 1:
                raise
    return was_executed(client, root_uuid, receipt)


def _changed(uuid: str) -> errors.PlacementConflict:
    return errors.PlacementConflict(
        f"The inventories of provider {uuid} changed while its reshape was prepared; the agent reads the "
        "tree and plans again."
    )


def _for_people(
    refused: errors.ReshapeRefused, records: HostRecords, holders: Collection[str]
) -> errors.ReshapeRefused:
    """The refusal with the names of consumers, and with the moves under way that hold two places at once."""
    moves = [move for move in records.moves.values() if not move.ended]
    names = {guest.uuid: f"{guest.name} ({guest.uuid})" for guest in records.exact.guests if guest.name}
    names |= {who: label(claim.request) for who, claim in records.claims.items() if claim.request.name}
    names |= {move.migration: f"migration {move.migration} of {move.label}" for move in moves}

    def named(sentence: str) -> str:
        return _CONSUMER.sub(lambda match: names.get(match[1], match[0]), sentence)

    reasons = [named(reason) for reason in refused.details["reasons"]]
    hints = [
        f"It may wait for the move of {move.label}, which holds two places: end it with `plimsoll move "
        f"confirm {move.migration}` or `plimsoll move revert {move.migration}`."
        for move in moves
        if move.state is MoveState.BEGUN and not {move.migration, move.instance}.isdisjoint(holders)
    ]
    message = f"{named(refused.message).rstrip('.')}. {' '.join(hints)}" if hints else named(refused.message)
    return errors.ReshapeRefused(message, reasons=[*reasons, *hints])


def _postponed(why: str) -> errors.ReshapeRefused:
    return errors.ReshapeRefused(
        f"The reshape is postponed, {why.rstrip('.')}; nothing was changed, and the agent tries again.",
        reasons=[why],
    )
