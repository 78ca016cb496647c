"""The status of the running agent, for the local API, the status page and the metrics; and its health.

Each check of the health has a name. An agent that is not alive needs a restart. A ready one answers claims.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from uuid import UUID

from agent import __version__, log
from agent.audit.auditor import Auditor
from agent.claims.capacity import stranded_for_all
from agent.clock import exact_moment
from agent.config.settings import Settings
from agent.durable.files import check_accepts_files
from agent.errors import HistoryGap, StateError, UnknownConsumer, UsageError
from agent.gate.effect import GateEffect, GatePaths, read_effect
from agent.moves.circumstances import moved_away_advice, refusal_advice
from agent.placement.host_note import HostNote, MoveNote
from agent.reconcile.pass_report import PassReport
from agent.reconcile.reconciler import Reconciler
from agent.reshape.receipt import Receipt
from agent.shapes import total
from agent.state.identity import Identity
from agent.state.journal import Event, Journal
from agent.status.consumers import NamedConsumer, consumers_of, find_consumer, is_uuid, matching
from agent.status.metrics import Metrics, gauges
from agent.status.overview import (
    Condition,
    ExplainedItem,
    ExplainSources,
    Fault,
    Health,
    HealthCheck,
    HostState,
    Overview,
    Status,
    explain,
)
from agent.tracker.cordons import OfferedDevice
from agent.tracker.tracker import ResourceTracker

LOOP_LATE_S = 60.0
PASS_STUCK_S = 300.0


@dataclass(frozen=True, slots=True)
class HealthInputs:
    """The data of the checks.

    `beat_age_s` seconds have passed since the last heartbeat, `pass_s` since the begin of the pass under way
    (0 if there is none). `closed` is the reason why claims are closed. `seen_host`: the driver has delivered
    an inventory. `writable`: the agent may write to its state directory.
    """

    state: HostState
    fault: Fault | None
    closed: str | None
    seen_host: bool
    beat_age_s: float
    pass_s: float
    writable: bool
    state_path: str


def judge_health(inputs: HealthInputs) -> Health:
    """All checks, those of /livez and those of /readyz."""
    fault = inputs.fault

    def in_order(concern: str) -> HealthCheck:
        failed = fault is not None and fault.concern == concern
        return _check(concern, not failed, fault.sentence if fault else "")

    state = in_order("agent")
    written = state.ok and inputs.writable
    live = (
        _check(
            "loop",
            inputs.beat_age_s < LOOP_LATE_S,
            f"The agent's last heartbeat was {inputs.beat_age_s:.0f} s ago; restart the agent.",
        ),
        _check(
            "pass",
            inputs.pass_s < PASS_STUCK_S,
            f"A pass has been running for {inputs.pass_s:.0f} s; restart the agent.",
        ),
    )
    ready = (
        _check("inventory", inputs.seen_host, "The driver has not delivered a full inventory yet."),
        in_order("driver"),
        in_order("placement"),
        in_order("identity"),
        _check(
            "state", written, state.reason or f"The state directory {inputs.state_path} cannot be written."
        ),
        _check("claims", inputs.closed is None, f"Claims are closed: {inputs.closed}."),
    )
    return Health(str(inputs.state), live, ready)


def _check(name: str, ok: bool, reason: str) -> HealthCheck:
    return HealthCheck(name, ok, "" if ok else reason)


LOG = log.get(__name__)

DISABLED_BY_OTHERS = (
    "Schedulers pass the host over: its root provider has COMPUTE_STATUS_DISABLED, which another client of "
    "Placement put there, or took the agent's own mark from. If you want schedulers to use the host, "
    "run `plimsoll pause --schedulers`, `plimsoll look` and `plimsoll resume`: that takes the trait away."
)

EVENTS_SHOWN_MAX = 10
FIRST = "0"
"""The id before that of the first event."""
NUMBER_DIGITS_MAX = 18


@dataclass(frozen=True, slots=True)
class Explanation:
    """The word that was looked up, what it names, and {consumer among that: its latest events}."""

    word: str
    items: tuple[ExplainedItem, ...]
    events: Mapping[str, tuple[Event, ...]]


class HostStatus:
    """The agent's status, from memory and journal alone: no method asks Placement or the hypervisor.

    The gate's hook is looked for at `gate_paths`, None: nowhere. `ages_s` is that of `HostClock`.
    """

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        tracker: ResourceTracker,
        journal: Journal,
        reconciler: Reconciler,
        condition: Condition,
        auditor: Auditor,
        metrics: Metrics,
        gate_paths: GatePaths | None,
        ages_s: Callable[[Iterable[float]], Iterator[float]],
    ) -> None:
        self._gate_paths = gate_paths
        self._socket = settings.api.socket
        self._driver_name = settings.compute_driver
        self._placement_kind = settings.placement.kind
        self._state_path = str(settings.state_path)
        self._identity = identity
        self._tracker = tracker
        self._journal = journal
        self._reconciler = reconciler
        self._condition = condition
        self._auditor = auditor
        self._metrics = metrics
        self._clock, self._timer = time.time, time.monotonic
        self._ages_s = ages_s
        self._heartbeat_at = self._pass_ended = self._timer()
        self._audited_at: float | None = None
        self._last_pass: PassReport | None = None
        self._problems: tuple[str, ...] = ()
        self._risk = ""
        self._next_try: float | None = None
        self._names: dict[str, str] = {}
        metrics.collect_at_scrape(lambda: gauges(self.overview()))

    # What the agent records

    def record_heartbeat(self) -> None:
        """The agent's loop is running."""
        self._heartbeat_at = self._timer()

    def record_pass(self, report: PassReport) -> None:
        """A pass ended."""
        self._last_pass, self._pass_ended = report, self._timer()
        # Have the journal know by which name people know a guest whose claim has another name, or none.
        claims = self._tracker.claims()
        names = {
            guest.uuid: guest.name
            for guest in self._reconciler.guests or ()
            if guest.name and guest.uuid in claims and claims[guest.uuid].request.name != guest.name
        }
        new = dict(names.items() - self._names.items())
        if not new:
            return
        try:
            self._journal.remember_names(new)
        except StateError as error:
            LOG.warning("The names of guests were not written to the history: %s", error.message)
        else:
            self._names |= new

    def record_problems(self, problems: tuple[str, ...]) -> None:
        """The problems of the last pass without an error: sentences, none if all is well."""
        self._problems = problems

    def record_next_try(self, delay_s: float | None) -> None:
        """After a fault, the next pass comes in so many seconds; None: there is no fault."""
        self._next_try = None if delay_s is None else self._timer() + delay_s

    def record_risk(self, risk: str) -> None:
        """How Placement can lose what it has acknowledged, in its words; empty if it says nothing."""
        self._risk = f"Placement can lose claims: {risk}." if risk else ""

    @property
    def is_audited(self) -> bool:
        """Whether an audit has ended since the start."""
        return self._audited_at is not None

    def record_audit(self) -> None:
        """An audit ended."""
        self._audited_at = self._clock()

    # What it answers

    def status(self) -> Status:
        """How the agent is. Never raises."""
        fault, closed, pause = (
            self._condition.fault,
            self._tracker.admission.closed_reason,
            self._tracker.admission.pause,
        )
        paused = pause is not None and closed == pause.clause  # the gate refuses then, which is a decision
        gate = GateEffect()
        if self._gate_paths is not None:
            gate = read_effect(self._gate_paths, None if paused else closed, self._socket)
        guests, claims = self._reconciler.guests or (), self._tracker.claims()
        moved = self._tracker.moved_away()
        advice = [moved_away_advice(guest.name, guest.uuid) for guest in guests if guest.uuid in moved]
        refused = [
            f"The change that is pending for {consumer} is not done. {refusal_advice(reason)}."
            for consumer, reason in sorted(self._tracker.refusals().items())
        ]
        # A sentence on each running guest that the driver could not read, or not in full.
        unread = [
            f"{guest.problem.rstrip('.')}. {guest.name} ({guest.uuid}) "
            f"{'has a claim' if guest.uuid in claims else 'has no claim'}; the agent goes by what it last "
            "knew of it."
            for guest in guests
            if guest.problem is not None and not guest.is_off
        ]
        disabled = []
        if pause is None and closed is None and self._reconciler.is_disabled_by_others:
            disabled.append(DISABLED_BY_OTHERS)
        next_try = self._next_try
        if next_try is not None:
            next_try = self._clock() + max(0.0, next_try - self._timer())
        return Status(
            self._identity.name,
            self._identity.uuid,
            self._condition.state,
            self._condition.since,
            self._driver_name,
            self._placement_kind,
            os.getpid(),
            reasons=(
                *([fault.sentence] if fault else []),
                *self._problems,
                *filter(None, [self._risk]),
                *disabled,
                *advice,
                *refused,
                *unread,
                *gate.reasons,
            ),
            fault=fault,
            closed=closed,
            claims=len(claims),
            schedulers=not self._reconciler.is_disabled,
            gate=gate,
            pause=pause,
            last_pass=self._last_pass,
            next_try=next_try,
            findings=len(self._auditor.last.left),
            audited=self._audited_at,
        )

    def health(self) -> Health:
        """The health checks. Waits for nothing; never raises."""
        accepts_files = True
        try:
            check_accepts_files(Path(self._state_path))
        except OSError:
            accepts_files = False
        return judge_health(
            HealthInputs(
                self._condition.state,
                self._condition.fault,
                self._tracker.admission.closed_reason,
                self._last_pass is not None and self._reconciler.guests is not None,
                self._timer() - self._heartbeat_at,
                self._reconciler.running_s(),
                accepts_files,
                self._state_path,
            )
        )

    def overview(self) -> Overview:
        """The host at this moment."""
        snapshot = self._tracker.view.snapshot()
        last = self._last_pass
        return Overview(
            self._clock(),
            self.status(),
            self.health(),
            pass_age_s=self._timer() - self._pass_ended,
            tree=snapshot.host.tree,
            used=snapshot.used,
            unclaimed=total(self._tracker.view.unclaimed().values()),
            offered=snapshot.offered,
            guests=self._reconciler.guests or (),
            claims=snapshot.claims,
            others=snapshot.others,
            moves=tuple(sorted(snapshot.moves, key=lambda move: (move.since, move.migration))),
            findings=self._auditor.last.left,
            pending=self._tracker.pending,
            reshape_pending=last.pending.message if last and last.pending else None,
            seen=self._tracker.circumstances(),
            unhealthy=self._tracker.cordons.unhealthy(),
        )

    def note(self) -> HostNote:
        """What those who look at the fleet are to know of this host. Never raises."""
        status, last, snapshot = self.status(), self._last_pass, self._tracker.view.snapshot()
        devices: tuple[OfferedDevice, ...] = ()
        with suppress(StateError):  # the journal cannot be read, which the reasons say
            devices = self._tracker.cordons.devices()
        return HostNote(
            str(status.state),
            __version__,
            reasons=status.reasons,
            closed=status.closed,
            drains=status.pause is not None and status.pause.drains,
            schedulers=status.schedulers,
            findings=Counter(finding.kind for finding in self._auditor.last.left),
            moves=tuple(
                MoveNote(move.instance, move.name, move.kind.value, move.role.value, move.state.value)
                for move in snapshot.moves
                if not move.ended
            ),
            cordons=self._tracker.cordons.sentences,
            withheld=Counter(
                device.resource_class
                for device in devices
                if device.holder is None and (device.cordon or device.health)
            ),
            reshape=last.pending.message if last and last.pending else None,
            stranded=stranded_for_all(snapshot.host.tree, snapshot.used),
        )

    def metrics(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return self._metrics.text()

    def history(
        self,
        consumer: str | None = None,
        since: float = 0.0,
        limit: int = 100,
        within_s: float | None = None,
    ) -> tuple[Event, ...]:
        """The agent's events since `since` (seconds since 1970), newest first. Raises StateError.

        `within_s`: those of the last so many seconds by the monotonic clock.
        """
        events = self._journal.history(consumer, limit, since)
        if within_s is None:
            return events
        young = takewhile(lambda age_s: age_s <= within_s, self._ages_s(event.at for event in events))
        return events[: sum(1 for _ in young)]

    def history_after(self, event_id: str, limit: int) -> tuple[Event, ...]:
        """The events after the one with this `Event.id`, the oldest first; after FIRST, from the first on.

        Raises HistoryGap where the journal does not have that event; UsageError, StateError.
        """
        number = event_id.partition("-")[0]
        if not number.isdecimal() or len(number) > NUMBER_DIGITS_MAX:
            raise UsageError(
                f"The query parameter after is the id of an event, or {FIRST}, not {event_id!r}",
                parameter="after",
            )
        events = self._journal.events_from(int(number), limit + 1)
        if event_id == FIRST and (not events or events[0].number == 1):
            return events[:limit]
        if events and events[0].id == event_id:
            return events[1:]
        raise HistoryGap(
            f"The history has no event {event_id}: what followed may be lost. Read the host anew, and go on "
            "after the newest event.",
            after=event_id,
        )

    def find_event_subject(self, text: str) -> str:
        """The uuid of the instance or migration that a text names: a uuid, a unique beginning, or a name.

        What is here comes before what was released. Raises UsageError where several match, UnknownConsumer
        where none does, StateError.
        """
        if is_uuid(text):
            return str(UUID(text))
        present = list(consumers_of(self.overview()))
        known = present if matching(text, present) else [*present, *self._departed(text)]
        return find_consumer(text, "instance or migration", known, "plimsoll instances")

    def _departed(self, text: str) -> Iterator[NamedConsumer]:
        """Those that the history alone knows by this name or beginning of a uuid."""
        for event in self._journal.last_events(text.strip()) if text.strip() else ():
            about = f"last event: {event.event} at {exact_moment(event.at)}"
            yield NamedConsumer(event.consumer, event.name, about)

    def receipts(self) -> tuple[Receipt, ...]:
        """The receipts of all reshapes, oldest first. Raises StateError."""
        return tuple(self._journal.reshapes(done=True).values())

    def explain(self, word: str) -> Explanation:
        """What a name, uuid, device, unit or receipt stands for. Raises UnknownConsumer, StateError."""
        withheld = self._tracker.cordons.withheld()
        known = ExplainSources(self.overview(), self._journal.devices(), self.receipts(), withheld)
        try:
            items = explain(known, word)
        except UnknownConsumer as unknown:
            departed = matching(word, self._departed(word))
            if not departed:
                raise unknown from None
            listed = "; ".join(f"{consumer.uuid} ({consumer.about})" for consumer in departed)
            raise UnknownConsumer(
                f"{word!r} is not on this host any more: {listed}. "
                f"`plimsoll history --consumer {departed[0].uuid}` lists what the agent did for it.",
                asked=word,
            ) from None
        consumers = [item.id for item in items if item.kind == "consumer"]
        events = {consumer: self.history(consumer, limit=EVENTS_SHOWN_MAX) for consumer in consumers}
        return Explanation(word, items, events)
