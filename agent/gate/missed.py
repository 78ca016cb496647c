"""Claims for guests that started while the gate did not decide: the agent was away, or claims were closed."""

from collections.abc import Collection

from agent.driver import Guest
from agent.errors import Refused
from agent.gate.decision import GateVerdict
from agent.gate.gate import Gate
from agent.gate.settle import ARRIVED
from agent.tracker.tracker import ResourceTracker


class MissedGuests:
    """Remembers which guests run. One thread calls at a time."""

    def __init__(self, gate: Gate, tracker: ResourceTracker) -> None:
        self._gate = gate
        self._tracker = tracker
        self._running: frozenset[str] = frozenset()
        self._missed: frozenset[str] = frozenset()

    def claim(self, guests: Collection[Guest]) -> tuple[tuple[Guest, GateVerdict | Refused], ...]:
        """Claim for the guests without a claim that have begun to run since the call before.

        Those that were refused are tried again. A guest whose claim was released while it runs, one that
        moves, and one whose instance is on another host stay as they are. Raises as `Gate.claim_running`.
        """
        running = frozenset(guest.uuid for guest in guests if guest.state in ARRIVED)
        started, self._running = running - self._running, running
        moving = {move.instance for move in self._tracker.moves().values() if not move.ended}
        elsewhere = self._tracker.circumstances().moved_away
        self._missed = (
            ((self._missed & running) | started) - self._tracker.claims().keys() - moving - elsewhere
        )
        if not self._missed:
            return ()
        verdicts = self._gate.claim_running([guest for guest in guests if guest.uuid in self._missed])
        self._missed -= {guest.uuid for guest, verdict in verdicts if isinstance(verdict, GateVerdict)}
        return verdicts
