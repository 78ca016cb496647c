"""Ending a move: confirm, revert, delete, and whatever was interrupted or was ended by somebody else.

The caller has its turn at the instance and at the migration. Each method may be called again and again to the
same end; each reads what placement holds, and what it writes is guarded by both consumers' generations.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from agent import log
from agent.backoff import pause
from agent.errors import (
    ClaimConflict,
    PlacementConflict,
    PlacementFull,
    PlacementUnavailable,
)
from agent.moves.ownership import (
    ObservedState,
    has_moved_on,
    has_taken_over,
    observed_end,
    observed_state,
    split_allocations,
    undecided_reason,
)
from agent.moves.states import Move, MoveKind, MoveRole, MoveState, MoveStep
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.shapes import Allocations
from agent.tracker.follow_moves import holder
from agent.tracker.register import Register

LOG = log.get(__name__)
ATTEMPTS_MAX = 4

_REBUILT = {MoveState.CONFIRMING: MoveStep.FREED, MoveState.REVERTING: MoveStep.RESTORED}


class Settler:
    """`guests` tells the uuids of the guests that the driver sees on this host."""

    def __init__(
        self, register: Register, client: PlacementClient, guests: Callable[[], Collection[str]]
    ) -> None:
        self._register = register
        self._client = client
        self._guests = guests

    def settle(self, move: Move) -> Move:
        """Bring it to its end if it is on the way to one; else learn whether somebody else ended it.

        Returns the move as it is then: still on its way only while its guest has yet to leave this host.
        Raises ClaimConflict where somebody else ended it the other way, or it cannot be taken back;
        PlacementError, StateError.
        """
        for attempt in range(ATTEMPTS_MAX):
            try:
                return self._settle(move)
            except PlacementConflict:
                pause(attempt)  # somebody wrote in between
        raise PlacementConflict(
            f"The end of migration {move.migration} was overtaken by other writers {ATTEMPTS_MAX} times; it "
            "stays journaled and is tried again."
        )

    def _settle(self, move: Move) -> Move:
        if move.waits_for_guest and self._here(move):
            return move
        if move.state is MoveState.LEAVING and self._here(move):
            return move
        if move.kind is MoveKind.REBUILD and move.state in _REBUILT:
            return self._take(_REBUILT[move.state], move)  # nothing of it was ever written
        self._check_known()
        instance = self._client.allocations_of(move.instance)
        migration = self._client.allocations_of(move.migration)
        match move.state:
            case MoveState.BEGINNING:
                return self._interrupted(move, instance, migration)
            case MoveState.CONFIRMING:
                return self._free(move, instance, migration)
            case MoveState.REVERTING:
                return self._restore(move, instance, migration)
            case MoveState.DELETING:
                return self._delete(move, instance, migration)
            case MoveState.LEAVING:
                return self._left(move, instance)
            case _:
                return self._observe(move, instance, migration)

    def _check_known(self) -> None:
        with self._register.lock:
            known = self._register.ledger.host.root is not None
        if not known:
            raise PlacementUnavailable(
                "What of a moving instance's allocation is this host's is not known before the first "
                "inventory."
            )

    # One for each state

    def _interrupted(self, move: Move, instance: ConsumerAllocations, migration: ConsumerAllocations) -> Move:
        """A begin of which nobody heard the end: finished where its guest is here, undone where not."""
        where = observed_state(move, instance.allocations, migration.allocations)
        changed = migration.allocations == move.handed and self._lives_here(instance.allocations)
        if where is ObservedState.UNDER_WAY or changed:
            if move.role is MoveRole.DESTINATION and self._here(move):
                return self._take(MoveStep.GRANT, move)
            return self._settle(self._take(MoveStep.REVERT, move))
        if where is ObservedState.ORPHANED and migration.allocations == move.handed:
            return self._settle(self._take(MoveStep.DELETE, move))
        if where is ObservedState.AFTER:
            return self._take(MoveStep.FREED, move)
        if where is ObservedState.NEITHER:
            return self._take(MoveStep.GONE, move)
        if where is ObservedState.BEFORE:
            self._shut_out(instance)
        return self._take(MoveStep.REFUSE, move)

    def _shut_out(self, instance: ConsumerAllocations) -> None:
        """What was asked for and not answered may be done late: not with the generation that it names, once
        another write has raised it."""
        try:
            self._client.write_allocations(instance)
        except PlacementFull as full:  # its place is over-committed, and so it is for what may be done late
            LOG.info("%s keeps its generation: %s", instance.consumer, full.message)

    def _free(self, move: Move, instance: ConsumerAllocations, migration: ConsumerAllocations) -> Move:
        end = self._ending(move, instance) or MoveStep.FREED
        if migration.allocations:
            if migration.allocations != move.handed:
                self._tell(move, "somebody changed what the migration holds; all of it is freed")
            self._client.write_allocations(replace(migration, allocations={}))
        return self._end(move, end, wanted=MoveStep.FREED)

    def _restore(self, move: Move, instance: ConsumerAllocations, migration: ConsumerAllocations) -> Move:
        if not migration.allocations:
            end = self._ending(move, instance) or MoveStep.RESTORED
            return self._end(move, end, wanted=MoveStep.RESTORED)
        if not instance.allocations:
            self._client.write_allocations(replace(migration, allocations={}))
            return self._take(MoveStep.GONE, move)
        if move.role is not MoveRole.BOTH and instance.allocations == move.old.allocations:
            end = self._ending(move, instance) or MoveStep.RESTORED
            self._client.write_allocations(replace(migration, allocations={}))
            return self._end(move, end, wanted=MoveStep.RESTORED)
        if move.role is not MoveRole.SOURCE and not self._lives_here(instance.allocations):
            self._take(MoveStep.REFUSE, move)
            raise ClaimConflict(
                f"{move.instance} has moved on: it does not hold what migration {move.migration} gave it, so "
                "it is not reverted. `plimsoll move confirm` frees what the migration holds.",
                consumer=move.instance,
                migration=move.migration,
            )
        if observed_state(move, instance.allocations, migration.allocations) is ObservedState.CHANGED:
            self._tell(
                move, "somebody changed what instance or migration hold; the old allocation comes back"
            )
        try:
            self._client.write_allocations(
                replace(instance, allocations=move.old.allocations), replace(migration, allocations={})
            )
        except PlacementFull as full:
            self._take(MoveStep.REFUSE, move)
            raise ClaimConflict(
                f"Placement does not take {move.instance} back to its source: somebody changed what "
                f"migration {move.migration} held there ({full.message}) Free the source, and revert again.",
                consumer=move.instance,
                migration=move.migration,
            ) from full
        return self._take(MoveStep.RESTORED, move)

    def _delete(self, move: Move, instance: ConsumerAllocations, migration: ConsumerAllocations) -> Move:
        if instance.allocations and self._overtaken(move, instance):
            # What it got here may be another migration's by now: its claim goes on, to be followed.
            if migration.allocations:
                self._client.write_allocations(replace(migration, allocations={}))
            return self._take(self._ending(move, instance) or MoveStep.FREED, move)
        writes = []
        if instance.allocations:
            elsewhere = self._elsewhere(move, instance.allocations)
            if elsewhere != instance.allocations:
                writes.append(replace(instance, allocations=elsewhere))
        if migration.allocations:
            writes.append(replace(migration, allocations={}))
        self._client.write_allocations(*writes)
        return self._take(MoveStep.GONE, move)

    def _left(self, move: Move, instance: ConsumerAllocations) -> Move:
        default = MoveStep.RESTORED if move.role is MoveRole.DESTINATION else MoveStep.FREED
        end = self._ending(move, instance)
        return self._take(end or default, move)

    def _observe(self, move: Move, instance: ConsumerAllocations, migration: ConsumerAllocations) -> Move:
        """Under way as far as we know: did somebody else end it, or has another move overtaken it?"""
        with self._register.lock:
            is_own = self._register.ledger.host.is_own
        why = undecided_reason(move, instance.allocations, migration.allocations, is_own)
        if why is not None:
            self._tell(move, why)
            return move
        rebuild = move.kind is MoveKind.REBUILD
        if (migration.allocations or rebuild) and self._overtaken(move, instance):
            self._tell(move, "the instance is not on this host any more, so it had come here: confirmed")
            return self._settle(self._take(MoveStep.CONFIRM, move))
        if rebuild or (migration.allocations and instance.allocations):
            return move
        if migration.allocations:
            return self._settle(self._take(MoveStep.DELETE, move))
        end = self._ending(move, instance) or MoveStep.FREED
        lost = end is MoveStep.GONE or end is (
            MoveStep.RESTORED if move.role is MoveRole.DESTINATION else MoveStep.FREED
        )
        if lost and move.role is not MoveRole.BOTH and self._here(move):
            self._tell(move, "it ended elsewhere, and the guest is still on this host: it must go")
            return self._take(MoveStep.LEAVE, move)
        return self._take(end, move)

    # Below

    def _end(self, move: Move, end: MoveStep, *, wanted: MoveStep) -> Move:
        taken = self._take(end, move)
        if end is not wanted and end is not MoveStep.GONE:
            raise ClaimConflict(
                f"Migration {move.migration} of {move.instance} was {taken.state} by somebody else before.",
                consumer=move.instance,
                migration=move.migration,
            )
        return taken

    def _ending(self, move: Move, instance: ConsumerAllocations) -> MoveStep | None:
        with self._register.lock:
            end = observed_end(move, instance.allocations, {}, self._register.ledger.host.is_own)
        returned = end is MoveStep.RESTORED and move.role is MoveRole.DESTINATION
        return MoveStep.FREED if returned and self._handed_on(move, instance) else end

    def _overtaken(self, move: Move, instance: ConsumerAllocations) -> bool:
        with self._register.lock:
            return has_moved_on(move, instance.allocations, self._register.ledger.host.is_own)

    def _handed_on(self, move: Move, instance: ConsumerAllocations) -> bool:
        """Whether another migration has what the instance got here: it came, and was moved back."""
        new = move.new.allocations if move.new else {}
        with self._register.lock:
            is_own = self._register.ledger.host.is_own
        found = {
            uuid: self._client.provider_allocations(uuid).consumers for uuid in sorted(new) if is_own(uuid)
        }
        with self._register.lock:
            for uuid, consumers in found.items():
                self._register.ledger.observe_provider(uuid, consumers)
            likely = self._register.ledger.holders_of(new)
        guests = self._guests()
        others = (self._client.allocations_of(each) for each in likely if each not in guests)
        return any(has_taken_over(new, holder(instance), holder(other), is_own) for other in others)

    def _lives_here(self, instance: Allocations) -> bool:
        with self._register.lock:
            host = self._register.ledger.host
            return any(host.is_own(uuid) for uuid in instance)

    def _elsewhere(self, move: Move, instance: Allocations) -> Allocations:
        if move.new is not None and instance in (move.new.allocations, move.old.allocations):
            return {}
        with self._register.lock:
            host = self._register.ledger.host
            shared = {provider.uuid for provider in host.providers}
        return split_allocations(instance, host.is_own, shared.__contains__).elsewhere

    def _here(self, move: Move) -> bool:
        return move.instance in self._guests()

    def _take(self, step: MoveStep, move: Move) -> Move:
        return self._register.take(step, move)

    def _tell(self, move: Move, what: str) -> None:
        LOG.warning(
            "Migration %s of %s: %s.",
            move.migration,
            move.instance,
            what,
            fields={"consumer": move.instance, "migration": move.migration},
        )
