"""Strict reading of JSON: a value of its type, or an error that names the path and the allowed values."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from agent import json_checks
from agent.errors import UsageError

UUID = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"


def test_values_of_their_type_are_returned() -> None:
    assert json_checks.read_object({"a": 1}, "x", ("a",)) == {"a": 1}
    assert json_checks.read_list([1], "x") == [1]
    assert json_checks.read_text("abc", "x", re.compile("[a-c]+")) == "abc"
    assert json_checks.read_choice("b", "x", ("a", "b")) == "b"
    assert json_checks.read_whole(3, "x", 1, 3) == 3
    assert json_checks.read_seconds(1, "x") == 1.0 and json_checks.read_uid(2**32 - 1, "x") == 2**32 - 1
    assert json_checks.read_uuid(UUID.upper().replace("-", ""), "x") == UUID


@pytest.mark.parametrize(
    ("read", "wanted"),
    [
        (lambda: json_checks.read_object([], "x"), "expected an object, not []"),
        (lambda: json_checks.read_list({}, "x"), "expected a list, not {}"),
        (lambda: json_checks.read_text("ad", "x", re.compile("[a-c]+")), "expected a text, not 'ad'"),
        (
            lambda: json_checks.read_text("a" * 256, "x"),
            "x: 256 characters are too many; at most 255",
        ),
        (lambda: json_checks.read_choice("c", "x", ("a", "b")), "expected one of a, b, not 'c'"),
        (lambda: json_checks.read_whole(True, "x", 0, 9), "a whole number between 0 and 9, not True"),
        (lambda: json_checks.read_whole(10, "x", 0, 9), "a whole number between 0 and 9, not 10"),
        (lambda: json_checks.read_seconds(True, "x"), "expected a number of seconds, not True"),
        (lambda: json_checks.read_seconds("1", "x"), "expected a number of seconds, not '1'"),
        (lambda: json_checks.read_uid(2**32, "x"), "a whole number between 0 and 4294967295, not"),
        (lambda: json_checks.read_uuid("x1", "x"), "expected a uuid, not 'x1'"),
    ],
)
def test_other_values_are_errors_that_name_the_path(read: Callable[[], Any], wanted: str) -> None:
    with pytest.raises(UsageError) as caught:
        read()
    assert caught.value.message.startswith("x: ") and wanted in caught.value.message
    assert caught.value.details == {"path": "x"} and len(caught.value.message) < 120


def test_an_unknown_key_is_named_with_its_path() -> None:
    with pytest.raises(UsageError, match=r"groups\.b: unknown key; allowed are a\.") as caught:
        json_checks.read_object({"b": 1}, "groups", ("a",))
    assert caught.value.details == {"path": "groups.b"}
