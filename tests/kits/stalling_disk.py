"""A disk that stalls or fails: it takes part in the commits of a SqliteFile."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from agent.durable.group_commit import Job, Ticket, Transaction
from agent.durable.sqlite_file import SqliteFile

T = TypeVar("T")
BEGUN_WITHIN_S = 60


class StallingDisk:
    """Joins `file`; its commits stall while `stalled` is entered, and those in `fail_next` fail.

    While commits stall, `file.submit` returns only once the disk stalls or the job is answered: a caller that
    waits briefly meets a write that has begun, also on a busy machine, and not one that it cancels.
    """

    def __init__(self, file: SqliteFile) -> None:
        submit = file.submit

        def submitted(job: Job[T], **options: Any) -> Ticket[T]:
            ticket = submit(job, **options)
            end = time.monotonic() + BEGUN_WITHIN_S
            while not (self._goes_on.is_set() or self.stalling.is_set() or ticket.answered):
                assert time.monotonic() < end, "the writer takes no job"
                time.sleep(0.001)
            return ticket

        self._submit = submit
        file.submit = submitted  # type: ignore[method-assign]
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._failures = 0
        self._name = ""
        self.stalling = threading.Event()
        """Set while a commit stalls."""
        file.join(self)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Commits that begin in the block end after it."""
        self.stall()
        try:
            yield
        finally:
            self.go_on()

    def stall(self) -> None:
        """Have commits stall that begin from now on.

        What is queued already is committed before: an event that still waits for its commit would stall in
        place of the write that the test means, which then would be cancelled.
        """
        self._submit(lambda transaction: None).result()
        self._goes_on.clear()

    def go_on(self) -> None:
        """End the stall, and return when no commit stalls any longer."""
        self._goes_on.set()
        end = time.monotonic() + BEGUN_WITHIN_S
        while self.stalling.is_set():
            assert time.monotonic() < end, "the commit does not go on"
            time.sleep(0.001)

    def fail_next(self, times: int = 1, name: str = "SQLITE_IOERR_FSYNC") -> None:
        """Have the next commits fail as on a disk that answers EIO; or as SQLite calls it."""
        self._failures, self._name = times, name

    def flush(self, transaction: Transaction) -> None:
        """Part of a commit: wait, or fail."""
        if not transaction.writes:
            return
        if not self._goes_on.is_set():
            self.stalling.set()
            assert self._goes_on.wait(60)
            self.stalling.clear()
        if self._failures:
            self._failures -= 1
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = self._name
            raise error

    def publish(self) -> None:
        """Nothing: the disk has no memory."""

    def discard(self) -> None:
        """Nothing, as for `publish`."""
