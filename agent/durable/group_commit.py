"""Group commit: one thread runs the write jobs; those waiting together share one transaction and one sync.

A job is a callable that gets the group's `Transaction`. Jobs run in the order they were submitted, each
seeing what its predecessors in the group did. A job that raises takes only its own statements back. Answers
are given after the commit; when the commit fails every job of the group is answered with the error, and
nothing has changed.

State kept in memory beside the file takes part as a `Participant`: it collects what the jobs change, writes
it in `flush`, and shows it (`publish`) or forgets it (`discard`) once the outcome is known.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

from agent.durable.errors import concerns_the_file

LOG = logging.getLogger(__name__)

T = TypeVar("T")
Parameters = Sequence[Any]
Job = Callable[["Transaction"], T]


class Participant(Protocol):
    """In-memory state that changes together with the file. All three are called on the writer thread."""

    def flush(self, transaction: Transaction) -> None:
        """Write everything that the group's jobs changed in memory."""

    def publish(self) -> None:
        """The commit is on disk: make the changes visible to readers."""

    def discard(self) -> None:
        """The commit failed: forget the changes."""


class Transaction:
    """The group's transaction as one job sees it. It begins with the first statement that writes."""

    __slots__ = ("_connection", "_in_job", "_saved")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._saved = False
        self._in_job = False

    def execute(self, sql: str, parameters: Parameters = ()) -> int:
        """Run one writing statement; answers the number of rows it touched."""
        self._before_write()
        return self._connection.execute(sql, parameters).rowcount

    def executemany(self, sql: str, rows: Iterable[Parameters]) -> None:
        self._before_write()
        self._connection.executemany(sql, rows)

    def query(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """Run one reading statement; sees what the group has written so far."""
        return self._connection.execute(sql, parameters).fetchall()

    def _before_write(self) -> None:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")
        if self._in_job and not self._saved:
            self._connection.execute("SAVEPOINT job")
            self._saved = True

    def _run(self, job: Job[T]) -> T:
        """Run `job`, taking back its statements, and only its, when it raises."""
        self._in_job, self._saved = True, False
        try:
            answer = job(self)
        except BaseException:
            # After some errors (a full disk) SQLite has rolled everything back by itself.
            if self._saved and self._connection.in_transaction:
                self._connection.execute("ROLLBACK TO job")
                self._connection.execute("RELEASE job")
            raise
        else:
            if self._saved:
                self._connection.execute("RELEASE job")
            return answer
        finally:
            self._in_job = False


class Ticket(Generic[T]):
    """The answer to come of a submitted job."""

    __slots__ = (
        "_answer",
        "_answered",
        "_begun",
        "_done",
        "_error",
        "_job",
        "_taken",
        "_timed_out",
        "releases",
    )

    def __init__(self, job: Job[T], releases: bool, timed_out: Callable[[float, bool], Exception]) -> None:
        """`timed_out(seconds, begun)` makes the error of a caller who waited in vain."""
        self._job = job
        self.releases = releases
        self._timed_out = timed_out
        self._answer: T | None = None
        self._error: BaseException | None = None
        self._answered = False
        # A bare lock costs a fraction of the condition variable inside a concurrent.futures.Future.
        self._done = threading.Lock()
        self._done.acquire()
        # Whoever has it, the writer or a caller who waits no longer, decides whether the job is run at all.
        self._taken = threading.Lock()
        self._begun = False

    def result(self, timeout_s: float = 60.0) -> T:
        """Wait for the job's answer, after its commit.

        :raises DatabaseTimeout: no answer within `timeout_s` seconds; a job that had not begun never will
        :raises DatabaseError: the commit failed and nothing was changed
        :raises Exception: whatever the job itself raised
        """
        if not self._done.acquire(timeout=timeout_s):
            raise self._timed_out(timeout_s, not self._taken.acquire(blocking=False))
        self._done.release()
        if self._error is not None:
            raise self._error
        return cast(T, self._answer)

    def run(self, transaction: Transaction) -> None:
        """Run the job and keep its answer or its own error.

        :raises sqlite3.Error: one that concerns the whole file, and so the whole group
        """
        self._begun = self._begun or self._taken.acquire(blocking=False)
        if not self._begun:
            return  # nobody waits for it any more
        try:
            self._answer = transaction._run(self._job)
            self._error = None
        except sqlite3.Error as error:
            if concerns_the_file(error):
                raise
            self._error = error
        except Exception as error:  # noqa: BLE001 - it belongs to the caller, who gets it from result()
            self._error = error

    def fail(self, error: BaseException) -> None:
        """Answer with `error`, unless the ticket is answered already."""
        if not self._answered:
            self._error = error
            self.answer()

    def answer(self) -> None:
        """Give what run() kept."""
        self._answered = True
        self._done.release()


class GroupWriter:
    """The FIFO queue and the one thread behind it.

    `run_group` gets each group of tickets and must answer or fail every one of them. `group_max` bounds a
    group.
    """

    def __init__(
        self, name: str, run_group: Callable[[list[Ticket[Any]]], None], group_max: int = 256
    ) -> None:
        self._queue: queue.SimpleQueue[Ticket[Any] | None] = queue.SimpleQueue()
        self._run_group = run_group
        self._group_max = group_max
        self._thread = threading.Thread(target=self._work, name=f"{name}-writer", daemon=True)
        self._thread.start()

    def put(self, ticket: Ticket[Any]) -> None:
        self._queue.put(ticket)

    def stop(self, timeout_s: float) -> bool:
        """Run what was queued before this call, then end the thread; False when it did not end in time."""
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
                if len(group) == self._group_max or self._queue.empty():
                    break
                entry = self._queue.get()
            last = entry is None
            try:
                self._run_group(group)
            except Exception as error:
                # Without this thread every later write would wait in vain.
                LOG.exception("A group of writes failed inside")
                for ticket in group:
                    ticket.fail(error)
