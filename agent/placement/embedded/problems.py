"""The kinds of refused requests, in one table: HTTP status and Placement's error code.

A client tells "retry" from "full" by the code of a 409 alone, so the codes are part of the interface. Source:
https://docs.openstack.org/api-ref/placement/#error-codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

UNDEFINED_CODE = "placement.undefined_code"

TITLES = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    406: "Not Acceptable",
    409: "Conflict",
    412: "Precondition Failed",
    413: "Request Entity Too Large",
    415: "Unsupported Media Type",
    422: "Unprocessable Entity",
    500: "Internal Server Error",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


class ProblemType(NamedTuple):
    """An HTTP status and the error code that is sent with it from microversion 1.23 on."""

    status: int
    code: str = UNDEFINED_CODE


BAD_REQUEST = ProblemType(400)
DUPLICATE_KEY = ProblemType(400, "placement.query.duplicate_key")
BAD_VALUE = ProblemType(400, "placement.query.bad_value")
MISSING_VALUE = ProblemType(400, "placement.query.missing_value")
PROVIDER_NOT_FOUND = ProblemType(400, "placement.resource_provider.not_found")
FORBIDDEN = ProblemType(403)
NOT_FOUND = ProblemType(404)
METHOD_NOT_ALLOWED = ProblemType(405)
NOT_ACCEPTABLE = ProblemType(406)
CONFLICT = ProblemType(409)
CONCURRENT_UPDATE = ProblemType(409, "placement.concurrent_update")
DUPLICATE_NAME = ProblemType(409, "placement.duplicate_name")
INVENTORY_IN_USE = ProblemType(409, "placement.inventory.inuse")
PROVIDER_IN_USE = ProblemType(409, "placement.resource_provider.inuse")
PROVIDER_HAS_CHILDREN = ProblemType(409, "placement.resource_provider.cannot_delete_parent")
KEY_FORGOTTEN = ProblemType(412)
TOO_LARGE = ProblemType(413)
UNSUPPORTED_MEDIA_TYPE = ProblemType(415)
KEY_REUSED = ProblemType(422)
INTERNAL_ERROR = ProblemType(500)
UNAVAILABLE = ProblemType(503)
UNKNOWN_OUTCOME = ProblemType(504)


class RequestRefused(Exception):
    """The request is refused, and nothing has changed.

    `reasons` is the machine-readable part of a capacity refusal (see rules.py); `headers` are
    added to those of the response.
    """

    def __init__(
        self,
        problem: ProblemType,
        detail: str,
        *,
        reasons: Sequence[Mapping[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.problem = problem
        self.detail = detail
        self.reasons = reasons
        self.headers = headers or {}
