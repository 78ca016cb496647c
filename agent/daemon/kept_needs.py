"""Keeps a file of what the agent needs from a process of root, which systemd starts at each replacement."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from agent import log
from agent.backoff import Backoff
from agent.errors import StateError

LOG = log.get(__name__)

T = TypeVar("T")


class KeptNeeds(Generic[T]):
    """Replaces the file where other things are needed than it says. Any thread may call.

    While what it asks for is not there, the same file is written again, less and less often. `read` and
    `write` are those of the file.
    """

    def __init__(
        self, read: Callable[[], T | None], write: Callable[[T], None], backoff: Backoff | None = None
    ) -> None:
        self._read = read
        self._write = write
        self._backoff = backoff or Backoff()
        self._lock = threading.Lock()
        self._written: T | None = None
        self._warned = ""

    def keep(self, look: Callable[[T | None], tuple[T, Callable[[], bool]] | None]) -> None:
        """Write what `look` finds, if it is known and differs from what was written last.

        `look` is called with that, None where the file is missing or cannot be read; it returns what is
        needed now, and what tells whether that is there already; None where it is not known. A file that
        cannot be written is told in the log once, and tried again at the next call.
        """
        with self._lock:
            former = self._former()
            found = look(former)
            if found is None:
                return
            needs, is_there = found
            if needs == former and not self._is_to_ask_again(is_there):
                return
            try:
                self._write(needs)
            except StateError as error:
                self._warn(error.message)
            else:
                self._written, self._warned = needs, ""

    def _former(self) -> T | None:
        if self._written is None:
            try:
                self._written = self._read()
            except StateError as error:
                self._warn(error.message)
        return self._written

    def _is_to_ask_again(self, is_there: Callable[[], bool]) -> bool:
        if is_there():
            self._backoff.succeeded()
            return False
        if self._backoff.left_s():
            return False
        self._backoff.failed(busy=True)
        return True

    def _warn(self, problem: str) -> None:
        if problem != self._warned:
            self._warned = problem
            LOG.warning("%s", problem)
