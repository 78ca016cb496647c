"""How the threads of a process share the interpreter, so that a long computation holds no other one up."""

import gc
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_INTERVAL_S = 0.0005
PAUSED_MAX_S = 10.0


def share_the_interpreter() -> None:
    """Have a computing thread let another one run after half a millisecond.

    A claim changes threads and waits for the disk several times, and each time it must get the interpreter
    back. Python's default of 5 ms makes it wait tens of milliseconds beside a long computation.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)


class _PausedCollection:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._since = 0.0

    def begin(self) -> None:
        with self._lock:
            self._blocks += 1
            if self._blocks == 1:
                self._since = time.monotonic()
                gc.disable()
            elif time.monotonic() - self._since > PAUSED_MAX_S:
                gc.enable()  # blocks that overlap for ever must not prevent every collection

    def end(self) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                gc.enable()


_PAUSED = _PausedCollection()


@contextmanager
def without_collection() -> Iterator[None]:
    """Run the block without Python's search for reference cycles, during which no thread runs.

    For a block that makes very many objects and no cycles: the search would look at all of them several
    times, for tenths of a second each.
    """
    _PAUSED.begin()
    try:
        yield
    finally:
        _PAUSED.end()
