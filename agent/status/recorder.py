"""Watches the agent work: counts it for the metrics, and notes in the history what no claim or move notes.

Counting and noting never fail what is watched: a note that cannot be written is said in the log.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agent import log
from agent.audit.auditor import AuditReport
from agent.claims.parse_request import ClaimRequest
from agent.errors import ClaimsClosed, PlimsollError, Refused, StateError
from agent.moves.states import MoveKind
from agent.reconcile.pass_report import PassReport
from agent.status.condition import HostState
from agent.status.metrics import GRANTED, Meters

LOG = log.get(__name__)

UNFORESEEN = "plimsoll.internal"
"""As the local API answers then."""
REPEATED_MAX = 256
REPEATED_S = 3600.0

Note = Callable[[str, str, str], object]
"""Takes consumer ("" for the host), event and detail, as `Journal.note`. Raises StateError."""


class Recorder:
    """`note` is where events go; `timer` gives seconds."""

    def __init__(
        self,
        meters: Meters | None = None,
        note: Note | None = None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.meters = meters or Meters()
        self._note = note or (lambda consumer, event, detail: None)
        self._timer = timer
        self._told: OrderedDict[tuple[str, str], float] = OrderedDict()

    @contextmanager
    def claiming(self, request: ClaimRequest) -> Iterator[None]:
        """Around a claim: how long it took, and what came of it."""
        began = self._timer()
        outcome = UNFORESEEN
        try:
            yield
            outcome = GRANTED
        except PlimsollError as error:
            outcome = error.code
            self._refused(request.consumer, "refused", error)
            raise
        finally:
            self.meters.claim_seconds.observe(self._timer() - began)
            self.meters.claim_requests.labels(outcome).inc()

    @contextmanager
    def moving(self, kind: MoveKind, request: ClaimRequest) -> Iterator[None]:
        """Around the beginning of a move."""
        outcome = UNFORESEEN
        try:
            yield
            outcome = "begun"
        except PlimsollError as error:
            outcome = error.code
            self._refused(request.consumer, "move_refused", error)
            raise
        finally:
            self.meters.move_requests.labels(kind, outcome).inc()

    @contextmanager
    def gating(self) -> Iterator[Callable[[str], None]]:
        """Around a question to the gate; what it decided is told to what this yields."""
        began = self._timer()
        outcomes = [UNFORESEEN]
        try:
            yield outcomes.append
        except PlimsollError as error:
            outcomes.append(error.code)
            self._refused(str(error.details.get("consumer", "")), "gate_refused", error)
            raise
        finally:
            self.meters.gate_seconds.observe(self._timer() - began)
            self.meters.gate_requests.labels(outcomes[-1]).inc()

    def passed(self, report: PassReport) -> None:
        """After each pass."""
        outcome = "failed" if report.error else "changed" if report.operations else "unchanged"
        self.meters.passes.labels(outcome).inc()
        self.meters.pass_seconds.observe(report.duration_ms / 1000)
        self.meters.operations.inc(report.operations)
        if outcome == "changed":
            self._write("", "pass", report.sentence)

    def turned(self, state: HostState, sentence: str) -> None:
        """After each change of the agent's state."""
        self._write("", str(state), sentence)

    def audited(self, report: AuditReport) -> None:
        """After each audit."""
        self.meters.audits.labels("done").inc()
        for index in sorted(report.healed):
            finding = report.findings[index]
            self.meters.healed.labels(finding.kind).inc()
            repairs = "; ".join(map(str, finding.repair))
            self._write(finding.subject, "healed", f"{finding.kind}: {finding.reason} {repairs}")

    def audit_failed(self) -> None:
        """After each audit that came to no end."""
        self.meters.audits.labels("failed").inc()

    def _refused(self, consumer: str, event: str, error: PlimsollError) -> None:
        """Who asks again and again would push all else out of the history, and so would an outage."""
        if not isinstance(error, Refused) or isinstance(error, ClaimsClosed):
            return
        key, now = (consumer, error.message), self._timer()
        last = self._told.get(key)
        if last is not None and now - last < REPEATED_S:
            return
        self._told[key] = now
        self._told.move_to_end(key)
        while len(self._told) > REPEATED_MAX:
            self._told.popitem(last=False)
        self._write(consumer, event, error.message)

    def _write(self, consumer: str, event: str, detail: str) -> None:
        try:
            self._note(consumer, event, detail)
        except StateError as error:
            LOG.warning("The history lacks %s: %s", event, error.message, fields={"consumer": consumer})
