"""The agent of one host: what its jobs run, and how their failures become faults with a back-off."""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from agent import errors, log
from agent.api.operations import Operations
from agent.audit.auditor import Auditor, AuditReader, AuditReport
from agent.backoff import Backoff
from agent.carving.files import (
    BootNeeds,
    CpuNeeds,
    with_noted_ports,
)
from agent.claims.claim import Claim
from agent.clock import HostClock
from agent.config.check import check_running_state_path
from agent.config.settings import Settings
from agent.driver import Driver
from agent.errors import counted
from agent.gate.decision import GateVerdict
from agent.gate.effect import GatePaths, is_enabled
from agent.gate.gate import Gate, MissedGuests
from agent.moves.states import MoveKind
from agent.placement.client import PlacementClient
from agent.placement.transport import Transport
from agent.reconcile.one_writer import Writer, writer_of
from agent.reconcile.pass_report import PassReport
from agent.reconcile.placement_memory import TreeCache, check_home, home_name
from agent.reconcile.reconciler import Reconciler
from agent.state.identity import Identity
from agent.state.journal import Journal
from agent.status.host_status import PASS_STUCK_S, HostStatus
from agent.status.metrics import MeteredTransport
from agent.status.overview import OWN, PLACEMENT, STARTING, Condition, Fault, HostState
from agent.status.recorder import Recorder
from agent.tracker.tracker import ResourceTracker

LOG = log.get(__name__)

