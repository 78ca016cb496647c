"""Placement API calls over HTTP to the Unix socket at which another process serves an embedded core."""

import http.client
import json
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

from agent.errors import PlacementUnavailable
from agent.placement.transport import Reply

TIMEOUT_S = 60.0
NOAUTH_ADMIN = "admin"


class SocketTransport:
    """A transport to the socket at `path`, with one connection a request; any thread may send.

    `token` is what the server's noauth reads: USER or USER:PROJECT, where the user admin may do most things.
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
        """Send one request. Raises PlacementUnavailable where the socket or the answer cannot be had."""
        headers = {**self._headers, "OpenStack-API-Version": f"placement {microversion}"}
        payload = None
        if body is not None:
            payload = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            with closing(_UnixConnection(self._path, self._timeout_s)) as connection:
                connection.request(method, path, payload, headers)
                answer = connection.getresponse()
                text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise PlacementUnavailable(
                f"Placement did not answer {method} {path} at {self._path} ({_reason(error)}); "
                "is it served there, and may this user open the socket?"
            ) from error
        return Reply(answer.status, _parsed(text), {n.lower(): value for n, value in answer.getheaders()})

    def where(self) -> str:
        return f"unix:{self._path}"

    def who(self) -> str:
        return str(self._headers["X-Auth-Token"])

    def close(self) -> None:
        """Nothing is kept open."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _parsed(text: bytes) -> Any:
    """The body's JSON; None where there is none."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None
