"""The routes that show what the agent knows without asking anybody: overview, history, explanations."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from agent.api.audit_views import finding_view
from agent.api.move_views import move_view
from agent.api.views import instances_view, moment, tree_view
from agent.errors import UsageError
from agent.state.journal import Event
from agent.status.host_status import Explained
from agent.status.overview import Overview
from agent.status.web import health_view

Json = dict[str, Any]

LIMIT_DEFAULT = 100
LIMIT_MAX = 10_000


def overview_view(seen: Overview) -> Json:
    """`moves` are those under way; `findings` those of the last audit that were not healed."""
    return {
        "at": moment(seen.at),
        "status": dict(seen.status),
        "health": health_view(seen.health, (*seen.health.live, *seen.health.ready)),
        **tree_view(seen.tree, {uuid: dict(amounts) for uuid, amounts in seen.used.items()}),
        **instances_view(seen.instances),
        "moves": [move_view(move) for move in seen.under_way],
        "findings": [finding_view(finding) for finding in seen.findings],
        "pending": seen.pending,
        "reshape_pending": seen.reshape_pending,
    }


def parse_history(query: Mapping[str, str]) -> tuple[float, int]:
    """(since, seconds since the epoch; limit). Raises UsageError."""
    return _since(query.get("since")), _limit(query.get("limit"))


def history_view(events: tuple[Event, ...], seen: Overview) -> Json:
    """The newest first; `consumer` is null for what concerns the host, `name` is what is known by now."""
    return {"events": [_event(event, seen.name_of(event.consumer)) for event in events]}


def explained_view(told: Explained) -> Json:
    """What was asked about, and each thing that the words may mean with its lines and its events."""
    return {
        "asked": told.asked,
        "found": [
            {
                "kind": found.kind,
                "id": found.id,
                "name": found.name,
                "lines": list(found.lines),
                "events": [_event(event, found.name) for event in told.events.get(found.id, ())],
            }
            for found in told.found
        ],
    }


def _event(event: Event, name: str) -> Json:
    return {
        "at": moment(event.at),
        "consumer": event.consumer or None,
        "name": name,
        "event": event.event,
        "detail": event.detail,
        "uid": event.uid,
        "pid": event.pid,
    }


def _since(word: str | None) -> float:
    if word is None:
        return 0.0
    try:
        found = datetime.fromisoformat(word)
        if found.tzinfo is None:
            raise ValueError("no offset")
        return found.timestamp()
    except (ValueError, OverflowError):
        raise UsageError(
            f"The query parameter since is a moment with its offset, such as "
            f"2026-11-21T10:00:00Z, not {word!r}",
            parameter="since",
        ) from None


def _limit(word: str | None) -> int:
    if word is None:
        return LIMIT_DEFAULT
    if word.isascii() and word.isdigit() and len(word) < 9 and 1 <= int(word) <= LIMIT_MAX:
        return int(word)
    raise UsageError(
        f"The query parameter limit is a whole number from 1 to {LIMIT_MAX}, not {word!r}", parameter="limit"
    )
