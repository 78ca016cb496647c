"""What is left to do: releases, claims in doubt and ends of moves that wait for placement, or for a guest."""

from collections.abc import Callable, Collection
from functools import partial

from agent import log
from agent.backoff import Backoff
from agent.claims.claim import Claim, ClaimState
from agent.claims.parse_request import ClaimRequest
from agent.errors import PlacementError, PlacementUnavailable, Refused
from agent.tracker.late_answers import LateAnswers
from agent.tracker.moves import Mover
from agent.tracker.register import Register
from agent.tracker.turns import Turns

LOG = log.get(__name__)

DELIVERED_MAX = 64

_Work = tuple[str, Callable[[], bool]]
"""An instance or consumer, and what delivers it."""


class Delivery:
    """The tracker's part that has to do with that. Any thread may call.

    `guests` tells the uuids of the guests on this host; `attempt` tries an intent in doubt once more,
    `resolve` takes a claim out of placement; `silent` is told where placement does not answer. It may be one
    consumer alone that it never answers for: that one goes last, is asked for when `patience` lets it, and
    closes nobody's host.
    """

    def __init__(
        self,
        register: Register,
        turns: Turns,
        mover: Mover,
        late: LateAnswers,
        guests: Callable[[], Collection[str]],
        attempt: Callable[[ClaimRequest, Claim], Claim],
        resolve: Callable[[Claim], None],
        silent: Callable[[PlacementUnavailable], None],
        patience: Backoff,
    ) -> None:
        self._register = register
        self._turns = turns
        self._mover = mover
        self._late = late
        self._guests = guests
        self._attempt = attempt
        self._resolve = resolve
        self._silent = silent
        self._patience = patience
        self._unanswered: frozenset[str] = frozenset()

    @property
    def pending(self) -> int:
        """How many there are, those that are late and not resolved yet among them."""
        with self._register.lock:
            return len(self._pending()) + len(self._mover.pending())

    def deliver(self, limit: int | None) -> int:
        """See `ResourceTracker.deliver`."""
        done, silent = 0, False
        for consumer, deliver in self._in_turn(limit):
            try:
                done += deliver()
            except PlacementUnavailable as error:
                self._unanswered |= {consumer}
                if silent or not _may_be_alone(error):
                    self._patience.succeeded()  # it is the host that waits
                    self._silent(error)
                    return done
                silent = True
                LOG.warning("%s goes last: %s", consumer, error.message, fields={"consumer": consumer})
            except (PlacementError, Refused) as error:
                LOG.error("Pending: %s", error.message, fields={"consumer": consumer})
            else:
                self._unanswered -= {consumer}
        if silent:
            self._patience.failed(busy=True)
        elif not self._unanswered:
            self._patience.succeeded()
        return done

    def _in_turn(self, limit: int | None) -> list[_Work]:
        """What waits, of each kind at most `limit`; last what got no answer, and not before it is time."""
        with self._register.lock:
            moves: list[_Work] = [
                (move.instance, partial(self._mover.deliver, move)) for move in self._mover.pending()
            ]
            claims: list[_Work] = [
                (each, partial(self._deliver, each)) for each in self._pending() if not self._waits(each)
            ]
        self._unanswered &= {consumer for consumer, _ in (*moves, *claims)}
        too_soon = self._unanswered if self._patience.left_s() > 0 else ()
        kinds = ([each for each in kind if each[0] not in too_soon] for kind in (moves, claims))
        return self._last([each for kind in kinds for each in self._last(kind)[:limit]])

    def _last(self, found: list[_Work]) -> list[_Work]:
        return sorted(found, key=lambda each: each[0] in self._unanswered)

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


def _may_be_alone(silence: PlacementUnavailable) -> bool:
    """Whether the others may be answered: somebody is there, and did not ask to be left alone."""
    return bool(silence.details.get("busy")) and "retry_after" not in silence.details
