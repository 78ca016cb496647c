"""Runs the audit: reads the host twice, reports the findings of both readings, and repairs them."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from agent import log
from agent.audit.cases import RowCase
from agent.audit.finding import Finding
from agent.audit.findings import judge_host, judge_row
from agent.audit.observation import Observation
from agent.audit.reader import AuditReader
from agent.audit.repair import Deliver, DropClaim, EndMove, Repair, WriteAllocations
from agent.audit.repairer import Repairer
from agent.audit.suspects import suspect_moves, suspects
from agent.driver import Guest
from agent.errors import AnotherWriter, DriverError, PlacementConflict, PlacementError, Refused, StateError
from agent.placement.client import PlacementClient
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
    """Audits one host. Any thread may call; one audit runs at a time. The parameters are `AuditReader`'s.

    `check_writer` raises AnotherWriter where another agent may write as this host, by the tree that was read:
    what differs may be its own then. `may_not_heal` says from that tree, and whether the repair takes
    something away, why it may not be healed now; None: it may.
    """

    def __init__(
        self,
        tracker: ResourceTracker,
        client: PlacementClient,
        root: str,
        guests: Callable[[], tuple[Guest, ...]],
        devices: Callable[[], Mapping[str, str]],
        known_tree: Callable[[], ProviderTree | None] = lambda: None,
        leads: Callable[[], Sequence[Instruction]] = tuple,
        *,
        check_writer: Callable[[ProviderTree], None] = lambda tree: None,
        may_not_heal: Callable[[ProviderTree, bool], str | None] = lambda tree, taking: None,
    ) -> None:
        self._reader = AuditReader(tracker, client, root, guests, devices, known_tree, leads)
        self._repairer = Repairer(tracker, client, self._reader)
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
                confirmed = {key: finding for key, finding in findings.items() if key in self._previous}
                self._previous = findings
            self._log_new(confirmed)
            report = AuditReport(tuple(confirmed.values()))
            if observation is not None and (heal_own or heal_all):
                report = self._heal(observation, report, heal_all)
            self.last = report
            return report

    def _read(self, *, in_full: bool) -> tuple[Observation, dict[Key, Finding]]:
        observation = self._reader.observe()
        self._check_writer(observation.host.tree)
        to_judge = suspects(observation) | self._in_turn(observation, in_full)
        judged = [self._reader.judge_consumer(observation, consumer) for consumer in sorted(to_judge)]
        about_moves = [self._reader.judge_move(observation, move) for move in suspect_moves(observation)]
        about_rows = self._judge_rows(observation)
        guests = self._reader.guests_now()
        about_consumers = [
            finding
            for finding in (*judged, *about_rows)
            if finding is not None and (finding.subject in guests) == (finding.subject in observation.guests)
        ]
        findings = (*about_consumers, *about_moves, *judge_host(observation))
        return observation, {_key(finding): finding for finding in findings if finding is not None}

    def _judge_rows(self, observation: Observation) -> list[Finding]:
        """The findings about rows; those with one are judged again, as the only operation on them."""
        suspicious = [case.instance for case in RowCase.all_of(observation) if any(judge_row(case))]
        return [
            finding for instance in suspicious for finding in self._reader.judge_row(observation, instance)
        ]

    def _in_turn(self, observation: Observation, in_full: bool) -> frozenset[str]:
        """The inconspicuous consumers to read: all, or those of the last findings and IN_TURN more, in turn.

        They may hold something on another host, too, and to see that costs a request for each.
        """
        consumers = sorted(observation.consumers - observation.consumers_in_moves)
        if in_full:
            return frozenset(consumers)
        with_finding = {finding.subject for finding in self._previous.values()}.intersection(consumers)
        later = [consumer for consumer in consumers if consumer > self._last_in_turn]
        turn = (later or consumers)[:IN_TURN]
        self._last_in_turn = turn[-1] if turn else ""
        return frozenset({*turn, *with_finding})

    def _log_new(self, confirmed: Mapping[Key, Finding]) -> None:
        for key in confirmed.keys() - self._logged:
            finding = confirmed[key]
            fields = {"event": "finding", "subject": finding.subject}
            LOG.warning("Audit: %s: %s", finding.kind, finding.reason, fields=fields)
        self._logged = frozenset(confirmed)

    def _heal(self, observation: Observation, report: AuditReport, heal_all: bool) -> AuditReport:
        healed: set[int] = set()
        overtaken: set[int] = set()
        failed: dict[int, str] = {}
        wanted = [
            (index, finding)
            for index, finding in enumerate(report.findings)
            if finding.repair and (finding.own or heal_all)
        ]
        # What a claim gives up first, so that another one gets just what its guest uses.
        wanted.sort(key=lambda pair: min(_ORDER.index(type(step)) for step in pair[1].repair))
        tree = observation.host.tree
        for index, finding in wanted:
            taking = any(
                isinstance(step, WriteAllocations | DropClaim | Deliver | EndMove) for step in finding.repair
            )
            why_not = self._may_not_heal(tree, taking)
            if why_not is not None:
                failed[index] = why_not
                continue
            try:
                self._repairer.repair(observation, finding)
            except (PlacementError, Refused) as error:
                failed[index] = error.message
                if healed and isinstance(error, PlacementConflict):
                    overtaken.add(index)  # perhaps by the repair of another finding
                    continue
                LOG.error(
                    "Audit: not healed: %s %s",
                    finding.reason,
                    error.message,
                    fields={"subject": finding.subject},
                )
                continue
            healed.add(index)
            self._previous.pop(_key(finding), None)
            LOG.info(
                "Audit: healed: %s: %s",
                finding.kind,
                "; ".join(map(str, finding.repair)),
                fields={"event": "healed", "subject": finding.subject},
            )
        if healed:
            healed |= self._gone_with_others(report, healed | (failed.keys() - overtaken))
            failed = {index: why for index, why in failed.items() if index not in healed}
        return AuditReport(report.findings, frozenset(healed), failed)

    def _gone_with_others(self, report: AuditReport, settled: Collection[int]) -> set[int]:
        """Those but the `settled` ones of which the repairs of others have left nothing."""
        open_ones = {index for index in range(len(report.findings)) if index not in settled}
        if not open_ones:
            return set()
        try:
            _, self._previous = self._read(in_full=False)
        except (AnotherWriter, DriverError, PlacementError, StateError) as error:
            LOG.debug("The host was not read again after repairs: %s", error.message)
            return set()
        present = {(finding.kind, finding.subject) for finding in self._previous.values()}
        found = ((index, report.findings[index]) for index in open_ones)
        return {index for index, finding in found if (finding.kind, finding.subject) not in present}


def _key(finding: Finding) -> Key:
    """What makes findings of two readings the same one."""
    return (
        finding.kind,
        finding.subject,
        finding.evidence.get("generation"),
        finding.evidence.get("class"),
    )
