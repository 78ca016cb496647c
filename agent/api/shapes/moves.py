"""Moves of instances between hosts: `/v1/moves`."""

from collections.abc import Iterable
from typing import Annotated, NotRequired, TypedDict

from agent.api.shapes.claims import ClaimShape, HoldingShape, total_amounts
from agent.api.shapes.columns import Column, amounts_text, local_time
from agent.api.shapes.schema import Moment, Notes, Uuid, Values


def _kinds() -> Iterable[str]:
    from agent.moves.states import MoveKind

    return sorted(MoveKind)


def _roles() -> Iterable[str]:
    from agent.moves.states import MoveRole

    return MoveRole


def _states() -> Iterable[str]:
    from agent.moves.states import MoveState

    return MoveState


class MoveShape(TypedDict):
    """A move of an instance, seen from this host."""

    migration: Uuid
    instance: Uuid
    name: str
    kind: Annotated[str, Values(_kinds), "unknown: the source knows the move only from Placement"]
    role: Annotated[str, Values(_roles), "the part of this host in the move"]
    state: Annotated[str, Values(_states)]
    next: Annotated[str, "who acts next, and what they do; a clause for people"]
    ended: bool
    adopted: Annotated[bool, "true: the agent did not begin the move, it found it in Placement"]
    since: Annotated[Moment, "RFC 3339, UTC"]
    handed: Annotated[HoldingShape, "the allocation of the migration while the move is under way"]
    old: Annotated[ClaimShape, "the claim before the move"]
    new: Annotated[ClaimShape | None, "the claim at the destination; null: this host is the source"]
    providers: Annotated[
        dict[Uuid, str], "the names of the providers of both places, as far as they are known"
    ]
    notes: NotRequired[Notes]


class MovesShape(TypedDict):
    """The moves that this host takes part in."""

    moves: list[MoveShape]


def _migration_amounts(move: MoveShape) -> str:
    return amounts_text(total_amounts(move["handed"]["allocations"]))


MOVE_COLUMNS: tuple[Column[MoveShape], ...] = (
    Column("MIGRATION", lambda move: move["migration"]),
    Column("INSTANCE", lambda move: move["instance"]),
    Column("NAME", lambda move: move["name"] or "-"),
    Column("KIND", lambda move: move["kind"]),
    Column("ROLE", lambda move: move["role"]),
    Column("STATE", lambda move: move["state"]),
    Column("IT HOLDS", lambda move: "-" if move["ended"] else _migration_amounts(move)),
    Column("WHOSE TURN", lambda move: move["next"]),
)
"""The table of `plimsoll move list`."""

TOP_MOVE_COLUMNS: tuple[Column[MoveShape], ...] = (
    Column("MOVING", lambda move: move["name"] or "-"),
    Column("UUID", lambda move: move["instance"]),
    Column("KIND", lambda move: move["kind"]),
    Column("THIS HOST IS", lambda move: move["role"]),
    Column("STATE", lambda move: move["state"]),
    Column("SINCE", lambda move: local_time(move["since"])),
    Column("THE MIGRATION HOLDS", _migration_amounts),
)
"""The table in `plimsoll top`."""
