"""A move: its kinds, roles, states and steps, and the claims that follow from each state. Pure.

The uuid of a move is that of its migration, which is a consumer in Placement. While the move is under way,
the migration has what the instance had at the source, and the instance has what it gets at the destination.
agent.moves.ownership has the allocations at each step, and docs/moves.md describes the whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest, RequestGroup
from agent.errors import ClaimConflict
from agent.shapes import Allocations, Uuid, by_class

MIGRATION_TYPE = "MIGRATION"


class MoveKind(StrEnum):
    """The kind of a move; UNKNOWN where the source knows the move only from Placement."""

    COLD_MIGRATE = "cold_migrate"
    RESIZE = "resize"
    SAME_HOST_RESIZE = "same_host_resize"
    LIVE_MIGRATE = "live_migrate"
    REBUILD = "rebuild"
    EVACUATE = "evacuate"
    UNKNOWN = "unknown"


class MoveRole(StrEnum):
    """This host's part in a move; BOTH in a same-host resize and in a rebuild."""

    SOURCE = "source"
    DESTINATION = "destination"
    BOTH = "both"


class MoveState(StrEnum):
    """The state of a move on one host; in the last three it has ended, and its claims live on."""

    BEGINNING = "beginning"
    """The resources are chosen, reserved and journaled; whether Placement has them is not known."""
    BEGUN = "begun"
    """Instance and migration have their allocations."""
    CONFIRMING = "confirming"
    """The migration's allocation is to be removed."""
    REVERTING = "reverting"
    """The instance is to get its old allocation back."""
    DELETING = "deleting"
    """The instance was released during the move: both allocations are to be removed."""
    LEAVING = "leaving"
    """Placement has nothing of the move on this host any more, but the guest is still here."""
    CONFIRMED = "confirmed"
    REVERTED = "reverted"
    DELETED = "deleted"


END_STATES = frozenset({MoveState.CONFIRMED, MoveState.REVERTED, MoveState.DELETED})


class MoveStep(StrEnum):
    """A step in the life of a move; its value is also the name of the event in the journal's history."""

    BEGIN = "move_begin"
    """The intent is journaled; nothing was sent to Placement yet."""
    GRANT = "move_grant"
    """Placement has both allocations as chosen."""
    ADOPT = "move_adopt"
    """Placement already has both allocations, without a request of this agent."""
    REFUSE = "move_refuse"
    """Placement has nothing of the move (to begin), or refuses to take it back (to revert)."""
    FOUND = "move_found"
    """The agent read what the move's record did not have: where a reshape of the source put the migration's
    allocation, or what the instance holds before the source reverts."""
    CONFIRM = "move_confirm"
    REVERT = "move_revert"
    DELETE = "move_delete"
    """CONFIRM, REVERT and DELETE are requests; they are journaled before anything is sent."""
    FREED = "move_freed"
    """The migration has no allocation any more, and the instance has the new one."""
    RESTORED = "move_restored"
    """The migration has no allocation any more, and the instance has the old one."""
    GONE = "move_gone"
    """Neither of the two has an allocation any more."""
    LEAVE = "move_leave"
    """The move ended and this host is not the instance's any more, but the guest is still here."""


_S, _T = MoveState, MoveStep

MOVE_TRANSITIONS: Mapping[tuple[MoveState | None, MoveStep], MoveState] = {
    (None, _T.BEGIN): _S.BEGINNING,
    (None, _T.ADOPT): _S.BEGUN,
    (_S.BEGINNING, _T.GRANT): _S.BEGUN,
    (_S.BEGINNING, _T.REFUSE): _S.REVERTED,
    (_S.BEGINNING, _T.REVERT): _S.REVERTING,
    (_S.BEGINNING, _T.DELETE): _S.DELETING,
    (_S.BEGUN, _T.FOUND): _S.BEGUN,
    (_S.BEGUN, _T.CONFIRM): _S.CONFIRMING,
    (_S.BEGUN, _T.REVERT): _S.REVERTING,
    (_S.BEGUN, _T.DELETE): _S.DELETING,
    (_S.REVERTING, _T.REFUSE): _S.BEGUN,
    (_S.REVERTING, _T.FOUND): _S.REVERTING,
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
    (_S.REVERTED, _T.BEGIN): _S.BEGINNING,  # a later attempt may reuse the uuid
    # Placement has an allocation for a uuid that was used before: the move is adopted again.
    **{(end, _T.ADOPT): _S.BEGUN for end in (_S.REVERTED, _S.CONFIRMED, _S.DELETED)},
}
"""{(state, step): next state}, all transitions of a move on one host; None stands for no move.

An end can follow any state, because the other host or the control plane may finish the move, too.
"""


