"""For whom a thread works just now: a caller of the local API, or nobody but the agent itself.

The history tells it with each step, without every call in between handing it on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """As the kernel knows it."""

    uid: int
    pid: int


_ASKER: ContextVar[Caller | None] = ContextVar("asker", default=None)


def asker() -> Caller | None:
    return _ASKER.get()


@contextmanager
def asked_by(uid: int, pid: int) -> Iterator[None]:
    token = _ASKER.set(Caller(uid, pid))
    try:
        yield
    finally:
        _ASKER.reset(token)
