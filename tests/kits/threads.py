"""Many clients at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

Answer = TypeVar("Answer")
WAIT_S = 60.0


def at_once(*work: Callable[[], Answer]) -> list[Answer]:
    """Begin all of this together, each in a thread of its own; what they return, in their order.

    Raises what the first of them raised.
    """
    start = Barrier(len(work))

    def begin(each: Callable[[], Answer]) -> Answer:
        start.wait(WAIT_S)
        return each()

    with ThreadPoolExecutor(len(work)) as threads:
        return [begun.result(WAIT_S) for begun in [threads.submit(begin, each) for each in work]]
