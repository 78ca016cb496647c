"""Tables for people, and those that claims and moves have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from agent.cli.terminal import Style, plain, shown_width

if TYPE_CHECKING:
    from agent.api.shapes.claims import (
        ClaimShape,
        GroupMappingShape,
        GuestCellShape,
        HoldingShape,
        MakingShape,
        ShortfallShape,
    )
    from agent.api.shapes.schema import Column, Row

GAP = "  "
NOTHING = "-"
"""In a cell of which there is nothing to say."""
WORD_MAX = 40
"""A word up to this width, such as a uuid, stays in one piece."""
FOLDED_WIDTH_MIN = 16
_WORDS = re.compile(r"(?<=[\s,])(?=\S)")
"""Where a line may be broken: before a word, and after a comma of a list."""


def table_lines(columns: Sequence[Column[Row]], rows: Sequence[Row], style: Style) -> Iterator[str]:
    """The titles and the rows, in columns as wide as their widest cells. Nothing is cut off.

    In a pipe each row is one line. On a terminal that is too narrow, wide columns are folded; where that
    does not help, each row is a block, with a line for each column.
    """
    values = [[column.show(row) for column in columns] for row in rows]
    numeric = [_is_numeric([row[i] for row in values]) for i in range(len(columns))]
    cells = [[column.title for column in columns], *([plain(value) for value in row] for row in values)]
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


def _is_numeric(values: Sequence[object]) -> bool:
    """Whether the column is of whole numbers, some of which may be missing."""
    numbers = [value for value in values if value != NOTHING]
    return bool(numbers) and all(isinstance(value, int) for value in numbers)


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


def claim_lines(claim: ClaimShape, names: Mapping[str, str], style: Style) -> Iterator[str]:
    """What a claim holds, what each group of its request got, and the units to make for it.

    `names` as for `holding_lines`.
    """
    yield from holding_lines(claim, names, style)
    yield from mapping_lines(claim["mappings"], names, style)
    yield from makings_lines(claim["to_make"], style)


def holding_lines(
    holding: ClaimShape | HoldingShape, names: Mapping[str, str], style: Style
) -> Iterator[str]:
    """The allocations of a consumer with their exact units, and its NUMA cells.

    `names` is {provider uuid: name}; a provider without a name is shown by its uuid.
    """
    from agent.api.shapes.schema import Column, list_text

    rows = sorted(
        (
            names.get(uuid, uuid),
            resource_class,
            amount,
            list_text(holding["units"].get(uuid, {}).get(resource_class, ())),
        )
        for uuid, allocation in holding["allocations"].items()
        for resource_class, amount in allocation["resources"].items()
    )
    columns: tuple[Column[tuple[str, str, int, str]], ...] = (
        Column("PROVIDER", lambda row: row[0]),
        Column("RESOURCE CLASS", lambda row: row[1]),
        Column("AMOUNT", lambda row: row[2]),
        Column("UNITS", lambda row: row[3]),
    )
    yield from table_lines(columns, rows, style)
    yield from cells_lines(holding["cells"], style)


class ShortfallRow(NamedTuple):
    """What is missing where, for people: an amount of a class, or a trait, of which there is no amount."""

    what: str
    asked: int | str
    free: int | str
    provider: str
    reason: str


def shortfall_rows(shortfalls: Iterable[ShortfallShape]) -> list[ShortfallRow]:
    """A row for each shortfall of a class, and for each trait that is missing or forbidden."""
    rows: dict[ShortfallRow, None] = {}
    for short in shortfalls:
        provider, traits = short["provider"] or NOTHING, short.get("traits", [])
        if traits:
            row = ShortfallRow(f"trait {' or '.join(traits)}", NOTHING, NOTHING, provider, short["reason"])
        elif not short["resource_class"]:
            row = ShortfallRow(NOTHING, NOTHING, NOTHING, provider, short["reason"])
        else:
            row = ShortfallRow(
                short["resource_class"], short["asked"], short["free"], provider, short["reason"]
            )
        rows[row] = None
    return list(rows)  # each once: a trait may be missing for several classes


def shortfall_lines(shortfalls: Sequence[ShortfallShape], style: Style) -> Iterator[str]:
    """A table of what is missing where; nothing where nothing is."""
    from agent.api.shapes.schema import Column

    columns: tuple[Column[ShortfallRow], ...] = (
        Column("RESOURCE CLASS", lambda row: row.what),
        Column("ASKED", lambda row: row.asked),
        Column("FREE", lambda row: row.free),
        Column("PROVIDER", lambda row: row.provider),
        Column("WHY", lambda row: row.reason),
    )
    if shortfalls:
        yield from table_lines(columns, shortfall_rows(shortfalls), style)


def mapping_lines(
    mappings: Sequence[GroupMappingShape], names: Mapping[str, str], style: Style
) -> Iterator[str]:
    """Which exact units each suffixed group got; nothing where no group has any. `names` as above."""
    from agent.api.shapes.schema import Column, list_text

    rows = [
        (mapping["label"], names.get(uuid, uuid), list_text(unit for exact in by.values() for unit in exact))
        for mapping in mappings
        if mapping["suffix"]
        for uuid, by in mapping["units"].items()
    ]
    columns: tuple[Column[tuple[str, str, str]], ...] = (
        Column("GROUP", lambda row: row[0]),
        Column("PROVIDER", lambda row: row[1]),
        Column("UNITS", lambda row: row[2]),
    )
    if rows:
        yield from table_lines(columns, rows, style)


def cells_lines(cells: Sequence[GuestCellShape], style: Style) -> Iterator[str]:
    """The guest's NUMA cells; nothing for a guest without any."""
    from agent.api.shapes.claims import GUEST_CELL_COLUMNS

    if cells:
        yield from table_lines(GUEST_CELL_COLUMNS, cells, style)


def makings_lines(makings: Mapping[str, MakingShape], style: Style) -> Iterator[str]:
    """The units to make; nothing if all of them exist."""
    from agent.api.shapes.schema import Column

    columns: tuple[Column[tuple[str, MakingShape]], ...] = (
        Column("TO MAKE", lambda row: row[0]),
        Column("TYPE", lambda row: row[1]["type"]),
        Column("ON", lambda row: row[1]["parent"]),
        Column("AT", lambda row: row[1].get("placement", "-")),
    )
    if makings:
        yield from table_lines(columns, list(makings.items()), style)
