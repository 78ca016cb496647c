"""The errors of the agent's HTTP servers: refused requests, and addresses that cannot be used."""

from collections.abc import Mapping
from typing import Any

from agent.errors import LACK_OF_DESCRIPTORS, PlimsollError


class TooSlow(PlimsollError):
    """The request did not arrive completely within its time."""

    code = "plimsoll.api.too_slow"
    http_status = 408


class LengthRequired(PlimsollError):
    """The request has a body but no Content-Length."""

    code = "plimsoll.api.length_required"
    http_status = 411


class BodyTooLarge(PlimsollError):
    """The request's body is longer than the server's limit."""

    code = "plimsoll.api.body_too_large"
    http_status = 413


class Busy(PlimsollError):
    """Too many connections wait for a thread."""

    code = "plimsoll.api.busy"
    http_status = 503
    SENTENCE = "The agent has more requests than it can answer just now; try again in a few seconds"


class ListenError(Exception):
    """A server cannot listen at its address. The message is the reason; it does not name the address."""


class AddressInUse(ListenError):
    """Another server listens at the Unix socket."""


class OutOfDescriptors(ListenError):
    """The process has no file descriptor left for the address."""

    def __init__(self) -> None:
        super().__init__(LACK_OF_DESCRIPTORS)


class NotASocket(ListenError):
    """The path of the Unix socket belongs to a file of another kind."""


def error_body(code: str, message: str, details: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """{"error": {code, message, details}}, the JSON of every error that the agent answers with."""
    return {"error": {"code": code, "message": message, "details": dict(details or {})}}
