"""One lock for many readers and one writer, where the writer never waits for more than those before it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class WriterFirstLock:
    """Everybody excludes everybody, and a waiting writer goes before readers that come after it.

    A plain lock lets a thread that has just given it up take it again before those that wait for it. A few
    busy readers could keep the writer out for seconds, and with it everybody who waits for a write.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._writer_waits = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        if self._writer_waits:
            with self._turn:  # the writer holds it until it is through
                pass
        with self._lock:
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        with self._turn:
            self._writer_waits = True
            try:
                with self._lock:
                    yield
            finally:
                self._writer_waits = False