AT_ONCE_S = 0.25
INTERNAL_ERROR = 500
RESHAPE = "reshape"
IDENTITY = "identity"
_LOGGED = ("providers", "changed", "operations", "duration_ms")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the agent's process gives the agent: what wakes its jobs, where it runs, and its clocks.

    `on_change(state, sentence)` is called after each change of the agent's state; `wake(delay_s)` schedules a
    pass in so many seconds, `wake_audit` the first audit, `wake_carving` a look at what a boot needs, and
    `wake_note` the host's note.
    `gate_paths`: where to look for the gate's hook. `place`: where this agent runs, if not in the state
    directory of this machine. `backoff` is that of failed passes. `clock` tells how old claims, moves and
    doubts are, and `steady` for how long the host has been closed.
    """

    on_change: Callable[[HostState, str], None]
    wake: Callable[[float], None]
    wake_audit: Callable[[], None] = lambda: None
    wake_carving: Callable[[], None] = lambda: None
    wake_note: Callable[[], None] = lambda: None
    gate_paths: GatePaths | None = None
    place: str | None = None
    backoff: Backoff = field(default_factory=Backoff)
    clock: HostClock = field(default_factory=HostClock)
    steady: Callable[[], float] = time.monotonic


class HostAgent:
    """Runs one host's jobs. Any thread may call. Implements `agent.api.operations.Supervisor`."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        journal: Journal,
        client: PlacementClient,
        tracker: ResourceTracker,
        reconciler: Reconciler,
        auditor: Auditor,
        gate: Gate,
        recorder: Recorder,
        process: Surroundings,
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._journal = journal
        self._client = client
        self._reconciler = reconciler
        self._tracker = tracker
        self._auditor = auditor
        self._recorder = recorder
        self._gate = gate
        self._process = process
        self._backoff = process.backoff
        self._missed_guests = MissedGuests(gate, tracker)
        self._boot_needs = BootNeeds(
            settings.state_path,
            lambda: tracker.claims().values(),
            lambda: reconciler.guests,
            lambda: reconciler.driver.carved_units(),  # noqa: PLW0108 - a reload replaces the driver
        )
        self._cpu_needs = CpuNeeds(
            settings.state_path,
            lambda: self._settings.driver.host_settings,
            lambda: tracker.view.rows().values(),
            lambda: reconciler.guests,
        )
        self._recovered = False
        self._problems: tuple[str, ...] = ()
        self._noticed: set[str] = set()
        self._silences = 0
        self._fault_lock = threading.Lock()
        self._closed_at: float | None = None
        self._tell_lock = threading.Lock()
        self._tell_backoff = Backoff(clock=process.steady)
        self.condition = Condition(process.on_change)
        self.host_status = HostStatus(
            settings,
            identity,
            tracker,
            journal,
            reconciler,
            self.condition,
            auditor,
            recorder.metrics,
            process.gate_paths,
            process.clock.ages_s,
        )
        tracker.choose_by(settings.claims_strategy)
        tracker.placement.is_backing_off = self.is_backing_off
        tracker.placement.report_unavailable = self.report_silence
        tracker.placement.report_missing = self._report_missing
        tracker.admission.close(STARTING)

    @property
    def settings(self) -> Settings:
        """The settings in force, which a reload replaces."""
        return self._settings

    # The jobs

    def reconcile(self, why: str) -> None:
        """Run a pass; after a fault, one that also reads Placement again. Does not raise PlimsollError.

        While requests to Placement are held back, only schedule the next pass.
        """
        if self.is_backing_off():
            self._process.wake(self._backoff.left_s())
            return
        if not self._reads_back():
            return
        self.end_pass(
            self._reconciler.verify(why) if self.condition.fault else self._reconciler.reconcile(why)
        )
        # Let claims follow what guests use, if the settings say so; audit the host where that differs anew.
        # So what is plugged into a guest is a finding at once, and not only at the next audit.
        if not self._is_known():
            return
        try:
            changed = self._tracker.use.follow(grow=self._settings.claims_grow)
        except (errors.PlacementUnavailable, errors.StateError) as error:
            self.report_fault(error)
            return
        if self._reconciler.needs_pass:
            self.request_pass()
        if changed and self._settings.audit_interval_s:
            self._run_audit(lambda: self._auditor.audit(in_full=False))

    def verify(self) -> None:
        """Run a pass that compares Placement with what the agent wrote; then follow the host's moves.

        On a closed host, where no pass may get as far as Placement, the root's traits are read anew then.
        """
        if self._tracker.admission.closed_reason is not None:
            self._reconciler.doubt_traits()
        if not self.is_backing_off() and self._reads_back():
            self._verify("verification")

    def look(self) -> PassReport:
        """Do that at once, also during a back-off; try again what Placement refused. Raises StateError."""
        self._tracker.read_back()
        report = self._verify("a look that was asked for", in_full=True)
        self.deliver(again=True)
        return report

    def _verify(self, why: str, *, in_full: bool = False) -> PassReport:
        report = self._reconciler.verify(why, in_full=in_full)
        self.end_pass(report)
        if report.error is None and not self._is_placement_away():
            # Read what the agents of other hosts did: moves that ended, claims that a migration holds now.
            # Then look for writes of this agent that Placement executed late.
            try:
                emptied = self._tracker.emptied
                self._tracker.follow_moves()
                if self._tracker.emptied - emptied and self._settings.audit_interval_s:
                    self._process.wake_audit()
                self._tracker.watch_doubts()
            except (errors.PlacementUnavailable, errors.StateError) as error:
                self.report_fault(error)
            except (errors.PlacementError, errors.Refused) as error:
                LOG.error("Moves were not followed: %s", error.message)
        return report

    def _reads_back(self) -> bool:
        """Whether the agent knows what is on its disk: after a write of unknown outcome it reads it."""
        try:
            if self._tracker.read_back():
                self._reconciler.invalidate()  # what was read back may be due in Placement
        except errors.StateError as error:
            self.report_fault(error)
            return False
        return True

    def _is_known(self) -> bool:
        """Whether the last pass saw the whole host and Placement; it may have left a reshape undone."""
        fault = self.condition.fault
        is_known = self.condition.state is HostState.READY or (fault is not None and fault.concern == RESHAPE)
        return is_known and not self.is_backing_off()

    def run_audit(self) -> None:
        """Run the scheduled audit. It repairs the agent's own records if the settings allow that."""
        if not self._is_known():
            return
        heal_own = self._settings.audit_heal_own
        self._run_audit(lambda: self._auditor.audit_on_schedule(heal_own=heal_own))

    def _run_audit(self, audit: Callable[[], AuditReport]) -> None:
        try:
            report = audit()
        except (errors.DriverError, errors.IdentityError, errors.PlacementError, errors.StateError) as error:
            LOG.warning("The audit did not finish: %s", error.message)
            self._recorder.record_failed_audit()
        else:
            self.end_audit(report)

    def deliver(self, *, again: bool = False) -> None:
        """Deliver the journaled writes that Placement has not got yet; `again` as of the tracker's `deliver`.

        The recovery of a crash depends on the host's guests, so nothing is delivered before the first pass.
        """
        if not self._recovered or self._is_placement_away() or self._reconciler.is_contested:
            return
        try:
            self._tracker.deliver(again=again)
        except errors.StateError as error:
            self.report_fault(error)

    def release_ended(self) -> None:
        """Release the claims whose process has ended, unless a guest runs with one of them."""
        running = {guest.uuid for guest in self._reconciler.guests or () if not guest.is_off}
        claims = self._tracker.claims() if self._recovered else {}
        for consumer, claim in claims.items():
            process = claim.request.process
            if process is None or consumer in running or not process.has_ended():
                continue

            def has_changed(seen: Claim = claim) -> bool:
                return self._tracker.claim_of(seen.consumer) != seen

            writes_now = not (self.is_backing_off() or self._reconciler.is_contested)
            try:
                self._tracker.release(consumer, now=writes_now, unless=has_changed)
            except errors.StateError as error:
                self.report_fault(error)
                return
            except (errors.PlacementError, errors.Refused) as error:
                LOG.warning("The claim of %s was not released: %s", consumer, error.message)
            else:
                LOG.info(
                    "Released a claim, as its process %d has ended.",
                    process.pid,
                    fields={"consumer": consumer},
                )

    def look_at_devices(self, at: float | None = None) -> None:
        """Judge the health of the host's devices at this time, by default now.

        What is not well, or well again, is withheld or given at once, and a pass is requested for Placement.
        """
        try:
            changed = self._tracker.cordons.look(
                self._reconciler.driver.device_signs(), time.time() if at is None else at
            )
        except errors.DriverError as error:  # the passes report a driver that does not answer
            LOG.debug("The devices were not looked at: %s", error.message)
        except errors.StateError as error:
            self.report_fault(error)
        else:
            if changed:
                self._reconciler.invalidate()
                self.request_pass(after_backoff=True)

    def write_needs(self) -> None:
        """Write the files of what processes of root do for claims, where they do not say what is so now."""
        self._boot_needs.write()
        self._cpu_needs.write()

    def wake_note(self) -> None:
        """Have the host's note left soon."""
        self._process.wake_note()

    def leave_note(self) -> None:
        """Say at a served Placement how this host is. Nothing waits for it.

        Passes without changes ask Placement nothing, so this is how the agent learns that no server answers.
        """
        if self.is_backing_off():
            return
        try:
            risk = self._client.leave_note(self._identity.uuid, self.host_status.note())
            self.host_status.record_risk(risk)
        except errors.PlacementUnavailable as error:
            self.report_silence(error)
        except errors.PlacementError as error:
            LOG.debug("The note of this host was not left: %s", error.message)

    def tell_schedulers(self, *, answers: bool = False) -> None:
        """Have schedulers pass the host over once it has been closed for long, until it is open again.

        `answers`: Placement has just answered a request, so it is asked although its back-off goes on.
        No pass does that: while the driver is away, none gets as far as Placement.
        """
        with self._tell_lock:
            reason, after_s = self._tracker.admission.closed_reason, self._settings.closed_disable_after_s
            if reason is None:
                self._closed_at = None
            elif self._closed_at is None:
                self._closed_at = self._process.steady()
            is_long = self._closed_at is not None and self._process.steady() - self._closed_at >= after_s > 0
            if reason is not None and after_s and not is_long:
                return  # what an earlier run has told stays until the host opens
            if not self._reconciler.owes_schedulers(closed=is_long) or not self._may_tell(answers=answers):
                return
            try:
                told = self._reconciler.tell_schedulers(closed=is_long)
            except (
                errors.PlacementError,
                errors.StateError,
                errors.ApplyError,
                errors.ForeignOwner,
                errors.IdentityError,
            ) as error:
                self._tell_backoff.failed(error.details.get("retry_after", 0.0))
                LOG.warning("Schedulers were not told how the host is: %s", error.message)
                return
            if self._reconciler.owes_schedulers(closed=is_long):
                self._tell_backoff.failed()  # Placement does not have the root
                return
            self._tell_backoff.succeeded()
        if told:
            sentence = (
                f"Schedulers pass the host over (COMPUTE_STATUS_DISABLED), as it is closed: {reason}."
                if is_long
                else "Schedulers may choose the host again: COMPUTE_STATUS_DISABLED is taken back."
            )
            LOG.warning("%s", sentence, fields={"event": "schedulers"})
            self._recorder.record_event("schedulers_stopped" if is_long else "schedulers_back", sentence)

    def _may_tell(self, *, answers: bool) -> bool:
        """Whether this agent may write to the root now; under another's identity it writes nothing."""
        fault = self.condition.fault
        if self.condition.state is HostState.STOPPING or (fault is not None and fault.concern == IDENTITY):
            return False
        return answers or not (self.is_backing_off() or self._tell_backoff.left_s())

    def is_alive(self) -> bool:
        """True if the tracker's lock can be taken, for which this waits, and no pass is stuck."""
        self._tracker.claims()
        self.host_status.record_heartbeat()
        return self._reconciler.running_s() < PASS_STUCK_S

    # What the service asks for

    def apply_settings(self, settings: Settings, driver: Driver | None) -> Driver | None:
        """Use other settings, and another driver if one is given; returns the former one, to be closed.

        Raises SettingsError, and changes nothing, where the provider config files contradict the driver.
        """
        self._reconciler.replace_provider_config(settings.provider_config)
        self._settings = settings
        self._tracker.choose_by(settings.claims_strategy)
        return None if driver is None else self._reconciler.replace_driver(driver)

    def stop(self) -> None:
        """Close claims for good; the service stops the jobs."""
        self.condition.begin_stop()
        self._tracker.admission.close("the agent is stopping")

    def report_job_failure(self, job: str, error: BaseException) -> None:
        """Make a fault of an unexpected exception in a job."""
        LOG.error("The job %s broke: %r", job, error, fields={"job": job})
        self.report_fault(
            errors.StateError(f"The agent's own job {job!r} broke ({error!r}); its log has more.")
        )

    # What the local operations report

    def end_pass(self, report: PassReport) -> None:
        """Draw the consequences of a pass: recover, set the agent's state, open or close claims."""
        self.host_status.record_pass(report)
        self._recorder.record_pass(report)
        if report.changed or report.error is not None:
            self.wake_note()
        silences, fault = self._silences, self.condition.fault
        directory_problem, error = self._recover(report)
        if error is not None:
            self.report_fault(error)
            refused = isinstance(error, errors.PlacementError) and bool(error.status)
            self.tell_schedulers(answers=refused and "retry_after" not in error.details)
        if error is not None or self._silences != silences:  # Placement failed during the recovery
            return
        problems = report.problems if directory_problem is None else (directory_problem, *report.problems)
        self._log_new_problems(problems)
        for notice in report.notices:
            if notice not in self._noticed:
                LOG.warning(notice)
        self._noticed.update(report.notices)
        LOG.info(report.sentence, fields={name: getattr(report, name) for name in _LOGGED})
        if self.condition.state is not HostState.STOPPING:
            self._tracker.admission.open()
            self.tell_schedulers(answers=True)
        if report.pending is not None:
            self.condition.degrade(Fault(RESHAPE, report.pending.message))
            self._try_again(self._backoff.failed())
            return
        self._claim_missed()
        if self._silences != silences or self.condition.fault is not fault:
            return
        self._backoff.succeeded()
        self.host_status.record_next_try(None)
        if self._reconciler.needs_pass:
            self.request_pass()
        if self.condition.state is not HostState.STOPPING:
            closed = self._tracker.admission.closed_reason  # a pause outlives a restart
            claims = "claims are open" if closed is None else f"claims are closed: {closed}"
            self.condition.become_ready(
                f"{self._identity.name} with {counted(report.providers, 'provider')}; {claims}."
            )
            if not self.host_status.is_audited and self._settings.audit_interval_s:
                self._process.wake_audit()

    def end_audit(self, report: AuditReport) -> None:
        """Record an audit; after repairs, request a pass that reads Placement again.

        Where the audit saw guests use more than before, request one that reserves this in Placement.
        """
        self.host_status.record_audit()
        self._recorder.record_audit(report)
        if report.healed:
            self._reconciler.invalidate()
            self.request_pass()
        elif self._reconciler.needs_pass:
            self.request_pass(after_backoff=True)

    def report_fault(self, error: errors.PlimsollError) -> None:
        """Close claims, degrade the agent's state, and schedule the next pass after a back-off."""
        self._tracker.admission.close(error.message.rstrip("."))
        fault = Fault.of(error)
        retry_after_s, busy = error.details.get("retry_after", 0.0), bool(error.details.get("busy"))
        with self._fault_lock:
            if fault.concern == PLACEMENT and self.is_backing_off():  # the request was already under way
                delay_s = self._backoff.failed_in_flight(retry_after_s)
            else:
                delay_s = self._backoff.failed(retry_after_s, busy=busy)
            self.condition.degrade(fault)
        self._reconciler.invalidate()
        self._try_again(delay_s)

    def _try_again(self, delay_s: float) -> None:
        self.host_status.record_next_try(delay_s)
        self._process.wake(delay_s)

    def request_pass(self, *, after_backoff: bool = False) -> None:
        """Schedule a pass at once, or at the end of the back-off, if one is under way."""
        self._process.wake(max(AT_ONCE_S, self._backoff.left_s()) if after_backoff else AT_ONCE_S)

    def is_backing_off(self) -> bool:
        """True while requests to Placement are held back: it failed, and its back-off has not elapsed."""
        return self._is_placement_away() and self._backoff.left_s() > 0

    def _is_placement_away(self) -> bool:
        fault = self.condition.fault
        return fault is not None and fault.concern == PLACEMENT

    def report_silence(self, error: errors.PlacementUnavailable) -> None:
        """Draw the consequences of one request that Placement did not answer, or answered with a 5xx.

        A 5xx may be about that request alone: claims stay open if Placement answers another one.
        """
        if error.status >= INTERNAL_ERROR and "retry_after" not in error.details:
            try:
                self._client.generations(self._identity.uuid)  # Placement reads its database for it
                LOG.warning("One request failed, and Placement answers others: %s", error.message)
                return
            except errors.PlacementError as again:
                LOG.debug("Placement was asked again: %s", again.message)
        self._silences += 1
        self.report_fault(error)

    def _report_missing(self, providers: Collection[str]) -> None:
        LOG.warning(
            "Another client deleted %s in Placement; the agent writes it again.", ", ".join(providers)
        )
        self._reconciler.invalidate()
        self.request_pass()

    def _recover(self, report: PassReport) -> tuple[str | None, errors.PlimsollError | None]:
        """What is wrong with the state directory while the agent works on, a sentence; and the pass's error.

        After a pass without one, check that a fault of the agent's own state is gone. Once after the start,
        finish or undo what a crash left; later, deliver what waited for Placement. Then settle the gate's
        claims. None of that is done while another agent may write as this host: a copied journal has what
        that one has finished.
        """
        fault, guests, error = self.condition.fault, self._reconciler.guests or (), report.error
        running = sum(not guest.is_off for guest in guests)
        if isinstance(error, errors.IdentityError) and running and not self._tracker.claims():
            # The agent has no record of any of the guests: say what became of that.
            error = errors.IdentityError(
                f"{error.message} {counted(running, 'guest runs', 'guests run')} here, and the agent's "
                "state directory is new: it was lost, or state_path is wrong. Until that is mended the agent "
                "writes nothing and offers nothing; what Placement holds for the guests stays.",
                **error.details,
            )
        if error is not None:
            return None, error
        try:
            problem = check_running_state_path(self._settings.state_path)
            if fault is not None and fault.concern == OWN:
                self._journal.remember_host(self._identity.uuid)
            alone = not self._reconciler.waits_for_another()
            if not self._recovered and alone:
                resolved = self._tracker.recover()  # another pass may have seen newer guests
                self._recovered = True
                if resolved:
                    LOG.info("Finished or undid what the last run left open.", fields={"claims": resolved})
            elif self._recovered and fault is not None and self._tracker.pending:
                self._tracker.deliver()
            if alone:
                self._gate.settle(guests, report.at)
        except (errors.PlacementUnavailable, errors.StateError) as failure:
            return None, failure
        return problem, None

    def _claim_missed(self) -> None:
        """Claim for guests that started while the gate did not decide, where it is enabled."""
        is_wanted = self._settings.claim_missed and self._tracker.admission.closed_reason is None
        if not is_wanted or self._process.gate_paths is None or not is_enabled(self._process.gate_paths):
            return
        try:
            verdicts = self._missed_guests.claim(self._reconciler.guests or ())
        except errors.PlacementUnavailable as error:
            self.report_silence(error)
        except errors.StateError as error:
            self.report_fault(error)
        except (errors.PlacementError, errors.Refused) as error:
            LOG.warning("Guests that started while the gate did not decide have no claim: %s", error.message)
        else:
            for guest, verdict in verdicts:
                self._recorder.record_missed_guest(verdict, guest.uuid)
                if isinstance(verdict, GateVerdict):
                    LOG.info(
                        "Claimed for a guest that started while the gate did not decide: %s.",
                        verdict.sentence,
                        fields={"consumer": guest.uuid},
                    )

    def _log_new_problems(self, problems: tuple[str, ...]) -> None:
        for problem in problems:
            if problem not in self._problems:
                LOG.warning(problem)
        self._problems = problems
        self.host_status.record_problems(problems)


