"""Speaks HTTP to the agent over its Unix socket, within one deadline."""

import http.client
import json
from contextlib import nullcontext
from typing import Any
from urllib.parse import quote

from agent import errors
from agent.cli.waiting import waiting
from agent.errors import DaemonUnreachable, PlimsollError
from agent.http.unix_connection import UnixConnection

REPLY_BYTES_MAX = 256 * 1024 * 1024


class Client:
    """One agent, at `socket_path`; each request ends within `timeout_s` seconds, one way or the other.

    A request that takes its time is told of at a terminal, unless the client is `quiet`.
    """

    def __init__(self, socket_path: str, timeout_s: float, *, quiet: bool = False) -> None:
        self._path = socket_path
        self._timeout_s = timeout_s
        self._quiet = quiet

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """The parsed reply. Raises the agent's own error, or DaemonUnreachable without a usable reply.

        Its detail `asked` says whether the agent may have got the request, and done what it asks.
        """
        told = f"waiting for the agent: {method} {path.partition('?')[0]}"
        with nullcontext() if self._quiet else waiting(told):
            return self._request(method, path, body)

    def _request(self, method: str, path: str, body: Any) -> Any:
        connection = UnixConnection(self._path, self._timeout_s)
        headers = {"Connection": "close"}
        payload = None
        if body is not None:
            payload = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            try:
                connection.request(method, path, payload, headers)
            except (BrokenPipeError, ConnectionResetError):
                if not connection.connected:
                    raise
                # The agent may have refused before it read everything; what it said is there to be read.
            reply = connection.getresponse()
            text = reply.read(REPLY_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error, asked=connection.connected) from error
        finally:
            connection.close()
        return self._parsed(reply.status, text)

    def _parsed(self, status: int, text: bytes) -> Any:
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise DaemonUnreachable(
                f"What answers at {self._path} does not speak like an agent (status {status}, no JSON); "
                "is --socket or PLIMSOLL_SOCKET right?",
                socket=self._path,
                asked=True,
            ) from error
        if status >= 400:
            raise error_of(answer)
        return answer

    def _unreachable(self, error: Exception, asked: bool) -> DaemonUnreachable:
        service = (
            "is the service running (systemctl status plimsoll-agent)? "
            "Another path: --socket or PLIMSOLL_SOCKET"
        )
        if isinstance(error, FileNotFoundError):
            sentence = f"no agent listens at {self._path}: the socket is not there; {service}"
        elif isinstance(error, ConnectionRefusedError):
            sentence = (
                f"no agent listens at {self._path}: the socket is left over from one that ended; {service}"
            )
        elif isinstance(error, PermissionError):
            sentence = (
                f"this user may not open {self._path}; ask for membership in the group that owns the socket, "
                "or run the command as root"
            )
        elif isinstance(error, TimeoutError):
            sentence = (
                f"the agent at {self._path} did not answer within {self._timeout_s:g} s; what was asked "
                "may still happen; its log says what it is busy with, --timeout waits longer"
            )
        else:
            what = str(error) or type(error).__name__
            sentence = f"the agent at {self._path} gave no usable answer ({what}); {service}"
        return DaemonUnreachable(sentence, socket=self._path, asked=asked)


def claim_path(consumer: str) -> str:
    return f"/v1/claims/{quote(consumer, safe='')}"


def error_of(answer: Any) -> PlimsollError:
    """The error that the agent answered with, as the type that it was there."""
    told = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(told, dict):
        return PlimsollError(f"the agent answered with an error that it did not explain: {answer!r}")
    code = str(told.get("code"))
    kind = _KNOWN.get(code) or type("AnsweredError", (PlimsollError,), {"code": code})
    error: PlimsollError = kind(str(told.get("message")))
    error.details = told.get("details") or {}
    return error


_KNOWN = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, PlimsollError)
}


SOCKET_DEFAULT = "/run/plimsoll/plimsoll.sock"
