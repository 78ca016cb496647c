"""A release costs the same, however many releases there were before it."""

from __future__ import annotations

from pathlib import Path

from kits.placements import Embedded
from kits.tracker import Kit, provider, request

from agent.durable.group_commit import Transaction
from agent.durable.sqlite_file import SqliteFile
from agent.state import journal
from agent.state.journal import HISTORY_SLACK

STEPS = 10
FEW, MANY = 60, 6000
EVENTS = ("begin", "grant", "release", "gone")
HOST = (provider("host", VCPU=64, MEMORY_MB=65536),)


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
        with StepCounter(kit.journal._file) as journal, StepCounter(store.file) as placement:
            release_one(kit)
        counts.append(journal.count + placement.count)
    return min(counts)


def add_history(kit: Kit, releases: int) -> None:
    """The events of so many claims and releases, as if they had been."""

    def add(transaction: Transaction) -> None:
        rows = (
            (0.0, f"consumer-{number}", event, "", 0, 1) for number in range(releases) for event in EVENTS
        )
        transaction.executemany(journal.INSERT_EVENT, rows)

    kit.journal._file.run(add)


def test_the_databases_do_as_much_for_a_release_after_6000_as_after_60(tmp_path: Path) -> None:
    with Kit(tmp_path, HOST, Embedded(tmp_path)) as kit:
        add_history(kit, FEW)
        few = sqlite_work(kit)
        add_history(kit, MANY - FEW)
        kit.journal._events_written = HISTORY_SLACK - 1
        release_one(kit)  # the oldest events are deleted
        assert sqlite_work(kit) <= few * 1.2


def test_memory_keeps_nothing_of_what_was_released(tmp_path: Path) -> None:
    with Kit(tmp_path, HOST, Embedded(tmp_path)) as kit:

        def size() -> int:
            return kit.tracker._register.under_lock(lambda book: len(repr(vars(book))))

        for _ in range(3):
            release_one(kit)
        after_few = size()
        for _ in range(60):
            release_one(kit)
        assert size() <= after_few + 100
