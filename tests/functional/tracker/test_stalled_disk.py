"""A disk that does not answer, or that refuses one write: nothing is given away, and nothing is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kits.placements import Embedded
from kits.stalling_disk import StallingDisk
from kits.tracker import ELSEWHERE, HOST, POOL, Kit, provider, request, uuid_of

from agent.claims.claim import ClaimState
from agent.durable.group_commit import Transaction
from agent.durable.sqlite_file import SqliteFile
from agent.errors import (
    ClaimsClosed,
    DoesNotFit,
    PlacementUnavailable,
    PlimsollError,
    StateError,
    StateUnknown,
)
from agent.moves.states import MoveKind, MoveState
from agent.state import journal
from agent.state.journal import HISTORY_SLACK

INSTANCE, MIGRATION = uuid_of("instance"), uuid_of("migration")
WAIT_S = 0.4


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    with Kit(tmp_path, (*HOST, POOL, ELSEWHERE), Embedded(tmp_path)) as kit:
        yield kit


class Fault:
    """Stalls the journal, or has it fail, at the write of one event."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self.disk = StallingDisk(kit.journal._file)

    def stall_at(self, event: str) -> None:
        def before(written: str) -> None:
            if written == event:
                self._kit.journal._file.read("SELECT 1")  # the writes before this one are on disk
                self.disk.stall()

        self._kit.journal.before = before

    def fail_at(self, event: str) -> None:
        def before(written: str) -> None:
            if written == event:
                self._kit.journal.before = _nothing
                self._kit.journal._file.read("SELECT 1")  # the writes before this one are on disk
                self.disk.fail_next()

        self._kit.journal.before = before

    def end(self) -> None:
        self._kit.journal.before = _nothing
        self.disk.go_on()


def _nothing(_: str) -> None:
    pass


