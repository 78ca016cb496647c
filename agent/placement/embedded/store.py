"""The model and placement.db, kept in step.

Each write runs on the file's writer thread. It is checked against a draft that includes the earlier writes of
the same group, committed together with them, and only then applied to the model and answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from agent.durable.errors import DatabaseTimeout
from agent.durable.group_commit import Ticket, Transaction
from agent.durable.sqlite_file import SqliteFile
from agent.placement.embedded import tables
from agent.placement.embedded.draft import Draft
from agent.placement.embedded.keyed_writes import KeyedWrites
from agent.placement.embedded.model import Model

T = TypeVar("T")
Rule = Callable[[Draft], T]
WAIT_S = 60.0


class Store:
    """A placement.db and its model. `clock` returns seconds since 1970."""

    def __init__(
        self, state_dir: Path, clock: Callable[[], float] = time.time, *, wait_s: float = WAIT_S
    ) -> None:
        """Open the file and load the model; a write waits at most `wait_s` seconds for the disk.

        Raises DatabaseError, see SqliteFile.open.
        """
        self.clock = clock
        self._wait_s = wait_s
        self._keyed = KeyedWrites()
        self._in_doubt: tuple[Ticket[Any], ...] = ()
        self.file = SqliteFile.open(
            state_dir / tables.FILE_NAME,
            application_id=tables.APPLICATION_ID,
            migrations=tables.MIGRATIONS,
            name="placement",
        )
        try:
            self.model = tables.load_model(self.file)
        except BaseException:
            self.file.close()
            raise
        self._group = Draft(self.model, clock())
        self.file.join(self)

    @contextmanager
    def reading(self) -> Iterator[Model]:
        """The committed state, which does not change inside the block. The block must be short."""
        with self.model.lock.reading():
            yield self.model

    def write(
        self, rule: Rule[T], *, releases: bool = False, key: str | None = None, what: object = None
    ) -> T:
        """Run the rule on a draft. When it returns, its changes are on disk and visible.

        `releases` marks a write that frees resources and must succeed on a full disk. `key` is the write's
        idempotency key, if it has one, and `what` the write: see `KeyedWrites`.

        Raises RequestRefused where the rule refuses, DatabaseError where the disk fails; then nothing has
        changed. Raises DatabaseTimeout where the disk does not answer within `wait_s`: if the write has
        begun, its outcome is unknown, and the same call with the same key waits for it. Raises KeyReused.
        """

        def job(_: Transaction) -> T:
            draft = self._group.next(self.clock())
            answer = rule(draft)
            self._group.merge(draft)
            return answer

        def submit() -> Ticket[T]:
            return self.file.submit(job, releases=releases)

        ticket = submit() if key is None else self._keyed.ticket(key, what, submit)
        try:
            return ticket.result(self._wait_s)
        except DatabaseTimeout as error:
            if error.begun:
                self._in_doubt = (*(one for one in self._in_doubt if not one.answered), ticket)
            raise

    @property
    def in_doubt(self) -> bool:
        """Whether the outcome of a write is unknown: its caller waits no longer, and it may still be done."""
        return any(not ticket.answered for ticket in self._in_doubt)

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    # -- Participant: called on the writer thread --

    def flush(self, transaction: Transaction) -> None:
        """Write the group's changes."""
        if not self._group.is_empty:
            tables.write_draft(transaction, self._group, self.model)

    def publish(self) -> None:
        """Apply the group's changes to the model."""
        if not self._group.is_empty:
            with self.model.lock.writing():
                self.model.apply(self._group)
            self._group = Draft(self.model, self._group.now)

    def discard(self) -> None:
        """Discard the group's changes."""
        self._group = Draft(self.model, self._group.now)
