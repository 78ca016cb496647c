"""What operators said, which is kept over restarts, and who calls the agent now.

A pause is an operator's word that this host takes no new claims; a cordon, that a device is given to no
guest. The journal's history records with each event the caller of the local API for which the current
thread works, if any, so that the calls in between need not pass it on.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Annotated

from agent.errors import RequestExpired
from agent.json_checks import read_uid

REASON_CHARS_MAX = 255


@dataclass(frozen=True, slots=True)
class Pause:
    """Why and since when the host is paused; `at` is seconds since the epoch, UTC.

    `uid` is the user who asked for it. `schedulers`: schedulers are told, by the trait
    COMPUTE_STATUS_DISABLED. `drains`: the instances that are here are to leave.
    """

    reason: str
    uid: Annotated[int, read_uid]
    at: float
    schedulers: bool = False
    drains: bool = False

    @property
    def clause(self) -> str:
        """Why claims are closed, as a clause."""
        what = "drained" if self.drains else "paused"
        return f"the host is {what} by uid {self.uid}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True)
class PauseRequest:
    """What an operator asks for now; what is None stays as an earlier request said."""

    uid: int
    at: float
    reason: str | None = None
    schedulers: bool | None = None
    drains: bool | None = None

    def after(self, former: Pause | None) -> Pause:
        """The pause from now on. A request that says nothing new changes nothing, not even who and when."""
        if former is None:
            return Pause(self.reason or "", self.uid, self.at, bool(self.schedulers), bool(self.drains))
        said = replace(
            former,
            reason=former.reason if self.reason is None else self.reason,
            schedulers=former.schedulers if self.schedulers is None else self.schedulers,
            drains=former.drains if self.drains is None else self.drains,
        )
        return former if said == former else replace(said, uid=self.uid, at=self.at)


ADDRESS_CHARS_MAX = 64


@dataclass(frozen=True, slots=True)
class Cordon:
    """Why and since when a device is cordoned; `at` is seconds since the epoch, UTC.

    `address` is an exact unit (a PCI address, the uuid of a mediated device) or the PCI address of a card.
    `uid` is the user who asked for it.
    """

    address: str
    reason: str
    uid: Annotated[int, read_uid]
    at: float

    @property
    def sentence(self) -> str:
        """What it is, and how it ends."""
        why = f": {self.reason}" if self.reason else ""
        return (
            f"The device {self.address} is cordoned by uid {self.uid}{why}. It is given to no guest; the "
            f"guest that has it keeps it. When it is well, run `plimsoll devices clear {self.address}`."
        )


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller's user id and process id, as the kernel gives them, and the name of its program.

    `until`: it waits for the answer until then, by time.monotonic; infinite where it does not say.
    `has_gone` says whether it has closed the connection, so that no answer reaches it.
    """

    uid: int
    pid: int
    program: str = ""
    until: float = math.inf
    has_gone: Callable[[], bool] = lambda: False


_CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller | None:
    """The caller, or None where the agent acts on its own."""
    return _CALLER.get()


def check_caller_waits() -> None:
    """Raises RequestExpired where the caller has given up: it may have done something else since."""
    caller = _CALLER.get()
    if caller is not None and (time.monotonic() > caller.until or caller.has_gone()):
        raise RequestExpired("Its caller has stopped to wait for the request, so it is not begun: ask again.")


@contextmanager
def acting_for(caller: Caller) -> Iterator[None]:
    """Work for this caller within the context."""
    token = _CALLER.set(caller)
    try:
        yield
    finally:
        _CALLER.reset(token)