@dataclass(frozen=True, slots=True)
class Move:
    """The migration context of one host. `since` is seconds since 1970 (UTC).

    `old` and `new` are the instance's claims at the source and at the destination, with their exact units.
    The destination knows `old` only from Placement, without exact units; the source does not know `new`.
    `handed` is the allocation of the migration: `old` without what stays with the instance on shared
    providers. `adopted`: Placement had the allocations without a request of this agent.

    `instance_generation` is the generation that the instance had in Placement when the source learned of the
    move, None if it is not known. While it is the same, no client wrote the instance, so no revert did.
    `reverts_from` are the allocations from which the source takes the instance back, since it was asked to.
    """

    migration: Uuid
    instance: Uuid
    kind: MoveKind
    role: MoveRole
    state: MoveState
    old: Claim
    new: Claim | None
    handed: Allocations
    since: float
    adopted: bool = False
    instance_generation: int | None = None
    reverts_from: Allocations | None = None

    @property
    def name(self) -> str:
        """The instance's name; "" where it has none."""
        return (self.new and self.new.request.name) or self.old.request.name

    @property
    def label(self) -> str:
        """The instance in a sentence: "name (uuid)", or its uuid where it has no name."""
        return f"{self.name} ({self.instance})" if self.name else self.instance

    @property
    def ended(self) -> bool:
        """Whether the move is confirmed, reverted or deleted."""
        return self.state in END_STATES

    @property
    def waits_for_guest(self) -> bool:
        """Whether this host waits until the guest has left before it frees its resources."""
        if self.role is MoveRole.DESTINATION:
            return self.state is MoveState.REVERTING
        return self.role is MoveRole.SOURCE and self.state is MoveState.CONFIRMING


def claims_of(move: Move) -> Mapping[str, Claim]:
    """{consumer: claim} of the instance and the migration on this host, as far as they have one."""
    if move.kind is MoveKind.REBUILD:
        claim = move.old if move.state is MoveState.REVERTED else move.new
        return {move.instance: claim} if claim and move.state is not MoveState.DELETED else {}
    claims: list[Claim] = []
    new_state, old_state = _NEW_STATES.get(move.state), _OLD_STATES.get(move.state)
    if move.state is MoveState.REVERTED and move.role is not MoveRole.DESTINATION:
        claims.append(move.old)
    if new_state is not None and move.new is not None and move.role is not MoveRole.SOURCE:
        claims.append(replace(move.new, state=new_state))
    if old_state is not None and move.role is not MoveRole.DESTINATION:
        owner = replace(move.old.request, consumer=move.migration, consumer_type=MIGRATION_TYPE)
        claims.append(
            replace(
                move.old,
                consumer=move.migration,
                state=old_state,
                request=request_for_allocations(owner, move.handed),
                allocations=move.handed,
            )
        )
    return {claim.consumer: claim for claim in claims}


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


def request_for_allocations(owner: ClaimRequest, allocations: Allocations) -> ClaimRequest:
    """A request of the owner's consumer for exactly the amounts of these allocations."""
    return ClaimRequest(
        owner.consumer,
        (RequestGroup("", by_class(allocations.values())),),
        name=owner.name,
        project_id=owner.project_id,
        user_id=owner.user_id,
        consumer_type=owner.consumer_type,
    )


def moving_release(move: Move) -> ClaimConflict:
    """The error for the release, without force, of an instance that moves to this host."""
    return ClaimConflict(
        f"{move.label} is moving (migration {move.migration}, {move.kind}, {move.state}): a release frees "
        "its place on the other host as well, where its guest may run. Revert the move (`plimsoll move "
        f"revert {move.migration}`), or use --force.",
        consumer=move.instance,
        migration=move.migration,
    )


def moving_conflict(move: Move) -> ClaimConflict:
    """The error for a request about the instance or the migration of a move under way."""
    what_to_do = (
        f"confirm or revert that first (`plimsoll move confirm {move.migration}` or "
        f"`plimsoll move revert {move.migration}`)"
    )
    if move.state is MoveState.LEAVING:
        what_to_do = "that move has ended, and the guest is still on this host: remove the guest first"
    return ClaimConflict(
        f"{move.label} is moving (migration {move.migration}, {move.kind}, {move.state}): {what_to_do}.",
        consumer=move.instance,
        migration=move.migration,
    )
