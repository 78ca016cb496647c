"""The first step of a move, on its destination: choose, journal the intent, one request, journal the result.

The caller has its turn at the instance and at the migration. No request is made while the register's lock is
held.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from agent.backoff import pause
from agent.claims.claim import Claim, ClaimState, Fit
from agent.claims.parse_request import ClaimRequest
from agent.claims.refusal import amounts_text as told_amounts
from agent.claims.refusal import does_not_fit, label, not_covered_conflict, refused_by_placement
from agent.errors import (
    ClaimConflict,
    DoesNotFit,
    PlacementConflict,
    PlacementError,
    PlacementFull,
    PlacementUnavailable,
    PlimsollError,
    StateError,
    UnknownConsumer,
)
from agent.moves.live_migratable import check_live_migratable
from agent.moves.ownership import (
    ObservedState,
    SplitAllocations,
    migration_share,
    observed_state,
    separate_allocations,
    split_allocations,
)
from agent.moves.states import (
    MIGRATION_TYPE,
    Move,
    MoveKind,
    MoveRole,
    MoveState,
    MoveStep,
    request_for_allocations,
)
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.shapes import Allocations
from agent.tracker.claim_attempt import expected_generation
from agent.tracker.late_answers import may_come_late
from agent.tracker.register import Register

ATTEMPTS_MAX = 6


class MoveAttempt:
    """One attempt to begin one move; `run` once."""

    def __init__(
        self,
        register: Register,
        client: PlacementClient,
        clock: Callable[[], float],
        kind: MoveKind,
        migration: str,
        request: ClaimRequest,
    ) -> None:
        self._register = register
        self._client = client
        self._clock = clock
        self._kind = kind
        self._migration = migration
        self._request = request
        self._in_doubt = False
        self._unseen: int | None = None

    def run(self) -> Move:
        """The move, begun: in placement and on disk.

        Raises DoesNotFit, ClaimConflict, UnknownConsumer, PlacementError, StateError; then nothing has
        changed, unless it is in doubt what placement holds: then the intent stays, to be resolved later.
        """
        if self._kind is MoveKind.REBUILD:
            return self._rebuild()
        failure: PlimsollError | None = None
        for attempt in range(ATTEMPTS_MAX):
            suspects: Collection[str] = ()
            try:
                return self._once()
            except PlacementConflict as conflict:
                failure = conflict
                self._unseen = expected_generation(conflict, self._unseen)
                pause(attempt)
            except DoesNotFit as short:
                suspects = {each["provider_uuid"] for each in short.details["shortfalls"]}
                by_placement = isinstance(short.__cause__, PlacementFull)
                twice = isinstance(failure, DoesNotFit)
                if not by_placement and (twice or not self._register.may_be_stale(suspects)):
                    raise
                failure = short
            self._read_again(suspects)
        raise failure or PlacementConflict(f"The move of {label(self._request)} came to no end.")

    def _once(self) -> Move:
        instance, migration = self._read()
        move = self._reserve(instance, migration)
        if move.state is MoveState.BEGUN:
            return move
        try:
            return self._write(move, instance, migration)
        except PlacementFull as full:
            refused = self._refused_by_placement(move, full)
            self._undo(move, refused)
            raise refused from full
        except PlimsollError as error:
            self._undo(move, error)
            raise

    def _read(self) -> tuple[ConsumerAllocations, ConsumerAllocations]:
        return (
            self._client.allocations_of(self._request.consumer),
            self._client.allocations_of(self._migration),
        )

    # Choose and journal

    def _reserve(self, instance: ConsumerAllocations, migration: ConsumerAllocations) -> Move:
        return self._register.take_chosen(lambda: self._chosen(instance, migration))

    def _chosen(self, instance: ConsumerAllocations, migration: ConsumerAllocations) -> tuple[MoveStep, Move]:
        if not instance.allocations:
            raise UnknownConsumer(
                f"{label(self._request)} holds nothing in placement: there is nothing to move. Claim it "
                "instead.",
                consumer=self._request.consumer,
            )
        ledger = self._register.ledger
        present = ledger.claims.get(self._request.consumer)
        if present is not None:
            return MoveStep.BEGIN, self._on_this_host(present, instance, migration)
        if self._kind is MoveKind.SAME_HOST_RESIZE:
            raise ClaimConflict(
                f"{label(self._request)} has no claim on this host, so it cannot be resized within it."
            )
        host = ledger.host
        shared = {provider.uuid for provider in host.providers if not host.is_own(provider.uuid)}
        found = split_allocations(instance.allocations, host.is_own, shared.__contains__)
        if migration.allocations:
            return MoveStep.ADOPT, self._begun_already(found, instance, migration)
        if found.here:
            return MoveStep.BEGIN, self._from_doubled(found, instance)
        return MoveStep.BEGIN, self._from_elsewhere(instance)

    def _on_this_host(
        self, present: Claim, instance: ConsumerAllocations, migration: ConsumerAllocations
    ) -> Move:
        if self._kind not in (MoveKind.RESIZE, MoveKind.SAME_HOST_RESIZE):
            raise ClaimConflict(
                f"{label(self._request)} is on this host already: a {self._kind} begins on the destination.",
                consumer=present.consumer,
            )
        if present.state is not ClaimState.CLAIMED:
            raise ClaimConflict(f"{label(self._request)} is {present.state}: try again when that is over.")
        self._check_free(migration)
        self._check_holds(present, instance)
        found = self._fitting(instance)
        return self._move(MoveKind.SAME_HOST_RESIZE, MoveRole.BOTH, present, found)

    def _from_elsewhere(self, instance: ConsumerAllocations) -> Move:
        old = self._as_claim(instance, instance.allocations)
        return self._move(self._kind, MoveRole.DESTINATION, old, self._fitting(instance))

    def _from_doubled(self, found: SplitAllocations, instance: ConsumerAllocations) -> Move:
        """Somebody wrote source and destination under one owner: hand the source's part to the migration."""
        if not found.elsewhere:
            raise ClaimConflict(
                f"{label(self._request)} holds something on this host already, without a claim, and nothing "
                "anywhere else: claim it instead.",
                consumer=self._request.consumer,
            )
        new, source = separate_allocations(found, self._request.resources)
        covering = self._covering(new)
        old = self._as_claim(instance, {**source, **{u: a for u, a in new.items() if u in found.shared}})
        return self._move(self._kind, MoveRole.DESTINATION, old, covering)

    def _begun_already(
        self, found: SplitAllocations, instance: ConsumerAllocations, migration: ConsumerAllocations
    ) -> Move:
        """A control plane wrote both parts as begin would: the instance gets its devices here."""
        if not found.here or found.elsewhere:
            self._check_free(migration)
        old = {uuid: dict(each) for uuid, each in found.shared.items()}
        for uuid, held in migration.allocations.items():
            old.setdefault(uuid, {}).update(held)
        move = self._move(
            self._kind,
            MoveRole.DESTINATION,
            self._as_claim(instance, old),
            self._covering(instance.allocations),
        )
        return replace(move, handed=migration.allocations, adopted=True)

    def _move(self, kind: MoveKind, role: MoveRole, old: Claim, found: Fit) -> Move:
        ledger = self._register.ledger
        if kind is MoveKind.LIVE_MIGRATE:
            check_live_migratable(self._request, found.allocations, ledger.host, ledger.offered)
        new = Claim(
            self._request.consumer,
            ClaimState.CLAIMED,
            self._request,
            found.allocations,
            found.units,
            self._clock(),
            cells=found.cells,
            makings=found.makings,
        )
        part = migration_share(old.allocations, found.allocations, ledger.host.is_own)
        if not part:
            raise ClaimConflict(
                f"Nothing of what {label(self._request)} holds would change places: nothing to move.",
                consumer=self._request.consumer,
            )
        return Move(
            self._migration,
            self._request.consumer,
            kind,
            role,
            MoveState.BEGINNING,
            old,
            new,
            part,
            self._clock(),
        )

    def _fitting(self, instance: ConsumerAllocations) -> Fit:
        ledger = self._register.ledger
        found = ledger.fit_move(self._request, self._migration, instance.allocations)
        if not found.fits:
            raise does_not_fit(self._request, found.shortfalls)
        return found

    def _covering(self, held: Allocations) -> Fit:
        """What is held here, with exact units. Raises ClaimConflict, DoesNotFit (units)."""
        ledger = self._register.ledger
        found = ledger.cover(self._request, held, exact=False)
        if not found.fits:
            raise not_covered_conflict(self._request, held, found.shortfalls, ledger.host.tree)
        found = ledger.cover(self._request, held, exact=True)
        if not found.fits:
            raise does_not_fit(self._request, found.shortfalls)
        return found

    def _as_claim(self, instance: ConsumerAllocations, allocations: Allocations) -> Claim:
        """What the instance had at the source, as far as placement tells."""
        asked = request_for_allocations(
            instance.consumer,
            allocations,
            name=self._request.name,
            project_id=instance.project_id,
            user_id=instance.user_id,
            consumer_type=self._request.consumer_type,
        )
        return Claim(
            instance.consumer, ClaimState.CLAIMED, asked, allocations, since=self._clock(), adopted=True
        )

    def _check_holds(self, present: Claim, instance: ConsumerAllocations) -> None:
        if instance.allocations != present.allocations:
            raise ClaimConflict(
                f"Placement holds something else for {label(self._request)} than its claim on this host: it "
                "may have moved, or an audit tells what; mend that first.",
                consumer=present.consumer,
            )

    def _check_free(self, migration: ConsumerAllocations) -> None:
        if migration.allocations:
            told = "; ".join(
                f"provider {uuid}: {told_amounts(each)}"
                for uuid, each in sorted(migration.allocations.items(), key=lambda item: item[0])
            )
            raise ClaimConflict(
                f"The migration {self._migration} holds something in placement already ({told}): give the "
                "move a uuid of its own.",
                consumer=self._migration,
            )

    # One request

    def _write(self, move: Move, instance: ConsumerAllocations, migration: ConsumerAllocations) -> Move:
        assert move.new is not None
        seen = migration.generation
        source = replace(
            migration,
            generation=self._unseen if seen is None else seen,
            allocations=move.handed,
            project_id=instance.project_id,
            user_id=instance.user_id,
            consumer_type=MIGRATION_TYPE,
        )
        self._in_doubt = True
        try:
            self._client.write_allocations(source, replace(instance, allocations=move.new.allocations))
        except PlacementUnavailable as error:
            self._after_silence(move, error)
        except PlacementError:
            self._in_doubt = False  # it answered, so it knows, and it has written nothing
            raise
        taken = self._register.take(MoveStep.GRANT, move)
        self._in_doubt = False
        return taken

    def _after_silence(self, move: Move, error: PlacementUnavailable) -> None:
        """Placement did not answer the write: one read decides, if it is answered. Returns if it was done."""
        told = {key: error.details[key] for key in ("retry_after", "busy") if key in error.details}
        try:
            if "retry_after" in told:
                raise error  # it asks not to be asked again so soon
            instance, migration = self._read()
            if not migration.allocations and may_come_late(error):
                raise error
        except PlacementUnavailable as again:
            raise PlacementUnavailable(
                f"Placement did not answer the move of {label(self._request)}, and what it did is not known "
                "yet: both places stay reserved until it answers, then the move is undone. "
                f"({error.message})",
                status=error.status,
                placement_code=error.placement_code,
                **told,
            ) from again
        if observed_state(move, instance.allocations, migration.allocations) is ObservedState.UNDER_WAY:
            return
        if not migration.allocations:
            self._in_doubt = False
        raise PlacementUnavailable(
            f"Placement did not answer the move of {label(self._request)} and holds nothing of it: try "
            f"again. ({error.message})",
            status=error.status,
            placement_code=error.placement_code,
        ) from error

    def _undo(self, move: Move, error: PlimsollError) -> None:
        if self._in_doubt:
            return
        try:
            self._register.take(MoveStep.REFUSE, move)
        except StateError as unwritten:
            error.add_note(f"The intent could not be taken back either: {unwritten.message}")

    def _read_again(self, suspects: Collection[str]) -> None:
        found = {uuid: self._client.provider_allocations(uuid).consumers for uuid in suspects if uuid}
        with self._register.lock:
            for uuid, consumers in found.items():
                self._register.ledger.observe_provider(uuid, consumers)

    def _refused_by_placement(self, move: Move, full: PlacementFull) -> DoesNotFit:
        with self._register.lock:
            wanted = move.new.allocations if move.new else {}
            ledger = self._register.ledger
            return refused_by_placement(self._request, wanted, full.message, ledger.host.tree, ledger.free)

    # Rebuild: in place, nothing is written

    def _rebuild(self) -> Move:
        instance = self._client.allocations_of(self._request.consumer)
        return self._register.take_chosen(lambda: (MoveStep.ADOPT, self._rebuilt(instance)))

    def _rebuilt(self, instance: ConsumerAllocations) -> Move:
        """Raises DoesNotFit where the providers that the instance is on lack what the new request wants."""
        ledger = self._register.ledger
        old = ledger.claims.get(self._request.consumer)
        if old is None or old.state is not ClaimState.CLAIMED:
            raise UnknownConsumer(
                f"{label(self._request)} has no claim on this host: there is nothing to rebuild here.",
                consumer=self._request.consumer,
            )
        self._check_holds(old, instance)
        if self._request.resources != old.request.resources:
            raise ClaimConflict(
                f"A rebuild keeps its resources, and {label(self._request)} holds "
                f"{told_amounts(old.request.resources)}, not {told_amounts(self._request.resources)}: "
                "resize it instead.",
                consumer=old.consumer,
            )
        if self._request.topology != old.request.topology:
            raise ClaimConflict(
                f"A rebuild keeps the NUMA cells, CPUs and pages, and {label(self._request)} asks for "
                "others than it has: resize it instead.",
                consumer=old.consumer,
            )
        found = ledger.cover(self._request, old.allocations, exact=False)
        if not found.fits:
            raise does_not_fit(self._request, found.shortfalls)
        new = replace(old, request=self._request)
        return Move(
            self._migration,
            old.consumer,
            MoveKind.REBUILD,
            MoveRole.BOTH,
            MoveState.BEGINNING,
            old,
            new,
            {},
            self._clock(),
        )
