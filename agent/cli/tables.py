"""Tables for people: lines for a pipe, and what claims and moves show in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from agent.cli.terminal import Style, plain

if TYPE_CHECKING:
    from agent.api.shapes.claims import ClaimShape, GuestCellShape, HoldingShape, MakingShape
    from agent.api.shapes.columns import Column, Row


def table_lines(columns: Sequence[Column[Row]], rows: Sequence[Row], style: Style) -> Iterator[str]:
    """A line for the titles and one for each row.

    Each column is as wide as its widest cell, and numbers are aligned to the right. Nothing is cut off.
    """
    values = [[column.show(row) for column in columns] for row in rows]
    numeric = [bool(rows) and all(isinstance(row[i], int) for row in values) for i in range(len(columns))]
    cells = [[column.title for column in columns], *([plain(value) for value in row] for row in values)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        yield "  ".join(aligned).rstrip()


def claim_lines(claim: ClaimShape, names: Mapping[str, str], style: Style) -> Iterator[str]:
    """The holding of a claim, and the units to make for it; `names` as for `holding_lines`."""
    yield from holding_lines(claim, names, style)
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


def cells_lines(cells: Sequence[GuestCellShape], style: Style) -> Iterator[str]:
    """The guest's NUMA cells; nothing for a guest without any."""
    from agent.api.shapes.claims import GUEST_CELL_COLUMNS

    if cells:
        yield from table_lines(GUEST_CELL_COLUMNS, cells, style)


def makings_lines(makings: Mapping[str, MakingShape], style: Style) -> Iterator[str]:
    """The units to make; nothing where all of them exist."""
    from agent.api.shapes.columns import Column

    columns: tuple[Column[tuple[str, MakingShape]], ...] = (
        Column("TO MAKE", lambda row: row[0]),
        Column("TYPE", lambda row: row[1]["type"]),
        Column("ON", lambda row: row[1]["parent"]),
    )
    if makings:
        yield from table_lines(columns, list(makings.items()), style)
