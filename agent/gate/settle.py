"""Ends the gate's claims and moves according to the guests that the driver reports.

A claim that the gate made lives as long as its guest is on this host, running or defined. A move that this
host began as the destination is confirmed or reverted by what the host then sees of the guest.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

from agent import log
from agent.claims.claim import Claim, ClaimState
from agent.claims.domain_demand import DISK, GATE_USER, with_disk
from agent.claims.refusal import label
from agent.driver import Guest, GuestState
from agent.errors import DoesNotFit, PlacementError, PlacementUnavailable, Refused, UnknownConsumer
from agent.gate.coverage import brought_in_by_gate, made_by_gate
from agent.gate.expected_guests import ExpectedGuests
from agent.moves.states import Move, MoveRole, MoveState
from agent.tracker.tracker import ResourceTracker

LOG = log.get(__name__)

GRACE_S = 60.0
"""A guest that the driver does not report so long after the gate let it in has not started."""

ARRIVED = frozenset({GuestState.RUNNING, GuestState.SUSPENDED})
ABSENT = frozenset({GuestState.SHUTOFF, GuestState.CRASHED})


@dataclass(frozen=True, slots=True)
class _Report:
    """The guests that the driver reported: {uuid: guest}. `ended`: those whose end libvirt reported before.

    `age_s` is how long ago the driver began to read.
    """

    guests: Mapping[str, Guest]
    ended: frozenset[str]
    age_s: float

    def is_late(self, age_s: float) -> bool:
        """Whether a guest that was let in so many seconds ago should have been there when the driver read."""
        return age_s - self.age_s > GRACE_S


class Settler:
    """Any thread may call; `settle` one at a time."""

    def __init__(self, tracker: ResourceTracker, expected: ExpectedGuests) -> None:
        self._tracker = tracker
        self._expected = expected
        self._too_large: frozenset[tuple[str, int]] = frozenset()

    def settle(self, guests: Collection[Guest], at: float) -> None:
        """End what is over, after the driver reported the guests; it began to read them at `at`.

        Stops while Placement asks for a pause; the next call continues. Raises PlacementUnavailable,
        StateError. Other refusals are logged, and the next call tries again.
        """
        ended = self._expected.ended_before(at)
        report = _Report({guest.uuid: guest for guest in guests}, ended, self._tracker.age_s(at))
        self._expected.give_up(at, GRACE_S)
        moves = [move for move in self._tracker.moves().values() if not move.ended]
        if self._tracker.is_placement_paused():
            return
        if self._free_departed(moves, report) or report.ended:
            self._try("moves are not followed", self._follow_moves)
        if not self._settle_moves(moves, report) or not self._settle_claims(moves, report):
            return
        self._too_large = frozenset(size for size in self._too_large if size[0] in report.guests)
        self._expected.forget_ended(report.ended)

    def _free_departed(self, moves: Collection[Move], report: _Report) -> bool:
        """Free the guests of the gate that have moved away; a definition that stays behind holds nothing."""
        claims = self._tracker.claims()
        departed = {
            move.instance
            for move in moves
            if move.role is MoveRole.SOURCE
            and move.old.request.user_id == GATE_USER
            and _is_absent(report.guests.get(move.instance))
        } | {
            guest
            for guest in self._tracker.circumstances().moved_away
            if guest in claims and made_by_gate(claims[guest]) and _is_absent(report.guests.get(guest))
        }
        for instance in departed:
            self._tracker.forget_guest(instance)
        if departed:
            self._tracker.deliver()
        return bool(departed)

    def _follow_moves(self) -> None:
        if not self._tracker.is_placement_paused():
            self._tracker.follow_moves()

    def _settle_moves(self, moves: Collection[Move], report: _Report) -> bool:
        """Returns False if Placement asks for a pause before the end."""
        for move in moves:
            if self._tracker.is_placement_paused():
                return False
            is_arrival = move.role is MoveRole.DESTINATION and move.state is MoveState.BEGUN
            if is_arrival and brought_in_by_gate(move):
                self._settle_arrival(move, report)
        return True

    def _settle_arrival(self, move: Move, report: _Report) -> None:
        guest = report.guests.get(move.instance)
        late, migration = report.is_late(self._tracker.age_s(move.since)), move.migration
        if guest is not None and (guest.state in ARRIVED or (guest.state is GuestState.PAUSED and late)):
            self._try(
                f"migration {migration} is not confirmed", lambda: self._tracker.confirm_move(migration)
            )
        elif _is_absent(guest) and (late or move.instance in report.ended):
            self._tracker.forget_guest(move.instance)
            let_in = partial(self._expected.is_let_in, move.instance)
            self._try(
                f"migration {migration} is not reverted",
                lambda: self._tracker.revert_move(migration, unless=let_in),
            )

    def _settle_claims(self, moves: Collection[Move], report: _Report) -> bool:
        """Returns False if Placement asks for a pause before the end."""
        moving = {consumer for move in moves for consumer in (move.instance, move.migration)}
        for claim in self._tracker.claims().values():
            if self._tracker.is_placement_paused():
                return False
            if made_by_gate(claim) and claim.state is ClaimState.CLAIMED and claim.consumer not in moving:
                self._settle_claim(claim, report)
        return True

    def _settle_claim(self, claim: Claim, report: _Report) -> None:
        guest = report.guests.get(claim.consumer)
        if guest is not None:
            self._try(f"the disks of {guest.uuid} are not claimed", lambda: self._claim_disk(claim, guest))
        elif claim.consumer in report.ended or report.is_late(self._tracker.age_s(claim.since)):
            self._release_unless_let_in(claim)

    def _claim_disk(self, claim: Claim, guest: Guest) -> None:
        """Extend the claim by the sizes of disks that were not known when the guest started."""
        request = with_disk(claim.request, guest)
        size = guest.uuid, guest.resources.get(DISK, 0)
        if guest.problem is not None or request == claim.request or size in self._too_large:
            return
        try:
            self._tracker.extend(claim, request)
        except DoesNotFit as error:
            self._too_large |= {size}
            LOG.warning(
                "The disks of %s (%d GiB) are in use and not claimed: %s",
                label(claim.request),
                size[1],
                error.message,
                fields={"consumer": claim.consumer},
            )

    def _release_unless_let_in(self, claim: Claim) -> None:
        """Release the claim, unless the gate lets the guest in on it just now, after the driver's report.

        The tracker asks for that when no other operation on the consumer is under way, and the gate takes
        note of the guest before it asks for the claim. So the claim on which a guest starts is not released,
        and neither is one that was made since.
        """

        def stays() -> bool:
            present = self._tracker.claim_of(claim.consumer)
            is_another = present is not None and present.since != claim.since
            return is_another or self._expected.is_let_in(claim.consumer)

        done = self._try(
            f"{claim.consumer} is not released", lambda: self._tracker.release(claim.consumer, unless=stays)
        )
        if done and self._tracker.claim_of(claim.consumer) is None:
            LOG.info(
                "Released %s: its guest is not on this host any more.",
                label(claim.request),
                fields={"consumer": claim.consumer},
            )

    def _try(self, problem: str, action: Callable[[], object]) -> bool:
        """Whether the action was done; a refusal is logged. Raises PlacementUnavailable, StateError."""
        try:
            action()
        except PlacementUnavailable:
            raise
        except UnknownConsumer:
            return False  # another pass, or a caller, has just ended it
        except (PlacementError, Refused) as error:
            LOG.warning("The gate: %s: %s", problem, error.message)
            return False
        return True


def _is_absent(guest: Guest | None) -> bool:
    return guest is None or guest.state in ABSENT
