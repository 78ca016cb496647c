"""The model and its durable journal, kept in step.

Every write runs on the journal's writer thread: checked against a draft that sees what the writes before it
in the same group did, then committed together with them, and only then applied to the model and answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from agent.durable.group_commit import Transaction
from agent.durable.sqlite_file import SqliteFile
from agent.placement.embedded import tables
from agent.placement.embedded.draft import Draft
from agent.placement.embedded.model import Model

T = TypeVar("T")
Rule = Callable[[Draft], T]


class Store:
    """One placement.db and the model of it. `clock` gives seconds since 1970."""

    def __init__(self, state_dir: Path, clock: Callable[[], float] = time.time) -> None:
        """:raises DatabaseError: see SqliteFile.open"""
        self.clock = clock
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
        """The committed state, standing still inside the block. Nothing slow may be done in there."""
        with self.model.lock.reading():
            yield self.model

    def write(self, rule: Rule[T], *, releases: bool = False) -> T:
        """Run the rule on a draft; once it returns, what it changed is on disk and visible.

        `releases` marks a write that frees resources, and so must get through on a full disk.

        :raises Refused: the rule refused, nothing was changed
        :raises DatabaseError: the disk refused, nothing was changed
        """

        def job(_: Transaction) -> T:
            draft = Draft(self._group, self.clock())
            answer = rule(draft)
            self._group.merge(draft)
            return answer

        return self.file.run(job, releases=releases)

    def close(self) -> None:
        self.file.close()

    # -- Participant: called on the writer thread --

    def flush(self, transaction: Transaction) -> None:
        if not self._group.is_empty:
            tables.write_draft(transaction, self._group, self.model)

    def publish(self) -> None:
        if not self._group.is_empty:
            with self.model.lock.writing():
                self.model.apply(self._group)
            self._group = Draft(self.model, self._group.now)

    def discard(self) -> None:
        self._group = Draft(self.model, self._group.now)
