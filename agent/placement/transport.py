"""The interface of the transports, which carry Placement API requests.

`transport_http` sends them to an OpenStack Placement, `transport_socket` to a Unix socket, and
`connect.EmbeddedTransport` calls the embedded core. Only the transports know which of these it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


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
