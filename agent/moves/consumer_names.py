"""What the consumers of this host are called. Pure."""

from collections.abc import Iterable, Mapping

from agent.claims.claim import Claim
from agent.driver import Guest
from agent.moves.states import Move


def consumer_names(
    guests: Iterable[Guest], claims: Iterable[Claim], moves: Iterable[Move]
) -> Mapping[str, str]:
    """{consumer: name}: the name of its guest, of its claim, or of its migration's instance.

    A consumer without a name is missing, or has "".
    """
    moves = tuple(moves)
    names: dict[str, str] = {}
    for move in moves:
        for claim in (move.old, move.new):
            if claim is not None and claim.request.name:
                names |= dict.fromkeys((move.instance, move.migration), claim.request.name)
    names |= {claim.consumer: claim.request.name for claim in claims if claim.request.name}
    names |= {guest.uuid: guest.name for guest in guests}
    arriving = (move for move in moves if not names.get(move.migration))
    return names | {move.migration: names.get(move.instance, "") for move in arriving}
