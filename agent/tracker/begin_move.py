"""The first step of a move, on its destination: choose, journal the intent, one request, journal the
result.

`MoveChoice` says what that does, without I/O: the step, and the move with its two claims. The caller of
`MoveAttempt` has the turns of the instance and of the migration. No request is sent while the register's
lock is held.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from agent import errors
from agent.backoff import CONFLICTS_MAX, pause
from agent.claims.book import Book
from agent.claims.claim import Claim, ClaimState, Fit, claim_of_fit
from agent.claims.doubt import DoubtKind
from agent.claims.refusal import amounts_text, does_not_fit, label, not_covered_conflict
from agent.claims.request import ClaimRequest
from agent.moves import live_migratable, ownership
from agent.moves.states import (
    MIGRATION_TYPE,
    Move,
    MoveKind,
    MoveRole,
    MoveState,
    MoveStep,
    request_for_allocations,
)
from agent.placement.client import ConsumerAllocations
from agent.placement.transport import WriteRefused
from agent.shapes import Allocations
from agent.tracker.claim_attempt import expected_generation
from agent.tracker.context import TrackerContext, split_by_host
from agent.tracker.guarded_write import STALLED_S, checked, journal_stalled


@dataclass(frozen=True, slots=True)
class MoveChoice:
    """Chooses under the register's lock. `now` is seconds since the epoch, UTC.

    `at_source` are the traits of the cards that the instance of a live migration has at its source.
    """

    book: Book
    kind: MoveKind
    migration: str
    request: ClaimRequest
    now: float
    at_source: live_migratable.SourceTraits = field(default_factory=dict)

    def choose(self, instance: ConsumerAllocations, migration: ConsumerAllocations) -> tuple[MoveStep, Move]:
        """The step and the move, from what Placement holds for the two consumers.

        Raises UnknownConsumer, ClaimConflict, DoesNotFit; Refused for a guest that cannot be live-migrated.
        """
        live_migratable.check_source(self.request, self.at_source, self.book.host)
        if not instance.allocations:
            raise errors.UnknownConsumer(
                f"{label(self.request)} holds nothing in Placement: there is nothing to move. Claim it "
                "instead.",
                consumer=self.request.consumer,
            )
        claim = self.book.claims.get(self.request.consumer)
        if claim is not None:
            if self.kind not in (MoveKind.RESIZE, MoveKind.SAME_HOST_RESIZE):
                raise errors.ClaimConflict(
                    f"{label(self.request)} is on this host already: a {self.kind} begins on the "
                    "destination.",
                    consumer=claim.consumer,
                )
            if claim.state is not ClaimState.CLAIMED:
                raise errors.ClaimConflict(f"{label(self.request)} is {claim.state}: try again after that.")
            self._check_free(migration)
            self._check_holds(claim, instance)
            fit = self._fit(instance)
            return MoveStep.BEGIN, self._fitted_move(MoveKind.SAME_HOST_RESIZE, MoveRole.BOTH, claim, fit)
        if self.kind is MoveKind.SAME_HOST_RESIZE:
            raise errors.ClaimConflict(
                f"{label(self.request)} has no claim on this host, so it cannot be resized within it."
            )
        split = split_by_host(instance.allocations, self.book.host)
        if migration.allocations:
            return MoveStep.ADOPT, self._begun_by_control_plane(split, instance, migration)
        if split.here:
            return MoveStep.BEGIN, self._from_doubled(split, instance)
        old = self._source_claim(instance, instance.allocations)
        return MoveStep.BEGIN, self._fitted_move(self.kind, MoveRole.DESTINATION, old, self._fit(instance))

    def choose_rebuild(self, instance: ConsumerAllocations) -> tuple[MoveStep, Move]:
        """The step and the move of a rebuild, which keeps the instance's allocations as they are.

        Raises UnknownConsumer, ClaimConflict; DoesNotFit where the providers that the instance is on lack
        what the new request asks for.
        """
        old = self.book.claims.get(self.request.consumer)
        if old is None or old.state is not ClaimState.CLAIMED:
            raise errors.UnknownConsumer(
                f"{label(self.request)} has no claim on this host: there is nothing to rebuild here.",
                consumer=self.request.consumer,
            )
        self._check_holds(old, instance)
        if self.request.resources != old.request.resources:
            raise errors.ClaimConflict(
                f"A rebuild keeps its resources, and {label(self.request)} holds "
                f"{amounts_text(old.request.resources)}, not {amounts_text(self.request.resources)}: "
                "resize it instead.",
                consumer=old.consumer,
            )
        if self.request.topology != old.request.topology:
            raise errors.ClaimConflict(
                f"A rebuild keeps the NUMA cells, CPUs and pages, and {label(self.request)} asks for others: "
                "resize it instead.",
                consumer=old.consumer,
            )
        fit = self.book.cover(self.request, old.allocations, exact=False)
        if not fit.fits:
            raise does_not_fit(self.request, fit.shortfalls)
        number = self.request.alternative or old.request.alternative
        new = replace(old, request=replace(self.request, alternative=number))
        return MoveStep.ADOPT, self._move(MoveKind.REBUILD, MoveRole.BOTH, old, new, {})

    # Where the instance is

    def _from_doubled(self, split: ownership.SplitAllocations, instance: ConsumerAllocations) -> Move:
        """A control plane wrote source and destination for one consumer: give the source's part to the
        migration."""
        if not split.elsewhere:
            raise errors.ClaimConflict(
                f"{label(self.request)} already holds an allocation on this host, without a claim, and none "
                "elsewhere: claim it instead.",
                consumer=self.request.consumer,
            )
        new, source = ownership.separate_allocations(split, self.request.resources)
        shared = {uuid: amounts for uuid, amounts in new.items() if uuid in split.shared}
        old = self._source_claim(instance, {**source, **shared})
        return self._fitted_move(self.kind, MoveRole.DESTINATION, old, self._cover(new))

    def _begun_by_control_plane(
        self, split: ownership.SplitAllocations, instance: ConsumerAllocations, migration: ConsumerAllocations
    ) -> Move:
        """A control plane wrote both parts as begin would: the agent chooses the instance's devices."""
        if not split.here or split.elsewhere:
            self._check_free(migration)
        old = {uuid: dict(amounts) for uuid, amounts in split.shared.items()}
        for uuid, amounts in migration.allocations.items():
            old.setdefault(uuid, {}).update(amounts)
        move = self._fitted_move(
            self.kind,
            MoveRole.DESTINATION,
            self._source_claim(instance, old),
            self._cover(instance.allocations),
        )
        return replace(move, handed=migration.allocations, adopted=True)

    def _source_claim(self, instance: ConsumerAllocations, allocations: Allocations) -> Claim:
        """The instance's claim at the source, as far as Placement shows it."""
        owner = replace(self.request, project_id=instance.project_id, user_id=instance.user_id)
        request = request_for_allocations(owner, allocations)
        return Claim(
            instance.consumer, ClaimState.CLAIMED, request, allocations, since=self.now, adopted=True
        )

    # Where it fits

    def _fit(self, instance: ConsumerAllocations) -> Fit:
        """The first fit that can take over the guest's state. Raises DoesNotFit; Refused where none can."""
        alike, untold = live_migratable.with_source(self.request, self.at_source, self.book.host)
        requests = [alike, *(each for each in (untold, self.request) if each != alike)]
        refusal: errors.Refused | None = None
        for avoided, request in product(self._avoided(), requests):
            fit = self.book.fit_move(request, self.migration, instance.allocations, avoided)
            if request is alike:
                first = fit
            if not fit.fits:
                continue
            try:
                live_migratable.check_chosen(self.request, fit, self.at_source, self.book.host)
                return fit
            except errors.Refused as error:
                refusal = refusal or error
        raise refusal or does_not_fit(self.request, first.shortfalls)

    def _cover(self, held: Allocations) -> Fit:
        """What is held here, with exact units. Raises ClaimConflict, DoesNotFit (units)."""
        fit = self.book.cover(self.request, held, exact=False)
        if not fit.fits:
            raise not_covered_conflict(self.request, held, fit.shortfalls, self.book.host.tree)
        for avoided in self._avoided():
            fit = self.book.cover(self.request, held, exact=True, avoided=avoided)
            if fit.fits:
                return fit
        raise does_not_fit(self.request, fit.shortfalls)

    def _avoided(self) -> Sequence[Collection[str]]:
        """The units to avoid, the fewer the later: their driver cannot take over the guest's state."""
        unlike = live_migratable.unlike_units(self.request, self.at_source, self.book.host, self.book.offered)
        return (*unlike, ())

    def _fitted_move(self, kind: MoveKind, role: MoveRole, old: Claim, fit: Fit) -> Move:
        if kind is MoveKind.LIVE_MIGRATE:
            live_migratable.check_chosen(self.request, fit, self.at_source, self.book.host)
            live_migratable.check_live_migratable(
                self.request, fit.allocations, self.book.host, self.book.offered
            )
        new = claim_of_fit(self.request, fit, ClaimState.CLAIMED, self.now)
        part = ownership.migration_share(old.allocations, fit.allocations, self.book.host.is_own)
        if not part:
            raise errors.ClaimConflict(
                f"The move would change no allocation of {label(self.request)}: there is nothing to move.",
                consumer=self.request.consumer,
            )
        return self._move(kind, role, old, new, part)

    def _move(self, kind: MoveKind, role: MoveRole, old: Claim, new: Claim, part: Allocations) -> Move:
        return Move(
            self.migration,
            self.request.consumer,
            kind,
            role,
            MoveState.BEGINNING,
            old,
            new,
            part,
            self.now,
        )

    # Checks

    def _check_holds(self, claim: Claim, instance: ConsumerAllocations) -> None:
        if instance.allocations != claim.allocations:
            raise errors.ClaimConflict(
                f"Placement holds something else for {label(self.request)} than its claim on this host. It "
                "may have moved; `plimsoll audit` shows the difference. Repair that first.",
                consumer=claim.consumer,
            )

    def _check_free(self, migration: ConsumerAllocations) -> None:
        if migration.allocations:
            held = "; ".join(
                f"provider {uuid}: {amounts_text(amounts)}"
                for uuid, amounts in sorted(migration.allocations.items(), key=lambda item: item[0])
            )
            raise errors.ClaimConflict(
                f"Migration {self.migration} already holds an allocation in Placement ({held}): give the "
                "move a uuid of its own.",
                consumer=self.migration,
            )


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
            # A rebuild stays in place: nothing is written to Placement.
            instance = self._context.client.allocations_of(self._request.consumer)
            return self._context.register.step_chosen_move(
                lambda book: self._choice(book).choose_rebuild(instance)
            )
        failure: errors.PlimsollError | None = None
        for attempt in range(CONFLICTS_MAX):
            suspects: Collection[str] = ()
            try:
                return self._try_once()
            except errors.PlacementConflict as conflict:
                failure = conflict
                self._empty_generation = expected_generation(conflict, self._empty_generation)
                pause(attempt)
            except errors.DoesNotFit as error:
                suspects = error.providers
                by_placement = isinstance(error.__cause__, errors.PlacementFull)
                twice = isinstance(failure, errors.DoesNotFit)
                if not by_placement and (twice or not self._context.may_be_stale(suspects)):
                    raise
                failure = error
            self._context.read_consumers(suspects)
        raise failure or errors.PlacementConflict(
            f"The move of {label(self._request)} met other writers {CONFLICTS_MAX} times: try again."
        )

    def _try_once(self) -> Move:
        self._context.writer.secure(self._request.consumer, self._migration)
        instance, migration = self._read()
        traits = self._read_source(instance, migration)
        move = self._context.register.step_chosen_move(
            lambda book: replace(self._choice(book), at_source=traits).choose(instance, migration)
        )
        if move.state is MoveState.BEGUN:
            return move
        try:
            return self._write_intent(move, instance, migration)
        except errors.PlacementFull as full:
            allocations = move.new.allocations if move.new else {}
            refused = self._context.refused_by_placement(self._request, allocations, full)
            self._refuse_intent(move, refused)
            raise refused from full
        except errors.PlimsollError as error:
            self._refuse_intent(move, error)
            raise

    def _choice(self, book: Book) -> MoveChoice:
        return MoveChoice(book, self._kind, self._migration, self._request, self._context.clock())

    def _read(self) -> tuple[ConsumerAllocations, ConsumerAllocations]:
        return (
            self._context.client.allocations_of(self._request.consumer),
            self._context.client.allocations_of(self._migration),
        )

    def _read_source(self, *source: ConsumerAllocations) -> live_migratable.SourceTraits:
        """The traits of the cards on which the guest of a live migration has its devices at its source.

        Only for classes of which this host says what can take over their state is anything read.
        """
        host = self._context.register.host
        if self._kind is not MoveKind.LIVE_MIGRATE:
            return {}
        found: dict[str, Sequence[frozenset[str]]] = {}
        for name in live_migratable.classes_to_compare(self._request, host):
            cards = {
                uuid
                for held in source
                for uuid, amounts in held.allocations.items()
                if name in amounts and not host.is_own(uuid)
            }
            found[name] = [
                live_migratable.traits_of_guests(self._context.client.provider_traits(uuid))
                for uuid in sorted(cards)
            ]
        return found

    def _write_intent(
        self, move: Move, instance: ConsumerAllocations, migration: ConsumerAllocations
    ) -> Move:
        assert move.new is not None
        if self._context.age_s(move.since) > STALLED_S:  # the intent waited for the disk
            raise journal_stalled((move.instance, move.migration))
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
            raise errors.PlacementUnavailable(
                f"An earlier write for migration {move.migration} was executed after the begin of the move. "
                "The agent undoes the move; begin it again with another uuid."
            )
        return self._context.register.step_move(MoveStep.GRANT, move)

    def _is_under_way(self, move: Move) -> bool:
        instance, migration = self._read()
        where = ownership.observed_state(move, instance.allocations, migration.allocations)
        return where is ownership.ObservedState.UNDER_WAY

    def _refuse_intent(self, move: Move, error: errors.PlimsollError) -> None:
        """Undo the journaled intent, unless Placement holds or may yet hold the write."""
        if not self._nothing_sent:
            return
        try:
            self._context.register.step_move(MoveStep.REFUSE, move)
        except errors.StateError as unwritten:
            error.add_note(f"The intent could not be undone either: {unwritten.message}")
