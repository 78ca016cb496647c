"""What an HTTP server of the agent answers where a request cannot be served."""

from collections.abc import Mapping
from typing import Any

from agent.errors import PlimsollError


class TooSlow(PlimsollError):
    code = "plimsoll.api.too_slow"
    http_status = 408


class LengthRequired(PlimsollError):
    code = "plimsoll.api.length_required"
    http_status = 411


class BodyTooLarge(PlimsollError):
    code = "plimsoll.api.body_too_large"
    http_status = 413


class Busy(PlimsollError):
    code = "plimsoll.api.busy"
    http_status = 503
    SENTENCE = "The agent has more requests than it can answer just now; try again in a few seconds"


def error_body(code: str, message: str, details: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The one shape of every error."""
    return {"error": {"code": code, "message": message, "details": dict(details or {})}}
