"""Notices what comes to guests while they run, and what goes, and lets their claims follow that."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from agent import log
from agent.claims.attribution import Place
from agent.claims.claim import Claim
from agent.claims.refusal import amounts_text, label
from agent.claims.rows import Row
from agent.claims.use_difference import NOT_HERE, Had, UseDifference, followed, use_difference
from agent.driver import Guest
from agent.errors import PlacementConflict, PlacementError, PlacementUnavailable, Refused
from agent.shapes import Allocations
from agent.tracker.context import TrackerContext
from agent.tracker.replace_claim import follow_use

LOG = log.get(__name__)

RETRY_S = 60.0
"""A claim that could not follow is tried again after so long, or when something of it has changed."""


@dataclass(frozen=True, slots=True)
class _Compared:
    """A row as it was compared, and what came of it."""

    guest: Guest
    claimed: Mapping[str, Claim]
    held: Mapping[str, Allocations]
    place: Place
    difference: UseDifference | None

    def is_of(self, row: Row, place: Place) -> bool:
        """Whether the row is still like that."""
        return (
            self.guest is row.guest
            and self.place is place
            and self.claimed == row.claimed
            and self.held == row.held
        )


class UseFollower:
    """Any thread may call; one call runs at a time."""

    def __init__(self, context: TrackerContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._compared: dict[str, _Compared] = {}
        self._had: dict[str, Had] = {}
        self._refused: dict[str, tuple[Claim, float]] = {}
        self._reported: Mapping[str, object] = {}

    def follow(self, *, grow: bool) -> bool:
        """See `ResourceTracker.follow_use`."""
        with self._lock:
            differing = self._compare()
            if grow and self._follow_all():
                differing = self._compare()
            self._remember(grow=grow)
            changed = differing != self._reported
            self._reported = differing
            return changed

    def _compare(self) -> Mapping[str, object]:
        """{instance: how its guest's use differs from what it has}, of those where it does."""
        rows, place = self._context.register.under_lock(lambda book: (book.rows(), book.place))
        compared = {}
        for instance, row in rows.items():
            if row.guest is not None and (row.claimed or row.held):
                known = self._compared.get(instance)
                if known is None or not known.is_of(row, place):
                    known = _Compared(row.guest, row.claimed, row.held, place, use_difference(row, place))
                compared[instance] = known
        self._compared = compared
        return {
            instance: (one.difference.more, one.difference.less, one.difference.extra, one.difference.swapped)
            for instance, one in compared.items()
            if one.difference is not None and one.difference.size
        }

    def _remember(self, *, grow: bool) -> None:
        """Remember what running guests have: all that they had since their claims were last like them.

        A claim that does not follow has nothing to give back either.
        """
        before, self._had = self._had, {}
        for instance, one in self._compared.items():
            if one.guest.state not in NOT_HERE:
                had = before.get(instance)
                self._had[instance] = had.and_now(one.guest) if grow and had else Had.of(one.guest)
        self._refused = {who: refused for who, refused in self._refused.items() if who in self._compared}

    def _follow_all(self) -> bool:
        """Whether a claim followed. Raises PlacementUnavailable, StateError."""
        done = False
        for instance, one in self._compared.items():
            row = Row(instance, one.held, one.claimed, one.guest)
            had = self._had.get(instance, Had()).and_now(one.guest)
            after = followed(row, one.place, had)
            if after is None:
                continue
            if after == one.claimed[instance]:
                self._had[instance] = Had.of(one.guest)
            elif not self._is_refused(instance, after) and self._follow(one.claimed[instance], after):
                self._had[instance] = Had.of(one.guest)
                done = True
        return done

    def _is_refused(self, instance: str, after: Claim) -> bool:
        refused, at = self._refused.get(instance, (None, 0.0))
        return refused == after and self._context.age_s(at) < RETRY_S

    def _follow(self, before: Claim, after: Claim) -> bool:
        """Whether the claim followed its guest. Raises PlacementUnavailable, StateError."""
        consumer, fields = before.consumer, {"consumer": before.consumer}
        with self._context.turns.take_idle([consumer]) as idle:
            if not idle or self._context.register.move_of(consumer) is not None:
                return False
            try:
                follow_use(self._context, before, after)
            except PlacementUnavailable:
                raise
            except (PlacementError, Refused) as error:
                if not isinstance(error, PlacementConflict):
                    self._refused[consumer] = after, self._context.clock()
                LOG.warning(
                    "The claim of %s does not follow its guest: %s",
                    label(before.request),
                    error.message,
                    fields=fields,
                )
                return False
        self._refused.pop(consumer, None)
        LOG.info(
            "The claim of %s follows its guest: it had %s, and has %s now.",
            label(before.request),
            amounts_text(before.request.resources),
            amounts_text(after.request.resources),
            fields=fields,
        )
        return True
