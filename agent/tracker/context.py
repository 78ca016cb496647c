"""What the parts of the tracker share: the register, Placement's client, turns, guests and availability.

For each consumer one operation at a time is under way; the others wait for a bounded time (`Turns`).
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from agent import errors
from agent.backoff import CONFLICTS_MAX, pause
from agent.claims.book import Book
from agent.claims.claim import Claim, ClaimStep
from agent.claims.doubt import DoubtKind
from agent.claims.fit import ProviderIndex
from agent.claims.refusal import label, refused_by_placement
from agent.claims.request import ClaimRequest, named_as
from agent.driver import Guest
from agent.errors import StateError, by_force
from agent.moves.ownership import SplitAllocations, split_allocations
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.transport import WriteOutcome, WriteRefused
from agent.providers.reservations import released, with_reserved
from agent.shapes import Allocations, Holders, Usages
from agent.state.operators import Pause, check_caller_waits
from agent.tracker.guarded_write import GuardedWriter, Inventories, checked
from agent.tracker.register import Register
from agent.tree import Inventory

FORBIDDEN = 403


class Turns:
    """The turns of one tracker; any thread may call.

    `condition` is a condition of the register's lock. `check_open` raises ClaimsClosed while claims are
    closed; it is called with the lock held.
    """

    def __init__(self, condition: threading.Condition, wait_s: float, check_open: Callable[[], None]) -> None:
        self.wait_s = wait_s
        self._condition = condition
        self._check_open = check_open
        self._taken: dict[str, ClaimRequest | None] = {}

    def is_taken(self, consumer: str) -> bool:
        """Whether an operation on the consumer is under way. The caller holds the register's lock."""
        return consumer in self._taken

    @contextmanager
    def take(self, consumer: str, request: ClaimRequest | None = None) -> Iterator[None]:
        """Run the block as the only operation on the consumer; `request` is set for a claim.

        Raises ClaimConflict where another operation does not end in time, or claims something else;
        ClaimsClosed where claims close while a claim waits; RequestExpired where the caller waits no longer.
        """
        with self._condition:
            end = time.monotonic() + self.wait_s
            while True:
                check_caller_waits()
                if consumer not in self._taken:
                    break
                if request is not None:
                    self._check_open()
                under_way = self._taken[consumer]
                if (
                    request is not None
                    and under_way is not None
                    and named_as(request, under_way) != under_way
                ):
                    raise errors.ClaimConflict(
                        f"Another claim for {label(under_way)} is under way, with a different request: "
                        f"release it first {by_force(consumer)}.",
                        consumer=consumer,
                    )
                if not self._condition.wait(end - time.monotonic()):
                    raise errors.ClaimConflict(
                        f"Another operation on consumer {consumer} has been under way for {self.wait_s:g} s: "
                        "try again later.",
                        consumer=consumer,
                    )
            self._taken[consumer] = request
        try:
            yield
        finally:
            self._give_back({consumer})

    @contextmanager
    def take_idle(self, consumers: Iterable[str]) -> Iterator[frozenset[str]]:
        """Take the turns of those consumers that no operation is under way on; yields which ones."""
        with self._condition:
            idle = frozenset(consumer for consumer in consumers if consumer not in self._taken)
            self._taken |= dict.fromkeys(idle)
        try:
            yield idle
        finally:
            self._give_back(idle)

    @contextmanager
    def take_both(self, first: str, second: str) -> Iterator[None]:
        """Take two turns in a fixed order, so that two operations never wait for each other."""
        earlier, later = sorted((first, second))
        with self.take(earlier), self.take(later):
            yield

    def _give_back(self, consumers: Iterable[str]) -> None:
        with self._condition:
            for consumer in consumers:
                del self._taken[consumer]
            self._condition.notify_all()


def allocations_for(claim: Claim, generation: int | None = None) -> ConsumerAllocations:
    """What Placement shall hold for the claim; without a generation, Placement does not know the consumer."""
    request = claim.request
    owner = (request.project_id, request.user_id, request.consumer_type)
    return ConsumerAllocations(claim.consumer, claim.allocations, generation, *owner)


def is_allocation_of(held: ConsumerAllocations, claim: Claim) -> bool:
    """Whether Placement holds exactly what the claim wrote, or would have written."""
    request = claim.request
    return held.allocations == claim.allocations and (held.project_id, held.user_id) == (
        request.project_id,
        request.user_id,
    )


def split_by_host(held: Allocations, host: ProviderIndex) -> SplitAllocations:
    """The allocations on this host's tree, on the providers shared with it, and elsewhere."""
    serving = {provider.uuid for provider in host.providers}
    return split_allocations(held, host.is_own, serving.__contains__)


