"""What a command prints: lines and tables for people, JSON, YAML or CSV for programs.

The style of a stream says what it can show: colours, box characters, a number of columns. While a command
waits, a line at the terminal says for what.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO
from unicodedata import category, east_asian_width

from agent.errors import PlimsollError, UsageError, plain

if TYPE_CHECKING:
    from argparse import Namespace

    from agent.api.shapes.schema import Column, Row

WIDTH_DEFAULT = 100
WIDTH_MIN = 20


class Style(NamedTuple):
    """How to draw. `unicode`: with box characters, else ASCII. `width`: the columns of the terminal.

    `folds`: a table that is wider than the terminal is folded.
    """

    unicode: bool = True
    colour: bool = False
    width: int = WIDTH_DEFAULT
    folds: bool = False

    def paint(self, colour: str, text: str) -> str:
        """The text in a colour of COLOURS, if the terminal shows colours."""
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if self.colour else text


COLOURS = {"red": "31", "green": "32", "yellow": "33", "magenta": "35", "bold": "1", "dim": "2"}


def shown_width(text: str) -> int:
    """How many columns of a terminal the text takes: East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if category(letter) in ("Mn", "Me") else 2 if east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def style_of(stream: TextIO) -> Style:
    """The style for a stream. Colour needs a terminal; NO_COLOR prevents it (https://no-color.org)."""
    terminal = stream.isatty()
    encoding = (stream.encoding or "ascii").lower().replace("-", "").replace("_", "")
    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    width = WIDTH_DEFAULT
    if terminal:
        with suppress(OSError):
            columns = os.get_terminal_size(stream.fileno()).columns
            width = max(columns, WIDTH_MIN) if columns else WIDTH_DEFAULT  # 0: the terminal does not say
    return Style(unicode=encoding.startswith("utf8"), colour=colour, width=width, folds=terminal)


GAP = "  "
NOTHING = "-"
"""In a cell of which there is nothing to say."""
WORD_MAX = 40
"""A word up to this width, such as a uuid, stays in one piece."""
FOLDED_WIDTH_MIN = 16
_WORDS = re.compile(r"(?<=[\s,])(?=\S)")
"""Where a line may be broken: before a word, and after a comma of a list."""


def table_lines(columns: Sequence[Column[Row]], rows: Sequence[Row], style: Style) -> Iterator[str]:
    """The lines of a table with these columns, as `titled_lines`."""
    values = [[column.show(row) for column in columns] for row in rows]
    return titled_lines([column.title for column in columns], values, style)


def titled_lines(titles: Sequence[str], values: Sequence[Sequence[object]], style: Style) -> Iterator[str]:
    """The titles and the rows, in columns as wide as their widest cells. Nothing is cut off.

    In a pipe each row is one line. On a terminal that is too narrow, wide columns are folded; where that
    does not help, each row is a block, with a line for each column. A column of whole numbers, some of which
    may be missing, is aligned to the right.
    """
    numbers = [[row[i] for row in values if row[i] != NOTHING] for i in range(len(titles))]
    numeric = [bool(column) and all(isinstance(value, int) for value in column) for column in numbers]
    cells = [list(titles), *([plain(value) for value in row] for row in values)]
    widths = [max(map(shown_width, column)) for column in zip(*cells, strict=True)]
    room = style.width - len(GAP) * (len(widths) - 1)
    if style.folds and sum(widths) > room:
        least = [max(map(_least_width, column)) for column in zip(*cells, strict=True)]
        if sum(least) > room:
            yield from _block_lines(cells, style.width)
            return
        most = room
        while sum(map(max, least, (min(width, most) for width in widths))) > room:
            most -= 1
        widths = [max(low, min(width, most)) for low, width in zip(least, widths, strict=True)]
    for row in cells:
        folded = [_folded(cell, width) for cell, width in zip(row, widths, strict=True)]
        for pieces in zip_longest(*folded, fillvalue=""):
            aligned = []
            for piece, width, right in zip(pieces, widths, numeric, strict=True):
                blank = " " * (width - shown_width(piece))
                aligned.append(blank + piece if right else piece + blank)
            yield GAP.join(aligned).rstrip()


def _least_width(cell: str) -> int:
    """To what width the cell may be folded before blocks are easier to read."""
    longest = max(map(shown_width, (word.rstrip() for word in _WORDS.split(cell))))
    return longest if longest <= WORD_MAX else FOLDED_WIDTH_MIN


