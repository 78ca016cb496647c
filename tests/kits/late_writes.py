"""Writes that Placement does not answer, and executes later: a server behind a balancer was paused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agent.errors import PlacementUnavailable
from agent.placement.transport import Reply, reply_of_answer
from kits.tracker import Kit
from kits.wire import Sent


def _raises(message: str, **details: Any) -> Callable[[object], Reply]:
    def answer(_: object) -> Reply:
        raise PlacementUnavailable(message, **details)

    return answer


def by_a_balancer(status: int, **headers: str) -> Callable[[object], Reply]:
    """An answer that a balancer gave in Placement's place; `retry_after="120"` is a header more."""
    sent = {"server": "balancer", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return lambda _: reply_of_answer("PUT", "/allocations", status, None, sent)


ANSWERS: dict[str, Callable[[object], Reply]] = {
    "timeout": _raises("Placement did not answer in time.", busy=True),
    "reset": _raises("The connection was reset."),
    "500": by_a_balancer(500),
    "502": by_a_balancer(502),
    "503": by_a_balancer(503),
    "a 204 of a middlebox": by_a_balancer(204),
}
"""What the client gets for a write that did not reach Placement yet."""

ANY_ANSWER = pytest.mark.parametrize("answer", ANSWERS)


class LateWrites:
    """Holds writes of allocations back; `execute` has Placement do the oldest of them."""

    def __init__(self, kit: Kit, answer: str) -> None:
        self._kit = kit
        self._answer = ANSWERS[answer]
        self._held: list[Sent] = []
        self._first_writes_pass = False

    def lets_first_writes_conflict(self) -> None:
        """Writes that take a consumer for a new one reach Placement."""
        self._first_writes_pass = True

    def hold(self, sent: Sent) -> Reply | None:
        """What the client gets for the request, or None where Placement itself is to answer."""
        passes = self._first_writes_pass and sent.body and sent.body.get("consumer_generation", 0) is None
        if sent.method not in ("PUT", "POST") or not sent.path.startswith("/allocations") or passes:
            return None
        self._held.append(sent)
        return self._answer(sent)

    def execute(self) -> int:
        """The status that Placement answers with; nobody gets it."""
        return self._held.pop(0).to(self._kit.tap.inner).status


@contextmanager
def late_writes(kit: Kit, answer: str) -> Iterator[LateWrites]:
    """In the block all writes of allocations are held back; reads are answered."""
    late = LateWrites(kit, answer)
    kit.tap.answer = late.hold
    try:
        yield late
    finally:
        kit.tap.answer = None
