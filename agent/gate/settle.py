"""What becomes of what the gate let in, once the host was looked at: a claim ends, or grows, or moves.

A claim that the gate made lives as long as its guest is on this host, running or defined. A migration that
this host, the destination, began ends by what it then sees of the guest.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

from agent import log
from agent.claims.claim import Claim, ClaimState
from agent.claims.refusal import label
from agent.driver import Guest, GuestState
from agent.errors import DoesNotFit, PlacementError, PlacementUnavailable, Refused
from agent.gate.domain_request import DISK, GATE_USER, made_by_gate, with_disk
from agent.moves.states import Move, MoveRole, MoveState
from agent.tracker.tracker import ResourceTracker

LOG = log.get(__name__)

GRACE_S = 60.0
"""A guest that is not seen so long after it was let in has not come."""

ARRIVED = frozenset({GuestState.RUNNING, GuestState.SUSPENDED})
ABSENT = frozenset({GuestState.SHUTOFF, GuestState.CRASHED})


class Settler:
    """Any thread may call."""

    def __init__(self, tracker: ResourceTracker, clock: Callable[[], float] = time.time) -> None:
        self._tracker = tracker
        self._clock = clock
        self._lock = threading.Lock()
        self._left: dict[str, float] = {}
        self._let_in: dict[str, float] = {}
        self._too_large: frozenset[tuple[str, int]] = frozenset()

    def comes(self, guest: Guest) -> None:
        """It was let in, or is about to be."""
        with self._lock:
            self._left.pop(guest.uuid, None)
            self._let_in[guest.uuid] = self._clock()

    def went(self, guest: Guest) -> None:
        """It is gone: its claim goes once it is seen to be neither running nor defined."""
        self._tracker.forget_guest(guest.uuid)
        with self._lock:
            self._tracker.expect_no_more(guest.uuid)
            self._let_in.pop(guest.uuid, None)
            self._left[guest.uuid] = self._clock()

    def settle(self, guests: Collection[Guest], at: float) -> None:
        """After a look at the host that began `at` (seconds since the epoch): end what is over.

        Once placement is to be spared, the next look goes on with the rest.
        Raises PlacementUnavailable, StateError; other refusals are logged, and tried again at the next look.
        """
        here = {guest.uuid: guest for guest in guests}
        with self._lock:
            left = {uuid for uuid, when in self._left.items() if when < at}
        self._expect_no_more(at)
        moves = [move for move in self._tracker.moves().values() if not move.ended]
        if self._tracker.is_placement_paused():
            return
        if self._freed(moves, here) or left:
            self._tried("moves are not followed", self._follow)
        for move in moves:
            if self._tracker.is_placement_paused():
                return
            self._settle_arrival(move, here.get(move.instance), move.since + GRACE_S < at, left)
        moving = {each for move in moves for each in (move.instance, move.migration)}
        for claim in self._tracker.claims().values():
            if self._tracker.is_placement_paused():
                return
            if not made_by_gate(claim) or claim.state is not ClaimState.CLAIMED or claim.consumer in moving:
                continue
            guest = here.get(claim.consumer)
            if guest is not None:
                self._tried(
                    f"the disks of {guest.uuid} are not claimed", partial(self._measure, claim, guest)
                )
            elif (claim.consumer in left or claim.since + GRACE_S < at) and not self._may_come(claim):
                self._release(claim)
        self._too_large = frozenset(size for size in self._too_large if size[0] in here)
        with self._lock:
            for uuid in left:
                self._left.pop(uuid, None)

    def _follow(self) -> None:
        if not self._tracker.is_placement_paused():
            self._tracker.follow_moves()

    def _expect_no_more(self, at: float) -> None:
        """Those that were let in so long ago; one that was let in again meanwhile is expected."""
        with self._lock:
            for uuid in [uuid for uuid, when in self._let_in.items() if when + GRACE_S < at]:
                self._tracker.expect_no_more(uuid)
                del self._let_in[uuid]

    def _may_come(self, claim: Claim) -> bool:
        """Whether its guest was let in by a claim that it had: the look may have been before it came."""
        with self._lock:
            return claim.consumer in self._let_in

    def _settle_arrival(self, move: Move, guest: Guest | None, late: bool, left: Collection[str]) -> None:
        if move.role is not MoveRole.DESTINATION or move.state is not MoveState.BEGUN or not _is_gates(move):
            return
        tracker, migration = self._tracker, move.migration
        if guest is not None and (guest.state in ARRIVED or (guest.state is GuestState.PAUSED and late)):
            self._tried(f"migration {migration} is not confirmed", lambda: tracker.confirm_move(migration))
        elif (guest is None or guest.state in ABSENT) and (late or move.instance in left):
            self._tracker.forget_guest(move.instance)
            self._tried(f"migration {migration} is not reverted", lambda: tracker.revert_move(migration))

    def _freed(self, moves: Collection[Move], here: Mapping[str, Guest]) -> bool:
        """Whether guests of the gate have moved away: a definition that stays behind holds nothing."""
        found = False
        for move in moves:
            if move.role is MoveRole.SOURCE and move.old.request.user_id == GATE_USER:
                guest = here.get(move.instance)
                if guest is None or guest.state in ABSENT:
                    self._tracker.forget_guest(move.instance)
                    found = True
        if found:
            self._tracker.deliver()
        return found

    def _measure(self, claim: Claim, guest: Guest) -> None:
        """The sizes of its disks may not have been known when it started."""
        request = with_disk(claim.request, guest)
        size = guest.uuid, guest.resources.get(DISK, 0)
        if guest.problem is not None or request == claim.request or size in self._too_large:
            return
        try:
            self._tracker.extend(claim, request)  # where it was claimed anew since, the next look decides
        except DoesNotFit as error:
            self._too_large |= {size}
            LOG.warning(
                "The disks of %s (%d GiB) are in use and not claimed: %s",
                label(claim.request),
                size[1],
                error.message,
                fields={"consumer": claim.consumer},
            )

    def _release(self, claim: Claim) -> None:
        if self._tried(f"{claim.consumer} is not released", lambda: self._tracker.release(claim.consumer)):
            LOG.info(
                "Released %s: it is on this host no more.",
                label(claim.request),
                fields={"consumer": claim.consumer},
            )

    def _tried(self, what: str, action: Callable[[], object]) -> bool:
        try:
            action()
        except PlacementUnavailable:
            raise
        except (PlacementError, Refused) as error:
            LOG.warning("The gate: %s: %s", what, error.message)
            return False
        return True


def _is_gates(move: Move) -> bool:
    return move.new is not None and move.new.request.user_id == GATE_USER
