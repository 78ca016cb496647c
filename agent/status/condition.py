"""The agent's state: starting, ready, degraded by a fault, or stopping. Each change is logged once."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from agent import log
from agent.errors import (
    DriverError,
    DriverUnavailable,
    IdentityError,
    PlacementError,
    PlacementUnavailable,
    PlimsollError,
)

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
        return cls(_concern(error), error.message, away)

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


def _concern(error: PlimsollError) -> str:
    if isinstance(error, DriverError):
        return "driver"
    if isinstance(error, PlacementError):
        return PLACEMENT
    return "identity" if isinstance(error, IdentityError) else OWN
