"""The routes of moves: begin on the destination, confirm or revert on either side, and who holds what."""

from typing import Any

from agent.api.views import claim_view, moment
from agent.claims.claim import Claim
from agent.claims.parse_request import ClaimRequest, parse_claim
from agent.errors import UnknownConsumer
from agent.json_checks import read_choice, read_object, read_uuid
from agent.moves.states import Move, MoveKind, next_actor

Json = dict[str, Any]

KINDS = sorted(set(MoveKind) - {MoveKind.UNKNOWN})


def parse_move(body: object) -> tuple[MoveKind, str, ClaimRequest]:
    """The body of POST /v1/moves. Raises UsageError."""
    found = read_object(body, "move", {"migration", "kind", "request"})
    kind = MoveKind(read_choice(found.get("kind"), "kind", KINDS))
    migration = read_uuid(found.get("migration"), "migration")
    return kind, migration, parse_claim(found.get("request"))


def find(moves: tuple[Move, ...], migration: str) -> Move:
    """Raises UnknownConsumer."""
    for move in moves:
        if move.migration == migration:
            return move
    raise UnknownConsumer(
        f"No migration {migration} is known on this host; `plimsoll move list` shows those that are.",
        migration=migration,
    )


def moves_view(moves: tuple[Move, ...]) -> Json:
    return {"moves": [move_view(move) for move in moves]}


def move_view(move: Move) -> Json:
    """`handed` is what the migration holds as long as the move is under way; `next` whose turn it is."""
    return {
        "migration": move.migration,
        "instance": move.instance,
        "name": (move.new or move.old).request.name,
        "kind": move.kind.value,
        "role": move.role.value,
        "state": move.state.value,
        "next": next_actor(move),
        "ended": move.ended,
        "adopted": move.adopted,
        "since": moment(move.since),
        "handed": _held(move.old, dict(move.handed)),
        "old": claim_view(move.old),
        "new": claim_view(move.new) if move.new else None,
    }


def _held(old: Claim, handed: dict[str, Any]) -> Json:
    shown = claim_view(old)
    return {
        "allocations": {
            provider: {"resources": dict(sorted(resources.items()))}
            for provider, resources in sorted(handed.items())
        },
        "units": {provider: exact for provider, exact in shown["units"].items() if provider in handed},
        "cells": shown["cells"],
    }
