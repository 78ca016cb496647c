"""The embedded core, asked in process or through its WSGI door."""

from __future__ import annotations

import tempfile
from pathlib import Path

from agent.placement.embedded import Core
from agent.placement.embedded.serve import WsgiApplication

from .exchange import Answer, Request
from .wsgi import ask_wsgi


class Subject:
    """Our side: an empty embedded core in a temporary state directory."""

    def __init__(self, through_door: bool = False) -> None:
        self._through_door = through_door
        self._home = tempfile.TemporaryDirectory(prefix="plimsoll-differential-")
        self._core = Core.open(Path(self._home.name))

    def ask(self, request: Request) -> Answer:
        """Answer as the embedded core does."""
        if self._through_door:
            return ask_wsgi(WsgiApplication(self._core), request)
        content_type = "" if request.body is None else "application/json"
        answer = self._core.request(
            request.method,
            request.path,
            request.body,
            microversion=request.microversion,
            headers={"content-type": content_type, **request.headers},
        )
        return Answer(answer.status, answer.headers, answer.body)

    def close(self) -> None:
        """Close the core and remove what it wrote."""
        self._core.close()
        self._home.cleanup()
