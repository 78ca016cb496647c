"""The journal's file: in memory, written by a task, and what is left of it after a kill."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agent.durable.errors import (
    DatabaseClosed,
    DatabaseTimeout,
    DatabaseUnwritable,
    concerns_the_file,
)
from agent.durable.group_commit import Transaction
from agent.state import journal
from simulation.tasks import Killed, Process, Scheduler, Task

_templates: dict[int, bytes] = {}


def _empty() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    version = len(journal.MIGRATIONS)
    if version not in _templates:
        for script in journal.MIGRATIONS:
            connection.executescript(script)
        connection.execute(f"PRAGMA user_version = {version}")
        _templates[version] = connection.serialize()
    connection.deserialize(_templates[version])
    return connection


class Disk:
    """What survives the agent's process. `committed` is called after each commit.

    `committed` gets what `seen_at` said when the commit was asked for: no later look was known to the agent
    when it decided what it commits. Of several at once it gets the earliest.
    `stalls` and `fails` are the faults of the next commits: seconds that one takes, and how many fail.
    `fails_after` are numbers of commits after which one more fails. `has_failed`: whether one ever did.
    `lags`: the running agent was not told of a commit, so what it knows may not all be on the disk.
    """

    def __init__(self) -> None:
        self.connection = _empty()
        self.committed: Callable[[float], None] = lambda known_at: None
        self.seen_at: Callable[[], float] = lambda: 0.0
        self.stalls: list[float] = []
        self.fails = 0
        self.fails_after: list[int] = []
        self.has_failed = False
        self.lags = False

    def empty(self) -> None:
        """Somebody put an empty state directory in its place."""
        self.connection.close()
        self.connection = _empty()

    def copy(self, other: Disk) -> None:
        """An image of another disk."""
        self.connection.deserialize(other.connection.serialize())

    def adopt(self) -> None:
        """`plimsoll adopt` was run: the agent's next start takes the host over."""
        (text,) = self.connection.execute("SELECT value FROM facts WHERE name = 'writer'").fetchone() or (
            "{}",
        )
        self.connection.execute(
            "INSERT OR REPLACE INTO facts (name, value) VALUES ('writer', ?)",
            (json.dumps({"own": json.loads(text).get("own", []), "takes_over": True}),),
        )

    def close(self) -> None:
        """The world has ended."""
        self.connection.close()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What is committed; for the oracle."""
        return self.connection.execute(query).fetchall()


class _Ticket:
    """As agent.durable.group_commit.Ticket."""

    def __init__(self, file: SimulatedFile, job: Callable[[Transaction], Any]) -> None:
        self.file = file
        self.job = job
        self.known_at = file.disk.seen_at()
        self.begun = self.cancelled = self.answered = False
        self.value: Any = None
        self.error: Exception | None = None
        self.waiting: list[Task] = []

    def answer(self) -> None:
        self.answered = True
        for task in self.waiting:
            self.file.scheduler.wake(task)

    def result(self, timeout_s: float = 60.0) -> Any:
        scheduler = self.file.scheduler
        scheduler.place()
        end = scheduler.steady + timeout_s
        while not self.answered:
            task = scheduler.current
            if task is None:
                self.file.write_now()
                continue
            self.waiting.append(task)
            scheduler.wait(end - scheduler.steady)
            self.waiting.remove(task)
            if not self.answered and scheduler.steady >= end:
                self.cancelled = not self.begun
                self.file.disk.lags = True
                raise DatabaseTimeout(self.file.path, timeout_s, begun=self.begun)
        if self.error is not None:
            raise self.error
        return self.value


class SimulatedFile:
    """As agent.durable.sqlite_file.SqliteFile, for one process of the agent."""

    def __init__(self, disk: Disk, scheduler: Scheduler, process: Process) -> None:
        self.path = Path(f"/{process.name}/agent.db")
        self.disk = disk
        disk.lags = False
        self.scheduler = scheduler
        self.process = process
        self.committed: Callable[[float], None] = lambda seconds: None
        self._transaction = Transaction(disk.connection)
        self._queue: list[_Ticket] = []
        self._closed = False
        self._idle = True
        self._writer = scheduler.spawn(f"{process.name}'s journal", process, self._work)

    def submit(self, job: Callable[[Transaction], Any], *, releases: bool = False) -> _Ticket:
        if self.process.dead:
            raise Killed
        if self._closed:
            raise DatabaseClosed(self.path)
        ticket = _Ticket(self, job)
        self._queue.append(ticket)
        if self._idle:
            self.scheduler.wake(self._writer)
        return ticket

    def run(
        self, job: Callable[[Transaction], Any], *, releases: bool = False, timeout_s: float = 60.0
    ) -> Any:
        return self.submit(job, releases=releases).result(timeout_s)

    def read(
        self, sql: str, parameters: Sequence[Any] = (), *, timeout_s: float = 60.0
    ) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self.run(
            lambda transaction: transaction.query(sql, parameters), timeout_s=timeout_s
        )
        return rows

    @property
    def disk_full(self) -> bool:
        return False

    def close(self, timeout_s: float = 30.0) -> None:
        self._closed = True

    def write_now(self) -> None:
        """The director cannot wait for the task."""
        group, self._queue = self._queue, []
        self._commit(group, 0.0, fails=False)

    def _work(self) -> None:
        while True:
            if not self._queue:
                self._idle = True
                self.scheduler.wait()
                self._idle = False
                continue
            self.scheduler.place()
            group, self._queue = [each for each in self._queue if not each.cancelled], []
            stall = self.disk.stalls.pop(0) if self.disk.stalls else 0.0
            self.disk.fails += self.disk.fails_after.count(0)
            self.disk.fails_after = [left - 1 for left in self.disk.fails_after if left > 0]
            fails = self.disk.fails > 0
            self.disk.fails -= fails
            self._commit(group, stall, fails=fails)

    def _commit(self, group: list[_Ticket], stall: float, *, fails: bool) -> None:
        connection = self.disk.connection
        for ticket in group:
            ticket.begun = True
        if stall:
            self.scheduler.sleep(stall)
        wrote = False
        for ticket in group:
            try:
                ticket.value = self._transaction._run(ticket.job)
            except sqlite3.Error as error:
                assert not concerns_the_file(error), error
                ticket.error = error
            except Exception as error:  # noqa: BLE001 - result() raises it in the caller
                ticket.error = error
        if connection.in_transaction:
            wrote = not fails
            connection.execute("ROLLBACK" if fails else "COMMIT")
            if fails:
                self.disk.has_failed = True
                self.disk.lags = True
                for ticket in group:
                    ticket.error = DatabaseUnwritable(self.path, "Input/output error")
        if wrote:
            self.disk.committed(min(ticket.known_at for ticket in group))
        for ticket in group:
            ticket.answer()
