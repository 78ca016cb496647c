"""Tables for people, and those that claims and moves have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from agent.cli.terminal import Style, plain

if TYPE_CHECKING:
    from agent.api.shapes.claims import (
        ClaimShape,
        GroupMappingShape,
        GuestCellShape,
        HoldingShape,
        MakingShape,
        ShortfallShape,
    )
    from agent.api.shapes.columns import Column, Row

GAP = "  "
UNFOLDED_WIDTH_MAX = 40
"""Columns up to this width are not folded: a uuid stays in one piece."""
FOLDED_WIDTH_MIN = 16
FOLDED_ROWS_MAX = 200
"""Longer tables are not folded, because rich needs about a millisecond for each row."""


def table_lines(columns: Sequence[Column[Row]], rows: Sequence[Row], style: Style) -> Iterator[str]:
    """The titles and the rows, in columns as wide as their widest cells. Nothing is cut off.

    In a pipe each row is one line. On a terminal that is too narrow, wide columns are folded.
    """
    values = [[column.show(row) for column in columns] for row in rows]
    numeric = [bool(rows) and all(isinstance(row[i], int) for row in values) for i in range(len(columns))]
    cells = [[column.title for column in columns], *([plain(value) for value in row] for row in values)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if style.folds and len(rows) <= FOLDED_ROWS_MAX and _should_fold(widths, style.width):
        yield from _folded_lines(cells, widths, numeric, style.width)
        return
    for row in cells:
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        yield GAP.join(aligned).rstrip()


def _should_fold(widths: Sequence[int], available: int) -> bool:
    """Whether the table is too wide, and fits once its wide columns are folded."""
    gaps = len(GAP) * (len(widths) - 1)
    folded = [width if width <= UNFOLDED_WIDTH_MAX else FOLDED_WIDTH_MIN for width in widths]
    return sum(folded) + gaps <= available < sum(widths) + gaps


def _folded_lines(
    cells: Sequence[Sequence[str]], widths: Sequence[int], numeric: Sequence[bool], available: int
) -> Iterator[str]:
    from io import StringIO

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, len(GAP), 0, 0), show_header=False)
    for width, right in zip(widths, numeric, strict=True):
        table.add_column(
            justify="right" if right else "left", overflow="fold", no_wrap=width <= UNFOLDED_WIDTH_MAX
        )
    for row in cells:
        table.add_row(*map(Text, row))
    output = StringIO()
    Console(file=output, width=available, color_system=None).print(table)
    yield from (line.rstrip() for line in output.getvalue().splitlines())


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
    from agent.api.shapes.columns import Column, list_text

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


def shortfall_lines(shortfalls: Sequence[ShortfallShape], style: Style) -> Iterator[str]:
    """A table of what is missing where; nothing where nothing is."""
    from agent.api.shapes.columns import Column

    columns: tuple[Column[ShortfallShape], ...] = (
        Column("RESOURCE CLASS", lambda short: short["resource_class"] or "-"),
        Column("ASKED", lambda short: short["asked"]),
        Column("FREE", lambda short: short["free"]),
        Column("PROVIDER", lambda short: short["provider"] or "-"),
        Column("WHY", lambda short: short["reason"]),
    )
    if shortfalls:
        yield from table_lines(columns, shortfalls, style)


def mapping_lines(
    mappings: Sequence[GroupMappingShape], names: Mapping[str, str], style: Style
) -> Iterator[str]:
    """Which exact units each suffixed group got; nothing where no group has any. `names` as above."""
    from agent.api.shapes.columns import Column, list_text

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
    from agent.api.shapes.columns import Column

    columns: tuple[Column[tuple[str, MakingShape]], ...] = (
        Column("TO MAKE", lambda row: row[0]),
        Column("TYPE", lambda row: row[1]["type"]),
        Column("ON", lambda row: row[1]["parent"]),
        Column("AT", lambda row: row[1].get("placement", "-")),
    )
    if makings:
        yield from table_lines(columns, list(makings.items()), style)
