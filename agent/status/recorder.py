"""Records the agent's operations: in the metrics, and in the history where the tracker does not do it.

Metrics and history never fail the operation that they record: an event that cannot be written is logged.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from prometheus_client import Counter

from agent import log
from agent.audit.auditor import AuditReport
from agent.claims.request import ClaimRequest
from agent.errors import ClaimsClosed, PlimsollError, Refused, StateError
from agent.gate.decision import GateVerdict
from agent.moves.states import MoveKind
from agent.reconcile.pass_report import PassReport
from agent.status.metrics import GRANTED, Metrics

LOG = log.get(__name__)

UNEXPECTED = "plimsoll.internal"
"""The outcome of an unexpected exception: the code of the local API's error."""
REPEATED_MAX = 256
REPEATED_S = 3600.0

Note = Callable[[str, str, str, str], object]
"""`Journal.record_event`: takes consumer ("" for the host), event, detail and name ("": unknown). Raises
StateError."""


class Recorder:
    """Records operations. `note` writes an event to the history; `timer` gives seconds of a steady clock."""

    def __init__(
        self,
        metrics: Metrics | None = None,
        note: Note | None = None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = metrics or Metrics()
        self._note = note or (lambda consumer, event, detail, name: None)
        self._timer = timer
        self._recent_refusals: OrderedDict[tuple[str, str], float] = OrderedDict()

    @contextmanager
    def record_claim(self, request: ClaimRequest) -> Iterator[None]:
        """Record the claim that is made within the context: its duration and its outcome."""
        began = self._timer()
        try:
            with self._outcome(request, GRANTED, "refused", self.metrics.claim_requests.labels):
                yield
        finally:
            self.metrics.claim_seconds.observe(self._timer() - began)

    def record_move(self, kind: MoveKind, request: ClaimRequest) -> AbstractContextManager[None]:
        """Record the begin of a move within the context: its outcome."""
        return self._outcome(
            request, "begun", "move_refused", partial(self.metrics.move_requests.labels, kind)
        )

    @contextmanager
    def _outcome(
        self, request: ClaimRequest, done: str, refused: str, count: Callable[[str], Counter]
    ) -> Iterator[None]:
        """Count how the block ends: as `done`, or by its error's code; a refusal is the event `refused`."""
        outcome = UNEXPECTED
        try:
            yield
            outcome = done
        except PlimsollError as error:
            outcome = error.code
            self._record_refusal(request.consumer, refused, error, request.name)
            raise
        finally:
            count(outcome).inc()

    @contextmanager
    def record_gate(self) -> Iterator[Callable[[str], None]]:
        """Record the gate's decision within the context; call the yielded function with the outcome."""
        began = self._timer()
        outcomes = [UNEXPECTED]
        try:
            yield outcomes.append
        except PlimsollError as error:
            outcomes.append(error.code)
            self._record_refusal(str(error.details.get("consumer", "")), "gate_refused", error)
            raise
        finally:
            self.metrics.gate_seconds.observe(self._timer() - began)
            self.metrics.gate_requests.labels(outcomes[-1]).inc()

    def record_missed_guest(self, verdict: GateVerdict | Refused, consumer: str) -> None:
        """Record the gate's decision about a guest that started while the gate did not decide."""
        if isinstance(verdict, GateVerdict):
            self.metrics.gate_requests.labels(verdict.outcome).inc()
        else:
            self.metrics.gate_requests.labels(verdict.code).inc()
            self._record_refusal(consumer, "gate_refused", verdict)

    def record_pass(self, report: PassReport) -> None:
        """Record a pass that ended."""
        outcome = "failed" if report.error else "changed" if report.operations else "unchanged"
        self.metrics.passes.labels(outcome).inc()
        self.metrics.pass_seconds.observe(report.duration_ms / 1000)
        self.metrics.operations.inc(report.operations)
        if outcome == "changed":
            self._write("", "pass", report.sentence)

    def record_event(self, event: str, sentence: str) -> None:
        """Record an event of the host.

        That is a state that the agent is in; clock_set: the wall clock was set; resumed: the host was
        suspended, and works again; schedulers_stopped or schedulers_back: schedulers were told that the host
        is closed, or open again.
        """
        self._write("", str(event), sentence)

    def record_audit(self, report: AuditReport) -> None:
        """Record an audit that ended, and its repairs."""
        self.metrics.audits.labels("done").inc()
        for index in sorted(report.healed):
            finding = report.findings[index]
            self.metrics.healed.labels(finding.kind).inc()
            repairs = "; ".join(map(str, finding.repair))
            self._write(finding.subject, "healed", f"{finding.kind}: {finding.reason} {repairs}")

    def record_failed_audit(self) -> None:
        """Record an audit that failed."""
        self.metrics.audits.labels("failed").inc()

    def _record_refusal(self, consumer: str, event: str, error: PlimsollError, name: str = "") -> None:
        """Record a refusal once an hour: repeated ones, and those of an outage, would fill the history."""
        if not isinstance(error, Refused) or isinstance(error, ClaimsClosed):
            return
        key, now = (consumer, error.message), self._timer()
        last = self._recent_refusals.get(key)
        if last is not None and now - last < REPEATED_S:
            return
        self._recent_refusals[key] = now
        self._recent_refusals.move_to_end(key)
        while len(self._recent_refusals) > REPEATED_MAX:
            self._recent_refusals.popitem(last=False)
        self._write(consumer, event, error.message, name)

    def _write(self, consumer: str, event: str, detail: str, name: str = "") -> None:
        try:
            self._note(consumer, event, detail, name)
        except StateError as error:
            LOG.warning(
                "The event %s was not written to the history: %s",
                event,
                error.message,
                fields={"consumer": consumer},
            )
