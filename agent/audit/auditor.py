"""The audit's runner: gathers the three truths, has each suspect judged alone, and executes repairs.

Placement is asked for the tree and for who holds what on each of its providers; of a suspect, what it holds
in all, while nothing else happens to it. No request is made under the tracker's lock. What counts was seen in
two looks, with the consumer's generation unchanged in between.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from agent import log
from agent.audit.finding import (
    Deliver,
    DropClaim,
    EndMove,
    Finding,
    Holding,
    Repair,
    TakeClaim,
    WriteAllocations,
)
from agent.audit.judge import Truths, judge, moving, on_devices, on_providers, suspects
from agent.audit.judge_moves import judge_move, suspect_moves
from agent.claims.claim import ClaimStep
from agent.claims.fit import ProviderIndex
from agent.driver import Guest
from agent.errors import ClaimConflict, PlacementConflict, PlacementError, Refused
from agent.moves.states import Move
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.shapes import Held
from agent.tracker.tracker import ResourceTracker
from agent.tracker.withdraw import withdraw
from agent.tree import ProviderTree

LOG = log.get(__name__)

Key = tuple[Any, ...]

IN_TURN = 4
"""How many of those with nothing conspicuous an audit on its schedule reads in full."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What was found, what of it was healed, and why a repair failed, {index in `findings`: sentence}."""

    findings: tuple[Finding, ...] = ()
    healed: frozenset[int] = frozenset()
    failed: Mapping[int, str] | None = None


