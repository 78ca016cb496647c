"""What a pass did and why, in one sentence. Pure."""

from textwrap import shorten

from agent.plan import Plan

LINES_TOLD_MAX = 3
LINE_CHARS_MAX = 160


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
