"""What beginning a move does on its destination: the step, and the move with its two claims. No I/O."""

from dataclasses import dataclass, field, replace

from agent.claims.book import Book
from agent.claims.claim import Claim, ClaimState, Fit, claim_of_fit
from agent.claims.refusal import amounts_text, does_not_fit, label, not_covered_conflict
from agent.claims.request import ClaimRequest
from agent.errors import ClaimConflict, UnknownConsumer
from agent.moves.live_migratable import (
    MdevTypes,
    check_chosen_mdevs,
    check_live_migratable,
    check_mdev_types,
    with_mdev_types,
)
from agent.moves.ownership import SplitAllocations, migration_share, separate_allocations
from agent.moves.states import Move, MoveKind, MoveRole, MoveState, MoveStep, request_for_allocations
from agent.placement.client import ConsumerAllocations
from agent.shapes import Allocations
from agent.tracker.holdings import split_by_host


@dataclass(frozen=True, slots=True)
class MoveChoice:
    """Chooses under the register's lock. `now` is seconds since the epoch, UTC.

    `mdev_types` are the types of the instance's mediated devices at the source of a live migration.
    """

    book: Book
    kind: MoveKind
    migration: str
    request: ClaimRequest
    now: float
    mdev_types: MdevTypes = field(default_factory=dict)

    def choose(self, instance: ConsumerAllocations, migration: ConsumerAllocations) -> tuple[MoveStep, Move]:
        """The step and the move, from what Placement holds for the two consumers.

        Raises UnknownConsumer, ClaimConflict, DoesNotFit; Refused for a guest that cannot be live-migrated.
        """
        check_mdev_types(self.request, self.mdev_types, self.book.host)
        if not instance.allocations:
            raise UnknownConsumer(
                f"{label(self.request)} holds nothing in Placement: there is nothing to move. Claim it "
                "instead.",
                consumer=self.request.consumer,
            )
        claim = self.book.claims.get(self.request.consumer)
        if claim is not None:
            return MoveStep.BEGIN, self._on_this_host(claim, instance, migration)
        if self.kind is MoveKind.SAME_HOST_RESIZE:
            raise ClaimConflict(
                f"{label(self.request)} has no claim on this host, so it cannot be resized within it."
            )
        split = split_by_host(instance.allocations, self.book.host)
        if migration.allocations:
            return MoveStep.ADOPT, self._begun_by_control_plane(split, instance, migration)
        if split.here:
            return MoveStep.BEGIN, self._from_doubled(split, instance)
        return MoveStep.BEGIN, self._from_elsewhere(instance)

    def choose_rebuild(self, instance: ConsumerAllocations) -> tuple[MoveStep, Move]:
        """The step and the move of a rebuild, which keeps the instance's allocations as they are.

        Raises UnknownConsumer, ClaimConflict; DoesNotFit where the providers that the instance is on lack
        what the new request asks for.
        """
        old = self.book.claims.get(self.request.consumer)
        if old is None or old.state is not ClaimState.CLAIMED:
            raise UnknownConsumer(
                f"{label(self.request)} has no claim on this host: there is nothing to rebuild here.",
                consumer=self.request.consumer,
            )
        self._check_holds(old, instance)
        if self.request.resources != old.request.resources:
            raise ClaimConflict(
                f"A rebuild keeps its resources, and {label(self.request)} holds "
                f"{amounts_text(old.request.resources)}, not {amounts_text(self.request.resources)}: "
                "resize it instead.",
                consumer=old.consumer,
            )
        if self.request.topology != old.request.topology:
            raise ClaimConflict(
                f"A rebuild keeps the NUMA cells, CPUs and pages, and {label(self.request)} asks for others: "
                "resize it instead.",
                consumer=old.consumer,
            )
        fit = self.book.cover(self.request, old.allocations, exact=False)
        if not fit.fits:
            raise does_not_fit(self.request, fit.shortfalls)
        new = replace(old, request=self.request)
        return MoveStep.ADOPT, self._move(MoveKind.REBUILD, MoveRole.BOTH, old, new, {})

    # Where the instance is

    def _on_this_host(
        self, claim: Claim, instance: ConsumerAllocations, migration: ConsumerAllocations
    ) -> Move:
        if self.kind not in (MoveKind.RESIZE, MoveKind.SAME_HOST_RESIZE):
            raise ClaimConflict(
                f"{label(self.request)} is on this host already: a {self.kind} begins on the destination.",
                consumer=claim.consumer,
            )
        if claim.state is not ClaimState.CLAIMED:
            raise ClaimConflict(f"{label(self.request)} is {claim.state}: try again after that.")
        self._check_free(migration)
        self._check_holds(claim, instance)
        return self._fitted_move(MoveKind.SAME_HOST_RESIZE, MoveRole.BOTH, claim, self._fit(instance))

    def _from_elsewhere(self, instance: ConsumerAllocations) -> Move:
        old = self._source_claim(instance, instance.allocations)
        return self._fitted_move(self.kind, MoveRole.DESTINATION, old, self._fit(instance))

    def _from_doubled(self, split: SplitAllocations, instance: ConsumerAllocations) -> Move:
        """A control plane wrote source and destination for one consumer: give the source's part to the
        migration."""
        if not split.elsewhere:
            raise ClaimConflict(
                f"{label(self.request)} already holds an allocation on this host, without a claim, and none "
                "elsewhere: claim it instead.",
                consumer=self.request.consumer,
            )
        new, source = separate_allocations(split, self.request.resources)
        shared = {uuid: amounts for uuid, amounts in new.items() if uuid in split.shared}
        old = self._source_claim(instance, {**source, **shared})
        return self._fitted_move(self.kind, MoveRole.DESTINATION, old, self._cover(new))

    def _begun_by_control_plane(
        self, split: SplitAllocations, instance: ConsumerAllocations, migration: ConsumerAllocations
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
        request = request_for_allocations(
            instance.consumer,
            allocations,
            name=self.request.name,
            project_id=instance.project_id,
            user_id=instance.user_id,
            consumer_type=self.request.consumer_type,
        )
        return Claim(
            instance.consumer, ClaimState.CLAIMED, request, allocations, since=self.now, adopted=True
        )

    # Where it fits

    def _fit(self, instance: ConsumerAllocations) -> Fit:
        request = with_mdev_types(self.request, self.mdev_types)
        fit = self.book.fit_move(request, self.migration, instance.allocations)
        if not fit.fits:
            raise does_not_fit(self.request, fit.shortfalls)
        return fit

    def _cover(self, held: Allocations) -> Fit:
        """What is held here, with exact units. Raises ClaimConflict, DoesNotFit (units)."""
        fit = self.book.cover(self.request, held, exact=False)
        if not fit.fits:
            raise not_covered_conflict(self.request, held, fit.shortfalls, self.book.host.tree)
        fit = self.book.cover(self.request, held, exact=True)
        if not fit.fits:
            raise does_not_fit(self.request, fit.shortfalls)
        return fit

    def _fitted_move(self, kind: MoveKind, role: MoveRole, old: Claim, fit: Fit) -> Move:
        if kind is MoveKind.LIVE_MIGRATE:
            check_live_migratable(self.request, fit.allocations, self.book.host, self.book.offered)
            check_chosen_mdevs(self.request, fit.allocations, self.mdev_types, self.book.host)
        new = claim_of_fit(self.request, fit, ClaimState.CLAIMED, self.now)
        part = migration_share(old.allocations, fit.allocations, self.book.host.is_own)
        if not part:
            raise ClaimConflict(
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
            raise ClaimConflict(
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
            raise ClaimConflict(
                f"Migration {self.migration} already holds an allocation in Placement ({held}): give the "
                "move a uuid of its own.",
                consumer=self.migration,
            )
