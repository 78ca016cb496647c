"""What a move is: its kinds, roles, states and steps, and what each state makes of the claims. Pure.

A move has a uuid of its own, the migration's, and that uuid is a consumer: while the move is under way the
migration holds what the instance held at the source, and the instance holds what it gets at the destination.
Who owns what at each step is in agent.moves.ownership; docs/moves.md tells it all together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest, RequestGroup
from agent.errors import ClaimConflict
from agent.shapes import Allocations

MIGRATION_TYPE = "MIGRATION"


class MoveKind(StrEnum):
    """UNKNOWN: the source has it from placement alone, which does not tell."""

    COLD_MIGRATE = "cold_migrate"
    RESIZE = "resize"
    SAME_HOST_RESIZE = "same_host_resize"
    LIVE_MIGRATE = "live_migrate"
    REBUILD = "rebuild"
    EVACUATE = "evacuate"
    UNKNOWN = "unknown"


class MoveRole(StrEnum):
    """What this host is in a move: BOTH in a same-host resize and in a rebuild."""

    SOURCE = "source"
    DESTINATION = "destination"
    BOTH = "both"


class MoveState(StrEnum):
    """The last three are ends: the claims live on by themselves then."""

    BEGINNING = "beginning"
    """Chosen, reserved and journaled; whether placement has it is not known."""
    BEGUN = "begun"
    """Each of instance and migration holds its own."""
    CONFIRMING = "confirming"
    """The migration's part shall go."""
    REVERTING = "reverting"
    """The instance shall have its old allocation back."""
    DELETING = "deleting"
    """The instance was released in the middle: both parts shall go."""
    LEAVING = "leaving"
    """Placement holds nothing of it here any more, but the guest is still on this host."""
    CONFIRMED = "confirmed"
    REVERTED = "reverted"
    DELETED = "deleted"


END_STATES = frozenset({MoveState.CONFIRMED, MoveState.REVERTED, MoveState.DELETED})


class MoveStep(StrEnum):
    """What can happen to a move; also the name of the event in the journal's history."""

    BEGIN = "move_begin"
    """The intent is on disk; nothing was sent to placement yet."""
    GRANT = "move_grant"
    """Placement holds both parts as they were chosen."""
    ADOPT = "move_adopt"
    """Placement holds both parts already, without a request of ours."""
    REFUSE = "move_refuse"
    """Placement holds nothing of the move (to begin), or refuses to take it back (to revert)."""
    CONFIRM = "move_confirm"
    REVERT = "move_revert"
    DELETE = "move_delete"
    """Asked for; on disk before anything is sent."""
    FREED = "move_freed"
    """The migration holds nothing any more and the instance has the new place."""
    RESTORED = "move_restored"
    """The migration holds nothing any more and the instance has the old place."""
    GONE = "move_gone"
    """Neither of the two holds anything any more."""
    LEAVE = "move_leave"
    """It ended, and this host lost it, but the guest is still here."""


_S, _T = MoveState, MoveStep

MOVE_TRANSITIONS: Mapping[tuple[MoveState | None, MoveStep], MoveState] = {
    (None, _T.BEGIN): _S.BEGINNING,
    (None, _T.ADOPT): _S.BEGUN,
    (_S.BEGINNING, _T.GRANT): _S.BEGUN,
    (_S.BEGINNING, _T.REFUSE): _S.REVERTED,
    (_S.BEGINNING, _T.REVERT): _S.REVERTING,
    (_S.BEGINNING, _T.DELETE): _S.DELETING,
    (_S.BEGUN, _T.CONFIRM): _S.CONFIRMING,
    (_S.BEGUN, _T.REVERT): _S.REVERTING,
    (_S.BEGUN, _T.DELETE): _S.DELETING,
    (_S.REVERTING, _T.REFUSE): _S.BEGUN,
    (_S.CONFIRMING, _T.DELETE): _S.DELETING,
    (_S.REVERTING, _T.DELETE): _S.DELETING,
    **{
        (state, step): end
        for state in (_S.BEGINNING, _S.BEGUN, _S.CONFIRMING, _S.REVERTING, _S.DELETING, _S.LEAVING)
        for step, end in (
            (_T.FREED, _S.CONFIRMED),
            (_T.RESTORED, _S.REVERTED),
            (_T.GONE, _S.DELETED),
        )
    },
    **{
        (state, _T.LEAVE): _S.LEAVING
        for state in (_S.BEGINNING, _S.BEGUN, _S.CONFIRMING, _S.REVERTING, _S.DELETING)
    },
    (_S.REVERTED, _T.BEGIN): _S.BEGINNING,  # the next try at another destination may use the same uuid
    # Placement holds something for a uuid that was used before: it has an owner again, whoever reused it.
    **{(end, _T.ADOPT): _S.BEGUN for end in (_S.REVERTED, _S.CONFIRMED, _S.DELETED)},
}
"""The whole life of a move on one host. What is not in it does not happen.

An end can come from any state: the other host, or the control plane, may finish a move, too.
"""


