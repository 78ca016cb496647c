"""Runs the audit: reads the host twice, reports the findings of both readings, and repairs them."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from agent import errors, log
from agent.audit.cases import ConsumerCase, MoveCase, RowCase
from agent.audit.finding import (
    ClaimUse,
    Deliver,
    DropClaim,
    EndMove,
    Finding,
    FollowGuests,
    FollowReshape,
    RecordUse,
    Repair,
    TakeClaim,
    WriteAllocations,
)
from agent.audit.findings import judge_consumer, judge_host, judge_move, judge_row
from agent.audit.findings.claims import LeakedClaim
from agent.audit.observation import Observation, suspect_moves, suspects
from agent.claims.claim import Claim
from agent.claims.fit import ProviderIndex
from agent.driver import Guest
from agent.moves.ownership import may_be_migration
from agent.moves.states import MIGRATION_TYPE, Move
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.providers.reservations import without_reservations
from agent.reshape.laws import Instruction
from agent.tracker.tracker import ResourceTracker
from agent.tree import ProviderTree

LOG = log.get(__name__)

Key = tuple[Any, ...]

IN_TURN = 4
"""How many inconspicuous consumers each scheduled audit reads in full."""
TAKING = WriteAllocations | DropClaim | Deliver | EndMove
"""The steps of a repair that may take something away."""

_ORDER: Sequence[type] = get_args(Repair)
"""The steps of repairs, in the order in which they are executed."""


@dataclass(eq=False)
class AuditReader:
    """Reads what the audit compares: the driver, the agent's claims and moves, and Placement.

    It judges one consumer or one move while nothing else changes it. No request is made under the tracker's
    lock.

    `root` is the uuid of the host's root provider. `guests` asks the driver. `devices` returns {provider
    uuid: device}. `known_tree` returns the tree as it was read last, which makes reading it again cheaper.
    `leads` returns the driver's move instructions, and `vanished` the (provider uuid, class) of which the
    host had no more at the last pass.
    """

    tracker: ResourceTracker
    client: PlacementClient
    root: str
    guests: Callable[[], tuple[Guest, ...]]
    devices: Callable[[], Mapping[str, str]]
    known_tree: Callable[[], ProviderTree | None] = lambda: None
    leads: Callable[[], Sequence[Instruction]] = tuple
    vanished: Callable[[], frozenset[tuple[str, str]]] = frozenset

    def observe(self) -> Observation:
        """Read the host once. Raises DriverError, PlacementError, StateError."""
        guests = self.guests()
        with self.tracker.reading() as reading:
            tree, allocations = self.client.read_tree_with(
                self.root, self.known_tree(), self.client.provider_allocations
            )
            if self.root not in tree and self.tracker.claims():
                raise errors.PlacementError(
                    f"Placement has no provider of this host ({self.root}), and the agent has claims: its "
                    "database was lost or replaced. Nothing was compared; `plimsoll status` has the remedy."
                )
            holders = {uuid: each.consumers for uuid, each in allocations.items()}
            self.tracker.observe(holders, reading)  # another client's DELETE raises no generation
        known = self.tracker.view.snapshot()
        self._check_tree(tree, known.host, known.claims.values())
        _, cells = self.tracker.view.host_and_cells()
        shared = [provider for provider in known.host.tree if not known.host.is_own(provider.uuid)]
        with_shared = ProviderTree([*tree, *(provider for provider in shared if provider.uuid not in tree)])
        observation = Observation(
            host=replace(ProviderIndex.of(with_shared, self.root), caps=known.host.caps),
            unreserved=ProviderIndex.of(without_reservations(with_shared, known.host.tree), self.root),
            unheld=self.tracker.view.unheld(),
            moved_away=self.tracker.moved_away(),
            guests={guest.uuid: guest for guest in guests},
            claims=known.claims,
            moves=known.moves,
            whereabouts=self.tracker.whereabouts(),
            leads=self.leads(),
            vanished=self.vanished(),
            lost=self.tracker.note_lost(),
            emptied=self.tracker.emptied,
            holders=holders,
            devices={device: uuid for uuid, device in self.devices().items()},
            offered=known.offered,
            cells=cells,
            shared={
                consumer: {uuid: amounts for uuid, amounts in held.items() if not known.host.is_own(uuid)}
                for consumer, held in known.others.items()
            },
            ages={consumer: self.tracker.age_s(claim.since) for consumer, claim in known.claims.items()},
            unhealthy=self.tracker.cordons.unhealthy(),
            found=self.tracker.view.found_guests(),
            left=self.tracker.view.departed(),
        )
        return self._with_others(observation)

    def _check_tree(self, tree: ProviderTree, host: ProviderIndex, claims: Iterable[Claim]) -> None:
        """Raises PlacementError where the tree lacks a provider of this host that claims have."""
        for claim in claims:
            for uuid in claim.allocations:
                if uuid not in tree and host.is_own(uuid):
                    whose = (
                        f"{claim.request.name} ({claim.consumer})" if claim.request.name else claim.consumer
                    )
                    raise errors.PlacementError(
                        f"The provider {host.tree[uuid].name} ({uuid}) is no longer in this host's tree in "
                        f"Placement, and the claim of {whose} has a part of it. Nothing was compared; "
                        "`plimsoll status` has the remedy."
                    )

    def _with_others(self, observation: Observation) -> Observation:
        """The observation, with what Placement says of consumers that nothing on this host explains.

        Reads what the instances have whose claims have no allocation here, if another consumer may have it;
        and the types of the consumers that may hold the place of an instance that is elsewhere, or of a guest
        without an allocation here. Raises PlacementError.
        """
        known = observation.claims.keys() | observation.guests.keys() | observation.consumers_in_moves
        others = observation.consumers - known
        if not others:
            return observation
        instances = observation.instances
        lost = {instances.get(claim.consumer, claim.consumer) for claim in observation.lost_claims()}
        held = {instance: self.client.allocations_of(instance).allocations for instance in sorted(lost)}
        elsewhere = {
            instance: allocations
            for instance, allocations in held.items()
            if allocations and not any(map(observation.host.is_own, allocations))
        }
        if not elsewhere and observation.guests.keys() <= observation.consumers:
            return observation
        types = {other: self.client.allocations_of(other).consumer_type for other in sorted(others)}
        return replace(observation, elsewhere=elsewhere, types=types)

    def guests_now(self) -> Mapping[str, Guest]:
        """{uuid: guest} of the guests that the driver has now. Raises DriverError."""
        return {guest.uuid: guest for guest in self.guests()}

    def judge_row(self, observation: Observation, instance: str) -> tuple[Finding, ...]:
        """Judge the instance's row; none while an operation on one of its consumers is under way.

        Raises StateError.
        """
        moving = {move.instance: move.migration for move in observation.moves if not move.ended}
        turns = (
            self.tracker.turns.take_both(instance, moving[instance])
            if instance in moving
            else self.tracker.turns.take(instance)
        )
        try:
            with turns:
                return self.judge_row_alone(observation, instance)
        except errors.ClaimConflict:
            return ()

    def judge_row_alone(self, observation: Observation, instance: str) -> tuple[Finding, ...]:
        """The same for a caller that has the turns of the row's consumers. Raises StateError."""
        known = self.tracker.view.snapshot()
        present = replace(observation, claims=known.claims, moves=known.moves)
        return tuple(judge_row(RowCase.of(present, instance)))

    def judge_consumer(self, observation: Observation, consumer: str) -> Finding | None:
        """Judge the consumer; None also while an operation on it is under way.

        Raises PlacementError, StateError.
        """
        try:
            with self.tracker.turns.take(consumer):
                return self.judge_consumer_alone(observation, consumer)
        except errors.ClaimConflict:
            return None

    def judge_consumer_alone(self, observation: Observation, consumer: str) -> Finding | None:
        """The same for a caller that has the consumer's turn. Raises PlacementError, StateError."""
        known = self.tracker.view.snapshot()
        placed = self.client.allocations_of(consumer)
        departed = self._departed(observation, placed, known.claims)
        present = replace(
            observation,
            claims=known.claims,
            moves=known.moves,
            settling=self.tracker.settling(),
            departed=departed,
            migrations=self._migrations(observation, placed, known.claims),
        )
        ended = observation.claims.keys() - known.claims.keys()
        present = present.without(ended)
        finding = judge_consumer(ConsumerCase.of(present, placed))
        if finding is None:
            return None
        # A repair by a claim that would be refused is none: the book says what a claim gets.
        for step in finding.repair:
            if isinstance(step, ClaimUse | TakeClaim):
                fit = self.tracker.explain(step.request, step.restriction)
                is_written = isinstance(step, ClaimUse)
                lacking = present.lacking(finding.subject, fit.allocations) if is_written else ()
                if not fit.fits or lacking:
                    return finding.refused(fit.shortfalls or lacking)
        return finding

    def _departed(
        self, observation: Observation, placed: ConsumerAllocations, claims: Mapping[str, Claim]
    ) -> Mapping[str, ConsumerAllocations]:
        """The guests whose place here the consumer may hold, as a migration that a control plane made.

        They have no allocation here. What they use need not be like what they were allocated. Read after the
        consumer: then its migration is over if its instance is back. Raises PlacementError.
        """
        consumer = placed.consumer
        if consumer in claims or consumer in observation.guests:
            return {}
        if not observation.own_part(placed.allocations) or not may_be_migration(placed.consumer_type):
            return {}
        return {
            uuid: self.client.allocations_of(uuid)
            for uuid in observation.guests
            if uuid not in observation.consumers
        }

    def _migrations(
        self, observation: Observation, placed: ConsumerAllocations, claims: Mapping[str, Claim]
    ) -> int | None:
        """How many migrations the owner of a consumer has that only Placement knows. Raises PlacementError.

        None where Placement cannot tell. Which of them is of which instance Placement does not say.
        """
        here = claims.keys() | observation.guests.keys() | observation.consumers_in_moves
        is_migration = placed.consumer_type == MIGRATION_TYPE
        if placed.consumer in here or is_migration or not observation.own_part(placed.allocations):
            return 0
        return self.client.count_consumers(MIGRATION_TYPE, placed.project_id, placed.user_id)

    def judge_move(self, observation: Observation, move: Move) -> Finding | None:
        """Judge the move; None also while an operation on it is under way.

        Raises PlacementError, StateError.
        """
        try:
            with self.tracker.turns.take_both(move.instance, move.migration):
                present = self.tracker.moves().get(move.migration)
                if present is None or present.instance != move.instance:
                    return None
                instance = self.client.allocations_of(move.instance)
                migration = self.client.allocations_of(move.migration)
                return judge_move(MoveCase(observation, present, instance, migration))
        except errors.ClaimConflict:
            return None