class SeenGuests:
    """The uuids of the guests on this host, as the driver last reported them. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uuids: frozenset[str] = frozenset()
        self._reported: frozenset[str] = frozenset()
        self._moved_away: frozenset[str] = frozenset()

    @property
    def uuids(self) -> frozenset[str]:
        """The uuids at this moment."""
        return self._uuids

    @property
    def moved_away(self) -> frozenset[str]:
        """Those whose instance is on another host now, as Placement was last read."""
        return self._moved_away & self._reported

    def report_moved_away(self, consumers: Collection[str]) -> None:
        """Take these for moved away, until they are gone, and no others."""
        with self._lock:
            self._moved_away = frozenset(consumers)

    def __contains__(self, consumer: str) -> bool:
        return consumer in self._uuids

    def replace(self, guests: Collection[Guest]) -> None:
        """Use these guests instead of the ones known before."""
        with self._lock:
            self._uuids = self._reported = frozenset(guest.uuid for guest in guests)
            self._moved_away &= self._uuids

    def forget(self, consumer: str) -> None:
        """Remove one guest, until the driver reports it again."""
        with self._lock:
            self._uuids -= {consumer}


class Admission:
    """Whether new claims and moves are accepted. Closed at first; any thread may call.

    They are also closed while `journal_reason` returns why nothing can be decided, and while the host is
    paused.
    """

    def __init__(
        self,
        reason: str,
        journal_reason: Callable[[], str | None] = lambda: None,
        pause: Pause | None = None,
    ) -> None:
        self._reason: str | None = reason
        self._journal_reason = journal_reason
        self.pause = pause
        """The operator's pause, None while there is none."""

    @property
    def closed_reason(self) -> str | None:
        """Why claims are closed, None while they are open."""
        pause = self.pause
        return self._journal_reason() or self._reason or (pause.clause if pause else None)

    def open(self) -> None:
        """Accept claims from now on."""
        self._reason = None

    def close(self, reason: str) -> None:
        """Refuse claims from now on; `reason` is a clause that the refusal shows."""
        self._reason = reason

    def check(self, *, is_new: bool = True) -> None:
        """Raises ClaimsClosed while claims are closed; a pause closes those that are new."""
        reason = self.closed_reason if is_new else self._journal_reason() or self._reason
        if reason is not None:
            paused = self.pause is not None and reason == self.pause.clause
            raise (errors.HostPaused if paused else errors.ClaimsClosed)(
                f"Claims are closed: {reason}.", reason=reason
            )


@dataclass(eq=False)
class PlacementState:
    """Whether the agent backs off from Placement, and who learns that Placement did not answer.

    The agent sets these functions; until then it never backs off.
    """

    is_backing_off: Callable[[], bool] = lambda: False
    """Whether Placement failed and the agent must send it no request yet."""
    report_unavailable: Callable[[errors.PlacementUnavailable], None] = lambda _: None
    """Report that Placement did not answer; what was asked is journaled and delivered later."""
    report_missing: Callable[[Collection[str]], None] = lambda _: None
    """Report that another client of Placement deleted these providers of the host."""
    taken_back: int = 0
    """How often the agent has taken reserved inventory back since the start; see `send_in_reserved`."""


