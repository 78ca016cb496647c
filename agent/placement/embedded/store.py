"""The model and placement.db, kept in step.

Each write runs on the file's writer thread. It is checked against a draft that includes the earlier writes of
the same group, committed together with them, and only then applied to the model and answered.
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
    """A placement.db and its model. `clock` returns seconds since 1970."""

    def __init__(self, state_dir: Path, clock: Callable[[], float] = time.time) -> None:
        """Open the file and load the model. Raises DatabaseError, see SqliteFile.open."""
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
        """The committed state, which does not change inside the block. The block must be short."""
        with self.model.lock.reading():
            yield self.model

    def write(self, rule: Rule[T], *, releases: bool = False) -> T:
        """Run the rule on a draft. When it returns, its changes are on disk and visible.

        `releases` marks a write that frees resources and must succeed on a full disk.

        Raises RequestRefused where the rule refuses, DatabaseError where the disk fails; then nothing has
        changed.
        """

        def job(_: Transaction) -> T:
            draft = Draft(self._group, self.clock())
            answer = rule(draft)
            self._group.merge(draft)
            return answer

        return self.file.run(job, releases=releases)

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
