"""Group commit: one thread runs the write jobs; jobs that wait together share one transaction and one sync.

A job is a callable that gets the group's `Transaction`. Jobs run in the order of their submission; each sees
the changes of its predecessors in the group. If a job raises, only its own statements are rolled back. Jobs
are answered after the commit. If the commit fails, every job of the group gets the error, and nothing has
changed.

State in memory beside the file takes part as a `Participant`: it collects the jobs' changes, writes them in
`flush`, and shows them (`publish`) or drops them (`discard`) when the outcome is known.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

from agent.durable.errors import concerns_the_file

LOG = logging.getLogger(__name__)

T = TypeVar("T")
Parameters = Sequence[Any]
Job = Callable[["Transaction"], T]

_NOTHING: tuple[str, ...] = ()


class Participant(Protocol):
    """In-memory state that changes together with the file. The writer thread calls all three methods."""

    def flush(self, transaction: Transaction) -> None:
        """Write the changes that the group's jobs made in memory."""

    def publish(self) -> None:
        """The commit is on disk: make the changes visible to readers."""

    def discard(self) -> None:
        """The commit failed: drop the changes."""


class Transaction:
    """The group's transaction, which begins with the first writing statement."""

    __slots__ = ("_connection", "_in_job", "_undo")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._undo = _NOTHING
        self._in_job = False

    def execute(self, sql: str, parameters: Parameters = ()) -> int:
        """Run a writing statement; returns the number of affected rows."""
        self._before_write()
        return self._connection.execute(sql, parameters).rowcount

    def executemany(self, sql: str, rows: Iterable[Parameters]) -> None:
        """Run a writing statement once for each row of parameters."""
        self._before_write()
        self._connection.executemany(sql, rows)

    def query(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """Run a reading statement, which sees the group's writes so far."""
        return self._connection.execute(sql, parameters).fetchall()

    @property
    def writes(self) -> bool:
        """Whether a statement of the group has written."""
        return self._connection.in_transaction

    def _before_write(self) -> None:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")
            self._undo = ("ROLLBACK",)
        elif self._in_job and not self._undo:
            self._connection.execute("SAVEPOINT job")
            self._undo = ("ROLLBACK TO job", "RELEASE job")

    def _run(self, job: Job[T]) -> T:
        """Run `job`; if it raises, roll back its own statements only.

        They are all that there is in a transaction that it began. Others need a savepoint, and each statement
        lets another thread of the process run before this one goes on.
        """
        self._in_job, self._undo = True, _NOTHING
        try:
            answer = job(self)
        except BaseException:
            # After some errors, as a full disk, SQLite has already rolled everything back.
            if self._connection.in_transaction:
                for statement in self._undo:
                    self._connection.execute(statement)
            raise
        else:
            if len(self._undo) > 1:
                self._connection.execute(self._undo[-1])
            return answer
        finally:
            self._in_job = False


class Ticket(Generic[T]):
    """The future result of a submitted job."""

    __slots__ = (
        "_answer",
        "_answered",
        "_begun",
        "_cancelled",
        "_done",
        "_error",
        "_job",
        "_taken",
        "_timed_out",
        "releases",
        "tell",
    )

    def __init__(
        self,
        job: Job[T],
        releases: bool,
        timed_out: Callable[[float, bool], Exception],
        tell: Callable[[], None] | None = None,
    ) -> None:
        """`timed_out(seconds, begun)` makes the error for a caller whose wait timed out.

        The writer calls `tell` when the ticket is answered, once for all tickets of a group that have it.
        """
        self._job = job
        self.releases = releases
        self.tell = tell
        self._timed_out = timed_out
        self._answer: T | None = None
        self._error: BaseException | None = None
        self._answered = False
        # A bare lock costs a fraction of the condition variable inside a concurrent.futures.Future.
        self._done = threading.Lock()
        self._done.acquire()
        # The writer takes this lock to run the job; a caller that stops waiting takes it to cancel the job.
        self._taken = threading.Lock()
        self._begun = False
        self._cancelled = False

    def result(self, timeout_s: float = 60.0, *, waited_s: float = 0.0) -> T:
        """Wait for the commit, and return the job's result. The caller has waited `waited_s` already.

        Raises DatabaseTimeout where there is no answer within `timeout_s` seconds: a job that has not begun
        is cancelled, and of one that has begun a later call tells the outcome. Raises DatabaseError where the
        commit failed and nothing was changed, and the job's exception.
        """
        # Another caller may have the lock for a moment once the ticket is answered.
        if not self._answered and self._done.acquire(timeout=max(0.0, timeout_s - waited_s)):
            self._done.release()
        if not self._answered:
            self._cancelled = self._cancelled or self._taken.acquire(blocking=False)
            raise self._timed_out(timeout_s, not self._cancelled)
        if self._error is not None:
            raise self._error
        return cast(T, self._answer)

    @property
    def answered(self) -> bool:
        """Whether the outcome is known: `result` returns or raises at once, and no longer DatabaseTimeout."""
        return self._answered

    def run(self, transaction: Transaction) -> None:
        """Run the job, and keep its result or its own error.

        Raises sqlite3.Error where the error concerns the whole file, and so the whole group.
        """
        self._begun = self._begun or self._taken.acquire(blocking=False)
        if not self._begun:
            return  # its caller cancelled it
        try:
            self._answer = transaction._run(self._job)
            self._error = None
        except sqlite3.Error as error:
            if concerns_the_file(error):
                raise
            self._error = error
        except Exception as error:  # noqa: BLE001 - result() raises it in the caller
            self._error = error

    def fail(self, error: BaseException) -> None:
        """Answer with `error`, unless the ticket has an answer."""
        if not self._answered:
            self._error = error
            self.answer()

    def answer(self) -> None:
        """Answer with the result or error of `run`."""
        self._answered = True
        self._done.release()


GROUP_MAX = 256


class GroupWriter:
    """A FIFO queue and its one thread.

    `run_group` gets each group of at most GROUP_MAX tickets, and must answer or fail each ticket.
    """

    def __init__(self, name: str, run_group: Callable[[list[Ticket[Any]]], None]) -> None:
        self._queue: queue.SimpleQueue[Ticket[Any] | None] = queue.SimpleQueue()
        self._run_group = run_group
        self._begun_at: float | None = None
        self._thread = threading.Thread(target=self._work, name=f"{name}-writer", daemon=True)
        self._thread.start()

    def put(self, ticket: Ticket[Any]) -> None:
        """Queue a ticket."""
        self._queue.put(ticket)

    @property
    def busy_s(self) -> float:
        """For how long a group has been running, 0 for none."""
        begun_at = self._begun_at
        return 0.0 if begun_at is None else time.monotonic() - begun_at

    def stop(self, timeout_s: float) -> bool:
        """Run the queued tickets, then end the thread. Returns False if it did not end in time."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        last = False
        while not last:
            group: list[Ticket[Any]] = []
            entry = self._queue.get()
            while entry is not None:
                group.append(entry)
                if len(group) == GROUP_MAX or self._queue.empty():
                    break
                entry = self._queue.get()
            last = entry is None
            self._begun_at = time.monotonic()
            try:
                self._run_group(group)
            except Exception as error:
                # The thread must go on: without it, no later write would get an answer.
                LOG.exception("Unexpected error in a group of writes")
                for ticket in group:
                    ticket.fail(error)
            self._begun_at = None
            for tell in {ticket.tell for ticket in group}:
                if tell is not None:
                    tell()
