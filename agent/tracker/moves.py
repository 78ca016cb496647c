"""Moves, as the tracker offers them: begin, confirm, revert, delete, and what follows without a request.

The destination begins a move. Either side confirms or reverts it. What waits for Placement is journaled and
delivered later.

A move that ends, was interrupted, or was ended by another client is brought to its end by `MoveFinisher`.
It reads what Placement holds, guards what it writes by both consumers' generations, and may be called again
until the move has ended.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

from agent import errors, log
from agent.backoff import CONFLICTS_MAX, retry_conflicts
from agent.claims.claim import ClaimState
from agent.claims.doubt import DoubtKind
from agent.claims.fit import check_placeable
from agent.claims.request import ClaimRequest, named_as
from agent.moves import ownership
from agent.moves.states import Move, MoveKind, MoveRole, MoveState, MoveStep, moving_conflict
from agent.placement.client import ConsumerAllocations
from agent.shapes import Allocations, Usages, beyond
from agent.tracker.begin_move import MoveAttempt
from agent.tracker.claims import GuestDemand, reserved_for
from agent.tracker.context import TrackerContext, split_by_host
from agent.tracker.follow_moves import LeftPlaces, MigrationLinker
from agent.tracker.guarded_write import checked

_REBUILT = {MoveState.CONFIRMING: MoveStep.FREED, MoveState.REVERTING: MoveStep.RESTORED}


LOG = log.get(__name__)

BEGINNABLE = frozenset(set(MoveKind) - {MoveKind.UNKNOWN})


class MoveOperations:
    """The operations on moves of one tracker. Any thread may call."""

    def __init__(self, context: TrackerContext, linker: MigrationLinker) -> None:
        self._context = context
        self._register = context.register
        self._linker = linker
        self._finisher = MoveFinisher(context)

    def begin(
        self, kind: MoveKind, migration: str, request: ClaimRequest, demand: GuestDemand | None = None
    ) -> Move:
        """See `ResourceTracker.begin_move`."""
        check_placeable(request)
        if kind is MoveKind.LIVE_MIGRATE and request.topology.mem_page_size in ("large", "any"):
            raise errors.UsageError(
                f"topology: a live migration keeps the size of the guest's pages, and mem_page_size "
                f"{request.topology.mem_page_size} does not name one: ask for the size in KiB that "
                "`plimsoll explain` shows at the source.",
                migration=migration,
            )
        if kind not in BEGINNABLE:
            raise errors.UsageError(f"kind: a move of kind {kind} cannot be begun.")
        if migration == request.consumer:
            raise errors.UsageError(
                "migration: it has the uuid of the instance, and needs one of its own.", migration=migration
            )
        with self._context.turns.take_both(request.consumer, migration):
            self._context.admission.check()
            move = self._unfinished_or_ended(migration, request.consumer)
            if move is not None and move.state is MoveState.BEGINNING:
                move = self._finisher.finish(move)
            if move is not None and not move.ended:
                move = _same(move, kind, request)
                if move.new is None or move.new.request.name or not request.name:
                    return move
                # It has no name yet, and this request has one.
                named = replace(move.new, request=replace(move.new.request, name=request.name))
                return self._register.step_move(MoveStep.FOUND, replace(move, new=named))
            if move is not None and move.state is not MoveState.REVERTED:
                raise errors.ClaimConflict(
                    f"Migration {migration} was {move.state} already: give the next move its own uuid.",
                    migration=migration,
                )
            try:
                with reserved_for(self._register, demand) if demand is not None else nullcontext():
                    return MoveAttempt(self._context, kind, migration, request).run()
            except errors.ClaimConflict as conflict:
                raise self._move_beside(request.consumer) or conflict from conflict

    def _move_beside(self, instance: str) -> errors.ClaimConflict | None:
        """Why an instance with a claim here cannot begin a move: one that began elsewhere, if there is one.

        The caller has the instance's turn. None: it is where its claim is, or Placement does not say.
        """
        claim = self._register.claim_of(instance)
        if claim is None or claim.state is not ClaimState.CLAIMED:
            return None
        try:
            move = self._linker.link_leaving(claim)
        except errors.ClaimConflict as uncertain:
            return uncertain
        except errors.PlacementError:
            return None
        return None if move is None else moving_conflict(move)

    def confirm(self, migration: str, *, instance: str | None, now: bool) -> Move:
        """See `ResourceTracker.confirm_move`."""
        return self._end(migration, instance, MoveStep.CONFIRM, MoveState.CONFIRMED, now)

    def revert(
        self, migration: str, *, instance: str | None, now: bool, unless: Callable[[], bool] = lambda: False
    ) -> Move:
        """See `ResourceTracker.revert_move`."""
        return self._end(migration, instance, MoveStep.REVERT, MoveState.REVERTED, now, unless)

    def delete(self, move: Move, *, now: bool) -> bool:
        """Release the instance of a move under way: both parts are freed. True: Placement has freed them.

        False: the release is journaled; `now` False means that Placement is known to be away. Raises
        ClaimConflict, also where the move has just ended: the instance may have a claim here; PlacementError,
        StateError.
        """
        with self._context.turns.take_both(move.instance, move.migration):
            present = self._present(move)
            if present.ended:
                raise errors.ClaimConflict(
                    f"The move of {move.label} has just been {present.state}: try again.",
                    consumer=move.instance,
                )
            if present.state is MoveState.LEAVING:
                raise errors.ClaimConflict(
                    f"Migration {move.migration} of {move.label} has ended, and its guest is still on "
                    "this host: remove the guest, then the agent frees what it uses here.",
                    consumer=move.instance,
                    migration=move.migration,
                )
            if present.state is not MoveState.DELETING:
                present = self._register.step_move(MoveStep.DELETE, present)
            return now and self._finish_or_wait(present).ended

    def deliver(self, move: Move) -> bool:
        """Bring a move nearer to its end, or find out that another client ended it; whether it changed.

        Raises PlacementError, StateError; ClaimConflict: then the move is pending still, or under way again.
        """
        return self._bring_nearer(move, self._finisher.finish)

    def _bring_nearer(self, move: Move, finish: Callable[[Move], Move]) -> bool:
        with self._context.turns.take_both(move.instance, move.migration):
            present = self._register.move_by_migration(move.migration)
            return present is not None and not present.ended and finish(present).state is not present.state

    def _follow(self, move: Move, finish: Callable[[Move], Move]) -> bool:
        try:
            return self._bring_nearer(move, finish)
        except errors.PlacementUnavailable:
            raise
        except (errors.PlacementError, errors.Refused) as error:
            LOG.error("Pending: %s", error.message, fields={"migration": move.migration})
            return False

    def follow(self) -> None:
        """See `ResourceTracker.follow_moves`."""
        self._linker.link_all()  # first: a migration that is known is not taken for another's
        begun = [move for move in self._register.moves().values() if move.state is MoveState.BEGUN]
        changed = [self._follow(move, self._finisher.finish) for move in begun]
        changed += [
            self._follow(move, self._finisher.follow_end)
            for move in self._register.moves().values()
            if self._finisher.stays_for_guest(move)
        ]
        if any(changed):
            self._linker.link_all()

    def _end(
        self,
        migration: str,
        instance: str | None,
        step: MoveStep,
        end: MoveState,
        now: bool,
        unless: Callable[[], bool] = lambda: False,
    ) -> Move:
        known = self._register.move_by_migration(migration)
        if known is None:
            with self._context.turns.take(migration):  # whose begin may be under way
                known = self._register.move_by_migration(migration)
        if known is None and instance is not None:
            known = self._linker.link(instance, migration)
        if known is None:  # also during a back-off: only an answer says that there is none
            known = self._linker.look_for(migration)
        if known is None:
            raise errors.UnknownConsumer(
                f"Migration {migration} is not known on this host, and Placement does not show whose it "
                "is; `plimsoll move list` shows the known ones. At the source, name its instance with "
                "--instance.",
                migration=migration,
            )
        if instance not in (None, known.instance):
            raise errors.ClaimConflict(
                f"On this host, migration {migration} is that of {known.label}, not of {instance}: the agent "
                "changes nothing. `plimsoll move list` shows the known ones.",
                consumer=known.instance,
                migration=migration,
            )
        with self._context.turns.take_both(known.instance, migration):
            move = self._present(known)
            if unless():
                return move
            if move.state is MoveState.BEGINNING:
                move = self._finisher.finish(move)
            if move.ended:
                if move.state is not end:
                    raise errors.ClaimConflict(
                        f"Migration {migration} of {move.label} was {move.state} already.",
                        consumer=move.instance,
                        migration=migration,
                    )
                return move
            if move.state is MoveState.BEGUN:
                move = self._register.step_move(step, replace(move, reverts_from=None))
            elif move.state.value != ("confirming" if step is MoveStep.CONFIRM else "reverting"):
                raise errors.ClaimConflict(
                    f"Migration {migration} of {move.label} is {move.state} already.", migration=migration
                )
            return self._finish_or_wait(move) if now or move.kind is MoveKind.REBUILD else move

    def _present(self, known: Move) -> Move:
        """The move as it is now; the caller has its turns.

        Raises ClaimConflict where it is not there any more: the journal did not take the step that made it
        known.
        """
        present = self._register.move_by_migration(known.migration)
        if present is None:
            raise errors.ClaimConflict(
                f"The agent's journal did not take migration {known.migration} of {known.label}: try again.",
                consumer=known.instance,
                migration=known.migration,
            )
        return present

    def _finish_or_wait(self, move: Move) -> Move:
        """The finished move; the move as it is where Placement does not answer, to be delivered later."""
        try:
            return self._finisher.finish(move)
        except errors.PlacementUnavailable as error:
            LOG.warning("The end of migration %s waits for Placement: %s", move.migration, error.message)
            self._context.placement.report_unavailable(error)
            return move

    def _unfinished_or_ended(self, migration: str, instance: str) -> Move | None:
        """The move of that uuid. Raises ClaimConflict where either consumer is in another move."""
        for consumer in (instance, migration):
            other = self._register.move_of(consumer)
            if other is not None and (other.migration, other.instance) != (migration, instance):
                raise errors.ClaimConflict(
                    f"{other.label} is moving already: migration {other.migration} ({other.kind}) is "
                    f"{other.state}. Confirm or revert that move first.",
                    consumer=other.instance,
                    migration=other.migration,
                )
        claim, move = self._register.claim_and_move_of(migration)
        if claim is not None and move is None:
            raise errors.ClaimConflict(f"{migration} is an instance with a claim, not a migration.")
        return self._register.move_by_migration(migration)


def _same(move: Move, kind: MoveKind, request: ClaimRequest) -> Move:
    """The move, if it is begun and answers this request. Raises ClaimConflict."""
    kinds = {kind, MoveKind.SAME_HOST_RESIZE} if kind is MoveKind.RESIZE else {kind}
    known = None if move.new is None else move.new.request
    same_request = known is not None and known == named_as(request, known)
    if same_request and move.state is MoveState.BEGUN and move.kind in kinds:
        return move
    raise errors.ClaimConflict(
        f"Migration {move.migration} of {move.label} ({move.kind}) is {move.state} already, "
        "and asks for something else.",
        consumer=move.instance,
        migration=move.migration,
    )


class MoveFinisher:
    """Finishes moves. Any thread may call; the caller has the turns of the instance and of the migration."""

    def __init__(self, context: TrackerContext) -> None:
        self._context = context
        self._client = context.client
        self._places = LeftPlaces(context)

    def finish(self, move: Move) -> Move:
        """Bring an ending move to its end; of a begun one, find out whether another client ended it.

        Returns the move after that. It has not ended where it goes on, or where its guest must leave this
        host first. Raises ClaimConflict where another client ended it the other way, or where Placement does
        not take the instance back; PlacementError, StateError.
        """
        return retry_conflicts(
            lambda: self._finish(move),
            f"Other clients wrote the allocations of migration {move.migration}, of its instance or to "
            f"their providers {CONFLICTS_MAX} times while the agent ended the move. "
            "The agent tries again later.",
        )

    def _finish(self, move: Move) -> Move:
        if self.stays_for_guest(move):
            self._context.writer.secure(move.instance, move.migration)  # the guest may stay for long
            return move
        if move.kind is MoveKind.REBUILD and move.state in _REBUILT:
            return self._step(_REBUILT[move.state], move)  # a rebuild writes nothing to Placement
        self._check_known()
        secured = self._context.writer.secure(move.instance, move.migration) is not None
        instance = self._client.allocations_of(move.instance)
        migration = self._client.allocations_of(move.migration)
        if not migration.allocations:
            # It may have ended after the instance was read, which is then what it was during the move.
            instance = self._client.allocations_of(move.instance)
        match move.state:
            case MoveState.BEGINNING:
                return self._resolve_begin(move, instance, migration, secured)
            case MoveState.CONFIRMING:
                return self._free(move, instance, migration)
            case MoveState.REVERTING:
                return self._restore(move, instance, migration)
            case MoveState.DELETING:
                return self._delete(move, instance, migration)
            case MoveState.LEAVING:
                default = MoveStep.RESTORED if move.role is MoveRole.DESTINATION else MoveStep.FREED
                return self._step(self._observed_end(move, instance) or default, move)
            case _:
                return self._observe(move, instance, migration)

    def waits_for_guest(self, move: Move) -> bool:
        """Whether an ending move waits until its guest has left this host."""
        return move.waits_for_guest and self._guest_is_here(move)

    def stays_for_guest(self, move: Move) -> bool:
        """The same, or whether a move has ended whose guest has yet to leave."""
        return self.waits_for_guest(move) or (move.state is MoveState.LEAVING and self._guest_is_here(move))

    def follow_end(self, move: Move) -> Move:
        """Find out whether another client has ended a move that waits for its guest.

        Then Placement holds nothing for the guest here any more. Of a move that has ended, with its guest
        still here: whether its instance is still on the other host. Returns the move after that. Raises
        ClaimConflict where a revert is refused, since a third host has the instance; PlacementConflict where
        another client writes meanwhile; PlacementError, StateError.
        """
        if not self.stays_for_guest(move):
            return move
        self._check_known()
        migration = self._client.allocations_of(move.migration)
        instance = self._client.allocations_of(move.instance)
        if move.state is MoveState.REVERTING and migration.allocations and instance.allocations:
            self._check_not_moved_on(move, instance, migration)
        if migration.allocations or (move.state is MoveState.LEAVING and self._places.has_left(instance)):
            return move
        return self._ended_elsewhere(move, instance)

    def _check_known(self) -> None:
        if self._context.register.host.root is None:
            raise errors.PlacementUnavailable(
                "Before the first inventory the agent does not know which part of a moving instance's "
                "allocation is on this host. It tries again after the inventory."
            )

    # One method for each state

    def _resolve_begin(
        self, move: Move, instance: ConsumerAllocations, migration: ConsumerAllocations, secured: bool
    ) -> Move:
        """A begin whose outcome was unknown: complete it if the guest is here, else undo it.

        `secured`: it had a doubt, which is ended.
        """
        where = ownership.observed_state(move, instance.allocations, migration.allocations)
        whole = ownership.same_amounts(migration.allocations, move.handed)
        changed = whole and self._lives_here(instance.allocations)
        if where is ownership.ObservedState.UNDER_WAY or changed:
            if move.role is MoveRole.DESTINATION and self._guest_is_here(move):
                return self._step(MoveStep.GRANT, move)
            return self._finish(self._step(MoveStep.REVERT, move))
        if where is ownership.ObservedState.ORPHANED and whole:
            return self._finish(self._step(MoveStep.DELETE, move))
        if where is ownership.ObservedState.CHANGED and whole:
            # The begin was executed, and another host has begun to move the instance onward since.
            return self._finish(self._step(MoveStep.GRANT, move))
        if where is ownership.ObservedState.AFTER:
            return self._step(MoveStep.FREED, move)
        if where is ownership.ObservedState.NEITHER:
            return self._step(MoveStep.GONE, move)
        if where is ownership.ObservedState.BEFORE and not secured:
            # Raise the instance's generation, by the same allocation: Placement then rejects a begin that it
            # has not executed yet.
            try:
                self._write(DoubtKind.FENCE, instance)
            except errors.PlacementFull as full:
                # The source is over-committed, so Placement rejects the begin, too.
                LOG.info("The generation of %s was not raised: %s", instance.consumer, full.message)
        return self._step(MoveStep.REFUSE, move)

    def _free(self, move: Move, instance: ConsumerAllocations, migration: ConsumerAllocations) -> Move:
        arriving = move.role is MoveRole.DESTINATION and bool(migration.allocations)
        # A destination whose migration still holds its source was not reverted, wherever its instance is.
        end = MoveStep.FREED if arriving else self._observed_end(move, instance) or MoveStep.FREED
        if migration.allocations:
            if not ownership.same_amounts(migration.allocations, move.handed):
                self._warn(
                    move, "another client changed the migration's allocation; the agent frees all of it"
                )
            self._write(DoubtKind.CONFIRM, replace(migration, allocations={}))
        return self._end(move, end, wanted=MoveStep.FREED)

    def _restore(self, move: Move, instance: ConsumerAllocations, migration: ConsumerAllocations) -> Move:
        if not migration.allocations:
            end = self._observed_end(move, instance) or MoveStep.RESTORED
            return self._end(move, end, wanted=MoveStep.RESTORED)
        at_source = move.role is not MoveRole.DESTINATION
        if not instance.allocations:
            if not (at_source and self._guest_is_here(move)):
                self._write(DoubtKind.REVERT, replace(migration, allocations={}))
                return self._step(MoveStep.GONE, move)
            # Another client deleted the instance. Its guest is here, so no other consumer may get the place.
            owner = move.old.request
            instance = replace(
                instance,
                project_id=owner.project_id,
                user_id=owner.user_id,
                consumer_type=owner.consumer_type,
            )
        restored = ownership.restored_allocations(move, migration.allocations)
        if move.role is not MoveRole.BOTH and instance.allocations in (restored, move.old.allocations):
            end = self._observed_end(move, instance) or MoveStep.RESTORED
            self._write(DoubtKind.REVERT, replace(migration, allocations={}))
            return self._end(move, end, wanted=MoveStep.RESTORED)
        self._check_not_moved_on(move, instance, migration)
        move = self._check_taken_from(move, instance)
        if (
            ownership.observed_state(move, instance.allocations, migration.allocations)
            is ownership.ObservedState.CHANGED
        ):
            self._warn(
                move,
                "another client changed the allocation of the instance or of the migration; the agent "
                "restores the old one",
            )
        # The source reserves of the place what the migration does not hold. It ends with the revert.
        lacking = beyond(restored, migration.allocations)
        writes = replace(instance, allocations=restored), replace(migration, allocations={})
        try:
            self._write(DoubtKind.REVERT, *writes, reserved=lacking if at_source else {})
        except (errors.PlacementConflict, errors.PlacementUnavailable):
            raise
        except errors.PlacementError as refused:
            is_changed = not ownership.same_amounts(migration.allocations, move.handed)
            if not isinstance(refused, errors.PlacementFull) and not is_changed:
                raise
            self._step(MoveStep.REFUSE, move)
            remedy = (
                "Free resources at the source, then revert again."
                if at_source
                else f"Revert at the source, whose agent may keep the place: `plimsoll move revert "
                f"{move.migration} --instance {move.instance}`; or free resources there, then revert again."
            )
            raise errors.ClaimConflict(
                f"Placement does not take {move.label} back to its source: another client changed what "
                f"migration {move.migration} held there. {remedy} ({refused.message})",
                consumer=move.instance,
                migration=move.migration,
            ) from refused
        return self._step(MoveStep.RESTORED, move)

    def _check_not_moved_on(
        self, move: Move, instance: ConsumerAllocations, migration: ConsumerAllocations
    ) -> None:
        """Raises ClaimConflict where the instance is neither here nor back: the move is under way again.

        It is not back where another migration may hold its place here: its source began that move.
        """
        back = ownership.restored_allocations(move, migration.allocations), move.old.allocations
        if move.role is MoveRole.SOURCE or not instance.allocations or self._lives_here(instance.allocations):
            return
        if instance.allocations not in back or self._observed_end(move, instance) is MoveStep.FREED:
            self._step(MoveStep.REFUSE, move)
            raise errors.ClaimConflict(
                f"{move.label} has moved on: it no longer holds what migration {move.migration} gave it, "
                "so the move cannot be reverted. To free what the migration holds, run "
                f"`plimsoll move confirm {move.migration}`.",
                consumer=move.instance,
                migration=move.migration,
            )

    def _check_taken_from(self, move: Move, instance: ConsumerAllocations) -> Move:
        """Remember from which place the source takes the instance back, when it is first asked to.

        An attempt that Placement did not answer is repeated only for that place: meanwhile another host may
        have begun another move. Raises ClaimConflict where the instance has another place by now.
        """
        if move.role is not MoveRole.SOURCE:
            return move
        if move.reverts_from is None:
            return self._step(MoveStep.FOUND, replace(move, reverts_from=instance.allocations))
        if move.reverts_from == instance.allocations:
            return move
        self._step(MoveStep.REFUSE, replace(move, reverts_from=None))
        raise errors.ClaimConflict(
            f"{move.label} has been moved on since the revert of migration {move.migration} was asked "
            "for, and before Placement took it: nothing was reverted. Look where it is, then confirm or "
            "revert.",
            consumer=move.instance,
            migration=move.migration,
        )

    def _delete(self, move: Move, instance: ConsumerAllocations, migration: ConsumerAllocations) -> Move:
        if instance.allocations and self._has_moved_on(move, instance):
            # Another migration may hold the instance's part of this host by now: keep the claim for it.
            if migration.allocations:
                self._write(DoubtKind.DELETE, replace(migration, allocations={}))
            end = self._observed_end(move, instance) or MoveStep.FREED
            self._check_not_back(instance)
            return self._step(end, move)
        writes = []
        if instance.allocations:
            # What it holds beyond this move, on other hosts, stays.
            elsewhere: Allocations = {}
            if move.new is None or instance.allocations not in (move.new.allocations, move.old.allocations):
                elsewhere = split_by_host(instance.allocations, self._context.register.host).elsewhere
            if elsewhere != instance.allocations:
                writes.append(replace(instance, allocations=elsewhere))
        if migration.allocations:
            writes.append(replace(migration, allocations={}))
        self._write(DoubtKind.DELETE, *writes)
        return self._step(MoveStep.GONE, move)

    def _observe(self, move: Move, instance: ConsumerAllocations, migration: ConsumerAllocations) -> Move:
        """A begun move: find out whether another client ended it, or whether the instance has moved on.

        Raises PlacementConflict where another client writes the instance meanwhile.
        """
        reason = ownership.undecided_reason(
            move, instance.allocations, migration.allocations, self._context.register.host.is_own
        )
        if reason is not None:
            self._warn(move, reason)
            return move
        rebuild = move.kind is MoveKind.REBUILD
        if (migration.allocations or rebuild) and self._has_moved_on(move, instance):
            # While a consumer may hold the new place here as the migration of a move onward, the instance may
            # come back, and nothing says that its guest ever left the source.
            new = None if rebuild else move.new
            holders = [] if new is None else self._places.possible_holders(new, instance)
            if holders:
                self._warn(
                    move,
                    f"the instance has left this host again, and {', '.join(holders)} holds its place here; "
                    "the agent waits until that move has ended, or until an operator ends this one",
                )
                return move
            self._warn(
                move,
                "the instance has left this host for good, so it had arrived; the agent confirms the move",
            )
            return self._finish(self._step(MoveStep.CONFIRM, move))
        if rebuild:
            return move
        if migration.allocations and instance.allocations:
            # Remember where a reshape of the other host, its source, put the old place.
            source = migration.allocations
            is_moved = source != move.handed and ownership.same_amounts(source, move.handed)
            if move.role is not MoveRole.DESTINATION or not is_moved:
                return move
            return self._step(MoveStep.FOUND, ownership.with_source_at(move, source))
        if migration.allocations:
            return self._finish(self._step(MoveStep.DELETE, move))
        return self._ended_elsewhere(move, instance)

    def _ended_elsewhere(self, move: Move, instance: ConsumerAllocations) -> Move:
        """The migration holds nothing any more: end the move as Placement shows that another client did."""
        end = self._observed_end(move, instance) or MoveStep.FREED
        at_source = move.role is not MoveRole.DESTINATION
        if move.role is MoveRole.BOTH or not self._guest_is_here(move):
            return self._step(end, move)
        if end is MoveStep.GONE:
            # As for any guest whose allocation was deleted: it keeps its claim, and the audit shows that.
            self._warn(move, "another client deleted the instance, and its guest is still on this host")
            return self._step(MoveStep.RESTORED if at_source else MoveStep.FREED, move)
        if end is (MoveStep.FREED if at_source else MoveStep.RESTORED):
            if move.state is MoveState.LEAVING:
                return move
            self._warn(move, "another client ended it, and the guest is still on this host: remove the guest")
            return self._step(MoveStep.LEAVE, move)
        return self._step(end, move)

    # What the states have in common

    def _write(self, kind: DoubtKind, *writes: ConsumerAllocations, reserved: Usages | None = None) -> None:
        """Raises PlacementError; PlacementUnavailable where it is not done, or not known.

        `reserved` is what passes reserved here for the row of the first consumer: that ends with the write.
        """
        consumers = " and ".join(write.consumer for write in writes)
        outcome = (
            self._context.send_in_reserved(
                writes[0].consumer,
                reserved,
                lambda inventories: self._context.writer.send(kind, *writes, inventories=inventories),
            )
            if reserved
            else self._context.writer.send(kind, *writes)
        )
        checked(outcome, f"{kind} of {consumers}", "the agent looks again")
        for write in writes:
            if not write.allocations and not self._context.writer.bar_again(write.consumer):
                raise errors.PlacementConflict(f"{write.consumer} was written again right after its {kind}.")

    def _end(self, move: Move, end: MoveStep, *, wanted: MoveStep) -> Move:
        """End the move. Raises ClaimConflict where another client has ended it the other way."""
        ended = self._step(end, move)
        if end is not wanted and end is not MoveStep.GONE:
            raise errors.ClaimConflict(
                f"Another client has already {ended.state} migration {move.migration} of {move.label}.",
                consumer=move.instance,
                migration=move.migration,
            )
        return ended

    def _observed_end(self, move: Move, instance: ConsumerAllocations) -> MoveStep | None:
        """Raises PlacementConflict where another client writes the instance meanwhile."""
        end = ownership.observed_end(move, instance.allocations, {}, self._context.register.host.is_own)
        if end is MoveStep.RESTORED and move.role is MoveRole.DESTINATION and move.new is not None:
            # The instance may have arrived here, and another migration may hold its place now.
            self._places.read_holders([move.new])
            if self._places.lookalikes(move.new, instance):
                return MoveStep.FREED
            self._check_not_back(instance)
        left = end is MoveStep.FREED and move.role is MoveRole.SOURCE and self._places.has_left(instance)
        if left and ownership.may_be_superseded(move, instance.generation):
            # While another migration may hold the place, the move may have been reverted and begun again.
            return MoveStep.RESTORED if self._places.possible_holders(move.old, instance) else end
        return end

    def _check_not_back(self, instance: ConsumerAllocations) -> None:
        """Raises PlacementConflict where another client has written the instance since it was read."""
        if self._client.allocations_of(instance.consumer) != instance:
            raise errors.PlacementConflict(
                f"Another client wrote the allocations of {instance.consumer} meanwhile: it may be back."
            )

    def _has_moved_on(self, move: Move, instance: ConsumerAllocations) -> bool:
        return ownership.has_moved_on(move, instance.allocations, self._context.register.host.is_own)

    def _lives_here(self, instance: Allocations) -> bool:
        host = self._context.register.host
        return any(host.is_own(uuid) for uuid in instance)

    def _guest_is_here(self, move: Move) -> bool:
        return move.instance in self._context.guests

    def _step(self, step: MoveStep, move: Move) -> Move:
        return self._context.register.step_move(step, move)

    def _warn(self, move: Move, clause: str) -> None:
        LOG.warning(
            "Migration %s of %s: %s.",
            move.migration,
            move.instance,
            clause,
            fields={"consumer": move.instance, "migration": move.migration},
        )
