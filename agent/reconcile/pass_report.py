"""What a pass did and why, in one sentence. Pure."""

from dataclasses import dataclass
from textwrap import shorten

from agent.errors import PlimsollError, ReshapeRefused
from agent.providers.plan import Plan

LINES_TOLD_MAX = 3
LINE_CHARS_MAX = 160


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did and why, in one sentence. `at` is seconds since 1970; `error` says why it failed.

    `problems` are sentences on what the driver reported and was left out, and on what is in use too much.
    """

    sentence: str
    at: float
    duration_ms: float
    providers: int = 0
    changed: int = 0
    operations: int = 0
    problems: tuple[str, ...] = ()
    error: PlimsollError | None = None
    pending: ReshapeRefused | None = None
    """Why a reshape that is due was not done; all else was."""


def sentence_of(why: str, written: Plan | None) -> str:
    """`written` None: nobody but the driver was asked."""
    if written is None:
        return f"After {why}: nothing changed."
    if written.empty:
        return f"After {why}: placement already holds what the driver describes."
    lines = written.lines()
    told = " ".join(shorten(line, LINE_CHARS_MAX, placeholder=" ...") for line in lines[:LINES_TOLD_MAX])
    more = f" And {len(lines) - LINES_TOLD_MAX} more operations." if len(lines) > LINES_TOLD_MAX else ""
    return f"After {why}: {told}{more}"
