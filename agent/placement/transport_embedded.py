"""Placement API requests as function calls into the embedded core."""

from typing import Any, Protocol

from agent.placement.embedded.core import Core
from agent.placement.transport import Reply


class Stoppable(Protocol):
    """A server of the core."""

    def stop(self) -> None:
        """End the requests under way and close the sockets."""


class EmbeddedTransport:
    """A transport over an open core and, if other clients use the core too, the server that they connect to.

    Closing the transport stops the server, then closes the core.
    """

    certain = True

    def __init__(self, core: Core, server: Stoppable | None = None) -> None:
        self._core = core
        self._server = server

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        """Send one request; never raises PlacementUnavailable."""
        answer = self._core.request(method, path, body, microversion=microversion)
        return Reply(answer.status, answer.body, answer.headers)

    def close(self) -> None:
        """Stop the server and close the core."""
        if self._server is not None:
            self._server.stop()
        self._core.close()
