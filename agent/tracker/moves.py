"""Moves, as the tracker offers them: begin, confirm, revert, and what is done without being asked.

Begin is asked of the destination. Confirm and revert may be asked of either side. What placement is not there
for is journaled, and done later.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from agent import log
from agent.claims.claim import Claim
from agent.claims.fit import check_placeable
from agent.claims.parse_request import ClaimRequest
from agent.errors import (
    ClaimConflict,
    PlacementError,
    PlacementUnavailable,
    Refused,
    UnknownConsumer,
    UsageError,
)
from agent.moves.states import Move, MoveKind, MoveState, MoveStep
from agent.placement.client import PlacementClient
from agent.tracker.begin_move import MoveAttempt
from agent.tracker.end_move import Settler
from agent.tracker.follow_moves import MoveFollower, Turn
from agent.tracker.register import Register

LOG = log.get(__name__)

ON_THE_WAY = frozenset(
    {MoveState.BEGINNING, MoveState.CONFIRMING, MoveState.REVERTING, MoveState.DELETING, MoveState.LEAVING}
)
BEGINNABLE = frozenset(set(MoveKind) - {MoveKind.UNKNOWN})


class Mover:
    """See the module's docstring; the tracker's part that has to do with moves. Any thread may call.

    `turn` gives one consumer alone; `guests` tells the uuids of the guests on this host; `check_open` raises
    ClaimsClosed; `silent` is told where placement does not answer and what was asked is journaled.
    """

    def __init__(
        self,
        register: Register,
        client: PlacementClient,
        clock: Callable[[], float],
        turn: Turn,
        guests: Callable[[], Collection[str]],
        check_open: Callable[[], None],
        silent: Callable[[PlacementUnavailable], None],
    ) -> None:
        self._register = register
        self._client = client
        self._clock = clock
        self._turn = turn
        self._guests = guests
        self._check_open = check_open
        self._silent = silent
        self._settler = Settler(register, client, guests)
        self._follower = MoveFollower(register, client, turn, guests, clock)

    def moves(self) -> Mapping[str, Move]:
        """{migration: move}: those under way, and the newest of those that ended."""
        with self._register.lock:
            return dict(self._register.moves)

    def begin(self, kind: MoveKind, migration: str, request: ClaimRequest) -> Move:
        """Begin a move of the request's consumer to this host; the same again gets the same answer.

        Raises UsageError, UnknownConsumer, ClaimsClosed, DoesNotFit, ClaimConflict, PlacementError,
        StateError; then all is as it was, unless placement did not say what it did: then it is undone later.
        """
        _check_asked(kind, migration, request)
        with self._turns(request.consumer, migration):
            self._check_open()
            present = self._present(migration, request.consumer)
            if present is not None and present.state is MoveState.BEGINNING:
                present = self._settler.settle(present)
            if present is not None and not present.ended:
                return _same(present, kind, request)
            if present is not None and present.state is not MoveState.REVERTED:
                raise ClaimConflict(
                    f"Migration {migration} was {present.state} already: give the next move its own uuid.",
                    migration=migration,
                )
            return MoveAttempt(self._register, self._client, self._clock, kind, migration, request).run()

    def confirm(self, migration: str, *, instance: str | None = None, now: bool = True) -> Move:
        """The instance stays at the destination, the source is free. The same again is no error.

        The move that is returned is `confirmed`; or `confirming`: placement is away, or (at the source) the
        guest has yet to go. `instance` says whose migration it is, where the source could not tell; `now`
        False: placement is known to be away. Raises UnknownConsumer, ClaimConflict (it was reverted),
        PlacementError, StateError.
        """
        return self._ended(migration, instance, MoveStep.CONFIRM, MoveState.CONFIRMED, now)

    def revert(self, migration: str, *, instance: str | None = None, now: bool = True) -> Move:
        """The instance has its old place again, with the same devices, and the destination is free.

        As `confirm`; `reverting` also while the guest has yet to leave the destination, so that nobody gets
        its place before it is clean.
        """
        return self._ended(migration, instance, MoveStep.REVERT, MoveState.REVERTED, now)

    def delete(self, move: Move, *, now: bool) -> bool:
        """The instance is released in the middle of its move: both parts go. True: they are gone.

        False: it is journaled; `now` False means that placement is known to be away.
        """
        with self._turns(move.instance, move.migration):
            with self._register.lock:
                present = self._register.moves[move.migration]
            if present.ended:
                raise UnknownConsumer(
                    f"The move of {move.instance} was {present.state} just now: ask again.",
                    consumer=move.instance,
                )
            if present.state is MoveState.LEAVING:
                raise ClaimConflict(
                    f"Migration {move.migration} of {move.instance} ended, and its guest is still on this "
                    "host: remove the guest, and what it has here is freed.",
                    consumer=move.instance,
                    migration=move.migration,
                )
            if present.state is not MoveState.DELETING:
                present = self._register.take(MoveStep.DELETE, present)
            return now and self._settled(present).ended

    def deliver(self, move: Move) -> bool:
        """Bring a move that is on its way to its end, or nearer to it; whether that could be done.

        Raises PlacementUnavailable, StateError; other refusals are logged and it stays pending.
        """
        with self._turns(move.instance, move.migration):
            with self._register.lock:
                present = self._register.moves.get(move.migration)
            if present is None or present.ended:
                return False
            try:
                return self._settler.settle(present).state is not present.state
            except PlacementUnavailable:
                raise
            except (PlacementError, Refused) as error:
                LOG.error("Pending: %s", error.message, fields={"migration": move.migration})
                return False

    def follow(self) -> int:
        """Learn from placement what became of the moves that others end; returns how many changed.

        Raises PlacementUnavailable, StateError; other refusals are logged.
        """
        with self._register.lock:
            under_way = [move for move in self._register.moves.values() if move.state is MoveState.BEGUN]
        done = sum(self.deliver(move) for move in under_way)
        return done + self._follower.follow()

    def took_over(self, claim: Claim) -> Move | None:
        """The move that took what a claim had on this host, if there is one; see `MoveFollower.took_over`."""
        return self._follower.took_over(claim)

    def pending(self) -> list[Move]:
        """Those that are on their way, the caller having the lock."""
        return [move for move in self._register.moves.values() if move.state in ON_THE_WAY]

    # Below

    def _ended(self, migration: str, hint: str | None, step: MoveStep, end: MoveState, now: bool) -> Move:
        known = self.moves().get(migration)
        if known is None and hint is not None:
            known = self._follower.hint(hint, migration)
        if known is None:
            raise UnknownConsumer(
                f"No migration {migration} is known on this host; `plimsoll move list` shows those that are. "
                "At the source, --instance says whose it is.",
                migration=migration,
            )
        with self._turns(known.instance, migration):
            with self._register.lock:
                move = self._register.moves[migration]
            if move.state is MoveState.BEGINNING:
                move = self._settler.settle(move)
            if move.ended:
                return _ended_as(move, end)
            if move.state is MoveState.BEGUN:
                move = self._register.take(step, move)
            elif move.state.value != ("confirming" if step is MoveStep.CONFIRM else "reverting"):
                raise ClaimConflict(
                    f"Migration {migration} of {move.instance} is {move.state} already.", migration=migration
                )
            return self._settled(move) if now or move.kind is MoveKind.REBUILD else move

    def _settled(self, move: Move) -> Move:
        try:
            return self._settler.settle(move)
        except PlacementUnavailable as error:
            LOG.warning("The end of migration %s waits for placement: %s", move.migration, error.message)
            self._silent(error)
            return move

    def _present(self, migration: str, instance: str) -> Move | None:
        """The move of that uuid. Raises ClaimConflict where either of the two is in another one."""
        with self._register.lock:
            for consumer in (instance, migration):
                other = self._register.move_of(consumer)
                if other is not None and (other.migration, other.instance) != (migration, instance):
                    raise ClaimConflict(
                        f"{other.instance} is moving already: migration {other.migration} ({other.kind}) is "
                        f"{other.state}.",
                        consumer=other.instance,
                        migration=other.migration,
                    )
            if migration in self._register.ledger.claims and self._register.move_of(migration) is None:
                raise ClaimConflict(f"{migration} is an instance with a claim, not a migration.")
            return self._register.moves.get(migration)

    @contextmanager
    def _turns(self, instance: str, migration: str) -> Iterator[None]:
        """In the order in which everybody takes several turns, so that no two wait for each other."""
        first, second = sorted((instance, migration))
        with self._turn(first), self._turn(second):
            yield


def _check_asked(kind: MoveKind, migration: str, request: ClaimRequest) -> None:
    check_placeable(request)
    if kind is MoveKind.LIVE_MIGRATE and request.topology.mem_page_size in ("large", "any"):
        raise UsageError(
            f"topology: a live migration keeps the size of the guest's pages, and {kind} with mem_page_size "
            f"{request.topology.mem_page_size} does not say which it is: ask for the size in KiB that "
            "`plimsoll explain` tells at the source.",
            migration=migration,
        )
    if kind not in BEGINNABLE:
        raise UsageError(f"kind: {kind} is no kind of move that can be begun.")
    if migration == request.consumer:
        raise UsageError(
            "migration: it needs a uuid of its own, and has the instance's.", migration=migration
        )


def _same(present: Move, kind: MoveKind, request: ClaimRequest) -> Move:
    asked = {kind, MoveKind.SAME_HOST_RESIZE} if kind is MoveKind.RESIZE else {kind}
    same = present.new is not None and present.new.request == request
    if same and present.state is MoveState.BEGUN and present.kind in asked:
        return present
    raise ClaimConflict(
        f"Migration {present.migration} of {present.instance} ({present.kind}) is {present.state} already, "
        "and asks for something else.",
        consumer=present.instance,
        migration=present.migration,
    )


def _ended_as(move: Move, end: MoveState) -> Move:
    if move.state is not end:
        raise ClaimConflict(
            f"Migration {move.migration} of {move.instance} was {move.state} already.",
            consumer=move.instance,
            migration=move.migration,
        )
    return move
