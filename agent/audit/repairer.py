"""Executes the repair of a finding.

Each write is guarded by the consumer's generation in Placement, and the finding is judged again right before.
"""

from agent.audit.finding import Finding
from agent.audit.observation import Observation
from agent.audit.reader import AuditReader
from agent.audit.repair import (
    ClaimUse,
    Deliver,
    DropClaim,
    EndMove,
    FollowGuests,
    FollowReshape,
    RecordUse,
    Repair,
    TakeClaim,
    WriteAllocations,
)
from agent.claims.claim import Claim, Restriction
from agent.claims.request import ClaimRequest
from agent.errors import PlacementConflict
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.reshape.laws import Relocation
from agent.tracker.tracker import ResourceTracker


class Repairer:
    """Repairs findings, one at a time; the caller has the audit's lock."""

    def __init__(self, tracker: ResourceTracker, client: PlacementClient, reader: AuditReader) -> None:
        self._tracker = tracker
        self._client = client
        self._reader = reader

    def repair(self, observation: Observation, finding: Finding) -> None:
        """Execute every step of the finding's repair, in order.

        Raises PlacementConflict where the finding has changed; PlacementError, Refused, StateError.
        """
        for step in finding.repair:
            self._execute(observation, finding, step)

    def _execute(self, observation: Observation, finding: Finding, step: Repair) -> None:
        match step:
            case WriteAllocations(write):
                self._write(observation, finding, write)
            case DropClaim(consumer):
                self._drop_claim(observation, finding, consumer)
            case TakeClaim(request, restriction):
                self._tracker.claim(request, restriction)
            case ClaimUse(request, restriction):
                self._claim_use(observation, finding, request, restriction)
            case RecordUse(before, after):
                self._record_use(observation, finding, before, after)
            case FollowGuests(records):
                self._follow_guests(observation, finding, records)
            case FollowReshape(_, relocations):
                self._follow_reshape(observation, finding, relocations)
            case EndMove(migration):
                self._end_move(observation, finding, migration)
            case Deliver(consumer):
                self._deliver(observation, consumer)

    def _write(self, observation: Observation, finding: Finding, write: ConsumerAllocations) -> None:
        with self._tracker.turn(finding.subject):
            self._check_unchanged(observation, finding)
            self._tracker.heal(write)

    def _claim_use(
        self, observation: Observation, finding: Finding, request: ClaimRequest, restriction: Restriction
    ) -> None:
        """The claim's intent is journaled first, so no allocation is left without a claim."""
        with self._tracker.turn(finding.subject):
            self._check_unchanged(observation, finding)
        self._tracker.claim(request, restriction)

    def _record_use(self, observation: Observation, finding: Finding, before: Claim, after: Claim) -> None:
        with self._tracker.turn(after.consumer):
            self._check_found(observation, finding)
            self._tracker.record_use(before, after)

    def _follow_guests(
        self, observation: Observation, finding: Finding, records: tuple[tuple[Claim, Claim], ...]
    ) -> None:
        with self._tracker.turns_on((), {after.consumer for _, after in records}):
            self._check_found(observation, finding)
            self._tracker.follow_records(records)

    def _drop_claim(self, observation: Observation, finding: Finding, consumer: str) -> None:
        with self._tracker.turn(consumer):
            self._check_unchanged(observation, finding)
            self._tracker.drop_claim(consumer, "audit: leaked claim")

    def _follow_reshape(
        self, observation: Observation, finding: Finding, relocations: tuple[Relocation, ...]
    ) -> None:
        moves = (move for move in self._tracker.moves().values() if not move.ended)
        pairs = [{move.instance, move.migration} for move in moves]
        consumers = {finding.subject}.union(*(pair for pair in pairs if finding.subject in pair))
        with self._tracker.turns_on((), consumers):
            self._check_unchanged(observation, finding)
            self._tracker.follow_placement(relocations, observation.exact_units)

    def _end_move(self, observation: Observation, finding: Finding, migration: str) -> None:
        present = self._tracker.moves().get(migration)
        if present is None or self._reader.judge_move(observation, present) != finding:
            raise _changed(finding)
        self._tracker.confirm_move(migration)

    def _deliver(self, observation: Observation, consumer: str) -> None:
        self._tracker.deliver()
        if self._reader.judge_consumer(observation, consumer) is not None:
            raise PlacementConflict(
                f"The pending operation of {consumer} is not done yet. The agent tries it again."
            )

    def _check_found(self, observation: Observation, finding: Finding) -> None:
        """Of a finding about a row or a consumer; the caller has the turn. Raises PlacementConflict."""
        if finding not in (
            *self._reader.judge_row_alone(observation, finding.subject),
            self._reader.judge_consumer_alone(observation, finding.subject),
        ):
            raise _changed(finding)

    def _check_unchanged(self, observation: Observation, finding: Finding) -> None:
        """The caller has the consumer's turn. Raises PlacementConflict."""
        present = self._reader.judge_consumer_alone(observation, finding.subject)
        was_here = finding.subject in observation.guests
        if present != finding or (finding.subject in self._reader.guests_now()) != was_here:
            raise _changed(finding)


def _changed(finding: Finding) -> PlacementConflict:
    return PlacementConflict(
        f"{finding.subject} has changed since the audit read it. Nothing was written; audit again."
    )
