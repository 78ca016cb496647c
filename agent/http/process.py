"""How a serving process is set up: how its threads share the interpreter beside a long computation, so that
this holds no other one up, and how many file descriptors it may have.
"""

import gc
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TypeVar

from agent.errors import MORE_DESCRIPTORS, StateError, counted

T = TypeVar("T")
SWITCH_INTERVAL_S = 0.0001
PAUSED_MAX_S = 10.0


class _Computing:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._before_s = 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._blocks += 1
            if self._blocks == 1:
                self._before_s = sys.getswitchinterval()
                sys.setswitchinterval(SWITCH_INTERVAL_S)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                sys.setswitchinterval(self._before_s)


_COMPUTING = _Computing()


def long_computation() -> AbstractContextManager[None]:
    """Let another thread run after each tenth of a millisecond of the block, rather than after Python's 5 ms.

    A claim changes threads and waits for the disk several times, and each time it must get the interpreter
    back: beside a long computation it would wait tens of milliseconds. Beside other claims, which never keep
    it for long, so many changes cost more than they gain.
    """
    return _COMPUTING


class _PausedCollection:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._since = 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._blocks += 1
            if self._blocks == 1:
                self._since = time.monotonic()
                gc.disable()
            elif time.monotonic() - self._since > PAUSED_MAX_S:
                gc.enable()  # blocks that overlap for ever must not prevent every collection

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                gc.enable()


_PAUSED = _PausedCollection()


@contextmanager
def without_collection() -> Iterator[None]:
    """Run a `long_computation` without Python's search for reference cycles, during which no thread runs.

    For a block that makes very many objects and no cycles: the search would look at all of them several
    times, for tenths of a second each.
    """
    with _COMPUTING, _PAUSED:
        yield


def consume(members: list[T]) -> Iterator[T]:
    """Each member, which the list keeps no longer.

    A long list that still has its members frees them all at once, while no other thread runs.
    """
    members.reverse()
    while members:
        yield members.pop()


DESCRIPTORS_MIN = 32
"""An agent that is idle has about 20: its databases, listeners and selectors."""


def take_all_descriptors() -> None:
    """Raise this process's limit to the hard one. Raises StateError where that is too low for an agent.

    The soft limit is low for programs that use select(2), which the agent does not.
    Source: systemd.exec(5), LimitNOFILE=
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # it stays as it is, which is enough for most hosts
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < DESCRIPTORS_MIN:
        raise StateError(
            f"The agent may open {counted(limit, 'file')} at the same time and needs at least "
            f"{DESCRIPTORS_MIN}: {MORE_DESCRIPTORS}."
        )
