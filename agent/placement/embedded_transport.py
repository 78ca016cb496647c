"""Placement API calls as function calls into the embedded core."""

from typing import Any

from agent.placement.embedded.core import Core
from agent.placement.transport import Reply


class EmbeddedTransport:
    """A transport over an open core, which it closes."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        answer = self._core.request(method, path, body, microversion=microversion)
        return Reply(answer.status, answer.body, answer.headers)

    def close(self) -> None:
        self._core.close()
