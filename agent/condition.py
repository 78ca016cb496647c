"""How the agent is: starting, ready, degraded by a fault, or stopping. One log line a change."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from agent import log

LOG = log.get(__name__)


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is not in order ("driver", "placement", "identity", "agent"), and why, in a sentence."""

    concern: str
    sentence: str


class Condition:
    """The agent's state, and the fault that it is degraded by. Any thread may call.

    `on_change` is called with the state and one sentence after each change; `clock` gives seconds since 1970.
    """

    def __init__(
        self, on_change: Callable[[State, str], None], clock: Callable[[], float] = time.time
    ) -> None:
        self._on_change = on_change
        self._clock = clock
        self._lock = threading.Lock()
        self.state = State.STARTING
        self.since = clock()
        self.fault: Fault | None = None

    def degraded(self, concern: str, sentence: str) -> None:
        """The same words again change nothing."""
        if self._turn(State.DEGRADED, Fault(concern, sentence)):
            LOG.warning("Degraded: %s", sentence, fields={"concern": concern})
            self._on_change(State.DEGRADED, sentence)

    def ready(self, sentence: str) -> None:
        """Everything is in order."""
        if self._turn(State.READY, None):
            LOG.info("Ready: %s", sentence)
            self._on_change(State.READY, sentence)

    def stopping(self) -> None:
        """There is no way back from it."""
        self._turn(State.STOPPING, None)

    def _turn(self, state: State, fault: Fault | None) -> bool:
        """Whether that changed anything."""
        with self._lock:
            if self.state is State.STOPPING or (self.state, self.fault) == (state, fault):
                return False
            if state is not self.state:
                self.since = self._clock()
            self.state, self.fault = state, fault
            return True
