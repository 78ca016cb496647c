"""What the local API, the status page and the metrics may ask of the running agent, beside its operations."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agent.audit.auditor import Auditor
from agent.driver import Guest
from agent.reconcile.pass_report import PassReport
from agent.reshape.receipt import Receipt
from agent.state.journal import Event
from agent.status.condition import Condition
from agent.status.explain import ExplainedThing, ExplainSources, explain
from agent.status.gauges import gauges
from agent.status.health import Signs, judge
from agent.status.metrics import Meters
from agent.status.overview import Health, Overview
from agent.tracker.tracker import ResourceTracker

EVENTS_TOLD = 10


@dataclass(frozen=True, slots=True)
class Explained:
    """What was asked for, all that it names, and {consumer among them: its latest events}."""

    asked: str
    found: tuple[ExplainedThing, ...]
    events: Mapping[str, tuple[Event, ...]]


class HostStatus(Protocol):
    """None of these makes a request to placement or to the hypervisor."""

    def health(self) -> Health:
        """Waits for nothing and nobody; never raises."""

    def overview(self) -> Overview:
        """The host as it is in memory."""

    def metrics(self) -> bytes:
        """In Prometheus's text format."""

    def history(self, consumer: str | None = None, since: float = 0.0, limit: int = 100) -> tuple[Event, ...]:
        """What the agent did, the newest first; `since` is seconds since the epoch. Raises StateError."""

    def receipts(self) -> tuple[Receipt, ...]:
        """Of the reshapes that were done, the oldest first. Raises StateError."""

    def explain(self, word: str) -> Explained:
        """Who or what that is, and why it is so. Raises UnknownConsumer with near matches, StateError."""


class Reporting(Protocol):
    """The part of `agent.reconcile.reconciler.Reconciler` that is looked at."""

    guests: tuple[Guest, ...] | None

    def running_s(self) -> float: ...


class AgentStatus:
    """`status` is the agent's own, `last_pass` what its last pass said, `timer` seconds of a steady clock."""

    def __init__(
        self,
        tracker: ResourceTracker,
        reconciler: Reporting,
        condition: Condition,
        auditor: Auditor,
        meters: Meters,
        status: Callable[[], dict[str, Any]],
        last_pass: Callable[[], PassReport | None],
        state_path: str,
        *,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tracker = tracker
        self._reconciler = reconciler
        self._condition = condition
        self._auditor = auditor
        self._meters = meters
        self._status = status
        self._last_pass = last_pass
        self._state_path = state_path
        self._clock = clock
        self._timer = timer
        self._beaten = timer()
        self._audited_at: float | None = None
        meters.read_off(lambda: gauges(self.overview()))
        tracker.register.seen = meters.step

    # What is told to it

    def beat(self) -> None:
        """The loop went round."""
        self._beaten = self._timer()

    def audited(self) -> None:
        """An audit ended."""
        self._audited_at = self._clock()

    # What it tells

    def health(self) -> Health:
        return judge(
            Signs(
                self._condition.state,
                self._condition.fault,
                self._tracker.closed_reason,
                self._last_pass() is not None and self._reconciler.guests is not None,
                self._timer() - self._beaten,
                self._reconciler.running_s(),
                os.access(self._state_path, os.W_OK | os.X_OK),
                self._state_path,
            )
        )

    def overview(self) -> Overview:
        picture = self._tracker.register.picture()
        found = self._auditor.last
        last = self._last_pass()
        return Overview(
            self._clock(),
            self._status(),
            self.health(),
            since=self._condition.since,
            fault=self._condition.fault,
            passed_at=last.at if last else None,
            audited_at=self._audited_at,
            tree=picture.tree,
            used=picture.used,
            offered=picture.offered,
            guests=self._reconciler.guests or (),
            claims=picture.claims,
            others=picture.others,
            moves=tuple(sorted(picture.moves, key=lambda move: (move.since, move.migration))),
            findings=tuple(each for index, each in enumerate(found.findings) if index not in found.healed),
            pending=self._tracker.pending,
            reshape_pending=last.pending.message if last and last.pending else None,
        )

    def metrics(self) -> bytes:
        return self._meters.text()

    def history(self, consumer: str | None = None, since: float = 0.0, limit: int = 100) -> tuple[Event, ...]:
        return self._tracker.register.journal.history(consumer, limit, since)

    def receipts(self) -> tuple[Receipt, ...]:
        return tuple(self._tracker.register.journal.reshapes(done=True).values())

    def explain(self, word: str) -> Explained:
        known = ExplainSources(self.overview(), self._tracker.register.journal.devices(), self.receipts())
        found = explain(known, word)
        consumers = [each.id for each in found if each.kind == "consumer"]
        return Explained(word, found, {each: self.history(each, limit=EVENTS_TOLD) for each in consumers})
