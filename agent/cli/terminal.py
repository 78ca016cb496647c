"""What standard output can show: colours, box characters, a number of columns."""

import os
from typing import NamedTuple, TextIO
from unicodedata import category, east_asian_width

from agent.errors import plain

__all__ = ["COLOURS", "WIDTH_DEFAULT", "WIDTH_MIN", "Style", "plain", "shown_width", "style_of"]

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
    return Style(
        unicode=encoding.startswith("utf8"),
        colour=colour,
        width=_width(stream) if terminal else WIDTH_DEFAULT,
        folds=terminal,
    )


def _width(stream: TextIO) -> int:
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        columns = 0
    return max(columns, WIDTH_MIN) if columns else WIDTH_DEFAULT  # 0: the terminal does not say
