"""The output of a command: lines for people, JSON, YAML or CSV for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from agent.cli.tables import table_lines
from agent.cli.terminal import Style, plain, style_of
from agent.errors import PlimsollError, UsageError

if TYPE_CHECKING:
    from agent.api.shapes.schema import Column, Row

FORMATS = ("table", "json", "yaml", "csv")


_shown: list[Callable[[Style], Iterable[str]]] = []


def first_line() -> str:
    """The first line, for people, of the last answer that a command has shown; "" for none."""
    return next(iter(_shown[-1](Style()) if _shown else ()), "")


class Output:
    """Writes answers to standard output, in the form of the option --output."""

    def __init__(self, form: str, columns: Sequence[str] = ()) -> None:
        """`columns` are the titles of the only columns that a table shows, in this order; none: all."""
        self._form = form
        self._columns = columns

    def show(self, data: Any, lines: Callable[[Style], Iterable[str]]) -> None:
        """Print an answer. `data` is JSON-ready; `lines` returns the same for people.

        The form is not csv: `agent.cli.main` refuses that for a command without a table.
        """
        _shown.append(lines)
        if self._form == "json":
            print(json.dumps(data, indent=2))
        elif self._form == "yaml":
            # Imported late: it takes as long as all the rest of a command.
            import yaml

            dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
            print(yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=False), end="")
        else:
            for line in lines(style_of(sys.stdout)):
                print(line)

    def show_table(
        self,
        data: Any,
        columns: Sequence[Column[Row]],
        rows: Sequence[Row],
        nothing: str,
        notes: Sequence[str] = (),
    ) -> None:
        """Print an answer that is one table; `nothing` is what a person reads in place of an empty one.

        `notes` are lines below the table, for people.

        Raises UsageError for a column that the table does not have.
        """
        chosen = self._chosen(columns)
        if self._form == "csv":
            import csv

            writer = csv.writer(sys.stdout, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
            writer.writerow([column.title for column in chosen])
            writer.writerows([column.show(row) for column in chosen] for row in rows)
            return
        self.show(data, lambda style: [*(table_lines(chosen, rows, style) if rows else [nothing]), *notes])

    def _chosen(self, columns: Sequence[Column[Row]]) -> Sequence[Column[Row]]:
        if not self._columns:
            return columns
        by_title = {column.title.lower(): column for column in columns}
        for title in self._columns:
            if title.lower() not in by_title:
                raise UsageError(f"there is no column {title!r}; there are {', '.join(map(repr, by_title))}")
        return [by_title[title.lower()] for title in self._columns]


def show_error(error: PlimsollError, form: str) -> None:
    """Print an error to standard error: one line for people, JSON for programs."""
    if form == "table":
        print(f"plimsoll: {plain(error.message)}", file=sys.stderr)
        return
    body = {"code": error.code, "message": error.message, "details": dict(error.details)}
    print(json.dumps({"error": body}, default=str), file=sys.stderr)
