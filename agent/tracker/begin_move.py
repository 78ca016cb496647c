"""The first step of a move, on its destination: choose, journal the intent, one request, journal the result.

The caller has the turns of the instance and of the migration. No request is sent while the register's lock is
held.
"""

from collections.abc import Collection
from dataclasses import replace

from agent.backoff import CONFLICTS_MAX, pause
from agent.claims.book import Book
from agent.claims.doubt import DoubtKind
from agent.claims.refusal import label
from agent.claims.request import ClaimRequest
from agent.device_names import mdev_types
from agent.errors import (
    DoesNotFit,
    PlacementConflict,
    PlacementFull,
    PlacementUnavailable,
    PlimsollError,
    StateError,
)
from agent.moves.live_migratable import MdevTypes, mdev_classes
from agent.moves.ownership import ObservedState, observed_state
from agent.moves.states import MIGRATION_TYPE, Move, MoveKind, MoveState, MoveStep
from agent.placement.client import ConsumerAllocations
from agent.placement.replies import WriteRefused
from agent.tracker.choose_move import MoveChoice
from agent.tracker.claim_attempt import expected_generation
from agent.tracker.context import TrackerContext
from agent.tracker.guarded_write import checked


class MoveAttempt:
    """One attempt to begin one move; `run` once."""

    def __init__(
        self, context: TrackerContext, kind: MoveKind, migration: str, request: ClaimRequest
    ) -> None:
        self._context = context
        self._kind = kind
        self._migration = migration
        self._request = request
        self._empty_generation: int | None = None
        self._nothing_sent = True

    def run(self) -> Move:
        """The move, begun: in Placement and on disk.

        Raises DoesNotFit, ClaimConflict, UnknownConsumer, PlacementError, StateError; then nothing is
        changed, unless the outcome is unknown: then the intent stays, to be resolved later.
        """
        if self._kind is MoveKind.REBUILD:
            return self._rebuild()
        failure: PlimsollError | None = None
        for attempt in range(CONFLICTS_MAX):
            suspects: Collection[str] = ()
            try:
                return self._try_once()
            except PlacementConflict as conflict:
                failure = conflict
                self._empty_generation = expected_generation(conflict, self._empty_generation)
                pause(attempt)
            except DoesNotFit as error:
                suspects = {shortfall["provider_uuid"] for shortfall in error.details["shortfalls"]}
                by_placement = isinstance(error.__cause__, PlacementFull)
                twice = isinstance(failure, DoesNotFit)
                if not by_placement and (twice or not self._context.may_be_stale(suspects)):
                    raise
                failure = error
            self._context.read_consumers(suspects)
        raise failure or PlacementConflict(
            f"The move of {label(self._request)} met other writers {CONFLICTS_MAX} times: try again."
        )

    def _try_once(self) -> Move:
        self._context.writer.secure(self._request.consumer, self._migration)
        self._nothing_sent = True
        instance, migration = self._read()
        types = self._read_mdev_types(instance, migration)
        move = self._context.register.step_chosen_move(
            lambda book: replace(self._choice(book), mdev_types=types).choose(instance, migration)
        )
        if move.state is MoveState.BEGUN:
            return move
        try:
            return self._write_intent(move, instance, migration)
        except PlacementFull as full:
            allocations = move.new.allocations if move.new else {}
            refused = self._context.refused_by_placement(self._request, allocations, full)
            self._refuse_intent(move, refused)
            raise refused from full
        except PlimsollError as error:
            self._refuse_intent(move, error)
            raise

    def _rebuild(self) -> Move:
        """A rebuild stays in place: nothing is written to Placement."""
        instance = self._context.client.allocations_of(self._request.consumer)
        return self._context.register.step_chosen_move(
            lambda book: self._choice(book).choose_rebuild(instance)
        )

    def _choice(self, book: Book) -> MoveChoice:
        return MoveChoice(book, self._kind, self._migration, self._request, self._context.clock())

    def _read(self) -> tuple[ConsumerAllocations, ConsumerAllocations]:
        return (
            self._context.client.allocations_of(self._request.consumer),
            self._context.client.allocations_of(self._migration),
        )

    def _read_mdev_types(self, *source: ConsumerAllocations) -> MdevTypes:
        """The types of the mediated devices that the guest of a live migration has at its source.

        Only where this host has mediated devices of known types is anything read.
        """
        host = self._context.register.host
        if self._kind is not MoveKind.LIVE_MIGRATE:
            return {}
        found: dict[str, frozenset[str]] = {}
        for name in mdev_classes(self._request, host):
            cards = {
                uuid
                for held in source
                for uuid, amounts in held.allocations.items()
                if name in amounts and not host.is_own(uuid)
            }
            types = (mdev_types(self._context.client.provider_traits(uuid)) for uuid in sorted(cards))
            found[name] = frozenset().union(*types)
        return found

    def _write_intent(
        self, move: Move, instance: ConsumerAllocations, migration: ConsumerAllocations
    ) -> Move:
        assert move.new is not None
        generation = self._empty_generation if migration.generation is None else migration.generation
        source = replace(
            migration,
            generation=generation,
            allocations=move.handed,
            project_id=instance.project_id,
            user_id=instance.user_id,
            consumer_type=MIGRATION_TYPE,
        )
        destination = replace(instance, allocations=move.new.allocations)
        self._nothing_sent = False
        outcome = self._context.writer.send_and_read(
            DoubtKind.BEGIN, source, destination, is_done=lambda: self._is_under_way(move)
        )
        self._nothing_sent = isinstance(outcome, WriteRefused)
        checked(
            outcome,
            f"move of {label(self._request)}",
            "both places stay reserved until it answers, then the move is undone",
        )
        if self._context.writer.secure(move.migration) is not None and not self._is_under_way(move):
            raise PlacementUnavailable(
                f"An earlier write for migration {move.migration} was executed after the begin of the move. "
                "The agent undoes the move; begin it again with another uuid."
            )
        return self._context.register.step_move(MoveStep.GRANT, move)

    def _is_under_way(self, move: Move) -> bool:
        instance, migration = self._read()
        return observed_state(move, instance.allocations, migration.allocations) is ObservedState.UNDER_WAY

    def _refuse_intent(self, move: Move, error: PlimsollError) -> None:
        """Undo the journaled intent, unless Placement holds or may yet hold the write."""
        if not self._nothing_sent:
            return
        try:
            self._context.register.step_move(MoveStep.REFUSE, move)
        except StateError as unwritten:
            error.add_note(f"The intent could not be undone either: {unwritten.message}")
