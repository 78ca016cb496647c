"""What placement's answers say: parts of their bodies, and the error that a refusal becomes. Pure."""

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from agent.errors import PlacementConflict, PlacementError, PlacementFull, PlacementUnavailable
from agent.placement.transport import Reply
from agent.tree import Inventory

CONCURRENT_UPDATE = "placement.concurrent_update"
DUPLICATE_NAME = "placement.duplicate_name"
TOO_MANY_REQUESTS = 429
_EXPECTED = re.compile(r"consumer generation conflict - expected (null|\d{1,18}) but got", re.ASCII)
"""What OpenStack Placement says of a consumer; of a lost race at a provider it says nothing like it."""


def error_of_reply(reply: Reply, asked: str, full: bool) -> PlacementError:
    """The typed error of a refusal, to be raised; `asked` is what was wanted, after "Placement did not".

    `full`: a 409 without a code of its own means that what was asked for is not free.
    """
    said = _said(reply.body)
    code = str(said.get("code", "")) if "message" not in said else ""
    detail = said.get("detail") or said.get("message") or said.get("title") or "it gave no reason"
    sentence = " ".join(str(detail).split()).rstrip(".")
    details = {key: said[key] for key in ("reasons", "request_id") if key in said}
    kind: type[PlacementError] = PlacementError
    if reply.status >= 500 or reply.status == TOO_MANY_REQUESTS:
        kind = PlacementUnavailable
        details["busy"] = True
        seconds = retry_after_s(reply.headers)
        if seconds is not None:
            details["retry_after"] = seconds
    elif reply.status == 409 and code == CONCURRENT_UPDATE:
        kind = PlacementConflict
        told = _EXPECTED.search(sentence)
        if told:
            details["expected_generation"] = None if told[1] == "null" else int(told[1])
    elif reply.status == 409 and full and code in {"", "placement.undefined_code"}:
        kind = PlacementFull
    message = f"Placement did not {asked}: {sentence} (status {reply.status}{', ' if code else ''}{code})."
    return kind(message, status=reply.status, placement_code=code, **details)


def _said(body: Any) -> Mapping[str, Any]:
    """The error in an answer: {detail, code, ...} from placement, {message, ...} from what vouches for
    callers, which Keystone's middleware puts under "error" and `noauth2` at the top.
    """
    if not isinstance(body, dict):
        return {}
    errors = body.get("errors")
    if isinstance(errors, list) and errors and isinstance(errors[0], dict):
        return errors[0]
    error = body.get("error")
    return error if isinstance(error, dict) else body


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """For how many seconds not to ask again; a date is taken by the answering side's own clock (RFC 9110)."""
    told = headers.get("retry-after", "").strip()
    if told.isdecimal():
        return float(told)
    try:
        until, now = (parsedate_to_datetime(each) for each in (told, headers.get("date", "")))
        return max(0.0, (until - now).total_seconds())
    except (ValueError, TypeError):
        return None


def body_member(reply: Reply, asked: str, key: str, *, kind: type) -> Any:
    """One member of the answer's body. Raises PlacementError where it is not of that kind."""
    member = reply.body.get(key) if isinstance(reply.body, dict) else None
    if not isinstance(member, kind):
        raise PlacementError(
            f"Placement was asked to {asked} and its answer has no {key!r}: "
            "check that the address is placement's and not that of a proxy.",
            status=reply.status,
        )
    return member


def generation_of(reply: Reply, asked: str) -> int:
    return int(body_member(reply, asked, "resource_provider_generation", kind=int))


def inventory_from_json(said: Mapping[str, Any]) -> Inventory:
    """From the six fields of an inventory in an answer. Raises KeyError for one that lacks any."""
    return Inventory(
        said["total"],
        said["reserved"],
        said["min_unit"],
        said["max_unit"],
        said["step_size"],
        float(said["allocation_ratio"]),
    )