@dataclass(frozen=True, slots=True)
class TrackerContext:
    """What the parts of one tracker share.

    `clock` returns a stamp in seconds since the epoch, UTC, and `age_s` how many seconds ago it was made.
    """

    register: Register
    client: PlacementClient
    writer: GuardedWriter
    turns: Turns
    clock: Callable[[], float]
    age_s: Callable[[float], float]
    guests: SeenGuests
    placement: PlacementState
    admission: Admission

    def read_consumers(self, providers: Iterable[str], *, may_be_gone: bool = False) -> None:
        """Read again from Placement which consumers hold what on these providers.

        Raises PlacementError, also where Placement has one of them no more, unless it `may_be_gone`.
        """
        with self.register.reading() as reading:
            held: dict[str, Holders] = {}
            for uuid in filter(None, providers):
                try:
                    held[uuid] = self.client.provider_allocations(uuid).consumers
                except errors.PlacementConflict:
                    if not may_be_gone:
                        raise
                    held[uuid] = {}
            self.register.observe(held, reading)

    def leave_out_missing(self, allocations: Allocations) -> tuple[str, ...]:
        """The names of those providers that Placement does not have any more; nothing is chosen on them.

        One request for the host's tree, and one for each sharing provider. Raises PlacementError.
        """
        host = self.register.host
        own = {uuid for uuid in allocations if host.is_own(uuid)}
        there = self.client.generations(host.root.uuid).keys() if own and host.root is not None else ()
        missing = sorted(own.difference(there)) + sorted(
            uuid for uuid in allocations if uuid not in own and self.client.find_provider(uuid=uuid) is None
        )
        if missing:
            self.register.under_lock(lambda book: book.leave_out(missing))
            self.placement.report_missing(missing)
        return tuple(host.tree[uuid].name if uuid in host.tree else uuid for uuid in missing)

    def send_in_reserved(
        self, consumer: str, unheld: Usages, send: Callable[[Inventories | None], WriteOutcome]
    ) -> WriteOutcome:
        """Send a write for a row together with the end of what passes reserved for it, at most `unheld`.

        One transaction of Placement does both, so that no scheduler comes in between. `send` takes the
        inventories to write. Where Placement forbids the agent to reshape, the reservation ends just before
        the write. The next pass reserves what is still unheld. Raises PlacementError.
        """
        outcome: WriteOutcome | None = None
        for attempt in range(CONFLICTS_MAX):
            lowered = self._without_reserved(consumer, unheld)
            if not lowered:
                break
            self.placement.taken_back += 1  # so what the passes know is outdated
            outcome = send(lowered)
            error = outcome.error if isinstance(outcome, WriteRefused) else None
            if error is not None and error.details.get("status") == FORBIDDEN:
                for uuid, (generation, inventories) in lowered.items():
                    self.client.put_inventories(uuid, generation, inventories)
                break
            if not isinstance(error, errors.PlacementConflict) or "expected_generation" in error.details:
                return outcome
            pause(attempt)  # another client wrote to one of the providers
        else:
            if outcome is not None:
                return outcome
        return send(None)

    def _without_reserved(self, consumer: str, unheld: Usages) -> Inventories:
        """The inventories of this host's own providers without these reservations, where that changes them.

        What other rows need stays reserved, or becomes so: less than `unheld` may have been reserved for this
        row, as what may be its migration holds its place. Raises PlacementError.
        """
        if not unheld:
            return {}
        host, owned = self.register.host, self.register.owned()
        lowered: dict[str, tuple[int, Mapping[str, Inventory]]] = {}
        for uuid, amounts in unheld.items():
            if not host.is_own(uuid):
                continue
            generation, now = self.client.provider_inventories(uuid)
            others = self.register.under_lock(lambda book: book.unheld_of_others(consumer))
            least = with_reserved(host.tree, {uuid: others.get(uuid, {})})[uuid].inventories
            lower = {
                name: released(inventory, amounts[name], least[name].reserved)
                if name in owned.get(uuid).classes & amounts.keys() & least.keys()
                else inventory
                for name, inventory in now.items()
            }
            if lower != now:
                lowered[uuid] = generation, lower
        return lowered

    def write_claim(
        self,
        held: ConsumerAllocations,
        choose: Callable[[Book], tuple[Claim, Claim]],
        write_of: Callable[[Claim], ConsumerAllocations],
        kind: DoubtKind,
        subject: str,
        while_unknown: str,
    ) -> Claim:
        """Replace a consumer's claim: reserve, one guarded write to Placement, journal the result.

        `choose` makes the new claim and what counts meanwhile; `held` is what Placement holds for the
        consumer now, `write_of` what it shall hold for the claim. What a pass reserved for the use of the
        consumer's guest is taken back in the same transaction, so that the claim fits. Raises what `choose`
        raises; DoesNotFit, PlacementError, StateError: the old claim stays.
        """
        consumer = held.consumer
        unheld = self.register.under_lock(lambda book: book.unheld_by(consumer))
        with self.register.reserved(choose) as after:
            write = write_of(after)
            if held.allocations != after.allocations:  # an earlier attempt may have been done
                outcome = self.send_in_reserved(
                    consumer,
                    unheld,
                    lambda inventories: self.writer.send_over_bar(kind, write, inventories),
                )
                try:
                    checked(outcome, subject, while_unknown)
                except errors.PlacementFull as full:
                    raise self.refused_by_placement(after.request, after.allocations, full) from full
                if kind is DoubtKind.REPLACE:
                    self.writer.secure(consumer)
            step = ClaimStep.REPLACE if kind is DoubtKind.REPLACE else ClaimStep.FOUND
            try:
                self.register.step_claim(step, consumer, after)
            except StateError:
                self.writer.doubt_again(kind, write)
                raise
            self.writer.compared(consumer)
        return after

    def may_be_stale(self, providers: Collection[str]) -> bool:
        """Whether others hold something on these providers: that may have changed since it was read."""
        return self.register.under_lock(lambda book: book.others_on(providers))

    def refused_by_placement(
        self, request: ClaimRequest, allocations: Allocations, error: errors.PlacementFull
    ) -> errors.DoesNotFit:
        """The error for a request that fits by the book's amounts and that Placement rejected."""
        return self.register.under_lock(
            lambda book: refused_by_placement(request, allocations, error.message, book.host.tree, book.free)
        )
