"""Moves, as the tracker offers them: begin, confirm, revert, delete, and what follows without a request.

The destination begins a move. Either side confirms or reverts it. What waits for Placement is journaled and
delivered later.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

from agent import log
from agent.claims.claim import ClaimState
from agent.claims.fit import check_placeable
from agent.claims.request import ClaimRequest
from agent.errors import (
    ClaimConflict,
    PlacementError,
    PlacementUnavailable,
    Refused,
    UnknownConsumer,
    UsageError,
)
from agent.moves.states import Move, MoveKind, MoveState, MoveStep, moving_conflict
from agent.tracker.begin_move import MoveAttempt
from agent.tracker.context import TrackerContext
from agent.tracker.end_move import MoveFinisher
from agent.tracker.follow_moves import MigrationLinker
from agent.tracker.guest_demand import GuestDemand, reserved_for

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
        _check_request(kind, migration, request)
        with self._context.turns.take_both(request.consumer, migration):
            self._context.admission.check()
            move = self._unfinished_or_ended(migration, request.consumer)
            if move is not None and move.state is MoveState.BEGINNING:
                move = self._finisher.finish(move)
            if move is not None and not move.ended:
                return _same(move, kind, request)
            if move is not None and move.state is not MoveState.REVERTED:
                raise ClaimConflict(
                    f"Migration {migration} was {move.state} already: give the next move its own uuid.",
                    migration=migration,
                )
            try:
                with reserved_for(self._register, demand) if demand is not None else nullcontext():
                    return MoveAttempt(self._context, kind, migration, request).run()
            except ClaimConflict as conflict:
                raise self._move_beside(request.consumer) or conflict from conflict

    def _move_beside(self, instance: str) -> ClaimConflict | None:
        """Why an instance with a claim here cannot begin a move: one that began elsewhere, if there is one.

        The caller has the instance's turn. None: it is where its claim is, or Placement does not say.
        """
        claim = self._register.claim_of(instance)
        if claim is None or claim.state is not ClaimState.CLAIMED:
            return None
        try:
            move = self._linker.link_leaving(claim)
        except ClaimConflict as uncertain:
            return uncertain
        except PlacementError:
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
                raise ClaimConflict(
                    f"The move of {move.label} has just been {present.state}: try again.",
                    consumer=move.instance,
                )
            if present.state is MoveState.LEAVING:
                raise ClaimConflict(
                    f"Migration {move.migration} of {move.label} has ended, and its guest is still on "
                    "this host: remove the guest, then the agent frees what it uses here.",
                    consumer=move.instance,
                    migration=move.migration,
                )
            if present.state is not MoveState.DELETING:
                present = self._register.step_move(MoveStep.DELETE, present)
            return now and self._finish_or_wait(present).ended

    def deliver(self, migration: str) -> bool:
        """Bring a move nearer to its end, or find out that another client ended it; whether it changed.

        Raises PlacementUnavailable, StateError; other refusals are logged and the move stays pending.
        """
        return self._bring_nearer(migration, self._finisher.finish)

    def _bring_nearer(self, migration: str, finish: Callable[[Move], Move]) -> bool:
        move = self._register.move_by_migration(migration)
        if move is None:
            return False
        with self._context.turns.take_both(move.instance, migration):
            present = self._register.move_by_migration(migration)
            if present is None or present.ended:
                return False
            try:
                return finish(present).state is not present.state
            except PlacementUnavailable:
                raise
            except (PlacementError, Refused) as error:
                LOG.error("Pending: %s", error.message, fields={"migration": migration})
                return False

    def follow(self) -> int:
        """See `ResourceTracker.follow_moves`."""
        linked = self._linker.link_all()  # first: a migration that is known is not taken for another's
        begun = [move for move in self._register.moves().values() if move.state is MoveState.BEGUN]
        changed = sum(self.deliver(move.migration) for move in begun)
        changed += sum(
            self._bring_nearer(move.migration, self._finisher.follow_end)
            for move in self._register.moves().values()
            if self._finisher.waits_for_guest(move)
        )
        return linked + changed + (self._linker.link_all() if changed else 0)

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
        if known is None and instance is not None:
            known = self._linker.link(instance, migration)
        if known is None and now:
            known = self._linker.look_for(migration)
        if known is None:
            raise UnknownConsumer(
                f"Migration {migration} is not known on this host, and Placement does not show whose it "
                "is; `plimsoll move list` shows the known ones. At the source, name its instance with "
                "--instance.",
                migration=migration,
            )
        with self._context.turns.take_both(known.instance, migration):
            move = self._present(known)
            if unless():
                return move
            if move.state is MoveState.BEGINNING:
                move = self._finisher.finish(move)
            if move.ended:
                return _ended_as(move, end)
            if move.state is MoveState.BEGUN:
                move = self._register.step_move(step, replace(move, reverts_from=None))
            elif move.state.value != ("confirming" if step is MoveStep.CONFIRM else "reverting"):
                raise ClaimConflict(
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
            raise ClaimConflict(
                f"The agent's journal did not take migration {known.migration} of {known.label}: try again.",
                consumer=known.instance,
                migration=known.migration,
            )
        return present

    def _finish_or_wait(self, move: Move) -> Move:
        """The finished move; the move as it is where Placement does not answer, to be delivered later."""
        try:
            return self._finisher.finish(move)
        except PlacementUnavailable as error:
            LOG.warning("The end of migration %s waits for Placement: %s", move.migration, error.message)
            self._context.placement.report_unavailable(error)
            return move

    def _unfinished_or_ended(self, migration: str, instance: str) -> Move | None:
        """The move of that uuid. Raises ClaimConflict where either consumer is in another move."""
        for consumer in (instance, migration):
            other = self._register.move_of(consumer)
            if other is not None and (other.migration, other.instance) != (migration, instance):
                raise ClaimConflict(
                    f"{other.label} is moving already: migration {other.migration} ({other.kind}) is "
                    f"{other.state}. Confirm or revert that move first.",
                    consumer=other.instance,
                    migration=other.migration,
                )
        claim, move = self._register.claim_and_move_of(migration)
        if claim is not None and move is None:
            raise ClaimConflict(f"{migration} is an instance with a claim, not a migration.")
        return self._register.move_by_migration(migration)


def _check_request(kind: MoveKind, migration: str, request: ClaimRequest) -> None:
    check_placeable(request)
    if kind is MoveKind.LIVE_MIGRATE and request.topology.mem_page_size in ("large", "any"):
        raise UsageError(
            f"topology: a live migration keeps the size of the guest's pages, and mem_page_size "
            f"{request.topology.mem_page_size} does not name one: ask for the size in KiB that `plimsoll "
            "explain` shows at the source.",
            migration=migration,
        )
    if kind not in BEGINNABLE:
        raise UsageError(f"kind: a move of kind {kind} cannot be begun.")
    if migration == request.consumer:
        raise UsageError(
            "migration: it has the uuid of the instance, and needs one of its own.", migration=migration
        )


def _same(move: Move, kind: MoveKind, request: ClaimRequest) -> Move:
    """The move, if it is begun and answers this request. Raises ClaimConflict."""
    kinds = {kind, MoveKind.SAME_HOST_RESIZE} if kind is MoveKind.RESIZE else {kind}
    same_request = move.new is not None and move.new.request == request
    if same_request and move.state is MoveState.BEGUN and move.kind in kinds:
        return move
    raise ClaimConflict(
        f"Migration {move.migration} of {move.label} ({move.kind}) is {move.state} already, "
        "and asks for something else.",
        consumer=move.instance,
        migration=move.migration,
    )


def _ended_as(move: Move, end: MoveState) -> Move:
    if move.state is not end:
        raise ClaimConflict(
            f"Migration {move.migration} of {move.label} was {move.state} already.",
            consumer=move.instance,
            migration=move.migration,
        )
    return move
