"""Placement API calls as function calls into the embedded core."""

from typing import Any, Protocol

from agent.placement.embedded.core import Core
from agent.placement.transport import Reply


class Stoppable(Protocol):
    """What serves the core to others."""

    def stop(self) -> None: ...


class EmbeddedTransport:
    """A transport over an open core, which it closes, and before it the door that others come in by."""

    def __init__(self, core: Core, door: Stoppable | None = None) -> None:
        self._core = core
        self._door = door

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        answer = self._core.request(method, path, body, microversion=microversion)
        return Reply(answer.status, answer.body, answer.headers)

    def close(self) -> None:
        if self._door is not None:
            self._door.stop()
        self._core.close()
