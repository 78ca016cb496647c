"""Checks of input: what passes, and that a refusal names the place."""

from typing import Any

import pytest

from agent.placement.embedded.validation import (
    Invalid,
    SchemaCheck,
    array,
    dashed_uuid,
    integer,
    is_loose_uuid,
    loose_uuid,
    mapping,
    nullable,
    number,
    record,
    string,
)

UUID = "11111111-1111-1111-1111-111111111111"


@pytest.mark.parametrize(
    ("check", "value", "result"),
    [
        (integer(1, 9), 3.0, 3),
        (number(9.5), 9.5, 9.5),
        (string(1, 3, "^a"), "ab", "ab"),
        (nullable(integer()), None, None),
        (array(integer(), unique=True), [1, 2], [1, 2]),
        (record({"a": integer()}, {"b": string()}), {"a": 1.0}, {"a": 1}),
        (mapping("^x", integer()), {"x1": 2}, {"x1": 2}),
        (loose_uuid, f"urn:uuid:{{{UUID.replace('-', '')}}}", f"urn:uuid:{{{UUID.replace('-', '')}}}"),
        (dashed_uuid, UUID, UUID),
    ],
)
def test_valid_values_pass(check: SchemaCheck, value: Any, result: Any) -> None:
    assert check(value, "place") == result


@pytest.mark.parametrize(
    ("check", "value", "place"),
    [
        (integer(), True, "place"),
        (integer(1), 0, "place"),
        (integer(None, 1), 2, "place"),
        (number(1.0), float("inf"), "place"),
        (string(0, 1), "ab", "place"),
        (string(), "\ud800", "place"),
        (array(integer()), [1, "x"], r"place\[1\]"),
        (array(integer(), unique=True), [1, 1], "place"),
        (record({"a": integer()}), {"a": "x"}, r"place\.a"),
        (record({"a": integer()}), {}, "place"),
        (record({}), {"b": 1}, "place"),
        (mapping("^x", integer(), 1), {}, "place"),
        (mapping("^x", integer()), {"y": 1}, "place"),
        (dashed_uuid, UUID.replace("-", ""), "place"),
    ],
)
def test_a_refusal_names_the_place(check: SchemaCheck, value: Any, place: str) -> None:
    with pytest.raises(Invalid, match=f"^{place} "):
        check(value, "place")


def test_what_placement_takes_for_a_uuid() -> None:
    assert is_loose_uuid(UUID) and is_loose_uuid(UUID.upper()) and not is_loose_uuid(f"x{UUID}")
    assert not is_loose_uuid(1)
