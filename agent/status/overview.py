"""The agent's condition (starting, ready, degraded by a fault, stopping; each change is logged once), and
the host at one moment, from the agent's memory alone.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property

from agent import log
from agent.audit.finding import Finding
from agent.claims.claim import Claim
from agent.driver import Guest
from agent.errors import (
    DriverError,
    DriverUnavailable,
    IdentityError,
    PlacementError,
    PlacementUnavailable,
    PlimsollError,
)
from agent.gate.effect import GateEffect
from agent.moves.circumstances import Circumstances, consumer_names
from agent.moves.states import Move
from agent.providers.device_health import DeviceHealth
from agent.reconcile.pass_report import PassReport
from agent.shapes import Allocations, Units, Usages
from agent.state.operators import Pause
from agent.tree import ProviderTree

LOG = log.get(__name__)

OWN = "agent"
PLACEMENT = "placement"
STARTING = "the agent is starting and has not seen the whole host yet"
"""Why claims are closed before the first pass."""


class HostState(StrEnum):
    """The states of the agent."""

    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Fault:
    """A part that failed (driver, placement, identity, reshape, agent), and why, in a sentence."""

    concern: str
    sentence: str
    away: bool = False
    """The part does not answer. Such faults are equal even if their sentences differ."""

    @classmethod
    def of(cls, error: PlimsollError) -> "Fault":
        """The fault that this error is a sign of."""
        away = isinstance(error, DriverUnavailable | PlacementUnavailable)
        concern = "identity" if isinstance(error, IdentityError) else OWN
        if isinstance(error, DriverError | PlacementError):
            concern = "driver" if isinstance(error, DriverError) else PLACEMENT
        return cls(concern, error.message, away)

    def is_new(self, before: "Fault | None") -> bool:
        """True if this is another fault than `before`."""
        same = before is not None and (self.concern, self.away) == (before.concern, before.away)
        return not same or (not self.away and before is not None and self.sentence != before.sentence)


class Condition:
    """The agent's state, and the fault that degrades it. Any thread may call.

    `on_change` is called after each change, with the state and a sentence; `clock` gives seconds since 1970.
    """

    def __init__(
        self, on_change: Callable[[HostState, str], None], clock: Callable[[], float] = time.time
    ) -> None:
        self._on_change = on_change
        self._clock = clock
        self._lock = threading.Lock()
        self.state = HostState.STARTING
        self.since = clock()
        self.fault: Fault | None = None

    def degrade(self, fault: Fault) -> None:
        """Become degraded by this fault. The same fault again changes nothing."""
        if self._turn(HostState.DEGRADED, fault):
            fields = {"event": "degraded", "concern": fault.concern}
            LOG.warning("Degraded: %s", fault.sentence, fields=fields)
            self._on_change(HostState.DEGRADED, fault.sentence)

    def become_ready(self, sentence: str) -> None:
        """Become ready: no part has a fault."""
        if self._turn(HostState.READY, None):
            LOG.info("Ready: %s", sentence, fields={"event": "ready"})
            self._on_change(HostState.READY, sentence)

    def begin_stop(self) -> None:
        """Become stopping; the state changes no more."""
        self._turn(HostState.STOPPING, None)

    def _turn(self, state: HostState, fault: Fault | None) -> bool:
        """True if that changed the state or the fault."""
        with self._lock:
            if self.state is HostState.STOPPING:
                return False
            before, self.fault = self.fault, fault
            if state is not self.state:
                self.since = self._clock()
                self.state = state
                return True
            return fault is not None and fault.is_new(before)


def exact_moment(seconds: float) -> str:
    """Seconds since 1970 as RFC 3339 to the millisecond, UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One check; `reason` is a sentence if it failed."""

    name: str
    ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """The checks. If one of `live` failed, restart the agent; if one of `ready` failed, claim elsewhere."""

    state: str
    live: tuple[HealthCheck, ...]
    ready: tuple[HealthCheck, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """How the agent is. Times are seconds since 1970.

    `state` was reached at `since`; `reasons` are sentences, why it is not ready or what to look at. `driver`
    and `placement` name the kind, `fault` is what failed. `closed` is why claims are closed; `schedulers`:
    they are offered the host. `next_try` is when the agent tries again after a fault. `findings` counts what
    the last audit left, which ended at `audited`. `pid` is the process.
    """

    host: str
    uuid: str | None
    state: HostState
    since: float
    driver: str
    placement: str
    pid: int
    reasons: tuple[str, ...] = ()
    fault: Fault | None = None
    closed: str | None = None
    claims: int = 0
    schedulers: bool = True
    gate: GateEffect = field(default_factory=GateEffect)
    pause: Pause | None = None
    last_pass: PassReport | None = None
    next_try: float | None = None
    findings: int = 0
    audited: float | None = None

    def error(self, concern: str) -> str | None:
        """Why this part (see `Fault`) does not work; None: it works."""
        return self.fault.sentence if self.fault is not None and self.fault.concern == concern else None


@dataclass(frozen=True)
class Overview:
    """The host as the agent knows it. Times are seconds since 1970.

    `used` {provider uuid: {class: amount}} counts all consumers, as of the last pass and the claims since.
    `unclaimed`, of the same form, is what guests use beyond what is held and claimed for them.
    `offered` has the exact units that the driver offers. `others` is {consumer without a claim: its
    allocations}. `moves` has those under way and those that ended recently, oldest first. `pending` counts
    the writes that wait for Placement or for a guest to leave. `reshape_pending` is the reason why a due
    reshape was not done. `seen` is what the host sees beside the records of its moves.
    `unhealthy` {address: health} are the devices that are not well. `pass_age_s` is how long ago the last
    pass ended, or the agent started.
    """

    at: float
    status: Status
    health: Health
    pass_age_s: float = 0.0
    tree: ProviderTree = field(default_factory=ProviderTree)
    used: Usages = field(default_factory=dict)
    offered: Units = field(default_factory=dict)
    guests: tuple[Guest, ...] = ()
    claims: Mapping[str, Claim] = field(default_factory=dict)
    others: Mapping[str, Allocations] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()
    findings: tuple[Finding, ...] = ()
    pending: int = 0
    reshape_pending: str | None = None
    unclaimed: Usages = field(default_factory=dict)
    seen: Circumstances = field(default_factory=Circumstances)
    unhealthy: Mapping[str, DeviceHealth] = field(default_factory=dict)

    @property
    def instances(self) -> tuple[tuple[Guest | None, Claim | None], ...]:
        """Guests and their claims, in the order of uuids; one of the two may be None."""
        guests = {guest.uuid: guest for guest in self.guests}
        return tuple((guests.get(uuid), self.claims.get(uuid)) for uuid in sorted({*guests, *self.claims}))

    @property
    def under_way(self) -> tuple[Move, ...]:
        """The moves that have not ended."""
        return tuple(move for move in self.moves if not move.ended)

    @cached_property
    def moving(self) -> frozenset[str]:
        """The instances that are in a move, on this host or from or to it."""
        return frozenset(move.instance for move in self.under_way)

    def name_of(self, consumer: str) -> str:
        """The name of the consumer's guest, of its claim, or of its migration's instance; "" if unknown."""
        return self._names.get(consumer, "")

    @cached_property
    def guest_by_uuid(self) -> Mapping[str, Guest]:
        """{uuid: guest}."""
        return {guest.uuid: guest for guest in self.guests}

    @cached_property
    def _names(self) -> Mapping[str, str]:
        return consumer_names(self.guests, self.claims.values(), self.moves)