@pytest.fixture
def fault(kit: Kit) -> Iterator[Fault]:
    fault = Fault(kit)
    yield fault
    fault.end()


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[BaseException | None]]:
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
        except PlimsollError as error:
            ended.append(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, ended


def disk_and_memory_agree(kit: Kit) -> None:
    assert kit.tracker.claims() == kit.journal.claims()
    assert dict(kit.tracker.moves()) == dict(kit.journal.moves())


def test_a_unit_is_given_to_nobody_before_its_release_is_on_disk(kit: Kit, fault: Fault) -> None:
    """The journal answers EIO between two claims for one VF: it never has two owners."""
    first, _ = (kit.tracker.claim(request(VCPU=1, SRIOV_NET_VF=1)).claim for _ in range(2))
    fault.stall_at("gone")
    thread, ended = in_thread(lambda: kit.tracker.release(first.consumer))
    assert fault.disk.stalling.wait(10)
    assert kit.placed(first.consumer) == {}, "Placement has it free"
    with pytest.raises(DoesNotFit):
        kit.tracker.claim(request(VCPU=1, SRIOV_NET_VF=1))
    fault.disk.fail_next()
    fault.end()
    thread.join(10)
    assert isinstance(ended[0], StateError) and not isinstance(ended[0], StateUnknown)
    assert kit.tracker.claims()[first.consumer].state is ClaimState.RELEASING
    disk_and_memory_agree(kit)
    assert kit.tracker.deliver() == 1
    kit.tracker.claim(request(VCPU=1, SRIOV_NET_VF=1))
    kit.check()


def life_of_a_claim(kit: Kit) -> None:
    kit.tracker.claim(request(INSTANCE, VCPU=1, SRIOV_NET_VF=1))
    kit.tracker.release(INSTANCE)


def life_of_a_move(kit: Kit) -> None:
    kit.schedule(INSTANCE, elsewhere={"VCPU": 1, "MEMORY_MB": 512})
    moved = request(INSTANCE, VCPU=1, MEMORY_MB=512, SRIOV_NET_VF=1)
    kit.tracker.begin_move(moved, MoveKind.COLD_MIGRATE, MIGRATION)
    kit.tracker.confirm_move(MIGRATION)
    kit.tracker.release(INSTANCE)


def life_of_a_resize(kit: Kit) -> None:
    kit.tracker.claim(request(INSTANCE, VCPU=1, SRIOV_NET_VF=1))
    kit.tracker.begin_move(request(INSTANCE, VCPU=2, SRIOV_NET_VF=1), MoveKind.RESIZE, MIGRATION)
    kit.tracker.revert_move(MIGRATION)
    kit.tracker.release(INSTANCE)


def life_of_a_growth(kit: Kit) -> None:
    claim = kit.tracker.claim(request(INSTANCE, VCPU=1)).claim
    kit.tracker.extend(claim, request(INSTANCE, VCPU=2))


EVENTS = [
    (life_of_a_growth, "found"),
    *((life_of_a_claim, event) for event in ("begin", "grant", "release", "gone")),
    *((life_of_a_move, event) for event in ("move_begin", "move_grant", "move_confirm", "move_freed")),
    *((life_of_a_resize, event) for event in ("move_begin", "move_grant", "move_revert", "move_restored")),
]
at_each_event = pytest.mark.parametrize(
    ("life", "event"), EVENTS, ids=[f"{life.__name__}-{event}" for life, event in EVENTS]
)


@at_each_event
def test_after_a_stall_the_agent_continues_with_what_is_on_disk(
    kit: Kit, fault: Fault, life: Callable[[Kit], None], event: str
) -> None:
    """It stops deciding and says so; then memory, disk and the next start are the same."""
    kit.journal.wait_s = WAIT_S
    fault.stall_at(event)
    with pytest.raises(StateUnknown, match="decides nothing"):
        life(kit)
    assert "disk does not answer" in (kit.tracker.admission.closed_reason or "")
    with pytest.raises(ClaimsClosed, match="disk does not answer"):
        kit.tracker.claim(request(VCPU=1))
    with pytest.raises(StateUnknown):
        kit.tracker.read_back()
    fault.end()
    kit.journal.wait_s = 30
    kit.journal.history()  # behind the stalled write
    kit.tracker.read_back()
    assert kit.tracker.admission.closed_reason is None
    disk_and_memory_agree(kit)
    memory = kit.tracker.claims(), dict(kit.tracker.moves())
    kit.restart()
    assert (kit.tracker.claims(), dict(kit.tracker.moves())) == memory
    kit.refresh()
    kit.tracker.admission.open()
    kit.tracker.recover([])
    for move in kit.tracker.moves().values():
        if move.state is MoveState.BEGUN:
            kit.tracker.revert_move(move.migration)
    for consumer in kit.tracker.claims():
        kit.tracker.release(consumer)
    kit.check()
    assert kit.tracker.claims() == {} and kit.placed(MIGRATION) == {}
    assert kit.used("nic0", "SRIOV_NET_VF") == 0


@at_each_event
def test_a_refused_journal_write_leaves_memory_as_the_disk(
    kit: Kit, fault: Fault, life: Callable[[Kit], None], event: str
) -> None:
    fault.fail_at(event)
    with pytest.raises(StateError):
        life(kit)
    disk_and_memory_agree(kit)
    assert kit.tracker.admission.closed_reason is None


def test_an_embedded_commit_that_stalls_is_done_once_and_known(kit: Kit) -> None:
    """A claim, then a begin: the disk of the embedded Placement answers after the agent stopped waiting."""
    store = kit.tap.inner._core._store  # type: ignore[attr-defined]
    store._wait_s, disk = WAIT_S, StallingDisk(store.home)
    asked = request(INSTANCE, VCPU=1, SRIOV_NET_VF=1)
    with disk.stalled(), pytest.raises(PlacementUnavailable):
        kit.tracker.claim(asked)
    store.home.read("SELECT 1")
    store._wait_s = 30
    claim = kit.tracker.claim(asked).claim
    assert claim.state is ClaimState.CLAIMED
    assert kit.placed_all() == {INSTANCE: {"host": {"VCPU": 1}, "nic0": {"SRIOV_NET_VF": 1}}}
    larger = request(INSTANCE, VCPU=2, SRIOV_NET_VF=1)
    store._wait_s = WAIT_S
    with disk.stalled(), pytest.raises(PlacementUnavailable):
        kit.tracker.begin_move(larger, MoveKind.RESIZE, MIGRATION)
    store.home.read("SELECT 1")
    store._wait_s = 30
    kit.later_s += 3600
    kit.tracker.deliver()
    assert kit.tracker.pending == 0
    kit.check()
    for consumer in list(kit.tracker.claims()):
        kit.tracker.release(consumer)
    assert kit.placed_all() == {}


STEPS = 10
FEW, MANY = 60, 6000
EVENT_ROWS = ("begin", "grant", "release", "gone")
SMALL_HOST = (provider("host", VCPU=64, MEMORY_MB=65536),)


class StepCounter:
    """Counts what SQLite executes for a file, in units of STEPS of its instructions."""

    def __init__(self, file: SqliteFile) -> None:
        self._connection = file._connection
        self.count = 0

    def __enter__(self) -> StepCounter:
        def tick() -> None:
            self.count += 1

        self._connection.set_progress_handler(tick, STEPS)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.set_progress_handler(None, 0)


def release_one(kit: Kit) -> None:
    kit.tracker.release(kit.tracker.claim(request(VCPU=1, MEMORY_MB=512)).claim.consumer)


def sqlite_work(kit: Kit) -> int:
    """What the databases do for a claim and its release: the least of three, as pages split now and then."""
    store = kit.tap.inner._core._store  # type: ignore[attr-defined]
    counts = []
    for _ in range(3):
        with StepCounter(kit.journal._file) as journal, StepCounter(store.home) as placement:
            release_one(kit)
        counts.append(journal.count + placement.count)
    return min(counts)


def add_history(kit: Kit, releases: int) -> None:
    """The events of so many claims and releases, as if they had been."""

    def add(transaction: Transaction) -> None:
        rows = (
            (0.0, f"consumer-{number}", event, "", 0, 1) for number in range(releases) for event in EVENT_ROWS
        )
        transaction.executemany(journal.INSERT_EVENT, rows)

    kit.journal._file.run(add)


def test_the_databases_do_as_much_for_a_release_after_6000_as_after_60(tmp_path: Path) -> None:
    with Kit(tmp_path, SMALL_HOST, Embedded(tmp_path)) as kit:
        add_history(kit, FEW)
        few = sqlite_work(kit)
        add_history(kit, MANY - FEW)
        kit.journal._events_written = HISTORY_SLACK - 1
        release_one(kit)  # the oldest events are deleted
        assert sqlite_work(kit) <= few * 1.2


def test_memory_keeps_nothing_of_what_was_released(tmp_path: Path) -> None:
    with Kit(tmp_path, SMALL_HOST, Embedded(tmp_path)) as kit:

        def size() -> int:
            return kit.tracker._register.under_lock(lambda book: len(repr(vars(book))))

        for _ in range(3):
            release_one(kit)
        after_few = size()
        for _ in range(60):
            release_one(kit)
        assert size() <= after_few + 100
