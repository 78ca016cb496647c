"""What the terminal, or whatever stands in its place, can show."""

import os
from typing import NamedTuple, TextIO

WIDTH_DEFAULT = 100
WIDTH_MIN = 40


class Style(NamedTuple):
    """How to draw: box characters or ASCII, colour or none, and the columns there are."""

    unicode: bool = True
    colour: bool = False
    width: int = WIDTH_DEFAULT

    def paint(self, colour: str, text: str) -> str:
        """`colour` is a key of COLOURS."""
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if self.colour else text


COLOURS = {"red": "31", "green": "32", "yellow": "33", "bold": "1", "dim": "2"}


def style_of(stream: TextIO) -> Style:
    """Colour only on a terminal that can, and not when NO_COLOR is set (https://no-color.org)."""
    terminal = stream.isatty()
    encoding = (stream.encoding or "ascii").lower().replace("-", "").replace("_", "")
    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    return Style(
        unicode=encoding.startswith("utf8"),
        colour=colour,
        width=_width(stream) if terminal else WIDTH_DEFAULT,
    )


def _width(stream: TextIO) -> int:
    try:
        return max(os.get_terminal_size(stream.fileno()).columns, WIDTH_MIN)
    except OSError:
        return WIDTH_DEFAULT


def plain(text: object) -> str:
    """Fit for a terminal: what is not printable, such as escapes in a guest's name, is spelt out."""
    word = str(text)
    if word.isprintable():
        return word
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in word)
