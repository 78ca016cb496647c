"""Which queries for allocation candidates are refused, with which code, and up to which microversion."""

from __future__ import annotations

import sys

import pytest

from agent.placement.embedded.candidates.query import CandidateQuery, parse_query
from agent.placement.embedded.problems import (
    BAD_REQUEST,
    BAD_VALUE,
    DUPLICATE_KEY,
    MISSING_VALUE,
    ProblemType,
    RequestRefused,
)
from agent.placement.embedded.query_string import Query

UUID = "11111111-1111-4111-8111-111111111111"


def parsed(query: str, minor: int = 39) -> CandidateQuery:
    return parse_query(Query(query), minor)


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("", MISSING_VALUE),
        ("required=CUSTOM_A", MISSING_VALUE),
        ("required_N=CUSTOM_A&same_subtree=_N", MISSING_VALUE),
        ("resources=VCPU:1&required_N=CUSTOM_A", BAD_VALUE),
        ("required=CUSTOM_A&resources_1=VCPU:1", BAD_VALUE),
        ("resources_1=VCPU:1&same_subtree=_2", BAD_VALUE),
        ("resources_1=VCPU:1&same_subtree=_1,", BAD_VALUE),
        ("resources=VCPU:1&root_required=CUSTOM_A,!CUSTOM_A", BAD_VALUE),
        ("resources=VCPU:1&root_required=CUSTOM_A&root_required=CUSTOM_B", DUPLICATE_KEY),
        ("resources=VCPU:1&root_required=in:CUSTOM_A", BAD_REQUEST),
        ("resources=VCPU:1&required=CUSTOM_A&required=!CUSTOM_A", BAD_REQUEST),
        ("resources=VCPU:1&required=in:CUSTOM_A,CUSTOM_B&required=!CUSTOM_A,!CUSTOM_B", BAD_REQUEST),
        ("resources_1=VCPU:1&resources_2=VCPU:1", BAD_REQUEST),
        ("resources_1=VCPU:1&resources_2=VCPU:1&group_policy=some", BAD_REQUEST),
        ("resources=VCPU:0", BAD_REQUEST),
        ("resources=VCPU:1:2&resources=VCPU:1", BAD_REQUEST),
        ("resources=VCPU:1&in_tree=host", BAD_REQUEST),
        (f"resources=VCPU:1&in_tree=host&in_tree={UUID}", BAD_REQUEST),
        ("resources=VCPU:1&limit=0", BAD_REQUEST),
        ("resources=VCPU:1&limit=x&limit=1", BAD_REQUEST),
        ("resources.=VCPU:1", BAD_REQUEST),
        (f"resources{'a' * 65}=VCPU:1", BAD_REQUEST),
        ("resources=VCPU:1&order=random", BAD_REQUEST),
    ],
)
def test_wrong_queries_are_refused_with_their_code(query: str, problem: ProblemType) -> None:
    with pytest.raises(RequestRefused) as refusal:
        parsed(query)
    assert refusal.value.problem == problem


@pytest.mark.parametrize(
    ("query", "since"),
    [
        ("resources=VCPU:1&limit=1", 16),
        ("resources=VCPU:1&required=CUSTOM_A", 17),
        (f"resources=VCPU:1&member_of={UUID}", 21),
        ("resources=VCPU:1&required=!CUSTOM_A", 22),
        (f"resources=VCPU:1&member_of={UUID}&member_of={UUID}", 24),
        ("resources=VCPU:1&resources1=VCPU:1", 25),
        (f"resources=VCPU:1&in_tree={UUID}", 31),
        (f"resources=VCPU:1&member_of=!{UUID}", 32),
        ("resources=VCPU:1&resources_A=VCPU:1", 33),
        ("resources=VCPU:1&root_required=CUSTOM_A", 35),
        ("resources=VCPU:1&required1=CUSTOM_A&same_subtree=1", 36),
        ("resources=VCPU:1&required=in:CUSTOM_A,CUSTOM_B", 39),
    ],
)
def test_each_parameter_is_understood_from_its_microversion_on(query: str, since: int) -> None:
    parsed(query, since)
    with pytest.raises(RequestRefused):
        parsed(query, since - 1)


def test_a_repeated_parameter_counts_as_placement_counts_it() -> None:
    query = parsed(
        "resources=VCPU:1&resources=DISK_GB:2&limit=3&limit=4&group_policy=isolate&group_policy=none"
    )
    assert query.groups[0].resources == {"DISK_GB": 2}
    assert (query.limit, query.isolate) == (3, True)
    assert parsed("resources=VCPU:1&required=CUSTOM_A&required=CUSTOM_B", 38).trait_names() == {"CUSTOM_B"}


def test_a_limit_beyond_all_counting_is_no_limit() -> None:
    assert parsed(f"resources=VCPU:1&limit={'9' * 30}").limit == sys.maxsize


def test_groups_are_found_by_any_of_their_parameters() -> None:
    query = parsed(
        f"resources=VCPU:1&in_tree_A={UUID}&required_B=CUSTOM_A&same_subtree=_A,_B&group_policy=none"
    )
    assert [group.suffix for group in query.groups] == ["", "_A", "_B"]
    assert query.same_subtrees == (frozenset({"_A", "_B"}),)
