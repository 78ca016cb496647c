"""The caller of the local API for which the current thread works, if any.

The journal's history records it with each event, so that the calls in between need not pass it on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller's user id and process id, as the kernel gives them."""

    uid: int
    pid: int


_CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller | None:
    """The caller, or None where the agent acts on its own."""
    return _CALLER.get()


@contextmanager
def acting_for(uid: int, pid: int) -> Iterator[None]:
    """Work for this caller within the context."""
    token = _CALLER.set(Caller(uid, pid))
    try:
        yield
    finally:
        _CALLER.reset(token)
