"""The interface of the transports, which carry Placement API requests, and what a reply says.

`transport_http` sends requests to an OpenStack Placement, `SocketTransport` over HTTP to the Unix socket at
which another process serves an embedded core, and `connect.EmbeddedTransport` calls the embedded core. Only
the transports know which of these it is.

The outcome of a write is a value: done, refused, or unknown. A write is known to be done or refused only by
an answer that Placement itself gave: such an answer has Placement's request id. All else leaves the outcome
unknown, and Placement may still do the write later.

Source: https://docs.openstack.org/api-ref/placement/ (errors: "Error Codes").
"""

import http.client
import json
import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Protocol

from agent.errors import PlacementConflict, PlacementError, PlacementFull, PlacementUnavailable
from agent.http.unix_connection import UnixConnection
from agent.tree import Inventory


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that Placement itself gave.

    `body` is parsed JSON (None if empty), header names are lower-case. Transports over HTTP make it by
    `reply_of_answer`, which tells such an answer from that of a proxy.
    """

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Transport(Protocol):
    """Sends Placement API requests. The interface is small, so that a test can implement it."""

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        """Send one request; `body` is the Python object to send as JSON.

        An answer with an error status is a Reply too. Raises PlacementUnavailable if no answer of Placement
        itself arrived; its `sent` is false only if Placement cannot have got the request.
        """

    def close(self) -> None:
        """Close connections and files; idempotent."""


def is_certain(transport: Transport) -> bool:
    """Whether each request has ended when `request` returns, or when this process is killed.

    A transport that may know it says so by a property `certain`; the others do not know it.
    """
    return bool(getattr(transport, "certain", False))


@dataclass(frozen=True, slots=True)
class WriteDone:
    """Placement did the write."""

    def check(self) -> None:
        """Do nothing; see `WriteRefused.check`."""


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """Placement rejected the write, or it was not sent: nothing of it is done, now or later."""

    error: PlacementError

    def check(self) -> None:
        """Raises the error, for a caller that treats all errors alike."""
        raise self.error


@dataclass(frozen=True, slots=True)
class WriteUnknown:
    """No answer of Placement tells what became of the write.

    `late`: Placement may still do it, at any time. Otherwise its work on the write has ended, and a read
    shows the result.
    """

    error: PlacementUnavailable
    late: bool = True

    def check(self) -> None:
        """Raises the error, for a caller that treats all errors alike."""
        raise self.error


WriteOutcome = WriteDone | WriteRefused | WriteUnknown


REQUEST_ID = "x-openstack-request-id"
"""Placement puts it into each of its answers; what answers in its place does not know it."""
ACTIVE_HEADER = "plimsoll-active"
"""The address of the active server, in the answers of a standby."""
STALE_HEADER = "plimsoll-stale"
"""Says of an answer that it may be older than what the active server has acknowledged."""
JOURNAL_HEADER = "plimsoll-journal"
"""Which journal a served core shares with others."""
RISK_HEADER = "plimsoll-risk"
"""How a served core can lose what it has acknowledged, in words."""
CONCURRENT_UPDATE = "placement.concurrent_update"
DUPLICATE_NAME = "placement.duplicate_name"
UNAUTHORIZED = 401
TOO_MANY_REQUESTS = 429
UNKNOWN_OUTCOME = 504
UNAVAILABLE = 503
_EXPECTED = re.compile(
    r"consumer generation conflict(?: -| for [-0-9a-f]{36}:) expected (null|\d{1,18}) but got", re.ASCII
)
"""Placement names the current generation of a consumer, but not that of a provider."""


def addresses_of(endpoint_override: str | None) -> tuple[str, ...]:
    """The addresses in that option, which commas separate, each once."""
    return tuple(dict.fromkeys(filter(None, map(str.strip, (endpoint_override or "").split(",")))))


def reply_of_answer(method: str, path: str, status: int, body: Any, headers: Mapping[str, str]) -> Reply:
    """The Reply for an answer over HTTP; `headers` as in `Reply`.

    Raises PlacementUnavailable where Placement did not give the answer itself: it says nothing of Placement.
    A 401 to a read is a Reply in any case: authentication in front of Placement may send it.
    """
    if headers.get(REQUEST_ID) or (status == UNAUTHORIZED and method == "GET"):
        return Reply(status, body, headers)
    seconds = retry_after_s(headers)
    details: dict[str, Any] = {} if seconds is None else {"retry_after": seconds}
    match body:
        case {"errors": [{"detail": str(detail)}]} if status == UNKNOWN_OUTCOME:
            reason = detail  # a served core's own: no disk or database told it what became of the write
        case _:
            reason = (
                f"an answer without {REQUEST_ID} came (status {status}), so something between the agent and "
                "Placement answered for it, or there is no Placement at that address. If all answers lack "
                "it, check the address, and let a proxy pass it on."
            )
    raise PlacementUnavailable(
        f"Placement did not answer {method} {path.partition('?')[0]}: {reason}",
        status=status,
        busy=True,
        **details,
    )


def standby_sentence(reply: Reply) -> str:
    """What to know of the server that gave the reply, where that is a standby; else empty."""
    active = reply.headers.get(ACTIVE_HEADER)
    there = f"the active one is at {active}" if active else "none is active now"
    return f"it is a standby, whose answers may be old: {there}" if STALE_HEADER in reply.headers else ""


def error_of_reply(reply: Reply, action: str, full: bool) -> PlacementError:
    """The error for a reply that rejects the request; the caller raises it.

    `action` completes the sentence "Placement did not ...". `full` tells that a 409 without a code of its own
    means that the resources are not free.
    """
    body: Mapping[str, Any] = reply.body if isinstance(reply.body, dict) else {}
    errors, of_keystone = body.get("errors"), body.get("error")
    # {detail, code, ...} from Placement, {message, ...} from its authentication: Keystone's middleware puts
    # it under "error", `noauth2` at the top level.
    error = body
    if isinstance(errors, list) and errors and isinstance(errors[0], dict):
        error = errors[0]
    elif isinstance(of_keystone, dict):
        error = of_keystone
    code = str(error.get("code", "")) if "message" not in error else ""
    detail = error.get("detail") or error.get("message") or error.get("title") or "it gave no reason"
    sentence = " ".join(str(detail).split()).rstrip(".")
    details = {key: error[key] for key in ("reasons", "request_id") if key in error}
    kind: type[PlacementError] = PlacementError
    if reply.status >= 500 or reply.status == TOO_MANY_REQUESTS:
        kind = PlacementUnavailable
        details["busy"] = True
        seconds = retry_after_s(reply.headers)
        if seconds is not None:
            details["retry_after"] = seconds
    elif reply.status == 409 and code == CONCURRENT_UPDATE:
        kind = PlacementConflict
        expected = _EXPECTED.search(sentence)
        if expected:
            details["expected_generation"] = None if expected[1] == "null" else int(expected[1])
    elif reply.status == 409 and full and code in {"", "placement.undefined_code"}:
        kind = PlacementFull
    if reply.status == UNAUTHORIZED:
        sentence = f"it does not accept the token ({sentence}): check it, or the credentials in [placement]"
    message = f"Placement did not {action}: {sentence} (status {reply.status}{', ' if code else ''}{code})."
    return kind(message, status=reply.status, placement_code=code, **details)


def outcome_of_reply(reply: Reply, action: str) -> WriteOutcome:
    """What became of a write of allocations, by its answer; `action` as in `error_of_reply`."""
    if 200 <= reply.status < 300:
        return WriteDone()
    error = error_of_reply(reply, action, full=True)
    if reply.status >= 500 and reply.status != UNAVAILABLE and isinstance(error, PlacementUnavailable):
        return WriteUnknown(error, late=False)  # its database may have committed before it failed
    return WriteRefused(error)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The seconds of the header Retry-After (RFC 9110, section 10.2.3); None without a usable one.

    A date is compared with the reply's own Date, so that the two hosts' clocks may differ.
    """
    value = headers.get("retry-after", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        until, now = (parsedate_to_datetime(date) for date in (value, headers.get("date", "")))
        return max(0.0, (until - now).total_seconds())
    except (ValueError, TypeError):
        return None


def body_member(reply: Reply, action: str, key: str, *, kind: type) -> Any:
    """The member `key` of the reply's body. Raises PlacementError where it is missing or not a `kind`."""
    member = reply.body.get(key) if isinstance(reply.body, dict) else None
    if not isinstance(member, kind):
        raise PlacementError(
            f"Placement was asked to {action} and its answer has no {key!r}: "
            "check that the address is Placement's and not that of a proxy.",
            status=reply.status,
        )
    return member


def generation_of(reply: Reply, action: str) -> int:
    """The provider's generation in the reply. Raises PlacementError where it is missing."""
    return int(body_member(reply, action, "resource_provider_generation", kind=int))


def inventory_from_json(record: Mapping[str, Any]) -> Inventory:
    """An inventory from the six fields of the API. Raises KeyError where one is missing."""
    return Inventory(
        record["total"],
        record["reserved"],
        record["min_unit"],
        record["max_unit"],
        record["step_size"],
        float(record["allocation_ratio"]),
    )


# Over a Unix socket

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
        return reply_of_answer(method, path, answer.status, parse_body(text), lower_headers)

    def address(self) -> str:
        """The socket, as `unix:PATH`."""
        return f"unix:{self._path}"

    def identity(self) -> str:
        """The user that the requests name, USER or USER:PROJECT."""
        return str(self._headers["X-Auth-Token"])

    def close(self) -> None:
        """Do nothing: no connection outlives its request."""


def parse_body(text: bytes) -> Any:
    """The body's JSON; None for an empty body and for one that is not JSON, such as a proxy's error page."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None
