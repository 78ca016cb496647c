"""The agent of one host: what the jobs run, and what the local API may ask."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from agent import __version__, log
from agent.audit.auditor import Auditor, AuditReport
from agent.backoff import Backoff
from agent.claims.claim import Claim, Fit
from agent.claims.parse_request import ClaimRequest
from agent.config.settings import Settings, describe
from agent.driver import Driver, Guest
from agent.errors import (
    DriverError,
    PlacementError,
    PlacementUnavailable,
    PlimsollError,
    Refused,
    StateError,
    UsageError,
)
from agent.gate.gate import Asked, Gate, GateVerdict, Outcome
from agent.moves.states import Move, MoveKind
from agent.placement.client import PlacementClient
from agent.providers.plan import Plan
from agent.reconcile.pass_report import PassReport
from agent.reconcile.reconciler import Reconciler
from agent.reconcile.reshape_request import Preview, ask
from agent.reshape.receipt import Receipt
from agent.shapes import Usages
from agent.state.identity import Identity
from agent.status.condition import OWN, PLACEMENT, Condition, Fault, HostState
from agent.status.health import PASS_STUCK_S
from agent.status.host_status import AgentStatus, HostStatus
from agent.status.recorder import Recorder
from agent.tracker.register import entered
from agent.tracker.tracker import ResourceTracker
from agent.tree import ProviderTree

LOG = log.get(__name__)

AT_ONCE_S = 0.25
RESHAPE = "reshape"
_TOLD = ("providers", "changed", "operations", "duration_ms")
STARTING = "the agent is starting and has not seen the whole host yet"


class HostAgent:
    """Implements `agent.api.operations.Operations`; any thread may call.

    `wake(delay_s)` asks for a pass in so many seconds; `prove` raises StateError while the agent's own state
    cannot be written.
    """

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        reconciler: Reconciler,
        tracker: ResourceTracker,
        client: PlacementClient,
        condition: Condition,
        wake: Callable[[float], None],
        prove: Callable[[], None],
        auditor: Auditor,
        observer: Recorder,
        gate: Gate,
        backoff: Backoff | None = None,
    ) -> None:
        self.settings = settings
        self.condition = condition
        self._identity = identity
        self._reconciler = reconciler
        self._tracker = tracker
        self._client = client
        self._wake = wake
        self._prove = prove
        self._recovered = False
        self._auditor = auditor
        self._gate = gate
        self._backoff = backoff or Backoff()
        self._last: PassReport | None = None
        self._problems: tuple[str, ...] = ()
        self._observer = observer
        self._seeing = AgentStatus(
            tracker,
            reconciler,
            condition,
            auditor,
            self._observer.meters,
            self.status,
            lambda: self._last,
            str(settings.state_path),
        )
        self._silences = 0
        self._faulting = threading.Lock()
        tracker.silent = self._silent
        tracker.spares = self._spares_placement
        tracker.close(STARTING)

    # What the jobs run

    def look(self, why: str) -> None:
        """A pass; after a failure one that also reads placement again. Does not raise PlimsollError.

        While placement is away and not to be asked again yet, nothing but a later look.
        """
        if self._spares_placement():
            self._wake(self._backoff.left_s())
            return
        self._settle(
            self._reconciler.verify(why) if self.condition.fault else self._reconciler.reconcile(why)
        )

    def verify(self) -> None:
        """The slow pass: does placement still hold what was written there?"""
        if self._spares_placement():
            return
        self._settle(self._reconciler.verify("verification"))
        if self.condition.fault is None:
            self._follow_moves()

    def _follow_moves(self) -> None:
        """What the other agents did: moves that ended, claims that a migration holds now."""
        try:
            self._tracker.follow_moves()
        except (PlacementUnavailable, StateError) as error:
            self._fault(error)
        except (PlacementError, Refused) as error:
            LOG.error("Moves were not followed: %s", error.message)

    def audit_job(self) -> None:
        """The audit on its schedule; heals what is provably ours, where the settings let it."""
        if self.condition.state is not HostState.READY or self._spares_placement():
            return
        try:
            report = self._auditor.audit(heal_own=self.settings.audit_heal_own, readings=1)
        except (DriverError, PlacementError, StateError) as error:
            LOG.warning("The audit came to no end: %s", error.message)
            self._observer.audit_failed()
        else:
            self._after_audit(report)

    def _after_audit(self, report: AuditReport) -> None:
        self._seeing.audited()
        self._observer.audited(report)
        if report.healed:
            self._reconciler.invalidate()
            self._wake(AT_ONCE_S)

    def deliver(self) -> None:
        """Deliver the releases that placement has not been told of yet.

        Not before the host was seen whole: whether what a crash left is undone hangs on its guests.
        """
        if not self._recovered or not self._tracker.pending or self._placement_is_away():
            return
        try:
            self._tracker.deliver()
        except StateError as error:
            self._fault(error)

    def alive(self) -> bool:
        """Whether the tracker's lock can be had and no pass is stuck; waits for the lock."""
        self._tracker.claims()
        self._seeing.beat()
        return self._reconciler.running_s() < PASS_STUCK_S

    def use(self, settings: Settings, driver: Driver | None) -> None:
        """Go on with other settings, and another driver where they ask for one.

        Raises SettingsError, changing nothing, where the provider config files contradict the driver.
        """
        self._reconciler.replace_provider_config(settings.provider_config)
        self.settings = settings
        if driver is not None:
            self._reconciler.replace_driver(driver).close()

    def stopping(self) -> None:
        self.condition.stopping()
        self._tracker.close("the agent is stopping")

    def broken(self, job: str, error: BaseException) -> None:
        """A job let an exception through that nobody foresaw."""
        LOG.error("The job %s broke: %r", job, error, fields={"job": job})
        self._fault(StateError(f"The agent's own job {job!r} broke ({error!r}); its log has more."))

    def _settle(self, report: PassReport) -> None:
        self._last = report
        self._observer.passed(report)
        silences = self._silences
        error = report.error or self._recover()
        if error is not None:
            self._fault(error)
        if error is not None or self._silences != silences:  # while it recovered
            return
        self._tell_problems(report.problems)
        LOG.info(report.sentence, fields={name: getattr(report, name) for name in _TOLD})
        if self.condition.state is not HostState.STOPPING:
            self._tracker.open()
        if report.pending is not None:
            self.condition.degraded(Fault(RESHAPE, report.pending.message))
            self._wake(self._backoff.failed())
            return
        self._backoff.succeeded()
        if self._reconciler.needs_pass:
            self._wake(AT_ONCE_S)
        if self.condition.state is not HostState.STOPPING:
            self.condition.ready(f"{self._identity.name} with {report.providers} providers; claims are open.")

    def _recover(self) -> PlimsollError | None:
        """Finish or undo what a crash left, once after the start, and deliver what waited for placement; end
        what the gate let in and is over; prove a fault of our own to be gone."""
        fault = self.condition.fault
        try:
            if fault is not None and fault.concern == OWN:
                self._prove()
            if not self._recovered:
                resolved = self._tracker.recover(self._reconciler.guests or ())
                self._recovered = True
                if resolved:
                    LOG.info("Finished or undid what the last run left open.", fields={"claims": resolved})
            elif fault is not None and self._tracker.pending:
                self._tracker.deliver()
            if self._last is not None:
                self._gate.settle(self._reconciler.guests or (), self._last.at)
        except (PlacementUnavailable, StateError) as error:
            return error
        return None

    def _fault(self, error: PlimsollError) -> None:
        self._tracker.close(error.message.rstrip("."))
        fault = Fault.of(error)
        told_s, busy = error.details.get("retry_after", 0.0), bool(error.details.get("busy"))
        with self._faulting:
            if fault.concern == PLACEMENT and self._spares_placement():  # in flight when it went away
                delay_s = self._backoff.failed_too(told_s)
            else:
                delay_s = self._backoff.failed(told_s, busy=busy)
            self.condition.degraded(fault)
        self._reconciler.invalidate()
        self._wake(delay_s)

    def _silent(self, error: PlacementUnavailable) -> None:
        self._silences += 1
        self._fault(error)

    def _placement_is_away(self) -> bool:
        fault = self.condition.fault
        return fault is not None and fault.concern == PLACEMENT

    def _spares_placement(self) -> bool:
        """Whether placement failed and is not to be asked again yet, whatever happens on the host."""
        return self._placement_is_away() and self._backoff.left_s() > 0

    def _tell_problems(self, problems: tuple[str, ...]) -> None:
        for problem in problems:
            if problem not in self._problems:
                LOG.warning(problem)
        self._problems = problems

    # Operations

    @property
    def seeing(self) -> HostStatus:
        return self._seeing

    def status(self) -> dict[str, Any]:
        fault = self.condition.fault
        last = self._last
        closed = self._tracker.closed_reason
        return {
            "host": self._identity.name,
            "uuid": self._identity.uuid,
            "version": __version__,
            "state": str(self.condition.state),
            "reasons": [*([fault.sentence] if fault else []), *self._problems],
            "since": _text(self.condition.since),
            "driver": {"name": self.settings.compute_driver, **_health("driver", fault)},
            "placement": {"kind": self.settings.placement.kind, **_health("placement", fault)},
            "claims": {"open": closed is None, "reason": closed, "count": len(self._tracker.claims())},
            "last_pass": last
            and {"at": _text(last.at), "sentence": last.sentence, "duration_ms": last.duration_ms},
            "findings": len(self._auditor.last.findings),
            "pid": os.getpid(),
        }

    def tree(self) -> tuple[ProviderTree, Usages]:
        tree = self._client.read_tree(self._identity.uuid, self._reconciler.tree)
        return tree, {
            each.uuid: dict(self._client.provider_usages(each.uuid)) for each in tree if each.inventories
        }

    def instances(self) -> tuple[tuple[Guest | None, Claim | None], ...]:
        guests = {guest.uuid: guest for guest in self._reconciler.guests or ()}
        claims = self._tracker.claims()
        return tuple((guests.get(uuid), claims.get(uuid)) for uuid in sorted({*guests, *claims}))

    def claim(self, request: ClaimRequest) -> Claim:
        with self._writing(), self._observer.claiming(request):
            return self._tracker.claim(self._entered(request)).claim

    def explain(self, request: ClaimRequest) -> Fit:
        return self._tracker.explain(self._entered(request))

    def _entered(self, request: ClaimRequest) -> ClaimRequest:
        return entered(request, self.settings.pci_aliases, self._tracker.register)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Around what takes or frees: placement is to offer no more than what is left then, and soon."""
        try:
            yield
        except (PlacementUnavailable, StateError) as error:
            self._fault(error)
            raise
        finally:
            if self._reconciler.needs_pass:
                self._wake(AT_ONCE_S)

    def release(self, consumer: str) -> bool:
        if self._reconciler.needs_pass:  # what is for one-time use is not to be had again
            self._reconciler.reconcile("a device came into use")
        with self._writing():
            released = self._tracker.release(consumer, now=not self._spares_placement())
        if not released:
            self._reconciler.invalidate()
            self._wake(max(AT_ONCE_S, self._backoff.left_s()))
        return released

    def gate(self, asked: Asked) -> GateVerdict:
        with self._writing(), self._observer.gating() as decided:
            verdict = self._gate.decide(asked)
            decided(verdict.outcome)
        if verdict.outcome is Outcome.NOTED:
            self._reconciler.invalidate()
            self._wake(AT_ONCE_S)
        return verdict

    def claim_running(self) -> tuple[tuple[Guest, GateVerdict | Refused], ...]:
        return self._gate.claim_running(self._reconciler.read_guests())

    def moves(self) -> tuple[Move, ...]:
        return tuple(sorted(self._tracker.moves().values(), key=lambda move: (move.since, move.migration)))

    def begin_move(self, kind: MoveKind, migration: str, request: ClaimRequest) -> Move:
        with self._writing(), self._observer.moving(kind, request):
            return self._tracker.move(self._entered(request), kind, migration).move

    def confirm_move(self, migration: str, instance: str | None) -> Move:
        with self._writing():
            now = not self._spares_placement()
            return self._tracker.mover.confirm(migration, instance=instance, now=now)

    def revert_move(self, migration: str, instance: str | None) -> Move:
        with self._writing():
            now = not self._spares_placement()
            return self._tracker.mover.revert(migration, instance=instance, now=now)

    def audit(self, *, heal: bool) -> AuditReport:
        if self.condition.state is HostState.STARTING:
            raise UsageError(f"There is nothing to audit: {STARTING}.")
        report = self._auditor.audit(heal_own=heal, heal_all=heal)
        self._after_audit(report)
        return report

    def next_plan(self) -> Plan:
        return self._reconciler.next_plan()

    def preview_reshape(self, undo: str | None) -> Preview:
        return self._reconciler.preview_reshape(undo)

    def reshape(self, undo: str | None) -> tuple[Receipt, ...]:
        reshape_runner = self._reconciler.reshape_runner
        if reshape_runner is None:
            raise UsageError("This agent was put together without the means to reshape.")

        def look(why: str) -> PassReport:
            report = self._reconciler.verify(why)
            self._settle(report)
            return report

        return ask(reshape_runner.undone, look, undo)

    def configuration(self) -> dict[str, Any]:
        return describe(self.settings)


def _health(concern: str, fault: Fault | None) -> dict[str, Any]:
    error = fault.sentence if fault and fault.concern == concern else None
    return {"ok": error is None, "error": error}


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
