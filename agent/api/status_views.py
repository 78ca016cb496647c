"""Overview, history and explanations in the shapes of the local API. They come from the agent's memory."""

from collections.abc import Mapping
from datetime import datetime
from typing import cast

from agent.api.audit_views import finding_view
from agent.api.move_views import move_view
from agent.api.shapes.history import EventShape, ExplainedShape, FoundShape, HistoryShape
from agent.api.shapes.overview import OverviewShape
from agent.api.shapes.status import HealthShape, StatusShape
from agent.api.views import instances_view, moment, tree_view
from agent.errors import UsageError
from agent.providers.unclaimed import with_reserved
from agent.shapes import beyond
from agent.state.journal import Event
from agent.status.host_status import Explanation
from agent.status.overview import Overview
from agent.status.web import health_view

LIMIT_DEFAULT = 100
LIMIT_MAX = 10_000


def overview_view(overview: Overview) -> OverviewShape:
    """The whole host, with the moves under way and the findings of the last audit that were not healed."""
    health = overview.health
    tree = with_reserved(overview.tree, overview.unclaimed)  # as Placement has it
    usages = beyond(overview.used, overview.unclaimed)
    names = {provider.uuid: provider.name for provider in overview.tree}
    return {
        "at": moment(overview.at),
        "status": cast(StatusShape, dict(overview.status)),
        "health": cast(HealthShape, health_view(health, (*health.live, *health.ready))),
        "resource_providers": tree_view(tree, usages, overview.unclaimed)["resource_providers"],
        "instances": instances_view(
            overview.instances, overview.seen, overview.under_way, overview.name_of, overview.tree
        )["instances"],
        "moves": [
            move_view(move, overview.seen, overview.name_of, overview.tree, names)
            for move in overview.under_way
        ],
        "findings": [finding_view(finding) for finding in overview.findings],
        "pending": overview.pending,
        "reshape_pending": overview.reshape_pending,
    }


def parse_history(query: Mapping[str, str]) -> tuple[float, int]:
    """(seconds since 1970, limit) of a query. Raises UsageError where one of them is malformed."""
    return _since(query.get("since")), _limit(query.get("limit"))


def history_view(events: tuple[Event, ...], overview: Overview) -> HistoryShape:
    """Events with the names that consumers have, or had last; `consumer` is null for an event of the host."""
    migrations = {move.migration for move in overview.moves}
    return {
        "events": [
            _event(
                event, _label(overview.name_of(event.consumer) or event.name, event.consumer in migrations)
            )
            for event in events
        ]
    }


def _label(name: str, is_migration: bool) -> str:
    """The name in a list of events, where a migration must not be taken for its instance."""
    if not is_migration:
        return name
    return f"{name}, migration" if name else "migration"


def explained_view(explained: Explanation) -> ExplainedShape:
    """Everything that the question names, each with its lines and its events."""
    subjects: list[FoundShape] = [
        {
            "kind": subject.kind,
            "id": subject.id,
            "name": subject.name,
            "lines": list(subject.lines),
            "events": [_event(event, subject.name) for event in explained.events.get(subject.id, ())],
        }
        for subject in explained.items
    ]
    return {"asked": explained.word, "found": subjects}


def _event(event: Event, name: str) -> EventShape:
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
        since = datetime.fromisoformat(word)
        if since.tzinfo is None:
            raise ValueError("no offset")
        return since.timestamp()
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
