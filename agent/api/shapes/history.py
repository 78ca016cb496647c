"""What the agent did, and why: `GET /v1/history` and `GET /v1/explain`."""

from typing import Annotated, TypedDict

from agent.api.shapes.columns import Column, consumer_text, local_time
from agent.api.shapes.schema import Moment, Schema


class EventShape(TypedDict):
    """An event of the history."""

    at: Moment
    consumer: Annotated[str | None, "a uuid, or the subject of a finding; null: the host"]
    name: str
    event: Annotated[
        str,
        "a step of a claim or a move, or waited, pass, refused, move_refused, healed, reshape, ready or "
        "degraded",
    ]
    detail: str
    uid: Annotated[
        int | None, "of the process that asked for it over this API; null: the agent acted by itself"
    ]
    pid: int | None


class HistoryShape(TypedDict):
    """Events of the history."""

    events: Annotated[list[EventShape], "the newest first"]


class FoundShape(TypedDict):
    """A consumer, provider, unit or reshape that the question names."""

    kind: Annotated[str, Schema(enum=["consumer", "provider", "unit", "reshape"])]
    id: str
    name: str
    lines: Annotated[list[str], "sentences for people"]
    events: list[EventShape]


class ExplainedShape(TypedDict):
    """Everything that the question names."""

    asked: str
    found: Annotated[list[FoundShape], Schema(minItems=1)]


def asker_text(event: EventShape) -> str:
    """The process that asked for the event, or `-`."""
    return "-" if event["uid"] is None else f"uid {event['uid']} (pid {event['pid']})"


_WHEN: Column[EventShape] = Column("WHEN", lambda event: local_time(event["at"]))
_WHAT: Column[EventShape] = Column("WHAT", lambda event: event["event"])
_WHO: Column[EventShape] = Column("WHO", lambda event: consumer_text(event["consumer"], event["name"]))
_ASKED_BY: Column[EventShape] = Column("ASKED BY", asker_text)
_WHY: Column[EventShape] = Column("WHY", lambda event: event["detail"] or "-")

EVENT_COLUMNS = (_WHEN, _WHAT, _WHO, _ASKED_BY, _WHY)
"""The table of `plimsoll history`."""

TOP_EVENT_COLUMNS = (_WHEN, _WHAT, _WHO, _WHY)
"""The table in `plimsoll top`, which has less room."""
