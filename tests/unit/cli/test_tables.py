"""Tables: one line a row in a pipe, folded on a terminal that is too narrow, and never cut off."""

from hypothesis import given
from hypothesis import strategies as st

from agent.api.shapes.columns import Column
from agent.cli.tables import FOLDED_ROWS_MAX, table_lines
from agent.cli.terminal import Style

Row = tuple[str, int, str]
COLUMNS: tuple[Column[Row], ...] = (
    Column("UUID", lambda row: row[0]),
    Column("N", lambda row: row[1]),
    Column("WHY", lambda row: row[2]),
)
UUID = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
WHY = "The claim does not fit: 9 VGPU asked, 4 free on host1_pci_0000:84:00.0, which is the only card."
TERMINAL = Style(width=80, folds=True)


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


def test_a_table_that_fits_or_that_no_folding_helps_is_as_in_a_pipe() -> None:
    for rows, style in (
        ([(UUID, 1, "short")], TERMINAL),
        ([(UUID, 1, WHY)], TERMINAL._replace(width=50)),
        ([(UUID, 1, WHY)] * (FOLDED_ROWS_MAX + 1), TERMINAL),
    ):
        assert list(table_lines(COLUMNS, rows, style)) == list(table_lines(COLUMNS, rows, Style()))


@given(st.text(st.characters(codec="ascii", exclude_characters=" "), max_size=300), st.integers(60, 120))
def test_no_character_is_lost(why: str, width: int) -> None:
    lines = list(table_lines(COLUMNS, [(UUID, 1, why)], Style(width=width, folds=True)))
    pipe = list(table_lines(COLUMNS, [(UUID, 1, why)], Style()))
    assert "".join("".join(lines).split()) == "".join("".join(pipe).split())
    assert lines == pipe or max(map(len, lines)) <= width