class Repairer:
    """Executes the repairs of findings, one at a time; the caller has the audit's lock.

    Each write is guarded by the consumer's generation in Placement, and the finding is judged again right
    before.
    """

    def __init__(self, tracker: ResourceTracker, reader: AuditReader) -> None:
        self._tracker = tracker
        self._reader = reader

    def repair(self, observation: Observation, finding: Finding) -> None:
        """Execute every step of the finding's repair, in order.

        Raises PlacementConflict where the finding has changed; PlacementError, Refused, StateError.
        """
        for step in finding.repair:
            self._execute(observation, finding, step)

    def _execute(self, observation: Observation, finding: Finding, step: Repair) -> None:
        tracker = self._tracker
        match step:
            case WriteAllocations(write):
                with tracker.turns.take(finding.subject):
                    self._check_unchanged(observation, finding)
                    tracker.heal(write)
            case DropClaim(consumer):
                with tracker.turns.take(consumer):
                    self._check_unchanged(observation, finding)
                    tracker.drop_claim(consumer, "audit: leaked claim")
            case TakeClaim(request, restriction):
                tracker.claim(request, restriction)
            case ClaimUse(request, restriction):
                with tracker.turns.take(finding.subject):
                    self._check_unchanged(observation, finding)
                # The claim's intent is journaled first, so no allocation is left without a claim.
                tracker.claim(request, restriction)
            case RecordUse(before, after):
                with tracker.turns.take(after.consumer):
                    self._check_found(observation, finding)
                    tracker.use.record(before, after)
            case FollowGuests(records):
                with tracker.turns_on((), {after.consumer for _, after in records}):
                    self._check_found(observation, finding)
                    tracker.use.follow_records(records)
            case FollowReshape(_, relocations):
                moves = (move for move in tracker.moves().values() if not move.ended)
                pairs = [{move.instance, move.migration} for move in moves]
                consumers = {finding.subject}.union(*(pair for pair in pairs if finding.subject in pair))
                with tracker.turns_on((), consumers):
                    self._check_unchanged(observation, finding)
                    tracker.follow_placement(relocations, observation.exact_units)
            case EndMove(migration):
                present = tracker.moves().get(migration)
                if present is None or self._reader.judge_move(observation, present) != finding:
                    raise _changed(finding)
                tracker.confirm_move(migration)
            case Deliver(consumer):
                tracker.deliver(again=True)
                if self._reader.judge_consumer(observation, consumer) is not None:
                    raise errors.PlacementConflict(
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
        """The caller has the consumer's turn. Raises PlacementConflict.

        A guest that came since may be that of which the consumer is the migration.
        """
        present = self._reader.judge_consumer_alone(observation, finding.subject)
        guests = self._reader.guests_now()
        if guests.keys() - observation.guests.keys():
            observation = replace(observation, guests={**observation.guests, **guests})
            present = self._reader.judge_consumer_alone(observation, finding.subject)
        if present != finding or (finding.subject in guests) != (finding.subject in observation.guests):
            raise _changed(finding)


def _changed(finding: Finding) -> errors.PlacementConflict:
    return errors.PlacementConflict(
        f"{finding.subject} has changed since the audit read it. Nothing was written; audit again."
    )


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The findings, the indexes of those that were repaired, and {index: why its repair failed}."""

    findings: tuple[Finding, ...] = ()
    healed: frozenset[int] = frozenset()
    failed: Mapping[int, str] | None = None

    @property
    def left(self) -> tuple[Finding, ...]:
        """The findings that were not repaired."""
        return tuple(finding for index, finding in enumerate(self.findings) if index not in self.healed)


class Auditor:
    """Audits one host. Any thread may call; one audit runs at a time.

    `check_writer` raises AnotherWriter where another agent may write as this host, by the tree that was read:
    what differs may be its own then. `may_not_heal` says from that tree, and whether the repair takes
    something away, why it may not be healed now; None: it may.
    """

    def __init__(
        self,
        reader: AuditReader,
        *,
        check_writer: Callable[[ProviderTree], None] = lambda tree: None,
        may_not_heal: Callable[[ProviderTree, bool], str | None] = lambda tree, taking: None,
    ) -> None:
        self._reader = reader
        self._repairer = Repairer(reader.tracker, reader)
        self._check_writer = check_writer
        self._may_not_heal = may_not_heal
        self._lock = threading.Lock()
        self._previous: dict[Key, Finding] = {}
        self._logged: frozenset[Key] = frozenset()
        self._last_in_turn = ""
        self._has_read = False
        self.last = AuditReport()

    def audit_on_schedule(self, *, heal_own: bool) -> AuditReport:
        """Report what this reading and the one before agree on, and repair the agent's own findings.

        The first audit after the start reads twice and repairs nothing. Raises as `audit`.
        """
        if not self._has_read:
            return self.audit(readings=2, in_full=False)
        return self.audit(heal_own=heal_own, readings=1)

    def audit(
        self,
        *,
        heal_own: bool = False,
        heal_all: bool = False,
        readings: int = 2,
        in_full: bool | None = None,
    ) -> AuditReport:
        """Report what two consecutive readings agree on, and repair the agent's own findings, or all.

        With `readings` 1, the first of the two is that of the audit before. `in_full` reads every consumer
        once, which two readings do unless it is False.
        Raises AnotherWriter, DriverError, PlacementError, StateError: then nothing more is repaired.
        """
        with self._lock:
            confirmed: dict[Key, Finding] = {}
            observation = None
            full = readings > 1 if in_full is None else in_full
            for number in range(readings):
                observation, findings = self._read(in_full=full and number == 0)
                self._has_read = True
                emptied = observation.emptied  # what a pass saw so as well needs no second audit
                confirmed = {
                    key: finding
                    for key, finding in findings.items()
                    if key in self._previous
                    or (finding.kind == LeakedClaim.name and finding.subject in emptied)
                }
                self._previous = findings
            for key in confirmed.keys() - self._logged:
                finding = confirmed[key]
                fields = {"event": "finding", "subject": finding.subject}
                LOG.warning("Audit: %s: %s", finding.kind, finding.reason, fields=fields)
            self._logged = frozenset(confirmed)
            report = AuditReport(tuple(confirmed.values()))
            if observation is not None and (heal_own or heal_all):
                report = self._heal(observation, report, heal_all)
            self.last = report
            return report

    def _read(self, *, in_full: bool) -> tuple[Observation, dict[Key, Finding]]:
        observation = self._reader.observe()
        self._check_writer(observation.host.tree)
        # Of the inconspicuous consumers all are read, or those of the last findings and IN_TURN more, in
        # turn. They may hold something on another host, too, and to see that costs a request for each.
        consumers = sorted(observation.consumers - observation.consumers_in_moves)
        to_judge = suspects(observation).union(consumers)
        if not in_full:
            with_finding = {finding.subject for finding in self._previous.values()}.intersection(consumers)
            later = [consumer for consumer in consumers if consumer > self._last_in_turn]
            turn = (later or consumers)[:IN_TURN]
            self._last_in_turn = turn[-1] if turn else ""
            to_judge = suspects(observation) | {*turn, *with_finding}
        judged = [self._reader.judge_consumer(observation, consumer) for consumer in sorted(to_judge)]
        about_moves = [self._reader.judge_move(observation, move) for move in suspect_moves(observation)]
        # Rows with a finding are judged again, as the only operation on them.
        suspicious = [case.instance for case in RowCase.all_of(observation) if any(judge_row(case))]
        about_rows = [each for row in suspicious for each in self._reader.judge_row(observation, row)]
        guests = self._reader.guests_now()
        about_consumers = [
            finding
            for finding in (*judged, *about_rows)
            if finding is not None and (finding.subject in guests) == (finding.subject in observation.guests)
        ]
        findings = (*about_consumers, *about_moves, *judge_host(observation))
        return observation, {_key(finding): finding for finding in findings if finding is not None}

    def _heal(self, observation: Observation, report: AuditReport, heal_all: bool) -> AuditReport:
        """Carry out the repairs, and those that they make possible: what one claim gives up, another gets."""
        healed: set[int] = set()
        failed: dict[int, str] = {}
        wanted = {
            index: finding
            for index, finding in enumerate(report.findings)
            if finding.repair and (finding.own or heal_all)
        }
        while wanted:
            done, overtaken = self._repair(observation, wanted, failed)
            healed |= done
            settled = healed | (failed.keys() - overtaken)
            open_ones = [pair for pair in enumerate(report.findings) if pair[0] not in settled]
            if not done or not open_ones:
                break
            try:
                observation, self._previous = self._read(in_full=False)
            except (
                errors.AnotherWriter,
                errors.DriverError,
                errors.PlacementError,
                errors.StateError,
            ) as error:
                LOG.debug("The host was not read again after repairs: %s", error.message)
                break
            present = {(finding.kind, finding.subject): finding for finding in self._previous.values()}
            wanted = {}
            for index, finding in open_ones:
                now = present.get((finding.kind, finding.subject))
                if now is None:
                    healed.add(index)
                elif now.repair and not finding.repair and (now.own or heal_all):
                    wanted[index] = now
        return AuditReport(
            report.findings,
            frozenset(healed),
            {index: why for index, why in failed.items() if index not in healed},
        )

    def _repair(
        self, observation: Observation, wanted: Mapping[int, Finding], failed: dict[int, str]
    ) -> tuple[set[int], set[int]]:
        """(those that were repaired, those that the repair of another one perhaps overtook); sets `failed`.

        What a claim gives up comes first, so that another one gets just what its guest uses.
        """
        done: set[int] = set()
        overtaken: set[int] = set()
        for index, finding in sorted(
            wanted.items(), key=lambda pair: min(_ORDER.index(type(step)) for step in pair[1].repair)
        ):
            taking = any(isinstance(step, TAKING) for step in finding.repair)
            why_not = self._may_not_heal(observation.host.tree, taking)
            if why_not is not None:
                failed[index] = why_not
                continue
            try:
                self._repairer.repair(observation, finding)
            except (errors.PlacementError, errors.Refused) as error:
                failed[index] = error.message
                if done and isinstance(error, errors.PlacementConflict):
                    overtaken.add(index)
                    continue
                LOG.error(
                    "Audit: not healed: %s %s",
                    finding.reason,
                    error.message,
                    fields={"subject": finding.subject},
                )
                continue
            done.add(index)
            self._previous.pop(_key(finding), None)
            LOG.info(
                "Audit: healed: %s: %s",
                finding.kind,
                "; ".join(map(str, finding.repair)),
                fields={"event": "healed", "subject": finding.subject},
            )
        return done, overtaken


def _key(finding: Finding) -> Key:
    """What makes findings of two readings the same one."""
    return (
        finding.kind,
        finding.subject,
        finding.evidence.get("generation"),
        finding.evidence.get("class"),
    )
