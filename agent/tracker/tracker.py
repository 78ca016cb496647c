"""The resource tracker: the only writer of the host's claims and moves.

One lock guards what is claimed, and no request to Placement is sent while it is held: both are private to
`agent.tracker.register`. For each consumer one operation at a time is under way; the others wait for a
bounded time. So a release that comes while the claim is in flight waits for the claim, then releases it;
the same claim waits and gets the same answer; another claim for the consumer is refused at once.

    with tracker.claim(request) as handle:  # released again if the block raises
        start_the_guest(handle.claim.units)

Claims in doubt, releases and ends of moves that wait for Placement are delivered later.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import Self

from agent import errors, log
from agent.backoff import Backoff
from agent.claims.book import Reading
from agent.claims.capacity import Capacity, Defrag, capacity, defrag
from agent.claims.choice import Strategy
from agent.claims.claim import UNRESTRICTED, Claim, Fit, Restriction
from agent.claims.doubt import DoubtKind
from agent.claims.host_cells import HostLayout
from agent.claims.pci_alias import Aliases, with_device_groups, without_device_groups
from agent.claims.request import ClaimRequest, named_as
from agent.driver import Guest
from agent.moves.circumstances import Circumstances
from agent.moves.states import Move, MoveKind, MoveRole, MoveState, moving_conflict
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.transport import WriteRefused
from agent.providers.limits import Caps
from agent.reshape.claimed_units import ExactUnits, HostRecords
from agent.reshape.laws import Relocation
from agent.reshape.receipt import Receipt
from agent.reshape.relocate import Passage
from agent.shapes import Allocations, Held, Units
from agent.state.journal import Journal
from agent.state.operators import Pause
from agent.tracker.claims import Admitted, ClaimOperations, GuestDemand, StartDecision
from agent.tracker.context import Admission, PlacementState, SeenGuests, TrackerContext, Turns
from agent.tracker.cordons import Cordons
from agent.tracker.follow_guest import UseFollower
from agent.tracker.follow_moves import Departures, MigrationLinker
from agent.tracker.guarded_write import Doubts, GuardedWriter, checked
from agent.tracker.moves import MoveOperations
from agent.tracker.register import (
    BookView,
    HeldColumn,
    Pending,
    Register,
    StepObserver,
)
from agent.tree import ProviderTree

LOG = log.get(__name__)

DELIVERED_MAX = 64

Work = tuple[str, Callable[[], bool]]
"""An instance or consumer, and what delivers it."""

WAITING_FOR_INVENTORY = "waiting for the first full inventory"
TURN_WAIT_S = 60.0


class UndoneOnError:
    """A context manager that calls `undo` if its block raises.

    If `undo` fails, the error of the block gets a note: `failure`, a clause, and the reason.
    """

    __slots__ = ("_failure", "_undo")

    def __init__(self, undo: Callable[[], object], failure: str) -> None:
        self._undo = undo
        self._failure = failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        try:
            self._undo()
        except errors.UnknownConsumer:
            return  # the block has undone it already
        except errors.PlimsollError as failed:
            error.add_note(f"{self._failure}: {failed.message}")


class ClaimHandle(UndoneOnError):
    """A granted claim. As a context manager it releases the claim if the block raises, else keeps it.

    `was_held`: the consumer had it already, so another call made it.
    """

    __slots__ = ("claim", "was_held")

    def __init__(self, admitted: Admitted, release: Callable[[str], object]) -> None:
        self.claim, self.was_held = admitted
        super().__init__(lambda: release(self.claim.consumer), "Its claim was not released")


class MoveHandle(UndoneOnError):
    """A move that has begun. As a context manager it reverts the move if the block raises, else keeps it."""

    __slots__ = ("move",)

    def __init__(self, move: Move, revert: Callable[[str], object]) -> None:
        super().__init__(lambda: revert(move.migration), "Its move was not reverted")
        self.move = move


def _may_be_alone(error: errors.PlacementUnavailable) -> bool:
    """Whether Placement may answer for other consumers: it is there, and the agent does not back off."""
    return bool(error.details.get("busy")) and "retry_after" not in error.details


def _is_for_good(error: errors.PlimsollError) -> bool:
    """Whether Placement will most likely refuse the same request again, until someone changes something."""
    if not isinstance(error, errors.PlacementError) or isinstance(error, errors.PlacementConflict):
        return False
    return HTTPStatus.BAD_REQUEST <= error.status < HTTPStatus.INTERNAL_SERVER_ERROR


class ResourceTracker:
    """Answers what is claimed, and changes it. Any thread may call; nothing blocks without a bound.

    Claims are closed at first: `admission` opens them after `refresh` has entered the host's inventory.
    """

    def __init__(
        self,
        journal: Journal,
        client: PlacementClient,
        *,
        on_step: StepObserver = lambda step, kind: None,
        clock: Callable[[], float] = time.time,
        age_s: Callable[[float], float] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        turn_wait_s: float = TURN_WAIT_S,
    ) -> None:
        """`on_step` is called under the lock with each step that was taken. `age_s` is that of `HostClock`.

        Raises StateError where the journal cannot be read.
        """
        register = Register(journal, on_step)
        self._journal = journal
        self._register = register
        self.view: BookView = register
        """What is claimed, held and used, and which moves there are."""
        self.age_s = age_s or (lambda stamp: clock() - stamp)
        """How long ago a claim or a move with this stamp was made, even if the wall clock was set since."""
        self.admission = Admission(WAITING_FOR_INVENTORY, lambda: register.unknown_reason, journal.pause())
        """Whether new claims and moves are accepted; releases and claims in flight go on."""
        self.placement = PlacementState()
        """Whether Placement may be asked, and who learns that it did not answer."""
        self.guests = SeenGuests()
        """The guests on this host, as `see_guests` entered them."""
        self.turns = Turns(register.condition(), turn_wait_s, self.admission.check)
        """Runs a block as the only operation on a consumer."""
        self.cordons = Cordons(journal, register)
        """The host's devices, and which of them an operator has cordoned."""
        self._doubts = Doubts(journal, clock, register.enter_doubts, self.age_s)
        self._context = TrackerContext(
            register,
            client,
            GuardedWriter(client, self._doubts, lambda held: any(map(register.host.is_own, held))),
            self.turns,
            clock,
            self.age_s,
            self.guests,
            self.placement,
            self.admission,
        )
        client.observer = HeldColumn(register)
        self._linker = linker = MigrationLinker(self._context)
        self.departures = Departures(self._context)
        """Which instances live elsewhere while their place here is claimed or used."""
        self.use = UseFollower(self._context)
        """Claims that follow what their guests use."""
        self._claims = ClaimOperations(self._context, linker)
        self._moves = MoveOperations(self._context, linker)
        self._unanswered: frozenset[str] = frozenset()
        """The consumers that Placement did not answer for when their pending work was delivered."""
        self._backoff = Backoff(clock=monotonic)
        self._refusals: Mapping[str, tuple[str, Backoff]] = {}
        """{instance or consumer whose pending work Placement refuses: the reason, and how long that waits}

        Several threads deliver: one of them puts another mapping in its place, and none changes it.
        """
        self._monotonic = monotonic

    # The operator's pause, and a disk that did not answer

    def set_pause(self, pause: Pause | None) -> None:
        """Take no new claims and moves until the pause ends; None ends it. Kept over restarts.

        Raises StateError: then nothing is changed.
        """
        self._journal.remember_pause(pause)
        self.admission.pause = pause

    def read_back(self) -> bool:
        """After a journal write whose outcome was unknown: continue with what is on disk.

        Claims and moves change again only after that. False, without effect, where no outcome was unknown.
        Raises StateUnknown while the disk does not answer, StateError.
        """
        if not self._journal.unknown_writes():
            return False
        self.cordons.read_back()
        self.admission.pause = self._journal.pause()
        self._register.read_back()
        return True

    # What the pass reports

    def refresh(
        self,
        tree: ProviderTree,
        held: Held,
        units: Units,
        layout: HostLayout | None = None,
        *,
        kept: Collection[str] = (),
        reading: Reading | None = None,
        caps: Caps | None = None,
    ) -> None:
        """Enter the tree, what Placement holds on it, and the exact units of the driver, in order of use.

        `held` was read since `reading` began, without the providers in `kept`, which have not changed; with
        `reading` None it is of this moment. Without the host's `layout` no guest that asks for NUMA cells,
        pinned CPUs or pages can be placed. `caps` are the settings' that `tree` is within. Raises StateError.
        """
        self._register.refresh(tree, held, units, layout, kept, reading, caps or {})
        self.cordons.withhold()
        self.use.follow_makings()

    def reading(self) -> AbstractContextManager[Reading]:
        """Read Placement in the block, and enter the result with `refresh`."""
        return self._register.reading()

    def observe(self, held: Held, reading: Reading) -> None:
        """Enter the allocations on some providers, read since `reading` began."""
        self._register.observe(held, reading)

    def left_behind(self) -> frozenset[str]:
        """The guests among those with something `unheld` whose instances are on other hosts now."""
        moved_away = self.moved_away()
        return moved_away & self._register.unheld().keys() if moved_away else moved_away

    def see_guests(self, guests: Collection[Guest]) -> None:
        """Enter the guests on this host: the exact units that they use go to no other consumer."""
        self.guests.replace(guests)
        self._register.enter_guests(guests)

    def note_lost(self, *, restored: bool = False) -> frozenset[str]:
        """The claims that a restored database of Placement does not have; see `Register.note_lost`."""
        return self._register.note_lost(restored=restored)

    # Questions

    def claims(self) -> Mapping[str, Claim]:
        """{consumer: claim}, with those in flight and those to be released."""
        return self._register.claims()

    def moves(self) -> Mapping[str, Move]:
        """{migration: move}: those under way, and the newest of those that ended."""
        return self._register.moves()

    def claim_of(self, consumer: str) -> Claim | None:
        """The consumer's claim."""
        return self._register.claim_of(consumer)

    def circumstances(self) -> Circumstances:
        """What is there beside the records of moves."""
        holders = self._register.under_lock(
            lambda book: frozenset(
                consumer for row in book.rows().values() for consumer, held in row.held.items() if held
            )
        )
        return Circumstances(
            self.guests.uuids,
            self.moved_away(),
            holders if self._register.host.root is not None else None,
            self.placement.is_backing_off(),
            self.refusals(),
        )

    def refusals(self) -> Mapping[str, str]:
        """{instance, or other consumer: why Placement refuses for good what is pending for it}."""
        return {consumer: reason for consumer, (reason, _) in self._refusals.items()}

    def moved_away(self) -> frozenset[str]:
        """The guests on this host whose instances are on other hosts."""
        moves = self._register.moves().values()
        leaving = frozenset(move.instance for move in moves if move.state is MoveState.LEAVING)
        return self.guests.moved_away | (self.guests.uuids & leaving)

    def explain(self, request: ClaimRequest, restriction: Restriction = UNRESTRICTED) -> Fit:
        """What `claim` would do, without a request to Placement. Also answers while claims are closed.

        Raises UsageError for what this agent cannot place.
        """
        return self._claims.explain(request, restriction)

    def capacity(self, request: ClaimRequest) -> Capacity:
        """How many guests that ask for this fit, by a copy of the book. Raises UsageError."""
        return capacity(self._register.under_lock(lambda book: book.without()), request)

    def defrag(self, request: ClaimRequest) -> Defrag:
        """The fewest moves that make room for the request, by a copy of the book. Raises UsageError."""
        return defrag(self._register.under_lock(lambda book: book.without()), request)

    def choose_by(self, strategy: Strategy) -> None:
        """From now on, choose by this strategy where several places fit a claim."""
        self._register.under_lock(lambda book: book.choose_by(strategy))

    def expand_aliases(self, request: ClaimRequest, aliases: Aliases) -> ClaimRequest:
        """The request with a group for each PCI device that it asks for by alias.

        A repeated request gets the groups of the claim or the move that it made. Raises UsageError for an
        alias that is not configured.
        """
        if not request.pci:
            return request
        claim, move = self._register.claim_and_move_of(request.consumer)
        for present in (claim, move.new if move else None):
            if present is None:
                continue
            known = without_device_groups(present.request)
            if known == named_as(request, known):
                return replace(present.request, name=request.name)
        return self._register.under_lock(
            lambda book: with_device_groups(request, aliases, book.host.tree, book.offered)
        )

    # Claims

    def claim(self, request: ClaimRequest, restriction: Restriction = UNRESTRICTED) -> ClaimHandle:
        """Claim for the request's consumer; the same request again gets the same claim.

        `restriction` says what the claim must have. Raises ClaimsClosed, DoesNotFit, ClaimConflict;
        UsageError for what this agent cannot place; PlacementError and StateError where Placement or the
        journal fail.
        """
        return ClaimHandle(self._claims.claim(request, restriction), self.release)

    def release(self, consumer: str, *, now: bool = True, unless: Callable[[], bool] = lambda: False) -> bool:
        """Release what the consumer claimed; `now` is False while Placement is known to be away.

        True: Placement holds nothing of it. False: the release is journaled, and `deliver` executes it later;
        or `unless`, called as the only operation on a consumer that is in no move, forbade it.
        Raises UnknownConsumer; ClaimConflict where it is in a move, or was a moment ago; PlacementError where
        Placement refused, and then the release stays journaled; StateError.
        """
        move = self._register.move_of(consumer)
        if move is not None:
            if move.instance != consumer or move.role is MoveRole.SOURCE:
                raise moving_conflict(move)
            if move.kind is not MoveKind.REBUILD:
                return self._moves.delete(move, now=now)
            self.confirm_move(move.migration)  # a rebuild holds nothing of its own: a claim is left
        return self._claims.release(consumer, now=now, unless=unless)

    def extend(self, claim: Claim, request: ClaimRequest) -> Claim | None:
        """Extend the claim by what the request asks for beyond it. None: the consumer's claim has changed.

        Raises DoesNotFit, ClaimConflict, PlacementError, StateError.
        """
        return self._claims.extend(claim, request)

    def drop_claim(self, consumer: str, reason: str) -> None:
        """Release a claim that an audit found leaked; `reason` goes into the history.

        The caller has the consumer's turn. Raises ClaimConflict where a migration holds its place, and has
        the claim then: its instance was deleted in a move; also where one of several migrations may hold it,
        and the claim stays; PlacementError, StateError.
        """
        self._claims.drop(consumer, reason)

    def heal(self, write: ConsumerAllocations) -> None:
        """Write what an audit found that the consumer should hold, guarded by its generation.

        What passes reserved for it while Placement did not hold it is free for it in the same transaction.
        The caller has the consumer's turn. Raises PlacementError; PlacementUnavailable where it is not done,
        or not known; StateError.
        """
        writer, secured = self._context.writer, write
        if self._doubts.of([write.consumer]):
            # The generation that the consumer has once no earlier write can come late.
            seen = self._context.client.allocations_of(write.consumer)
            held = writer.secure(write.consumer) or seen
            if seen.generation != write.generation or held.allocations != seen.allocations:
                raise errors.PlacementConflict(
                    f"An earlier write for {write.consumer} was in doubt. Nothing was written; audit again."
                )
            secured = replace(write, generation=held.generation)
        unheld = self._register.under_lock(lambda book: book.unheld_by(write.consumer))
        outcome = self._context.send_in_reserved(
            write.consumer,
            unheld if write.allocations else {},
            lambda inventories: writer.send_over_bar(DoubtKind.HEAL, secured, inventories),
        )
        if isinstance(outcome, WriteRefused) and isinstance(outcome.error, errors.PlacementFull):
            raise errors.PlacementFull(
                f"Placement has no room for {write.consumer} any more: another consumer got it. `plimsoll "
                "explain CLASS` lists who has some of a class; release one, and audit again.",
                **outcome.error.details,
            )
        checked(outcome, f"repair of {write.consumer}", "the next audit shows it")
        if not write.allocations:
            writer.bar_again(write.consumer)

    # What the gate asks

    def admit(self, consumer: str, decide: StartDecision) -> Admitted:
        """Let a guest start on its claim, on a new one, or on one that replaces it in one write.

        `decide` is called as the only operation on the consumer, so that the claim that is returned has what
        the guest of this call needs, even if an earlier call was about another. Until the driver reports it,
        or until `expect_no_more`, its pages and its cells' memory count as used. Raises what `decide` raises,
        ClaimsClosed, DoesNotFit, ClaimConflict, PlacementError, StateError: then the guest may not start.
        """
        return self._claims.admit(consumer, decide)

    def expect_no_more(self, consumer: str) -> None:
        """Stop counting the memory of a guest that did not start."""
        self._register.expect(consumer, None)

    # Moves

    def begin_move(
        self, request: ClaimRequest, kind: MoveKind, migration: str, demand: GuestDemand | None = None
    ) -> MoveHandle:
        """Begin a move of the request's consumer to this host; the same again gets the same answer.

            with tracker.begin_move(request, MoveKind.RESIZE, migration):  # reverted if the block raises
                copy_the_guest()

        `demand` is what the guest that comes in needs exactly, and is for the same request.
        Raises UsageError, UnknownConsumer, ClaimsClosed, DoesNotFit, ClaimConflict, PlacementError,
        StateError; then nothing is changed, unless the outcome is unknown: then the move is undone later.
        """
        return MoveHandle(self._moves.begin(kind, migration, request, demand), self.revert_move)

    def confirm_move(self, migration: str, *, instance: str | None = None, now: bool = True) -> Move:
        """Keep the instance at the destination and free the source. A repeated call is no error.

        Returns the move `confirmed`; or `confirming` while Placement is away, or, at the source, while the
        guest is still there. `instance` names the migration's instance, where the source could not link them;
        `now` False: Placement is known to be away. Raises UnknownConsumer, ClaimConflict (it was reverted, or
        is another instance's), PlacementError, StateError.
        """
        return self._moves.confirm(migration, instance=instance, now=now)

    def revert_move(
        self,
        migration: str,
        *,
        instance: str | None = None,
        now: bool = True,
        unless: Callable[[], bool] = lambda: False,
    ) -> Move:
        """Give the instance its old place again, with the same devices, and free the destination.

        As `confirm_move`; `reverting` also while the guest is still on the destination, whose place is not
        free before the guest has left. `unless`, called as the only operation on the instance, forbids it.
        """
        return self._moves.revert(migration, instance=instance, now=now, unless=unless)

    @property
    def emptied(self) -> frozenset[str]:
        """The claims that may be leaked, as `follow_moves` saw them; see `MigrationLinker.emptied`."""
        return self._linker.emptied

    def follow_moves(self) -> None:
        """Learn from Placement which moves other clients ended and which claims moved.

        Raises PlacementUnavailable, StateError; other refusals are logged.
        """
        self._moves.follow()

    # Pending work

    @property
    def pending(self) -> int:
        """How many releases, claims in doubt and ends of moves wait for Placement, or for a guest to go."""
        pending = self._register.pending(self.turns.is_taken)
        return len(pending.claims) + len(pending.moves) + len(self._doubted(pending))

    def recover(self, guests: Collection[Guest] | None = None) -> int:
        """After a start: finish the intents whose guests run, undo the others, deliver the releases.

        `guests` are on this host; None: those that were seen last. What Placement does not answer stays
        pending. Returns how many were resolved. Raises StateError.
        """
        if guests is not None:
            self.see_guests(guests)
        return self.deliver(limit=None)

    def deliver(self, limit: int | None = DELIVERED_MAX, *, again: bool = False) -> int:
        """Resolve pending work, at most `limit` claims and `limit` moves; returns how many.

        Stops where Placement is away. It may fail to answer for a single consumer only: that one goes last,
        with a back-off of its own, and does not close the host's claims. What Placement refuses is logged,
        and stays pending; what it refuses for good is logged once, and waits longer each time, but not if it
        is to be tried `again`. Raises StateError.
        """
        delivered, one_unanswered = 0, False
        for consumer, deliver in self._due(limit, again=again):
            try:
                delivered += deliver()
            except errors.PlacementUnavailable as error:
                self._unanswered |= {consumer}
                if one_unanswered or not _may_be_alone(error):
                    self._backoff.succeeded()  # the host as a whole backs off instead
                    self.placement.report_unavailable(error)
                    return delivered
                one_unanswered = True
                LOG.warning("%s goes last: %s", consumer, error.message, fields={"consumer": consumer})
            except (errors.PlacementError, errors.Refused) as error:
                refusals = dict(self._refusals)
                reason, backoff = refusals.pop(consumer, ("", Backoff(clock=self._monotonic)))
                if error.message != reason:
                    LOG.error("Pending: %s", error.message, fields={"consumer": consumer})
                if _is_for_good(error):
                    # What is lacking may be free again, or a device back, at any time.
                    backoff.failed(busy=not isinstance(error, errors.PlacementFull))
                    refusals[consumer] = error.message, backoff
                self._refusals = refusals
            else:
                self._unanswered -= {consumer}
                self._refusals = {who: each for who, each in self._refusals.items() if who != consumer}
        if one_unanswered:
            self._backoff.failed(busy=True)
        elif not self._unanswered:
            self._backoff.succeeded()
        return delivered

    def _due(self, limit: int | None, *, again: bool) -> list[Work]:
        """At most `limit` moves, claims, doubts; at the end the unanswered, if their back-off is over.

        What was refused for good is among them once its own back-off is over, or `again`.
        """
        pending = self._register.pending(self.turns.is_taken)
        moves: list[Work] = [(move.instance, partial(self._moves.deliver, move)) for move in pending.moves]
        claims: list[Work] = [
            (claim.consumer, partial(self._claims.deliver, claim.consumer)) for claim in pending.claims
        ]
        doubts: list[Work] = [
            (consumer, partial(self._claims.end_doubts, consumer)) for consumer in self._doubted(pending)
        ]
        known = {consumer for consumer, _ in (*moves, *claims, *doubts)}
        self._unanswered &= known
        self._refusals = {each: refusal for each, refusal in self._refusals.items() if each in known}
        too_soon = self._unanswered if self._backoff.left_s() > 0 else frozenset[str]()
        if not again:
            too_soon |= {each for each, (_, backoff) in self._refusals.items() if backoff.left_s() > 0}
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
        uncompared = sorted(self._context.writer.uncompared() - resolved)
        return list(dict.fromkeys([*(doubt.guard.consumer for doubt in doubts), *uncompared]))

    def _unanswered_last(self, work: list[Work]) -> list[Work]:
        return sorted(work, key=lambda item: item[0] in self._unanswered)

    def watch_doubts(self) -> int:
        """Look again at the abandoned first writes that may still be executed; returns how many were.

        Another client may have deleted a consumer that barred its first write; what came late is released.
        One request for each, mostly. Raises PlacementUnavailable, StateError.
        """
        came = 0
        for consumer in self._context.writer.watched():
            try:
                came += self._claims.watch(consumer)
            except errors.PlacementUnavailable as error:
                if not _may_be_alone(error):
                    raise
                LOG.warning("%s is looked at again later: %s", consumer, error.message)
            except (errors.PlacementError, errors.Refused) as error:
                LOG.error("A late write of %s: %s", consumer, error.message, fields={"consumer": consumer})
        return came

    def whereabouts(self) -> Mapping[str, tuple[Allocations, ...]]:
        """{consumer of a claim: the other allocations that its place may be by now, after reshapes}."""
        places = {claim.consumer: self._register.whereabouts(claim) for claim in self.claims().values()}
        return {
            consumer: tuple(each.allocations for each in others)
            for consumer, (_, *others) in places.items()
            if others
        }

    def settling(self) -> frozenset[str]:
        """The consumers of which the agent is finding out what became of a write, a minute at most."""
        return self._context.writer.settling()

    # Turns and reshapes

    @contextmanager
    def turns_on(
        self, slots: Collection[tuple[str, str]], consumers: Collection[str] = ()
    ) -> Iterator[frozenset[str]]:
        """Run a block as the only operation on `consumers`, and on each whose claim is on one of the slots.

        Yields these consumers. `slots` are (provider uuid, class). Raises ClaimConflict.
        """
        affected = set(consumers) | {
            consumer
            for consumer, claim in self._register.claims().items()
            if any(name in claim.allocations.get(uuid, ()) for uuid, name in slots)
        }
        with ExitStack() as turns:
            for consumer in sorted(affected):
                turns.enter_context(self.turns.take(consumer))
            yield frozenset(affected)

    def records(self, exact: ExactUnits) -> HostRecords:
        """What the agent knows of who has what, with these units, for a reshape."""
        return HostRecords(self.claims(), self.moves(), exact, self.view.away())

    def relocate(self, receipt: Receipt, exact: ExactUnits) -> None:
        """Put claims and moves where a reshape put them, on disk together with its receipt.

        The caller has the turns of the affected consumers (`turns_on`). Raises StateError: then nothing is
        changed.
        """
        self._register.relocate(receipt, exact)

    def note_led(self, led: Mapping[str, Collection[Passage]]) -> None:
        """Where a reshape that the journal does not have may have led the places of consumers with claims."""
        self._register.note_led(led)

    def follow_placement(self, relocations: Collection[Relocation], exact: ExactUnits) -> None:
        """Put claims and moves where a reshape put them that a restored journal does not have.

        The caller has the turns of their consumers. Raises StateError: then nothing is changed.
        """
        self._register.follow_placement(relocations, exact)
