"""Checks of input: what passes at which microversion, and that a refusal names the place."""

from typing import Any

import pytest

from agent.placement.embedded import microversions, validation
from agent.placement.embedded.problems import RequestRefused
from agent.placement.embedded.validation import (
    Invalid,
    Query,
    SchemaCheck,
    array,
    dashed_uuid,
    integer,
    is_loose_uuid,
    loose_uuid,
    mapping,
    nullable,
    number,
    parse_required,
    record,
    string,
    validate,
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


def test_mappings_are_checked_by_suffix() -> None:
    body = {
        "allocations": {UUID: {"resources": {"VCPU": 1}}},
        "project_id": "p",
        "user_id": "u",
        "consumer_generation": None,
        "mappings": {"_NIC": [UUID], "$": "not a suffix"},
    }
    assert validate(validation.PUT_ALLOCATIONS, 34, body, "body") == body
    with pytest.raises(RequestRefused, match=r"body\.mappings\._NIC\[0\]"):
        validate(validation.PUT_ALLOCATIONS, 34, {**body, "mappings": {"_NIC": ["x"]}}, "body")


def test_a_parameter_may_occur_more_than_once() -> None:
    query = Query("a=1&b=&a=2")
    assert query.all("a") == ["1", "2"] and query.all("none") == []
    assert query.as_dict() == {"a": "2", "b": ""}
    with pytest.raises(RequestRefused):
        Query("a=%ff")


def test_required_traits() -> None:
    traits = parse_required(["A,!B", "in:C,D"], 39)
    assert traits.names == {"A", "B", "C", "D"}
    assert traits.admits(frozenset("AD")) and not traits.admits(frozenset("ABD"))
    assert not traits.admits(frozenset("A"))
    for wrong, minor in (("A,,B", 39), ("!B", 21), ("in:A", 38), ("in:!A", 39)):
        with pytest.raises(RequestRefused):
            parse_required([wrong], minor)


@pytest.mark.parametrize(
    ("wanted", "minor"),
    [(None, 0), ("latest", 39), ("1.0", 0), ("1.39", 39), ("1.07", 7), ("01.1", 1), (" 1.5", 5)],
)
def test_a_microversion_is_read_as_a_number(wanted: str | None, minor: int) -> None:
    assert microversions.parse(wanted) == minor


@pytest.mark.parametrize(
    ("wanted", "status"),
    [("1.40", 406), ("1.-1", 406), ("2.1", 406), ("0.1", 406), ("1", 400), ("one.1", 400), ("1.x", 400)],
)
def test_a_microversion_that_is_none_or_not_served_is_refused(wanted: str, status: int) -> None:
    with pytest.raises(RequestRefused) as refused:
        microversions.parse(wanted)
    assert refused.value.problem.status == status