def reconciler_of(
    settings: Settings,
    driver: Driver,
    client: PlacementClient,
    tracker: ResourceTracker,
    journal: Journal,
    root_uuid: str,
    writer: Writer | None,
    *,
    tree_cache: TreeCache | None = None,
    clock: Callable[[], float] = time.time,
) -> Reconciler:
    """The host's reconciler, in the daemon and in its place. See `Reconciler`."""
    home = home_name(settings.placement)
    return Reconciler(
        driver,
        client,
        tracker,
        journal,
        root_uuid,
        check_home=lambda: check_home(
            settings.state_path, client, home, root_uuid, tracker.claims().values()
        ),
        tree_cache=tree_cache,
        provider_config=settings.provider_config,
        owner_trait=settings.placement.shared_owner_trait,
        writer=writer,
        clock=clock,
    )


class Assembled(NamedTuple):
    """One host's agent. `agent` runs the jobs, `operations` answer the local API; close `reconciler` at the
    end, which closes the driver."""

    agent: HostAgent
    operations: Operations
    reconciler: Reconciler


def assemble(
    settings: Settings,
    identity: Identity,
    journal: Journal,
    driver: Driver,
    transport: Transport,
    recorder: Recorder,
    process: Surroundings,
) -> Assembled:
    """Build the parts; make no request to the driver or to Placement yet, and write nothing.

    Raises StateError.
    """
    clock = process.clock
    client = PlacementClient(MeteredTransport(transport, recorder.metrics))

    def on_step(step: str, kind: MoveKind | None) -> None:
        recorder.metrics.count_step(step, kind)
        process.wake_carving()
        if kind is not None:  # the note names the moves
            process.wake_note()

    tracker = ResourceTracker(
        journal, client, on_step=on_step, clock=clock.now, age_s=clock.age_s, monotonic=process.steady
    )
    reconciler = reconciler_of(
        settings,
        driver,
        client,
        tracker,
        journal,
        identity.uuid,
        writer_of(settings, journal, client, identity.uuid, process.place),
        tree_cache=TreeCache(settings.state_path, home_name(settings.placement)),
        clock=clock.now,
    )
    reader = AuditReader(
        tracker,
        client,
        identity.uuid,
        lambda: with_noted_ports(reconciler.read_known_guests(), settings.state_path),
        journal.devices,
        lambda: reconciler.tree,
        lambda: reconciler.leads,
        lambda: reconciler.vanished,
    )
    auditor = Auditor(
        reader,
        check_writer=reconciler.check_audited,
        may_not_heal=lambda tree, taking: reconciler.holds_back(tree, taking=taking),
    )
    gate = Gate(tracker, client, lambda: reconciler.driver, journal.devices, clock=clock.now)
    agent = HostAgent(
        settings, identity, journal, client, tracker, reconciler, auditor, gate, recorder, process
    )
    operations = Operations(
        agent,
        identity,
        tracker,
        reconciler,
        client,
        auditor,
        gate,
        recorder,
        agent.condition,
        agent.host_status,
    )
    return Assembled(agent, operations, reconciler)
