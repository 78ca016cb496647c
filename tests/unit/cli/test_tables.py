"""Tables: one line a row in a pipe, folded on a terminal that is too narrow, and never cut off."""

import time
from collections import Counter
from operator import itemgetter

from hypothesis import given
from hypothesis import strategies as st

from agent.api.shapes.schema import Column
from agent.cli.output import Style, shown_width, table_lines

Row = tuple[str, int, str]
COLUMNS: tuple[Column[Row], ...] = (
    Column("UUID", lambda row: row[0]),
    Column("N", lambda row: row[1]),
    Column("WHY", lambda row: row[2]),
)
UUID = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
WHY = "The claim does not fit: 9 VGPU asked, 4 free on host1_pci_0000:84:00.0, which is the only card."
TERMINAL = Style(width=80, folds=True)
FORTY = Style(width=40, folds=True)


def test_columns_line_up_and_numbers_are_aligned_to_the_right() -> None:
    rows = [("a", 1, "x"), ("long name", 1000, "")]
    assert list(table_lines(COLUMNS, rows, Style())) == [
        "UUID          N  WHY",
        "a             1  x",
        "long name  1000",
    ]


def test_in_a_pipe_a_row_is_one_line() -> None:
    assert list(table_lines(COLUMNS, [(UUID, 1, WHY)], Style(width=80)))[1] == f"{UUID}  1  {WHY}"


def test_on_a_narrow_terminal_wide_columns_are_folded() -> None:
    assert list(table_lines(COLUMNS, [(UUID, 1, WHY), (UUID, 22, "-")], TERMINAL)) == [
        "UUID                                   N  WHY",
        f"{UUID}   1  The claim does not fit: 9 VGPU asked,",
        "                                          4 free on host1_pci_0000:84:00.0,",
        "                                          which is the only card.",
        f"{UUID}  22  -",
    ]


def test_a_table_that_fits_is_as_in_a_pipe() -> None:
    rows = [(UUID, 1, "short")]
    assert list(table_lines(COLUMNS, rows, TERMINAL)) == list(table_lines(COLUMNS, rows, Style()))


def test_where_no_columns_fit_each_row_is_a_block_and_a_uuid_stays_in_one_piece() -> None:
    rows = [(UUID, 1, WHY), (UUID, 22, "-")]
    assert list(table_lines(COLUMNS, rows, TERMINAL._replace(width=50))) == [
        f"UUID  {UUID}",
        "N     1",
        "WHY   The claim does not fit: 9 VGPU asked, 4 free",
        "      on host1_pci_0000:84:00.0, which is the only",
        "      card.",
        "",
        f"UUID  {UUID}",
        "N     22",
        "WHY   -",
    ]
    assert list(table_lines(COLUMNS, [(UUID, 1, "VGPU=1,MEMORY_MB=4096,DISK_GB=20,VCPU=2")], FORTY)) == [
        "UUID",
        f"  {UUID}",
        "N     1",
        "WHY   VGPU=1,MEMORY_MB=4096,DISK_GB=20,",
        "      VCPU=2",
    ]


def test_a_character_of_two_columns_counts_as_two() -> None:
    name = "\u8d1f\u8f7d\u7ebf" * 10
    assert list(table_lines(COLUMNS[:1], [(name, 1, "")], FORTY._replace(width=30))) == [
        "UUID",
        name[:15],
        name[15:],
    ]


LETTERS = st.characters(codec="utf-8", exclude_categories=["C", "Z"], include_characters=" ,")
TEXTS = st.text(LETTERS, max_size=90)
TABLES = st.integers(1, 7).flatmap(
    lambda width: st.lists(st.tuples(*[TEXTS | st.integers(0, 10**9)] * width), min_size=1, max_size=4)
)


@given(TABLES, st.integers(20, 130))
def test_no_line_is_wider_than_the_terminal_and_no_character_is_lost(
    rows: list[tuple[object, ...]], width: int
) -> None:
    columns = tuple(Column[tuple[object, ...]](f"T{i}", itemgetter(i)) for i in range(len(rows[0])))
    lines = list(table_lines(columns, rows, Style(width=width, folds=True)))
    assert max(map(shown_width, lines)) <= width
    shown, asked = Counter("".join(lines)), Counter("".join(str(cell) for row in rows for cell in row))
    assert all(shown[letter] >= number for letter, number in asked.items() if letter != " ")


def test_a_table_of_many_rows_is_folded_as_fast_as_it_is_read() -> None:
    began = time.process_time()
    lines = list(table_lines(COLUMNS, [(UUID, 1, WHY)] * 2000, TERMINAL))
    assert max(map(len, lines)) <= TERMINAL.width and len(lines) == 6001
    assert time.process_time() - began < 1
