"""A write of allocations whose outcome is unknown, as a value. Pure.

While a doubt is open, Placement may hold what the write gives, so the book counts it, and no other write is
sent for its consumers. A fence ends that: a write after which Placement rejects the doubtful one. The doubt
is kept as fenced, because a generation is no identity: a consumer that is deleted and made anew starts again
at a low generation, at which Placement would accept the late write. For the same reason a write that was
answered and left nothing of its consumers is kept for a while: a proxy may have it executed once more.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from agent.codec import decode, encode
from agent.errors import UsageError
from agent.json_checks import read_object
from agent.shapes import Allocations, Uuid

BARRED = 0
"""The generation of a consumer that Placement keeps a record of and that holds nothing."""
BAR_GENERATION_MAX = 16
"""The highest generation of a write that a bar warns other hosts of.

To reach a higher one, a consumer that was made anew would have to be written more often than that while the
write may come.
"""


class DoubtKind(StrEnum):
    """What the write was for."""

    CLAIM = "claim"
    EXTEND = "extend"
    REPLACE = "replace"
    RELEASE = "release"
    HEAL = "heal"
    BEGIN = "begin"
    CONFIRM = "confirm"
    REVERT = "revert"
    DELETE = "delete"
    FENCE = "fence"
    """It rewrites what a consumer holds, to raise the consumer's generation."""


class DoubtState(StrEnum):
    """What keeps the write from changing what its consumers hold."""

    OPEN = "open"
    """Nothing: the outcome is unknown."""
    FENCED = "fenced"
    """The generation of a consumer, as long as Placement has that consumer."""
    BARRED = "barred"
    """Placement keeps a record of its consumer, which holds nothing."""
    ANSWERED = "answered"
    """It was executed and left nothing of its consumers, so its repetition finds none."""


@dataclass(frozen=True, slots=True)
class DoubtfulWrite:
    """The part of the write for one consumer: what it gives the consumer in place of all that it held.

    Placement accepts the write only while the consumer has this `generation`; None: only while it does not
    exist.
    """

    consumer: Uuid
    generation: int | None
    allocations: Allocations
    project_id: str
    user_id: str
    consumer_type: str


@dataclass(frozen=True, slots=True)
class Doubt:
    """One write, for all its consumers at once. `since`: seconds since 1970 (UTC), when it was sent last."""

    id: Uuid
    kind: DoubtKind
    writes: tuple[DoubtfulWrite, ...]
    since: float
    state: DoubtState = DoubtState.OPEN

    @property
    def fenced(self) -> bool:
        """Whether Placement rejects the write at this moment."""
        return self.state is not DoubtState.OPEN

    @property
    def rises(self) -> bool:
        """Whether a generation that only rises guards the write; else it is the first one of its consumer."""
        return self.guard.generation not in (None, BARRED)

    @property
    def meets_next_life(self) -> bool:
        """Whether the write may come when its consumer was deleted and made anew, by another host, too.

        An answered write has been executed; that a proxy repeats it is expected on this host alone.
        """
        generation = self.guard.generation
        return self.state is not DoubtState.ANSWERED and (generation or BARRED) <= BAR_GENERATION_MAX

    @property
    def is_of_another_host(self) -> bool:
        """Whether the write is known only by the bar that another host left (`doubt_of_bar`)."""
        return self.kind is DoubtKind.FENCE and not self.guard.allocations

    @property
    def consumers(self) -> frozenset[str]:
        """The consumers that the write changes."""
        return frozenset(write.consumer for write in self.writes)

    @property
    def guard(self) -> DoubtfulWrite:
        """The part by which a fence makes the write impossible.

        A part with a generation, if there is one: generations rise. Of those, one that leaves the consumer
        with allocations: the consumer stays.
        """
        return min(self.writes, key=lambda write: (write.generation is None, not write.allocations))

    @property
    def first_made(self) -> str:
        """The consumer that the write makes: Placement accepts it only while that one does not exist.

        Empty if each of its consumers exists already.
        """
        return next((write.consumer for write in self.writes if write.generation is None), "")

    def gives(self, consumer: str) -> Allocations:
        """What the write gives the consumer; nothing, if it does not change the consumer."""
        return next((write.allocations for write in self.writes if write.consumer == consumer), {})

    def is_same_write(self, kind: DoubtKind, writes: Iterable[DoubtfulWrite]) -> bool:
        """Whether a write of this kind with these parts is this write repeated."""
        return self.kind is kind and self.writes == tuple(writes)


def doubt_of_bar(doubt_id: str, write: DoubtfulWrite, since: float) -> Doubt:
    """What a bar tells a host whose first write of the consumer has met it at the time `since`.

    Another host could not tell whether a write of its own still comes. Nothing says which generation that
    names: so the highest one is expected.
    """
    expected = replace(write, generation=BAR_GENERATION_MAX, allocations={})
    return Doubt(doubt_id, DoubtKind.FENCE, (expected,), since, DoubtState.FENCED)


def doubt_to_json(doubt: Doubt) -> dict[str, Any]:
    """The JSON form that `read_doubt` reads; an agent of an earlier version reads whether it is fenced."""
    return {**encode(Doubt, doubt), "fenced": doubt.fenced}


def read_doubt(value: object) -> Doubt:
    """The doubt of a JSON object. Raises UsageError where a value is missing or invalid."""
    record = read_object(value, "doubt")
    # An agent of an earlier version wrote only whether the doubt is fenced.
    state = DoubtState.FENCED if record.get("fenced") is True else DoubtState.OPEN
    doubt = decode(Doubt, {"state": state, **record})
    if not doubt.writes:
        raise UsageError("writes: expected at least one write.")
    return doubt
