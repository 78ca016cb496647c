"""What the host can still give, and what would have to move, in the shapes of the local API."""

from collections.abc import Mapping
from typing import cast

from agent.api.shapes.capacity import CapacityShape, DefragMoveShape, DefragShape
from agent.api.shapes.requests import ClaimByGroupsShape
from agent.api.views import holding_of_fit, shortfall_view
from agent.claims.capacity import Capacity, Defrag, DefragMove
from agent.claims.claim import Claim
from agent.claims.parse_request import request_to_json
from agent.claims.request import ClaimRequest
from agent.moves.states import MoveKind


def capacity_view(request: ClaimRequest, capacity: Capacity, claims: Mapping[str, Claim]) -> CapacityShape:
    """How many guests fit; `claims` {consumer: claim} have the names of those that strand something."""
    return {
        "asked": dict(sorted(request.resources.items())),
        "guests": capacity.guests,
        "more": capacity.more,
        "shortfalls": [shortfall_view(shortfall) for shortfall in capacity.shortfalls],
        "stranded": [
            {
                "provider": stranded.provider,
                "provider_uuid": stranded.provider_uuid,
                "resource_class": stranded.resource_class,
                "free": stranded.free,
                "holders": [
                    {"consumer": holder, "name": claims[holder].request.name if holder in claims else ""}
                    for holder in stranded.holders
                ],
            }
            for stranded in capacity.stranded
        ],
    }


def defrag_view(request: ClaimRequest, found: Defrag) -> DefragShape:
    """The moves that make room."""
    return {
        "asked": dict(sorted(request.resources.items())),
        "possible": found.fit is not None,
        "place": holding_of_fit(found.fit) if found.fit is not None else None,
        "moves": [_move(move) for move in found.moves],
        "fewest": found.fewest,
        "shortfalls": [shortfall_view(shortfall) for shortfall in found.shortfalls],
    }


def _move(move: DefragMove) -> DefragMoveShape:
    return {
        "consumer": move.claim.consumer,
        "name": move.claim.request.name,
        "here": holding_of_fit(move.here) if move.here is not None else None,
        "kind": (MoveKind.LIVE_MIGRATE if move.is_live else MoveKind.COLD_MIGRATE).value,
        "request": cast(ClaimByGroupsShape, request_to_json(move.claim.request)),
    }
