"""What the host can still give, and what would have to move: `/v1/capacity` and `/v1/defrag`."""

from typing import Annotated, NotRequired, TypedDict

from agent.api.shapes.claims import HoldingShape, ShortfallShape
from agent.api.shapes.columns import Column
from agent.api.shapes.requests import ClaimRequestShape
from agent.api.shapes.schema import Count, Notes, ResourcesShape, Uuid


class HolderShape(TypedDict):
    """An instance with a claim on this host."""

    consumer: Uuid
    name: str


class StrandedShape(TypedDict):
    """What is free and goes to no further guest of the flavor, as something else is not free near it."""

    provider: str
    provider_uuid: Uuid
    resource_class: str
    free: Count
    holders: Annotated[list[HolderShape], "those each of which alone strands some of it"]


class CapacityShape(TypedDict):
    """How many guests that ask for this the host can still get, one after the other."""

    asked: Annotated[ResourcesShape, "summed up over the groups"]
    guests: Count
    more: Annotated[bool, "true: the count ended there, and further guests may fit"]
    shortfalls: Annotated[list[ShortfallShape], "why not one more"]
    stranded: list[StrandedShape]
    notes: NotRequired[Notes]


class DefragMoveShape(TypedDict):
    """A guest that would have to move."""

    consumer: Uuid
    name: str
    here: Annotated[HoldingShape | None, "its new place on this host; null: it has to go to another host"]
    kind: Annotated[
        str,
        "live_migrate, or cold_migrate where a device or large pages may forbid that; also on this host",
    ]
    request: Annotated[ClaimRequestShape, "what its claim asks for"]


class DefragShape(TypedDict):
    """The moves that make room for one guest that asks for this. Nothing is moved."""

    asked: Annotated[ResourcesShape, "summed up over the groups"]
    possible: Annotated[bool, "false: no moves of guests make room; see `shortfalls`"]
    place: Annotated[HoldingShape | None, "where it fits then"]
    moves: Annotated[list[DefragMoveShape], "in an order in which they can be done; empty: it fits already"]
    fewest: Annotated[bool, "true: no smaller number of moves does"]
    shortfalls: list[ShortfallShape]
    notes: NotRequired[Notes]


STRANDED_COLUMNS: tuple[Column[StrandedShape], ...] = (
    Column("PROVIDER", lambda stranded: stranded["provider"]),
    Column("RESOURCE CLASS", lambda stranded: stranded["resource_class"]),
    Column("FREE", lambda stranded: stranded["free"]),
    Column(
        "STRANDED BY", lambda stranded: ", ".join(name_of(holder) for holder in stranded["holders"]) or "-"
    ),
)
"""The table of `plimsoll explain --capacity`."""


def name_of(holder: HolderShape | DefragMoveShape) -> str:
    """The instance for people: its name and its uuid."""
    return f"{holder['name']} ({holder['consumer']})" if holder["name"] else holder["consumer"]
