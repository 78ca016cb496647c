"""Moves as JSON, for the journal and the local API; each value that is read is checked. Pure."""

from agent.claims.claim_json import Json, claim_to_json, read_allocations, read_claim
from agent.json_checks import read_choice, read_object, read_seconds, read_uuid
from agent.moves.states import Move, MoveKind, MoveRole, MoveState


def move_to_json(move: Move) -> Json:
    """The JSON form that `read_move` reads; `since` is seconds since 1970 (UTC)."""
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
        "instance_generation": move.instance_generation,
        "reverts_from": move.reverts_from,
    }


def read_move(value: object) -> Move:
    """The move of a JSON object. Raises UsageError where a value is missing or invalid."""
    record = read_object(value, "move")
    new, reverts_from = record.get("new"), record.get("reverts_from")
    return Move(
        read_uuid(record.get("migration"), "migration"),
        read_uuid(record.get("instance"), "instance"),
        MoveKind(read_choice(record.get("kind"), "kind", list(MoveKind))),
        MoveRole(read_choice(record.get("role"), "role", list(MoveRole))),
        MoveState(read_choice(record.get("state"), "state", list(MoveState))),
        read_claim(record.get("old")),
        None if new is None else read_claim(new),
        read_allocations(record.get("handed")),
        read_seconds(record.get("since"), "since"),
        record.get("adopted") is True,
        generation if isinstance(generation := record.get("instance_generation"), int) else None,
        None if reverts_from is None else read_allocations(reverts_from),
    )
