"""Two answers, made comparable.

What may differ without meaning is taken out: the order of lists (Placement promises none), timestamps,
request ids, and the prose of errors. What a client can act upon stays: status, title, code, body, headers.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from .exchange import Answer, Request

_VERBATIM_HEADERS = ("cache-control", "openstack-api-version", "vary")
_PRESENT_HEADERS = ("last-modified", "x-openstack-request-id")


def differences(request: Request, theirs: Answer, ours: Answer) -> dict[str, str]:
    """What differs between the two answers, by `status`, `body` or the name of a header."""
    left, right = normalised(request, theirs), normalised(request, ours)
    return {key: f"{left[key]!r} != {right[key]!r}" for key in left if left[key] != right[key]}


def normalised(request: Request, answer: Answer) -> dict[str, Any]:
    """The answer without what may differ, keyed by `status`, `body` and the names of headers."""
    comparable: dict[str, Any] = {"status": answer.status, "body": _body(answer)}
    for name in _VERBATIM_HEADERS:
        comparable[name] = answer.headers.get(name)
    for name in _PRESENT_HEADERS:
        comparable[name] = name in answer.headers
    comparable["allow"] = sorted(answer.headers.get("allow", "").replace(" ", "").split(","))
    comparable["location"] = urlsplit(answer.headers.get("location", "")).path
    comparable["content-type"] = answer.headers.get("content-type", "").partition(";")[0]
    return comparable


def _body(answer: Answer) -> Any:
    if answer.status >= 400 and isinstance(answer.body, dict):
        return [_error(error) for error in answer.body.get("errors", [])]
    if answer.status >= 400:
        # A client that takes no JSON gets a page; of its prose only the status line counts.
        return str(answer.status) in str(answer.body)
    return canonical(answer.body)


def _error(error: dict[str, Any]) -> dict[str, Any]:
    kept = {key: error.get(key) for key in ("status", "title", "code", "min_version", "max_version")}
    return kept | {"request_id": "request_id" in error, "detail": bool(error.get("detail"))}


def canonical(value: Any) -> Any:
    """`value` with every list in one order, the same for equal contents."""
    if isinstance(value, dict):
        return {key: canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((canonical(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return value


def text(value: Any) -> str:
    """`value` as text that is the same for equal contents, whatever the order of lists."""
    return json.dumps(canonical(value), sort_keys=True)
