"""A pause: an operator's word that this host takes no new claims. It is kept over restarts."""

from dataclasses import dataclass, replace
from typing import Annotated

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
