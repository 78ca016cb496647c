"""Errors come back as the types they were, tables do not lie, and csv is for commands with a table."""

import argparse
import io
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import plimsoll
from agent import errors
from agent.api.shapes.schema import Column, amounts_text
from agent.cli.client import error_of as command_error
from agent.cli.main import main
from agent.cli.output import Style, show_error, show_table, shown_width, style_of, table_lines
from agent.cli.parser import build
from agent.errors import ExitCode, PlacementUnavailable, PlimsollError, UsageError, plain

CLASS_COLUMNS: tuple[Column[tuple[str, int]], ...] = (
    Column("CLASS", lambda row: row[0]),
    Column("AMOUNT", lambda row: row[1]),
)


def error_of(answer: object) -> PlimsollError:
    """What a command raises for this answer."""
    return command_error(plimsoll.errors.error_of(409, answer))


def told(code: str, **details: object) -> dict[str, object]:
    return {"error": {"code": code, "message": "it went wrong", "details": details}}


@pytest.mark.parametrize("kind", [each for each in vars(errors).values() if isinstance(each, type)])
def test_every_error_survives_the_way_through_the_api(kind: type) -> None:
    if not issubclass(kind, PlimsollError):
        return
    error = error_of(told(kind.code, message="a detail of that name", status=3))
    assert (type(error), error.exit_code, error.message) == (kind, kind.exit_code, "it went wrong")
    assert error.details == {"message": "a detail of that name", "status": 3}


def test_an_error_of_another_version_keeps_its_code() -> None:
    error = error_of(told("plimsoll.tomorrow", x=1))
    assert (error.code, error.exit_code, error.details) == ("plimsoll.tomorrow", ExitCode.FAILED, {"x": 1})


@pytest.mark.parametrize("answer", [None, [], {}, {"error": "no"}, "text"])
def test_an_error_that_is_none_is_still_one(answer: object) -> None:
    assert error_of(answer).exit_code is ExitCode.FAILED


def test_an_error_is_one_line_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(arguments("table"), PlacementUnavailable("no\nanswer\x1b[2J", status=0))
    assert capsys.readouterr().err == "plimsoll: no\\nanswer\\x1b[2J\n"


def test_texts() -> None:
    assert amounts_text({}) == "-"
    assert plain("tab\there ä█") == "tab\\there ä█"


@pytest.mark.parametrize(
    ("encoding", "unicode"), [("utf-8", True), ("UTF8", True), ("ascii", False), ("latin-1", False)]
)
def test_box_characters_only_where_they_can_be_shown(encoding: str, unicode: bool) -> None:
    style = style_of(io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    assert (style.unicode, style.colour) == (unicode, False)


def arguments(form: str, *columns: str) -> Namespace:
    return Namespace(output=form, column=list(columns))


def test_a_table_as_csv_has_the_chosen_columns_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(arguments("csv", "amount", "class"), {}, CLASS_COLUMNS, [("VCPU", 2), ("VGPU", 1)], "nothing")
    assert capsys.readouterr().out == '"AMOUNT","CLASS"\n2,"VCPU"\n1,"VGPU"\n'
    show_table(arguments("csv"), {}, CLASS_COLUMNS, [], "nothing")
    assert capsys.readouterr().out == '"CLASS","AMOUNT"\n'


def test_a_column_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="no column 'size'; there are 'class', 'amount'"):
        show_table(arguments("table", "size"), {}, CLASS_COLUMNS, [], "nothing")


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


COMMANDS_WITH_A_TABLE = {"instances", "history", "move list", "devices list", "placement top"}
"""The commands whose answer is one table."""


def commands(
    parser: argparse.ArgumentParser, *words: str
) -> Iterator[tuple[str, list[str], argparse.ArgumentParser]]:
    """Each command: its name, a command line with a value for all that it must have, and its parser."""
    if parser.get_default("run") is not None:
        yield " ".join(words), [*words, *_required(parser)], parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, verb in action.choices.items():
                yield from commands(verb, *words, name)


def _required(parser: argparse.ArgumentParser) -> Iterator[str]:
    # Of options that exclude each other, and of which one must be there, the first.
    firsts = [group._group_actions[0] for group in parser._mutually_exclusive_groups if group.required]
    for action in parser._actions:
        is_needed = action.required or action in firsts
        if is_needed and not isinstance(action, argparse._SubParsersAction):
            yield from action.option_strings[-1:]
            yield next(iter(action.choices)) if action.choices else "7"


@pytest.mark.parametrize("before", [True, False])
def test_csv_is_refused_before_a_command_runs_that_has_no_table(
    before: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []
    parser = build()
    monkeypatch.setattr("agent.cli.parser.build", lambda _: parser)
    names = set()
    for name, line, command in commands(parser):
        command.set_defaults(run=lambda args, name=name: ran.append(name) or ExitCode.DONE)
        names.add(name)
        words = ["-o", "csv", *line] if before else [*line, "-o", "csv"]
        expected = ExitCode.DONE if name in COMMANDS_WITH_A_TABLE else ExitCode.USAGE
        assert main(words) == expected, line
        refused = "cannot be csv: take json or yaml" in capsys.readouterr().err
        assert refused is (name not in COMMANDS_WITH_A_TABLE), line
    assert set(ran) == COMMANDS_WITH_A_TABLE
    assert {"claim", "release", "drain", "devices cordon", "placement import", "gate enable"} <= names
