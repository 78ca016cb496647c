"""What is left to do: releases, claims in doubt and ends of moves that wait for placement, or for a guest."""

from collections.abc import Callable, Collection

from agent import log
from agent.claims.claim import Claim, ClaimState
from agent.claims.late import Late
from agent.claims.register import Register
from agent.claims.request import ClaimRequest
from agent.claims.turns import Turns
from agent.errors import PlacementError, PlacementUnavailable, Refused
from agent.moves.mover import Mover

LOG = log.get(__name__)

DELIVERED_MAX = 64


class Delivery:
    """The tracker's part that has to do with that. Any thread may call.

    `guests` tells the uuids of the guests on this host; `attempt` tries an intent in doubt once more,
    `resolve` takes a claim out of placement; `silent` is told where placement does not answer.
    """

    def __init__(
        self,
        register: Register,
        turns: Turns,
        mover: Mover,
        late: Late,
        guests: Callable[[], Collection[str]],
        attempt: Callable[[ClaimRequest, Claim], Claim],
        resolve: Callable[[Claim], None],
        silent: Callable[[PlacementUnavailable], None],
    ) -> None:
        self._register = register
        self._turns = turns
        self._mover = mover
        self._late = late
        self._guests = guests
        self._attempt = attempt
        self._resolve = resolve
        self._silent = silent

    @property
    def pending(self) -> int:
        """How many there are, those that are late and not resolved yet among them."""
        with self._register.lock:
            return len(self._pending()) + self._mover.pending

    def deliver(self, limit: int | None) -> int:
        """See `ResourceTracker.deliver`."""
        try:
            done = self._mover.deliver(limit)
        except PlacementUnavailable as error:
            self._silent(error)
            return 0
        with self._register.lock:
            waiting = [consumer for consumer in self._pending() if not self._waits(consumer)][:limit]
        for consumer in waiting:
            try:
                done += self._deliver(consumer)
            except PlacementUnavailable as error:
                self._silent(error)
                break
            except (PlacementError, Refused) as error:
                LOG.error("Pending: %s", error.message, fields={"consumer": consumer})
        return done

    def _deliver(self, consumer: str) -> bool:
        """Whether there was something to resolve. Raises ClaimConflict where its turn does not come."""
        with self._turns.of(consumer):
            with self._register.lock:
                present = self._register.ledger.claims.get(consumer)
                kept, waits = self._is_kept(consumer), self._waits(consumer)
            if present is None or present.state is ClaimState.CLAIMED or waits:
                return False
            if kept:
                self._finish(present)
            else:
                self._resolve(present)
            return True

    def _pending(self) -> list[str]:
        return [
            consumer
            for consumer, claim in self._register.ledger.claims.items()
            if claim.state is not ClaimState.CLAIMED
            and not self._turns.under_way(consumer)
            and self._register.move_of(consumer) is None
        ]

    def _is_kept(self, consumer: str) -> bool:
        """Whether the guest of an interrupted claim is there."""
        return consumer in self._guests() and self._register.state_of(consumer) is ClaimState.CLAIMING

    def _waits(self, consumer: str) -> bool:
        """What may be done late is not undone before it."""
        return consumer in self._late and not self._is_kept(consumer)

    def _finish(self, intent: Claim) -> None:
        """The guest of an interrupted claim is there: it keeps what was chosen for it."""
        try:
            self._attempt(intent.request, intent)
        except Refused as error:
            LOG.error(
                "The guest of an interrupted claim is here without a claim: %s",
                error.message,
                fields={"consumer": intent.consumer},
            )
