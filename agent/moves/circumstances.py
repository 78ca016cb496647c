"""What is there beside a move's record, who must act next for the move to progress, and what consumers are
called. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.backoff import BUSY_MAX_S
from agent.claims.claim import Claim
from agent.driver import Guest
from agent.moves.states import Move, MoveRole, MoveState


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What this host sees.

    `guests` are the uuids of the guests that the driver reports, and `moved_away` those of them whose
    instance is on another host, by Placement. `holders` are the consumers that hold something on this host,
    as Placement was last read; None: not read yet. `placement_away`: Placement does not answer. `refusals` is
    {instance, or another consumer: why Placement refuses what waits for it}.
    """

    guests: frozenset[str] = frozenset()
    moved_away: frozenset[str] = frozenset()
    holders: frozenset[str] | None = None
    placement_away: bool = False
    refusals: Mapping[str, str] = field(default_factory=dict)


def moved_away_advice(name: str, uuid: str) -> str:
    """What a guest that is here and whose instance is on another host is, and what to do, in sentences."""
    return (
        f"The guest {name} ({uuid}) has MOVED AWAY: it is on this host, and by Placement its instance is on "
        "another one. Usually, remove it here (with libvirt: virsh destroy and virsh undefine). If it is the "
        "right one, remove the other guest and release its claim there; then `plimsoll look`, and "
        "`plimsoll audit --heal` gives this one its place here. What it uses here is given to no other guest."
    )


def refusal_advice(reason: str) -> str:
    """That Placement refuses for good what this agent asks of it, and when that is tried again; a clause."""
    return (
        f"Placement refuses it, and the agent tries again in at most {BUSY_MAX_S / 60:g} minutes, or at once "
        f"with `plimsoll look`: {reason.rstrip('.')}"
    )


def next_actor(move: Move, seen: Circumstances) -> str:
    """Who must act next for the move to progress, and how; a clause for people."""
    guest_is_here = move.instance in seen.guests
    if move.ended:
        return "none: the move has ended"
    # Whether another client has ended the move, and this host, the source, must still learn how.
    if move.state is MoveState.BEGUN and not (
        move.role is MoveRole.SOURCE and seen.holders is not None and move.migration not in seen.holders
    ):
        return f"the service that began it: {_how_to_end(move, guest_is_here=guest_is_here)}"
    if move.state is MoveState.LEAVING and guest_is_here:
        return "the service that runs the guest: the move has ended, so remove the guest from this host"
    if move.waits_for_guest and guest_is_here:
        return "the guest: when it has left this host, this agent continues"
    if seen.placement_away:
        return "Placement: it does not answer, and this agent continues when it does"
    if move.instance in seen.refusals:
        return f"the operator: {refusal_advice(seen.refusals[move.instance])}"
    if move.state is MoveState.BEGUN:
        return "this agent: the migration holds nothing here any more, and the next verification shows why"
    return "this agent: it continues with its next verification"


def _how_to_end(move: Move, *, guest_is_here: bool) -> str:
    match move.role, guest_is_here:
        case MoveRole.BOTH, _:
            return "change the guest and confirm the move, or revert it, on this host"
        case MoveRole.DESTINATION, True:
            return "the guest is on this host; confirm the move, on either host"
        case MoveRole.DESTINATION, False:
            return "bring the guest to this host and confirm the move, or revert it, on either host"
        case _, True:
            return "the guest is still here; carry it over and confirm the move, or revert it, on either host"
        case _:
            return "the guest has left this host; confirm the move, or revert it, on either host"


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
