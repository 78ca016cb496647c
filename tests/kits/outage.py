"""Placement goes away just before a request, or just after it was done and before its answer came.

The real one's port is closed for that, so that everybody else finds nobody there, either.
"""

from __future__ import annotations

from agent.errors import PlacementUnavailable
from kits.placements import OpenStack, Placement
from kits.wire import Wire


class Outage:
    """Begins at the request with that number; lasts until `end`. `before` and `after` are told of each."""

    def __init__(self, placement: Placement, number: int = 0, *, after: bool = False) -> None:
        self._door = placement if isinstance(placement, OpenStack) else None
        self._number = number
        self._after = after
        self._seen = 0
        self.begun = False
        self._on = False

    def before(self, _: str = "") -> None:
        """Raises PlacementUnavailable while it lasts, where nobody else would."""
        self._seen += 1
        if self._seen == self._number and not self._after:
            self.begin()
        if self._on and self._door is None:
            raise PlacementUnavailable("Placement does not answer.", sent=False)

    def after(self, _: str = "") -> None:
        """Raises PlacementUnavailable for the answer that is lost."""
        if self._seen == self._number and self._after:
            self.begin()
            raise PlacementUnavailable("Placement's answer was lost.")

    def listen(self, wire: Wire) -> None:
        """Be told of each request of that wire."""
        wire.before, wire.after = self.before, self.after

    def begin(self) -> None:
        self.begun = self._on = True
        if self._door is not None:
            self._door.close_door()

    def call_off(self) -> None:
        """If it did not begin yet it never will."""
        self._number = 0

    def end(self) -> None:
        self.call_off()
        if self._on and self._door is not None:
            self._door.open_door()
        self._on = False