@dataclass(frozen=True, slots=True)
class Move:
    """The migration context of one host. `since` is seconds since the epoch, UTC.

    `old` and `new` are the instance's claim as it was at the source and as it is at the destination, with
    their exact units. The destination knows `old` only as placement held it; the source knows no `new`.
    `handed` is what the migration holds: `old` without what stays with the instance on shared providers.
    """

    migration: str
    instance: str
    kind: MoveKind
    role: MoveRole
    state: MoveState
    old: Claim
    new: Claim | None
    handed: Allocations
    since: float = 0.0
    adopted: bool = False

    @property
    def ended(self) -> bool:
        return self.state in END_STATES

    @property
    def waits_for_guest(self) -> bool:
        """Whether this host waits for the guest to go before it gives up what it has for the move."""
        if self.role is MoveRole.DESTINATION:
            return self.state is MoveState.REVERTING
        return self.role is MoveRole.SOURCE and self.state is MoveState.CONFIRMING


def next_actor(move: Move) -> str:
    """Who has to do something now for the move to go on, and what; a clause for people."""
    if move.ended:
        return "nobody: it has ended"
    if move.state is MoveState.BEGUN:
        where = "on this host" if move.role is MoveRole.BOTH else "on either host"
        return f"whoever began it: confirm or revert it, {where}"
    if move.state is MoveState.LEAVING:
        return "whoever runs the guest: remove it from this host"
    if move.waits_for_guest:
        return "the guest: once it has left this host, this agent goes on"
    return "this agent: as soon as placement answers"


def claims_of(move: Move) -> Mapping[str, Claim]:
    """{consumer: claim} of the move's two consumers on this host; whoever is not in it has none."""
    if move.kind is MoveKind.REBUILD:
        kept = move.old if move.state is MoveState.REVERTED else move.new
        return {move.instance: kept} if kept and move.state is not MoveState.DELETED else {}
    return {claim.consumer: claim for claim in (_instance_claim(move), _migration_claim(move)) if claim}


_NEW_STATES: Mapping[MoveState, ClaimState] = {
    _S.BEGINNING: ClaimState.CLAIMING,
    _S.BEGUN: ClaimState.CLAIMED,
    _S.CONFIRMING: ClaimState.CLAIMED,
    _S.CONFIRMED: ClaimState.CLAIMED,
    _S.REVERTING: ClaimState.RELEASING,
    _S.DELETING: ClaimState.RELEASING,
    _S.LEAVING: ClaimState.RELEASING,
}
_OLD_STATES: Mapping[MoveState, ClaimState] = {
    _S.BEGINNING: ClaimState.CLAIMING,
    _S.BEGUN: ClaimState.CLAIMED,
    _S.CONFIRMING: ClaimState.RELEASING,
    _S.REVERTING: ClaimState.RELEASING,
    _S.DELETING: ClaimState.RELEASING,
    _S.LEAVING: ClaimState.RELEASING,
}


def _instance_claim(move: Move) -> Claim | None:
    if move.state is MoveState.REVERTED:
        return None if move.role is MoveRole.DESTINATION else move.old
    state = _NEW_STATES.get(move.state)
    if move.role is MoveRole.SOURCE or move.new is None or state is None:
        return None
    return replace(move.new, state=state)


def _migration_claim(move: Move) -> Claim | None:
    state = _OLD_STATES.get(move.state)
    if move.role is MoveRole.DESTINATION or state is None:
        return None
    return replace(
        move.old,
        consumer=move.migration,
        state=state,
        request=request_for_allocations(
            move.migration,
            move.handed,
            name=move.old.request.name,
            project_id=move.old.request.project_id,
            user_id=move.old.request.user_id,
            consumer_type=MIGRATION_TYPE,
        ),
        allocations=move.handed,
    )


def request_for_allocations(
    consumer: str,
    allocations: Allocations,
    *,
    name: str = "",
    project_id: str = "plimsoll",
    user_id: str = "plimsoll",
    consumer_type: str = "INSTANCE",
) -> ClaimRequest:
    """A request for just what is held already."""
    total: dict[str, int] = {}
    for amounts in allocations.values():
        for resource_class, amount in amounts.items():
            total[resource_class] = total.get(resource_class, 0) + amount
    return ClaimRequest(
        consumer,
        (RequestGroup("", total),),
        name=name,
        project_id=project_id,
        user_id=user_id,
        consumer_type=consumer_type,
    )


def moving_conflict(move: Move) -> ClaimConflict:
    """The consumer is the instance or the migration of a move under way."""
    return ClaimConflict(
        f"{move.instance} is moving (migration {move.migration}, {move.kind}, {move.state}): confirm or "
        "revert that first.",
        consumer=move.instance,
        migration=move.migration,
    )
