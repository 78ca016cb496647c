"""Placement API requests as function calls into the embedded core."""

import itertools
import json
import threading
import uuid
from typing import Any, NamedTuple, Protocol

from agent.errors import PlacementUnavailable
from agent.placement.embedded.core import Core
from agent.placement.transport import Reply

UNKNOWN_OUTCOME = 504


class Stoppable(Protocol):
    """A server of the core."""

    def stop(self) -> None:
        """End the requests under way and close the sockets."""


class _UnknownWrite(NamedTuple):
    """A write whose outcome is unknown: its key, and what it changes."""

    key: str
    subjects: frozenset[str]


class EmbeddedTransport:
    """A transport over an open core and, if other clients use the core too, the server that they connect to.

    Each write has an idempotency key. A write whose outcome is unknown, because the disk does not answer, is
    answered with what became of it if it is sent again, before any other write of the same consumers.
    Closing the transport stops the server, then closes the core.
    """

    def __init__(self, core: Core, server: Stoppable | None = None) -> None:
        self._core = core
        self._server = server
        self._key_prefix = uuid.uuid4().hex
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._unknown: dict[str, _UnknownWrite] = {}

    @property
    def certain(self) -> bool:
        """Whether each write has ended: none is executed after its answer."""
        return not self._core.in_doubt

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        """Send one request.

        Raises PlacementUnavailable (status 504) where the disk does not answer a write in time: then its
        outcome is unknown.
        """
        if method == "GET":
            answer = self._core.request(method, path, body, microversion=microversion)
            return Reply(answer.status, answer.body, answer.headers)
        key = self._new_key() if not self._unknown else self._key(method, path, body)
        answer = self._core.request(method, path, body, microversion=microversion, key=key)
        if answer.status == UNKNOWN_OUTCOME:
            with self._lock:
                self._unknown[_content(method, path, body)] = _UnknownWrite(key, _subjects(path, body))
            detail = answer.body["errors"][0]["detail"]
            raise PlacementUnavailable(
                f"The embedded Placement did not answer {method} {path}: {detail}",
                status=UNKNOWN_OUTCOME,
                busy=True,
            )
        return Reply(answer.status, answer.body, answer.headers)

    def _key(self, method: str, path: str, body: Any) -> str:
        """The key of the same write whose outcome is unknown, else a new one."""
        content, subjects = _content(method, path, body), _subjects(path, body)
        with self._lock:
            before = self._unknown.get(content)
            # Once another write of a consumer was sent, the same write again is a new one.
            self._unknown = {
                other: write for other, write in self._unknown.items() if not write.subjects & subjects
            }
        return before.key if before is not None else self._new_key()

    def _new_key(self) -> str:
        return f"{self._key_prefix}-{next(self._numbers)}"

    def close(self) -> None:
        """Stop the server and close the core."""
        if self._server is not None:
            self._server.stop()
        self._core.close()


def _content(method: str, path: str, body: Any) -> str:
    return json.dumps([method, path, body], sort_keys=True)


def _subjects(path: str, body: Any) -> frozenset[str]:
    """What a write changes: its path, and the consumers that its body names."""
    parts = body if isinstance(body, dict) else {}
    named = parts.get("allocations") if path == "/reshaper" else parts if path == "/allocations" else None
    consumers = named if isinstance(named, dict) else {}
    return frozenset((path, *(f"/allocations/{consumer}" for consumer in consumers)))
