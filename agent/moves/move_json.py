"""Moves as JSON, in the journal and in the local API."""

from agent.claims.claim_json import Json, claim_to_json, read_allocations, read_claim, read_since
from agent.json_checks import read_choice, read_object, read_uuid
from agent.moves.states import Move, MoveKind, MoveRole, MoveState


def move_to_json(move: Move) -> Json:
    """What `read_move` reads; `since` is seconds since 1970."""
    return {
        "migration": move.migration,
        "instance": move.instance,
        "kind": move.kind.value,
        "role": move.role.value,
        "state": move.state.value,
        "old": claim_to_json(move.old),
        "new": claim_to_json(move.new) if move.new else None,
        "handed": move.handed,
        "since": move.since,
        "adopted": move.adopted,
    }


def read_move(value: object) -> Move:
    """Raises UsageError where it makes no sense."""
    found = read_object(value, "move")
    new = found.get("new")
    return Move(
        read_uuid(found.get("migration"), "migration"),
        read_uuid(found.get("instance"), "instance"),
        MoveKind(read_choice(found.get("kind"), "kind", list(MoveKind))),
        MoveRole(read_choice(found.get("role"), "role", list(MoveRole))),
        MoveState(read_choice(found.get("state"), "state", list(MoveState))),
        read_claim(found.get("old")),
        None if new is None else read_claim(new),
        read_allocations(found.get("handed")),
        read_since(found.get("since")),
        found.get("adopted") is True,
    )
