"""The result of a pass, with one sentence on what it did and why. Pure."""

from dataclasses import dataclass
from textwrap import shorten

from agent.errors import PlimsollError, ReshapeRefused, counted
from agent.providers.plan import Plan

LINES_MAX = 3
LINE_CHARS_MAX = 160


@dataclass(frozen=True, slots=True)
class PassReport:
    """The result of one pass; `error` says why it failed.

    `at` is seconds since the epoch, UTC. `providers` is how many Placement has of this host, `changed` how
    many of them the pass wrote, with so many `operations`. `problems` are sentences on what the operator has
    to mend, `notices` others that are logged once. `pending` says why a reshape that is due was not carried
    out; the rest of the pass was.
    """

    sentence: str
    at: float
    duration_ms: float
    providers: int = 0
    changed: int = 0
    operations: int = 0
    problems: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    error: PlimsollError | None = None
    pending: ReshapeRefused | None = None


def pass_sentence(why: str, written: Plan | None) -> str:
    """What the pass did, on one line; `written` is None where only the driver was asked."""
    if written is None:
        return f"After {why}: nothing changed."
    if written.empty:
        return f"After {why}: Placement already holds what the driver describes."
    lines = written.lines()
    listed = " ".join(shorten(line, LINE_CHARS_MAX, placeholder=" ...") for line in lines[:LINES_MAX])
    more = f" And {counted(len(lines) - LINES_MAX, 'more operation')}." if len(lines) > LINES_MAX else ""
    return f"After {why}: {listed}{more}"
