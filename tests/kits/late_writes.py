"""Writes that Placement does not answer, and executes later: a server behind a balancer was paused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agent.errors import PlacementUnavailable
from agent.placement.replies import reply_of_answer
from agent.placement.transport import Reply
from kits.tracker import Kit


def _raises(message: str, **details: Any) -> Callable[[], Reply]:
    def answer() -> Reply:
        raise PlacementUnavailable(message, **details)

    return answer


def by_a_balancer(status: int, **headers: str) -> Callable[[], Reply]:
    """An answer that a balancer gave in Placement's place; `retry_after="120"` is a header more."""
    sent = {"server": "balancer", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return lambda: reply_of_answer("PUT", "/allocations", status, None, sent)


ANSWERS: dict[str, Callable[[], Reply]] = {
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
        self._held: list[tuple[str, str, Any, str]] = []
        self._request = kit.tap.request
        self._first_writes_pass = False

    def lets_first_writes_conflict(self) -> None:
        """Writes that take a consumer for a new one reach Placement."""
        self._first_writes_pass = True

    def hold(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        passes = self._first_writes_pass and body and body.get("consumer_generation", 0) is None
        if method in ("PUT", "POST") and path.startswith("/allocations") and not passes:
            self._held.append((method, path, body, microversion))
            return self._answer()
        return self._request(method, path, body, microversion=microversion)

    def execute(self) -> int:
        """The status that Placement answers with; nobody gets it."""
        method, path, body, microversion = self._held.pop(0)
        return self._kit.tap.inner.request(method, path, body, microversion=microversion).status


@contextmanager
def late_writes(kit: Kit, answer: str) -> Iterator[LateWrites]:
    """In the block all writes of allocations are held back; reads are answered."""
    late, tap = LateWrites(kit, answer), kit.tap
    tap.request = late.hold  # type: ignore[method-assign]
    try:
        yield late
    finally:
        del tap.request
