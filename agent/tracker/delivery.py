"""Delivers the tracker's pending work: releases, claims in doubt and ends of moves."""

from collections.abc import Callable
from functools import partial

from agent import log
from agent.backoff import Backoff
from agent.errors import PlacementError, PlacementUnavailable, Refused
from agent.tracker.claims import ClaimOperations
from agent.tracker.context import TrackerContext
from agent.tracker.doubts import Doubts
from agent.tracker.moves import MoveOperations
from agent.tracker.register import Pending

LOG = log.get(__name__)

DELIVERED_MAX = 64

Work = tuple[str, Callable[[], bool]]
"""An instance or consumer, and what delivers it."""


class Delivery:
    """Delivers pending work. Any thread may call.

    Placement may fail to answer for a single consumer only. That consumer goes last, with a back-off of its
    own, and does not close the host's claims.
    """

    def __init__(
        self,
        context: TrackerContext,
        claims: ClaimOperations,
        moves: MoveOperations,
        doubts: Doubts,
        backoff: Backoff,
    ) -> None:
        self._context = context
        self._claims = claims
        self._moves = moves
        self._doubts = doubts
        self._backoff = backoff
        self._unanswered: frozenset[str] = frozenset()

    @property
    def pending(self) -> int:
        """The number of claims, moves and doubts to be resolved, those not due yet included."""
        pending = self._context.register.pending(self._context.turns.is_taken)
        return len(pending.claims) + len(pending.moves) + len(self._doubted(pending))

    def deliver(self, limit: int | None) -> int:
        """See `ResourceTracker.deliver`."""
        delivered, one_unanswered = 0, False
        for consumer, deliver in self._due(limit):
            try:
                delivered += deliver()
            except PlacementUnavailable as error:
                self._unanswered |= {consumer}
                if one_unanswered or not _may_be_alone(error):
                    self._backoff.succeeded()  # the host as a whole backs off instead
                    self._context.placement.report_unavailable(error)
                    return delivered
                one_unanswered = True
                LOG.warning("%s goes last: %s", consumer, error.message, fields={"consumer": consumer})
            except (PlacementError, Refused) as error:
                LOG.error("Pending: %s", error.message, fields={"consumer": consumer})
            else:
                self._unanswered -= {consumer}
        if one_unanswered:
            self._backoff.failed(busy=True)
        elif not self._unanswered:
            self._backoff.succeeded()
        return delivered

    def watch(self) -> int:
        """See `ResourceTracker.watch_doubts`."""
        came = 0
        for consumer in self._context.writer.watched():
            try:
                came += self._claims.watch(consumer)
            except PlacementUnavailable as error:
                if not _may_be_alone(error):
                    raise
                LOG.warning("%s is looked at again later: %s", consumer, error.message)
            except (PlacementError, Refused) as error:
                LOG.error("A late write of %s: %s", consumer, error.message, fields={"consumer": consumer})
        return came

    def _due(self, limit: int | None) -> list[Work]:
        """At most `limit` moves, claims, doubts; at the end the unanswered, if their back-off is over."""
        pending = self._context.register.pending(self._context.turns.is_taken)
        moves: list[Work] = [
            (move.instance, partial(self._moves.deliver, move.migration)) for move in pending.moves
        ]
        claims: list[Work] = [
            (claim.consumer, partial(self._claims.deliver, claim.consumer)) for claim in pending.claims
        ]
        doubts: list[Work] = [
            (consumer, partial(self._claims.end_doubts, consumer)) for consumer in self._doubted(pending)
        ]
        self._unanswered &= {consumer for consumer, _ in (*moves, *claims, *doubts)}
        too_soon = self._unanswered if self._backoff.left_s() > 0 else frozenset[str]()
        due: list[Work] = []
        for kind in (moves, claims, doubts):
            in_time = [work for work in kind if work[0] not in too_soon]
            due += self._unanswered_last(in_time)[:limit]
        return self._unanswered_last(due)

    def _doubted(self, pending: Pending) -> list[str]:
        """The consumers in doubt that no pending claim or move resolves: of each doubt, its guard."""
        resolved = {claim.consumer for claim in pending.claims}
        resolved.update(consumer for move in pending.moves for consumer in (move.instance, move.migration))
        doubts = [doubt for doubt in self._doubts.open() if resolved.isdisjoint(doubt.consumers)]
        return list(dict.fromkeys(doubt.guard.consumer for doubt in doubts))

    def _unanswered_last(self, work: list[Work]) -> list[Work]:
        return sorted(work, key=lambda item: item[0] in self._unanswered)


def _may_be_alone(error: PlacementUnavailable) -> bool:
    """Whether Placement may answer for other consumers: it is there, and asked for no pause."""
    return bool(error.details.get("busy")) and "retry_after" not in error.details