class Auditor:
    """`guests` asks the driver; `devices` tells {provider uuid: device}; `known` is the tree as last read."""

    def __init__(
        self,
        tracker: ResourceTracker,
        client: PlacementClient,
        root: str,
        guests: Callable[[], tuple[Guest, ...]],
        devices: Callable[[], Mapping[str, str]],
        known: Callable[[], ProviderTree | None] = lambda: None,
    ) -> None:
        self._tracker = tracker
        self._register = tracker.register
        self._client = client
        self._root = root
        self._guests = guests
        self._devices = devices
        self._known = known
        self._lock = threading.Lock()
        self._seen: dict[Key, Finding] = {}
        self._told: frozenset[Key] = frozenset()
        self._round = ""
        self.last = AuditReport()

    def audit(self, *, heal_own: bool = False, heal_all: bool = False, looks: int = 2) -> AuditReport:
        """What is found in two looks running; `looks` 1 counts the last one of the last audit.

        Raises DriverError, PlacementError, StateError: then nothing more is healed.
        """
        with self._lock:
            confirmed: dict[Key, Finding] = {}
            truths = None
            for number in range(looks):
                truths, found = self._look(everybody=number == 0 and looks > 1)
                confirmed = {key: each for key, each in found.items() if key in self._seen}
                self._seen = found
            self._tell(confirmed)
            report = AuditReport(tuple(confirmed.values()))
            if truths is not None and (heal_own or heal_all):
                report = self._heal(truths, report, heal_all)
            self.last = report
            return report

    # Looking

    def _look(self, *, everybody: bool) -> tuple[Truths, dict[Key, Finding]]:
        before = self._guests()
        tree = self._client.read_tree(self._root, self._known())
        held = {each.uuid: self._client.provider_allocations(each.uuid).consumers for each in tree}
        truths = self._truths(before, tree, held)
        closer = suspects(truths) | self._in_turn(truths, everybody)
        judged = [self._judged(truths, consumer) for consumer in sorted(closer)]
        found = [each for each in judged if each is not None]
        stuck = [self._judged_move(truths, move) for move in suspect_moves(truths)]
        after = {guest.uuid for guest in self._guests()}
        steady = [each for each in found if (each.subject in after) == (each.subject in truths.guests)]
        everything = (*steady, *stuck, *on_providers(truths), *on_devices(truths))
        return truths, {_key(each): each for each in everything if each is not None}

    def _in_turn(self, truths: Truths, everybody: bool) -> frozenset[str]:
        """Who looks right here and may hold something elsewhere, too: those found so, and some more in turn.

        What a consumer holds in all is one request for each, so on its schedule the audit goes round.
        """
        here = sorted({consumer for held in truths.held.values() for consumer in held} - moving(truths))
        if everybody:
            return frozenset(here)
        found = {finding.subject for finding in self._seen.values()}.intersection(here)
        later = [consumer for consumer in here if consumer > self._round]
        turn = (later or here)[:IN_TURN]
        self._round = turn[-1] if turn else ""
        return frozenset({*turn, *found})

    def _truths(
        self,
        guests: tuple[Guest, ...],
        tree: ProviderTree,
        held: Held,
    ) -> Truths:
        with self._register.lock:
            ledger = self._register.ledger
            shared = [each for each in ledger.host.tree if not ledger.host.is_own(each.uuid)]
            claims, moves = dict(ledger.claims), tuple(self._register.moves.values())
            offered = ledger.offered
        whole = ProviderTree([*tree, *(each for each in shared if each.uuid not in tree)])
        return Truths(
            ProviderIndex.of(whole, self._root),
            {guest.uuid: guest for guest in guests},
            claims,
            moves,
            held,
            {device: uuid for uuid, device in self._devices().items()},
            offered,
        )

    def _judged(self, truths: Truths, consumer: str) -> Finding | None:
        try:
            with self._tracker.alone(consumer):
                return self._judge(truths, consumer)
        except ClaimConflict:
            return None  # an operation on it is under way

    def _judged_move(self, truths: Truths, move: Move) -> Finding | None:
        first, second = sorted((move.instance, move.migration))
        try:
            with self._tracker.alone(first), self._tracker.alone(second):
                present = self._tracker.moves().get(move.migration)
                if present is None or present.instance != move.instance:
                    return None
                instance, migration = (
                    Holding(**asdict(self._client.allocations_of(each)))
                    for each in (move.instance, move.migration)
                )
                return judge_move(truths, present, instance, migration)
        except ClaimConflict:
            return None  # an operation on it is under way

    def _judge(self, truths: Truths, consumer: str) -> Finding | None:
        """The caller has the consumer alone."""
        with self._register.lock:
            claims, moves = dict(self._register.ledger.claims), tuple(self._register.moves.values())
        held = self._client.allocations_of(consumer)
        return judge(replace(truths, claims=claims, moves=moves), consumer, Holding(**asdict(held)))

    def _tell(self, confirmed: Mapping[Key, Finding]) -> None:
        for key in confirmed.keys() - self._told:
            finding = confirmed[key]
            told = {"event": "finding", "subject": finding.subject}
            LOG.warning("Audit: %s: %s", finding.kind, finding.reason, fields=told)
        self._told = frozenset(confirmed)

    # Healing

    def _heal(self, truths: Truths, report: AuditReport, heal_all: bool) -> AuditReport:
        healed: set[int] = set()
        failed: dict[int, str] = {}
        for index, finding in enumerate(report.findings):
            if not finding.repair or not (finding.own or heal_all):
                continue
            try:
                for step in finding.repair:
                    self._do(truths, finding, step)
            except (PlacementError, Refused) as error:
                failed[index] = error.message
                LOG.error(
                    "Audit: not healed: %s %s",
                    finding.reason,
                    error.message,
                    fields={"subject": finding.subject},
                )
                continue
            healed.add(index)
            self._seen.pop(_key(finding), None)
            LOG.info(
                "Audit: healed: %s: %s",
                finding.kind,
                "; ".join(map(str, finding.repair)),
                fields={"event": "healed", "subject": finding.subject},
            )
        return AuditReport(report.findings, frozenset(healed), failed)

    def _do(self, truths: Truths, finding: Finding, step: Repair) -> None:
        """Raises PlacementError, Refused, StateError."""
        match step:
            case WriteAllocations(write):
                with self._tracker.alone(finding.subject):
                    self._check_unchanged(truths, finding)
                    self._client.write_allocations(ConsumerAllocations(**asdict(write)))
                    with self._register.lock:
                        if write.consumer not in self._register.ledger.claims:
                            self._register.ledger.set_other(write.consumer, write.allocations)
            case DropClaim(consumer):
                with self._tracker.alone(consumer):
                    self._check_unchanged(truths, finding)
                    self._register.move_durably(ClaimStep.RELEASE, consumer, detail="audit: leaked claim")
                    with self._register.lock:
                        claim = self._register.ledger.claims[consumer]
                    withdraw(self._register, self._client, claim)
                    self._register.move_durably(ClaimStep.GONE, consumer)
            case TakeClaim(request):
                self._tracker.claim(request)
            case EndMove(migration):
                present = self._tracker.moves().get(migration)
                if present is None or self._judged_move(truths, present) != finding:
                    raise _changed(finding)
                self._tracker.mover.confirm(migration)
            case Deliver(consumer):
                self._tracker.deliver()
                if self._judged(truths, consumer) is not None:
                    raise PlacementConflict(
                        f"What is open for {consumer} is not done yet; it is tried again."
                    )

    def _check_unchanged(self, truths: Truths, finding: Finding) -> None:
        now = self._judge(truths, finding.subject)
        there = finding.subject in {guest.uuid for guest in self._guests()}
        if now != finding or there != (finding.subject in truths.guests):
            raise _changed(finding)


def _changed(finding: Finding) -> PlacementConflict:
    return PlacementConflict(f"{finding.subject} has changed since it was looked at; look again.")


def _key(finding: Finding) -> Key:
    return (
        finding.kind,
        finding.subject,
        finding.evidence.get("generation"),
        finding.evidence.get("class"),
    )
