"""The syntax of resources, required and member_of, by microversion."""

import pytest

from agent.placement.embedded.problems import RequestRefused
from agent.placement.embedded.query_string import Query, parse_member_of, parse_required, parse_resources

ONE, TWO = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"


def test_a_parameter_may_occur_more_than_once() -> None:
    query = Query("a=1&b=&a=2")
    assert query.all("a") == ["1", "2"] and query.get("a") == "2" and query.get("none") is None
    assert "b" in query and query.as_dict() == {"a": "2", "b": ""}
    with pytest.raises(RequestRefused):
        Query("a=%ff")


def test_resources() -> None:
    assert parse_resources("VCPU:2,MEMORY_MB:1024") == {"VCPU": 2, "MEMORY_MB": 1024}
    for wrong in ("VCPU", "VCPU:0", "VCPU:x", ""):
        with pytest.raises(RequestRefused):
            parse_resources(wrong)


def test_required_traits() -> None:
    traits = parse_required(["A,!B", "in:C,D"], 39)
    assert traits.names == {"A", "B", "C", "D"}
    assert traits.admits(frozenset("AD")) and not traits.admits(frozenset("ABD"))
    assert not traits.admits(frozenset("A"))
    for wrong, minor in (("A,,B", 39), ("!B", 21), ("in:A", 38), ("in:!A", 39)):
        with pytest.raises(RequestRefused):
            parse_required([wrong], minor)


def test_member_of() -> None:
    aggregates = parse_member_of([f"in:{ONE},{TWO}"], 39)
    assert aggregates.admits(frozenset({TWO})) and not aggregates.admits(frozenset())
    assert not parse_member_of([f"!{ONE}"], 32).admits(frozenset({ONE}))
    for values, minor in (([ONE, TWO], 23), ([f"{ONE},{TWO}"], 39), ([f"!{ONE}"], 31), (["rack"], 39)):
        with pytest.raises(RequestRefused):
            parse_member_of(values, minor)
