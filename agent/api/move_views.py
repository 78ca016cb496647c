"""Requests for moves, and moves in the shapes of the local API."""

from collections.abc import Callable, Mapping

from agent.api.shapes.claims import ClaimShape, HoldingShape
from agent.api.shapes.moves import MoveShape, MovesShape
from agent.api.views import allocations_view, claim_view, moment
from agent.claims.device_profiles import DeviceProfiles
from agent.claims.parse_request import parse_addition, parse_claim, read_domain
from agent.claims.request import ClaimRequest
from agent.errors import UnknownConsumer
from agent.json_checks import read_choice, read_object, read_uuid
from agent.moves.circumstances import Circumstances, next_actor
from agent.moves.states import Move, MoveKind
from agent.shapes import Allocations
from agent.tree import ProviderTree

KINDS = sorted(set(MoveKind) - {MoveKind.UNKNOWN})


def parse_move(
    body: object, profiles: DeviceProfiles | None = None
) -> tuple[MoveKind, str, ClaimRequest, str | None]:
    """(kind, migration, request, domain) from the body of POST /v1/moves.

    The domain is its XML, to which the request then adds, or None. `profiles` as for `parse_claim`.
    Raises UsageError where the body is wrong.
    """
    given = read_object(body, "move", {"migration", "kind", "request", "domain", "consumer"})
    kind = MoveKind(read_choice(given.get("kind"), "kind", KINDS))
    migration = read_uuid(given.get("migration"), "migration")
    if given.get("domain") is None:
        return kind, migration, parse_claim(given.get("request"), profiles), None
    asked = parse_addition(given.get("request", {}), read_uuid(given.get("consumer"), "consumer"), profiles)
    return kind, migration, asked, read_domain(given["domain"], "domain")


def find_move(moves: tuple[Move, ...], migration: str) -> Move:
    """The move of a migration. Raises UnknownConsumer where this host takes no part in it."""
    for move in moves:
        if move.migration == migration:
            return move
    raise UnknownConsumer(
        f"No migration {migration} is known on this host; `plimsoll move list --all` lists those that are.",
        migration=migration,
    )


def moves_view(
    moves: tuple[Move, ...],
    seen: Circumstances,
    name_of: Callable[[str], str],
    tree: ProviderTree,
    providers: Mapping[str, str],
) -> MovesShape:
    """The moves that this host takes part in, each as by `move_view`."""
    return {"moves": [move_view(move, seen, name_of, tree, providers) for move in moves]}


def move_view(
    move: Move,
    seen: Circumstances,
    name_of: Callable[[str], str],
    tree: ProviderTree,
    providers: Mapping[str, str],
) -> MoveShape:
    """A move, with the claims before and after it, and who acts next in what this host sees.

    `name_of` returns a consumer's name, "" where it has none; `tree` are the host's providers, `providers` is
    {uuid: name} of those of any host whose names are known.
    """
    old = claim_view(move.old, tree)
    return {
        "migration": move.migration,
        "instance": move.instance,
        "name": name_of(move.instance) or (move.new or move.old).request.name or move.old.request.name,
        "kind": move.kind.value,
        "role": move.role.value,
        "state": move.state.value,
        "next": next_actor(move, seen),
        "ended": move.ended,
        "adopted": move.adopted,
        "since": moment(move.since),
        "handed": _handed(old, move.handed),
        "old": old,
        "new": claim_view(move.new, tree) if move.new else None,
        "providers": {uuid: providers[uuid] for uuid in sorted(providers_of(move)) if uuid in providers},
    }


def providers_of(move: Move) -> set[str]:
    """The uuids of the providers of both places."""
    return {*move.old.allocations, *move.handed, *(move.new.allocations if move.new else ())}


def _handed(old: ClaimShape, handed: Allocations) -> HoldingShape:
    """The migration's part of the old claim."""
    return {
        "allocations": allocations_view(handed),
        "units": {provider: exact for provider, exact in old["units"].items() if provider in handed},
        "cells": old["cells"],
    }
