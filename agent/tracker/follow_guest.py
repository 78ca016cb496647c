"""Claims that follow their guests: resources and units that were not known when the claim was made.

`UseFollower` notices what comes to guests while they run, and what goes, and lets their claims follow that.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from agent import errors, log
from agent.claims.attribution import Place
from agent.claims.book import Book
from agent.claims.claim import Claim, ClaimState, ClaimStep
from agent.claims.doubt import DoubtKind
from agent.claims.refusal import amounts_text, does_not_fit, label
from agent.claims.request import ClaimRequest, RequestGroup
from agent.claims.rows import Row
from agent.claims.use_difference import Had, UseDifference, followed, use_difference
from agent.driver import Guest
from agent.placement.client import ConsumerAllocations
from agent.shapes import Allocations, total
from agent.tracker.claim_attempt import check_unchanged, follow_use
from agent.tracker.context import TrackerContext

LOG = log.get(__name__)

RETRY_S = 60.0
"""A claim that could not follow is tried again after so long, or when something of it has changed."""


def extend_claim(context: TrackerContext, request: ClaimRequest) -> Claim:
    """Extend the claim of the request's consumer by what the request asks for beyond it, in one write.

    The addition is reserved before the write and journaled after it: if the agent stops in between, the next
    attempt reads what Placement holds. The caller has the consumer's turn. Raises DoesNotFit, ClaimConflict,
    PlacementError, StateError.
    """
    consumer = request.consumer
    held = context.writer.secure(consumer) or context.client.allocations_of(consumer)
    before, move = context.register.claim_and_move_of(consumer)
    if before is None or before.state is not ClaimState.CLAIMED or move is not None:
        raise errors.ClaimConflict(
            f"{label(request)} has no claim, or is moving: its claim is not extended.", consumer=consumer
        )

    def choose(book: Book) -> Claim:
        claimed = before.request.resources
        missing = {
            name: amount - claimed.get(name, 0)
            for name, amount in request.resources.items()
            if amount > claimed.get(name, 0)
        }
        fit = book.fit(ClaimRequest(consumer, (RequestGroup("", missing),)))
        if not fit.fits:
            raise does_not_fit(request, fit.shortfalls)
        allocations = total((before.allocations, fit.allocations))
        after = replace(before, request=request, allocations=allocations)
        check_unchanged(held, before, after)
        return after

    waits = f"extension of {label(request)}", "the agent extends the claim again"
    return _write_grown(context, held, choose, *waits)


def _write_grown(
    context: TrackerContext,
    held: ConsumerAllocations,
    choose: Callable[[Book], Claim],
    subject: str,
    while_unknown: str,
) -> Claim:
    """Reserve the grown claim that `choose` makes, write it to Placement, and journal it after that."""

    def choose_grown(book: Book) -> tuple[Claim, Claim]:
        after = choose(book)
        return after, after

    return context.write_claim(
        held,
        choose_grown,
        lambda after: replace(held, allocations=after.allocations),
        DoubtKind.EXTEND,
        subject,
        while_unknown,
    )


def _check_units(book: Book, after: Claim, consumers: Collection[str]) -> None:
    """Check that the claim's units are free, or of these consumers' claims. Raises ClaimConflict."""
    for _, name, unit in after.exact:
        owner = book.units.owner(name, unit, beside=consumers)
        if owner is not None:
            raise errors.ClaimConflict(
                f"The guest of {book.label(after.consumer)} uses the {name} {unit}, which belongs to "
                f"{book.label(owner)}: take it from one of the two.",
                consumer=after.consumer,
            )


def _changed(consumer: str) -> errors.ClaimConflict:
    return errors.ClaimConflict(f"The claim of {consumer} has changed: audit again.", consumer=consumer)


def _with_guest_units(book: Book) -> Iterator[Claim]:
    """The claims whose guests use other units than the claim names, with the guests' units."""
    for claim in book.claims.values():
        if not claim.makings or claim.state is not ClaimState.CLAIMED:
            continue
        used_instead = book.units.made_instead(claim, book.offered)
        if used_instead:
            units = {
                uuid: {
                    name: tuple(used_instead.get(unit, unit) for unit in exact)
                    for name, exact in classes.items()
                }
                for uuid, classes in claim.units.items()
            }
            makings = {unit: making for unit, making in claim.makings.items() if unit not in used_instead}
            group_units = {
                suffix: {
                    name: tuple(used_instead.get(unit, unit) for unit in exact)
                    for name, exact in classes.items()
                }
                for suffix, classes in claim.group_units.items()
            }
            yield replace(claim, units=units, makings=makings, group_units=group_units)


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
        """Compare what guests use with what they have; whether a difference came or went since the last call.

        `grow`: claim what came to a guest that runs, and give back what went, each in one write. A consumer
        in a move, or with an operation under way, is left alone; what does not fit is logged, and stays a
        difference. Raises PlacementUnavailable, StateError.
        """
        with self._lock:
            differing = self._compare()
            if grow and self._follow_all():
                differing = self._compare()
            # Remember what running guests have: all that they had since their claims were last like them.
            # A claim that does not follow has nothing to give back either.
            before, self._had = self._had, {}
            for instance, one in self._compared.items():
                if one.guest.is_here:
                    had = before.get(instance)
                    self._had[instance] = had.and_now(one.guest) if grow and had else Had.of(one.guest)
            self._refused = {who: refused for who, refused in self._refused.items() if who in self._compared}
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
                continue
            refused, at = self._refused.get(instance, (None, 0.0))
            is_refused = refused == after and self._context.age_s(at) < RETRY_S
            if not is_refused and self._follow(one.claimed[instance], after):
                self._had[instance] = Had.of(one.guest)
                done = True
        return done

    def _follow(self, before: Claim, after: Claim) -> bool:
        """Whether the claim followed its guest. Raises PlacementUnavailable, StateError."""
        consumer, fields = before.consumer, {"consumer": before.consumer}
        with self._context.turns.take_idle([consumer]) as idle:
            if not idle or self._context.register.move_of(consumer) is not None:
                return False
            try:
                follow_use(self._context, before, after)
            except errors.PlacementUnavailable:
                raise
            except (errors.PlacementError, errors.Refused) as error:
                if not isinstance(error, errors.PlacementConflict):
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

    # What an audit found

    def record(self, before: Claim, after: Claim) -> None:
        """Replace the claim `before` by `after`, which has more of what the guest uses, in one write.

        As `extend_claim`, also for the instance of a move. The caller has the consumer's turn. Raises
        ClaimConflict where the claim has changed, Placement holds something else for it, or another consumer
        has one of the units; PlacementError, StateError: then the claim is as it was.
        """
        consumer = after.consumer
        held = self._context.writer.secure(consumer) or self._context.client.allocations_of(consumer)

        def choose(book: Book) -> Claim:
            is_known = held.allocations in (before.allocations, after.allocations)
            has_left = book.row(consumer).guest is None  # since the audit read what it uses
            if book.claims.get(consumer) != before or not is_known or has_left:
                raise _changed(consumer)
            _check_units(book, after, {consumer})
            return after

        waits = f"repair of {label(after.request)}", "the next audit shows it"
        _write_grown(self._context, held, choose, *waits)

    def follow_records(self, records: Sequence[tuple[Claim, Claim]]) -> None:
        """Replace each claim, the first of a pair, by the second, which has what Placement holds for it.

        They may exchange units. Placement is not written. The caller has the consumers' turns. Raises
        ClaimConflict where a claim has changed, Placement holds something else for it, or a claim that is not
        among them has one of the units; PlacementError, StateError.
        """
        for _, after in records:
            held = self._context.writer.secure(after.consumer) or self._context.client.allocations_of(
                after.consumer
            )
            if held.allocations != after.allocations:
                raise _changed(after.consumer)
        consumers = {after.consumer for _, after in records}

        def choose(book: Book) -> list[Claim]:
            users: dict[tuple[str, str], str] = {}
            for before, after in records:
                if book.claims.get(after.consumer) != before:
                    raise _changed(after.consumer)
                _check_units(book, after, consumers)
                for _, name, unit in after.exact:
                    if users.setdefault((name, unit), after.consumer) != after.consumer:
                        raise errors.ClaimConflict(
                            f"Two guests use the {name} {unit}: take it from one of the two."
                        )
            return [after for _, after in records]

        self._context.register.step_chosen_claims(ClaimStep.FOUND, choose)

    # Units that did not exist when they were claimed

    def follow_makings(self) -> None:
        """Give claims the units that their guests use in place of units that did not exist; on disk, too.

        A consumer with an operation under way is left for the next pass. Raises StateError.
        """
        register = self._context.register
        consumers = register.under_lock(lambda book: [claim.consumer for claim in _with_guest_units(book)])
        with self._context.turns.take_idle(consumers) as idle:
            unmoved = {consumer for consumer in idle if register.move_of(consumer) is None}
            register.step_chosen_claims(
                ClaimStep.FOUND,
                lambda book: [claim for claim in _with_guest_units(book) if claim.consumer in unmoved],
            )
