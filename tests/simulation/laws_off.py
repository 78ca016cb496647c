"""Each law of the agent turned off, one at a time: the simulator must notice.

    ./dev simulate --law-off units      # the first seed that notices, as a story

A law is turned off by a patch of the function that keeps it. `seed` is the first that noticed when this was
written; after a change of the agent it may be another one, among the first 500.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from agent.audit.cases import ConsumerCase
from agent.claims.book import Book
from agent.claims.rows import NOT_USED, Row
from agent.claims.unit_owners import UnitOwners
from agent.clock import HostClock
from agent.durable.errors import DatabaseError
from agent.errors import StateError
from agent.moves.states import Move, MoveState
from agent.placement.client import PlacementClient
from agent.placement.embedded import store
from agent.placement.embedded.store import Store
from agent.placement.transport import WriteRefused, WriteUnknown
from agent.providers.reservations import UnheldUse
from agent.reconcile.one_writer import Writer
from agent.reconcile.placement_memory import AllocationCache
from agent.reshape import relocate
from agent.state.journal import Journal, PendingWrite
from agent.tracker import claim_attempt
from agent.tracker.context import Turns
from agent.tracker.guarded_write import Doubts, GuardedWriter
from agent.tracker.moves import MoveFinisher, MoveOperations
from agent.tracker.register import Register
from agent.tracker.tracker import ResourceTracker
from simulation.journal import Database
from simulation.seeds import Outcome, draw, tell

SEEDS = 500

Patches = list[Any]


@dataclass(frozen=True)
class LawOff:
    """A law, the patches that turn it off, and a seed that notices."""

    law: str
    patches: Callable[[], Patches]
    seed: int


def _units() -> Patches:
    return [patch.object(UnitOwners, "free", lambda self, name, units, consumer: list(units))]


def _used() -> Patches:
    need = Row.need.fget

    def without_use(row: Row) -> Any:
        return need(replace(row, used=replace(NOT_USED, units=row.used.units)))

    return [patch.object(Row, "need", property(without_use))]


def _takeover() -> Patches:
    return [patch.object(Book, "_crowded", lambda self, consumer, allocations: ())]


def _claimed() -> Patches:
    return [patch.object(Row, "claimed_amounts", property(lambda row: {}))]


def _same_unit() -> Patches:
    inner = relocate._relocate_claim

    def dealt_anew(claim: Any, relocations: Any, *rest: Any) -> Any:
        moved = inner(claim, relocations, *rest)
        return moved if moved is claim else replace(moved, units={})

    return [patch.object(relocate, "_relocate_claim", dealt_anew)]


def _sums() -> Patches:
    inner = PlacementClient.send_reshape

    def forgets(self: Any, inventories: Any, *writes: Any, **options: Any) -> Any:
        return inner(self, inventories, *map(_less, writes), **options)

    return [patch.object(PlacementClient, "send_reshape", forgets)]


def _less(write: Any) -> Any:
    """Without the first class of the first provider that has two."""
    for uuid, amounts in write.allocations.items():
        if len(amounts) > 1:
            rest = dict(list(amounts.items())[1:])
            return replace(write, allocations={**write.allocations, uuid: rest})
    return write


def _unknown() -> Patches:
    inner = PlacementClient.send_allocations

    def refused(self: Any, *writes: Any) -> Any:
        outcome = inner(self, *writes)
        return WriteRefused(outcome.error) if isinstance(outcome, WriteUnknown) else outcome

    return [patch.object(PlacementClient, "send_allocations", refused)]


def _fences() -> Patches:
    def nothing_fenced(self: Any, *consumers: str, **_: Any) -> None:
        return None

    return [
        patch.object(GuardedWriter, "secure", nothing_fenced),
        patch.object(GuardedWriter, "bar_again", lambda self, consumer: True),
        patch.object(GuardedWriter, "watched", lambda self: ()),
    ]


def _durable_doubts() -> Patches:
    return [patch.object(Journal, "doubts", lambda self: {})]


def _stalls() -> Patches:
    def wait(self: PendingWrite) -> None:
        try:
            self._ticket.result(60.0)
        except DatabaseError as error:
            raise StateError(f"The agent's journal was not written: {error}") from error

    return [patch.object(PendingWrite, "wait", wait)]


def _turns() -> Patches:
    @contextmanager
    def take(self: Turns, consumer: str, request: Any = None) -> Iterator[None]:
        yield

    return [patch.object(Turns, "take", take)]


def _release() -> Patches:
    def remembered(context: Any, claim: Any, held: Any) -> Mapping[str, Any]:
        """What the record does not name stays held."""
        return {
            uuid: rest
            for uuid, amounts in held.allocations.items()
            if (
                rest := {
                    name: left
                    for name, amount in amounts.items()
                    if (left := amount - claim.allocations.get(uuid, {}).get(name, 0)) > 0
                }
            )
        }

    return [patch.object(claim_attempt, "_remainder", remembered)]


def _recovery() -> Patches:
    return [patch.object(Doubts, "open", lambda self: ())]


def _same_generation() -> Patches:
    """A write that was accepted at a generation ends only the doubts of older ones."""
    inner = GuardedWriter._fence_older

    def fence_older(self: GuardedWriter, writes: Iterable[Any]) -> None:
        inner(self, [replace(each, generation=each.generation - 1) for each in writes if each.generation])

    return [patch.object(GuardedWriter, "_fence_older", fence_older)]


def _taken_back() -> Patches:
    inner = Register._wait_for_disk

    def wait(self: Register, steps: Iterable[Any]) -> None:
        inner(self, [each._replace(before={}, moves_before={}) for each in steps])

    return [patch.object(Register, "_wait_for_disk", wait)]


class _LeavesBegins:
    """A finisher that leaves a move as its begin was interrupted."""

    def __init__(self, finisher: MoveFinisher) -> None:
        self._finisher = finisher

    def finish(self, move: Move) -> Move:
        return move if move.state is MoveState.BEGINNING else self._finisher.finish(move)


def _finished_begins() -> Patches:
    inner = MoveOperations._end

    def end(self: MoveOperations, *arguments: Any) -> Move:
        other: Any = copy(self)
        other._finisher = _LeavesBegins(self._finisher)
        return inner(other, *arguments)

    return [patch.object(MoveOperations, "_end", end)]


def _ages() -> Patches:
    return [patch.object(HostClock, "age_s", lambda self, stamp: self.now() - stamp)]


def _reserved() -> Patches:
    return [patch.object(Row, "unheld", property(lambda row: row.unclaimed))]


def _offered() -> Patches:
    return [patch.object(UnheldUse, "reserve", lambda self, tree, owned: tree)]


def _held_for_guest() -> Patches:
    return [
        patch.object(Book, "note_departed", lambda self, departed: None),
        patch.object(ConsumerCase, "_holds_for_a_guest", property(lambda case: False)),
        patch.object(ConsumerCase, "possible_origins", property(lambda case: ())),
    ]


def _deletions() -> Patches:
    return [
        patch.object(AllocationCache, "used_otherwise", lambda self, root, tree, held: frozenset()),
        patch.object(ResourceTracker, "observe", lambda self, held, reading: None),
    ]


def _one_writer() -> Patches:
    return [
        patch.object(Writer, "check", lambda self, tree: None),
        patch.object(Writer, "holds_back", lambda self, tree=None, *, taking=True: None),
    ]


def _rows() -> Patches:
    """A row forgets which consumers are gone."""
    inner = store.encode

    def encode(*arguments: Any) -> Any:
        changes = inner(*arguments)
        changes["c"] = {uuid: entry for uuid, entry in changes.get("c", {}).items() if entry is not None}
        return changes

    return [patch.object(store, "encode", encode)]


def _sweep() -> Patches:
    """A row takes over only the providers of those that it sweeps."""
    inner = Store._keep_current

    def keep_current(self: Store, old: Any, left: Any) -> None:
        inner(self, {kind: entries for kind, entries in old.items() if kind == "p"}, left)

    return [patch.object(Store, "_keep_current", keep_current)]


def _keys() -> Patches:
    return [patch.object(store, "_dump_keys", lambda keys: "{}")]


def _role() -> Patches:
    inner = Database.add

    def add(self: Database, row: store.Row, first: int) -> bool:
        return inner(self, row._replace(epoch=self.epoch, seq=self.seq + 1), first)

    return [patch.object(Database, "add", add)]


LAWS_OFF = {
    "units": LawOff("a unit has one owner", _units, 7),
    "used": LawOff("what guests use is counted", _used, 51),
    "claimed": LawOff("what is claimed is counted", _claimed, 104),
    "takeover": LawOff("a take-over passes the same check as a fit", _takeover, 148),
    "same-unit": LawOff("a unit stays the same unit through a reshape", _same_unit, 18),
    "sums": LawOff("a reshape conserves sums", _sums, 4),
    "unknown": LawOff("an unknown write is not a refused one", _unknown, 45),
    "fences": LawOff("a doubt ends by a fence", _fences, 1),
    "durable-doubts": LawOff("a doubt survives a restart", _durable_doubts, 66),
    "delivery": LawOff("doubts are followed up without a request", _recovery, 75),
    "same-generation": LawOff("a write ends the doubts of its own generation", _same_generation, 640),
    "taken-back": LawOff("a step that the disk refused is taken back", _taken_back, 110),
    "finished-begins": LawOff("an interrupted begin is finished before the end", _finished_begins, 200),
    "stalls": LawOff("a commit that stalls is unknown", _stalls, 140),
    "turns": LawOff("one operation at a time for each consumer", _turns, 13),
    "ages": LawOff("no age is by the wall clock", _ages, 56),
    "offered": LawOff("nothing claimed or used is on offer", _offered, 8),
    "reserved": LawOff("what is claimed or used, and not held, is reserved", _reserved, 18),
    "held-for-guest": LawOff("a migration holds for its guest while that is here", _held_for_guest, 59),
    "deletions": LawOff("a deletion that raises no generation is noticed", _deletions, 29),
    "one-writer": LawOff("one agent writes for a host", _one_writer, 40),
    "release": LawOff("a release gives back what is held", _release, 120),
    "journal-rows": LawOff("a row of the served core's journal has all changes", _rows, 3),
    "journal-sweep": LawOff("a row that sweeps takes over what is current", _sweep, 1),
    "journal-keys": LawOff("a row has the keys of its writes", _keys, 0),
    "journal-role": LawOff("a server that lost its role adds no row", _role, 80),
}


@contextmanager
def turned_off(name: str) -> Iterator[None]:
    """Run the block without this law of the agent."""
    patches = LAWS_OFF[name].patches()
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def first_that_notices(name: str, seeds: Iterable[int] = range(SEEDS)) -> Outcome | None:
    """The outcome of the first seed that breaks a law while this one is off, but not otherwise."""
    for seed in seeds:
        with turned_off(name):
            outcome = tell(draw(seed))
        if outcome.law and not tell(draw(seed)).law:
            return outcome
    return None
