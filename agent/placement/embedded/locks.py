"""A lock for many readers and one writer that readers cannot delay for long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class WriterFirstLock:
    """A mutual exclusion of all holders, in which a waiting writer goes before readers that come after it.

    A thread that releases a plain lock may take it again before the threads that wait for it. A few busy
    readers could so keep the writer out for seconds, and with it all threads that wait for a write.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._writer_waits = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the lock as a reader."""
        if self._writer_waits:
            with self._turn:  # the writer holds it until it has the lock and is done
                pass
        with self._lock:
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock as the writer."""
        with self._turn:
            self._writer_waits = True
            try:
                with self._lock:
                    yield
            finally:
                self._writer_waits = False