def _block_lines(cells: Sequence[Sequence[str]], available: int) -> Iterator[str]:
    """Each row as lines of a title and a cell, with an empty line between rows; without rows, the titles.

    A word for which there is no room beside the title stands in a line below it.
    """
    titles, *rows = cells
    if not rows:
        yield from _folded(GAP.join(titles), available)
    beside = max(map(shown_width, titles)) + len(GAP)
    if beside > available // 2:
        beside = len(GAP)
    for number, row in enumerate(rows):
        if number:
            yield ""
        for title, cell in zip(titles, row, strict=True):
            longest = max(map(shown_width, cell.split()), default=0)
            below = len(title) + len(GAP) > beside or available - beside < longest <= available - len(GAP)
            indent = len(GAP) if below else beside
            first, *more = _folded(cell, available - indent)
            if below:
                yield title
                yield " " * indent + first
            else:
                yield f"{title:<{indent}}{first}".rstrip()
            yield from (" " * indent + piece for piece in more)


def _folded(text: str, width: int) -> list[str]:
    """The text in lines of at most this width, broken between words where that is possible."""
    if shown_width(text) <= width:
        return [text]
    lines, line = [], ""
    for word in _WORDS.split(text):
        if line.strip() and shown_width(line + word.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += word
        while shown_width(line.rstrip()) > width:
            end = width
            while shown_width(line[:end]) > width:
                end -= 1
            lines.append(line[:end])
            line = line[end:]
    return [*lines, line.rstrip()] if line.strip() else lines


FORMATS = ("table", "json", "yaml", "csv")

_shown: list[tuple[str, Callable[[Style], Iterable[str]]]] = []


def what_was_done() -> str:
    """What the last answer that a command has shown says was done; "" for none."""
    if not _shown:
        return ""
    done, lines = _shown[-1]
    return done or next(iter(lines(Style())), "")


def show(args: Namespace, data: Any, lines: Callable[[Style], Iterable[str]], done: str = "") -> None:
    """Print an answer, in the form of the option --output.

    `data` is JSON-ready; `lines` returns the same for people. The form is not csv: `agent.cli.main` refuses
    that for a command without a table. `done` says what the command did, where the first line does not.
    """
    _shown.append((done, lines))
    if args.output == "json":
        print(json.dumps(data, indent=2))
    elif args.output == "yaml":
        # Imported late: it takes as long as all the rest of a command.
        import yaml

        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        print(yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=False), end="")
    else:
        for line in lines(style_of(sys.stdout)):
            print(line)


def show_table(
    args: Namespace,
    data: Any,
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    nothing: str,
    notes: Sequence[str] = (),
) -> None:
    """Print an answer that is one table; `nothing` is what a person reads in place of an empty one.

    The options --column are the titles of the only columns shown, in their order. `notes` are lines below
    the table, for people. Raises UsageError for a column that the table does not have.
    """
    if args.column:
        by_title = {column.title.lower(): column for column in columns}
        for title in args.column:
            if title.lower() not in by_title:
                raise UsageError(f"there is no column {title!r}; there are {', '.join(map(repr, by_title))}")
        columns = [by_title[title.lower()] for title in args.column]
    if args.output == "csv":
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow([column.title for column in columns])
        writer.writerows([column.show(row) for column in columns] for row in rows)
        return
    show(args, data, lambda style: [*(table_lines(columns, rows, style) if rows else [nothing]), *notes])


def show_error(args: Namespace, error: PlimsollError) -> None:
    """Print an error to standard error: one line for people, JSON for programs."""
    if args.output == "table":
        print(f"plimsoll: {plain(error.message)}", file=sys.stderr)
        return
    body = {"code": error.code, "message": error.message, "details": dict(error.details)}
    print(json.dumps({"error": body}, default=str), file=sys.stderr)


LONG_S = 1.0
"""A shorter wait shows nothing."""

WIPE = "\r\x1b[K"


@contextmanager
def waiting(activity: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal's standard error what the command waits for, and for how long already.

    The line is removed at the end of the block. The block gets a function that changes what the line says.
    Blocks cannot be nested.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    began, done = time.monotonic(), threading.Event()

    def set_activity(now: str) -> None:
        nonlocal activity
        activity = now

    def run() -> None:
        shown = False
        while not done.wait(LONG_S):
            shown = True
            text = f"{plain(activity)} ... {int(time.monotonic() - began)} s"
            print(WIPE + text[: style_of(sys.stderr).width - 1], end="", file=sys.stderr, flush=True)
        if shown:
            print(WIPE, end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=run, name="waiting", daemon=True)
    thread.start()
    try:
        yield set_activity
    finally:
        done.set()
        thread.join()
