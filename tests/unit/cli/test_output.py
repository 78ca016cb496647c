"""Errors come back as the types they were, and tables do not lie."""

import io
from argparse import Namespace

import pytest

from agent import errors
from agent.api.shapes.schema import Column, amounts_text
from agent.cli.client import error_of
from agent.cli.output import show_error, show_table, style_of
from agent.errors import ExitCode, PlacementUnavailable, PlimsollError, UsageError, plain

COLUMNS: tuple[Column[tuple[str, int]], ...] = (
    Column("CLASS", lambda row: row[0]),
    Column("AMOUNT", lambda row: row[1]),
)


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
    show_table(arguments("csv", "amount", "class"), {}, COLUMNS, [("VCPU", 2), ("VGPU", 1)], "nothing")
    assert capsys.readouterr().out == '"AMOUNT","CLASS"\n2,"VCPU"\n1,"VGPU"\n'
    show_table(arguments("csv"), {}, COLUMNS, [], "nothing")
    assert capsys.readouterr().out == '"CLASS","AMOUNT"\n'


def test_a_column_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="no column 'size'; there are 'class', 'amount'"):
        show_table(arguments("table", "size"), {}, COLUMNS, [], "nothing")
