"""Placement API calls over HTTP to the Unix socket at which another process serves an embedded core."""

import http.client
import json
from contextlib import closing
from pathlib import Path
from typing import Any

from agent.errors import PlacementUnavailable
from agent.http.unix_connection import UnixConnection
from agent.placement.transport import Reply, reply_of_answer

TIMEOUT_S = 60.0
NOAUTH_ADMIN = "admin"


class SocketTransport:
    """A transport to the socket at `path`, one connection a request; any thread may send.

    `token` is USER or USER:PROJECT, as the server's `noauth2` reads it; the user `admin` may send everything
    but POST /reshaper. Each request ends within `timeout_s` seconds.
    """

    def __init__(self, path: Path, *, token: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._headers = {
            "X-Auth-Token": token or NOAUTH_ADMIN,
            "Accept": "application/json",
            "Connection": "close",
        }

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        """Send one request. Raises PlacementUnavailable where Placement itself does not answer in time."""
        headers = {**self._headers, "OpenStack-API-Version": f"placement {microversion}"}
        payload = None
        if body is not None:
            payload = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        unix = UnixConnection(str(self._path), self._timeout_s)
        try:
            with closing(unix) as connection:
                connection.request(method, path, payload, headers)
                answer = connection.getresponse()
                text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise PlacementUnavailable(
                f"Placement did not answer {method} {path} at {self._path} ({reason}). "
                "Check that it is served there and that this user may open the socket.",
                sent=unix.connected,
            ) from error
        lower_headers = {name.lower(): value for name, value in answer.getheaders()}
        return reply_of_answer(method, path, answer.status, _parse_body(text), lower_headers)

    def address(self) -> str:
        """The socket, as `unix:PATH`."""
        return f"unix:{self._path}"

    def identity(self) -> str:
        """The user that the requests name, USER or USER:PROJECT."""
        return str(self._headers["X-Auth-Token"])

    def close(self) -> None:
        """Do nothing: no connection outlives its request."""


def _parse_body(text: bytes) -> Any:
    """The body's JSON; None for an empty body and for one that is not JSON."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None
