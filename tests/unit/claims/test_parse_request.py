"""Claim requests: the local API's JSON into values and back, and what is refused on the way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.claims.parse_request import parse_addition, parse_claim, read_request, request_to_json
from agent.claims.request import ClaimRequest, RequestGroup, TopologyRequest
from agent.errors import UsageError

CONSUMER = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"
AGGREGATE = "7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c02"


def body(**changes: Any) -> dict[str, Any]:
    return {"consumer": CONSUMER, "groups": [{"resources": {"VCPU": 2}}], **changes}


def group(**keys: Any) -> dict[str, Any]:
    return body(groups=[{"resources": {"VCPU": 1}, **keys}])


names = st.text("ABCXYZ_019", min_size=1, max_size=12)
amounts = st.integers(1, 2**31 - 1)
uuids = st.uuids().map(str)
devices = st.integers(1, 20)
words = st.text(min_size=1, max_size=20)


@st.composite
def groups(draw: st.DrawFn, suffix: str) -> RequestGroup:
    required = draw(st.lists(st.frozensets(names, min_size=1, max_size=3), max_size=3))
    plain = {name for any_of in required if len(any_of) == 1 for name in any_of}
    return RequestGroup(
        suffix,
        draw(st.dictionaries(names, amounts, min_size=1, max_size=4)),
        tuple(required),
        draw(st.frozensets(names, max_size=2)) - plain,
        tuple(draw(st.lists(st.frozensets(uuids, min_size=1, max_size=2), max_size=2))),
    )


cpu_sets = st.frozensets(st.integers(0, 63), min_size=1, max_size=6)
topologies = st.builds(
    TopologyRequest,
    st.sampled_from(["shared", "dedicated", "mixed"]),
    st.sampled_from([None, "prefer", "isolate", "require"]),
    st.integers(0, 8),
    st.lists(cpu_sets, max_size=3).map(tuple),
    st.lists(amounts, max_size=3).map(tuple),
    st.frozensets(st.integers(0, 63), max_size=6),
    st.one_of(st.none(), st.sampled_from(["small", "large", "any"]), amounts),
)


@st.composite
def requests(draw: st.DrawFn) -> ClaimRequest:
    suffixes = draw(st.lists(st.text("_aB1-", max_size=5), min_size=1, max_size=4, unique=True))
    suffixed = [suffix for suffix in suffixes if suffix]
    subtrees = (
        st.lists(st.frozensets(st.sampled_from(suffixed), min_size=1), max_size=2)
        if suffixed
        else st.just([])
    )
    return ClaimRequest(
        draw(uuids),
        tuple(draw(groups(suffix)) for suffix in suffixes),
        draw(st.sampled_from(["none", "isolate"] if len(suffixed) > 1 else [None, "none", "isolate"])),
        tuple(draw(subtrees)),
        draw(topologies),
        tuple(
            draw(st.lists(st.tuples(st.from_regex(r"[a-z0-9_-]{1,9}", fullmatch=True), devices), max_size=2))
        ),
        draw(st.text(max_size=20)),
        draw(words),
        draw(words),
        draw(names),
    )


@given(requests())
def test_every_request_survives_its_json(request: ClaimRequest) -> None:
    assert read_request(json.loads(json.dumps(request_to_json(request)))) == request


def test_groups_in_placements_terms() -> None:
    request = parse_claim(
        {
            "consumer": CONSUMER.upper().replace("-", ""),
            "name": "web1",
            "groups": [
                {"resources": {"VCPU": 2, "MEMORY_MB": 512}},
                {
                    "suffix": "_A",
                    "resources": {"SRIOV_NET_VF": 1},
                    "required": ["HW_NIC_SRIOV", "in:CUSTOM_A,CUSTOM_B", "!CUSTOM_X"],
                    "member_of": [AGGREGATE, f"in:{AGGREGATE},{CONSUMER}"],
                },
                {"suffix": "_N", "required": ["HW_NUMA_ROOT"]},
            ],
            "group_policy": "none",
            "same_subtree": [["_A", "_N"]],
            "project_id": "p",
        }
    )
    assert request == ClaimRequest(
        CONSUMER,
        (
            RequestGroup("", {"VCPU": 2, "MEMORY_MB": 512}),
            RequestGroup(
                "_A",
                {"SRIOV_NET_VF": 1},
                (frozenset({"HW_NIC_SRIOV"}), frozenset({"CUSTOM_A", "CUSTOM_B"})),
                frozenset({"CUSTOM_X"}),
                (frozenset({AGGREGATE}), frozenset({AGGREGATE, CONSUMER})),
            ),
            RequestGroup("_N", {}, (frozenset({"HW_NUMA_ROOT"}),)),
        ),
        "none",
        (frozenset({"_A", "_N"}),),
        name="web1",
        project_id="p",
    )


def test_a_flavor_makes_groups() -> None:
    request = parse_claim(
        {"consumer": CONSUMER, "name": "web1", "flavor": {"vcpus": 2, "memory_mb": 2048, "disk_gb": 10}}
    )
    assert request.groups == (RequestGroup("", {"VCPU": 2, "MEMORY_MB": 2048, "DISK_GB": 10}),)
    assert (request.name, request.resources) == ("web1", {"VCPU": 2, "MEMORY_MB": 2048, "DISK_GB": 10})


@pytest.mark.parametrize(
    ("bad", "path", "allowed"),
    [
        ([], "the body", "an object"),
        ({"groups": []}, "consumer", "missing"),
        ({"consumer": CONSUMER}, "groups (or flavor)", "missing"),
        (body(consumer="web1"), "consumer", "a uuid"),
        (body(consumer=7), "consumer", "a uuid"),
        (body(colour="red"), "colour", "allowed are consumer, groups"),
        (body(flavor={}), "groups", "allowed are consumer, flavor"),
        (body(groups={}), "groups", "a list"),
        (body(groups=[]), "groups", "the request is empty"),
        (body(groups=[7]), "groups[0]", "an object"),
        (body(name=7), "name", "a name of at most 255"),
        (body(project_id=""), "project_id", "a text of 1 to 255"),
        (body(consumer_type="vm"), "consumer_type", "a type such as"),
        (body(group_policy="some"), "group_policy", "one of none, isolate"),
        (body(same_subtree=[["_A"]]), "same_subtree", "'_A' is no suffix"),
        (body(same_subtree="_A"), "same_subtree", "a list"),
        (body(same_subtree=[[]]), "same_subtree", "an empty set"),
        (body(pci=[{"alias": "a b"}]), "pci[0].alias", "the name of an alias"),
        (body(topology={"cells": -1}), "topology.cells", "between 0 and"),
        (body(topology={"cell_cpus": ["0-"]}), "topology.cell_cpus[0]", "CPU id"),
        (body(topology={"mem_page_size": "huge"}), "topology.mem_page_size", "small, large, any"),
        (group(resources={"VCPU": 0}), "groups[0].resources.VCPU", "between 1 and 2147483647"),
        (group(resources={"VCPU": True}), "groups[0].resources.VCPU", "a whole number"),
        (group(resources={"VCPU": 1.5}), "groups[0].resources.VCPU", "a whole number"),
        (group(resources={"vcpu": 1}), "groups[0].resources.vcpu", "a resource class"),
        (group(suffix="a b"), "groups[0].suffix", "at most 64"),
        (group(suffix="x" * 65), "groups[0].suffix", "at most 64"),
        (group(required=["in:A,"]), "groups[0].required[0]", "a trait such as"),
        (group(required=["!in:A"]), "groups[0].required[0]", "a trait such as"),
        (group(required=["A", "!A"]), "the unsuffixed group", "both required and forbidden"),
        (group(forbidden=["A"]), "groups[0].forbidden", "allowed are suffix, resources, required, member_of"),
        (group(member_of=["rack1"]), "groups[0].member_of[0]", "a uuid"),
        (group(member_of=["!" + AGGREGATE]), "groups[0].member_of[0]", "forbidden aggregates"),
        (body(groups=[{"resources": {"A": 1}}] * 2), "groups", "given twice"),
        (
            body(groups=[{"resources": {"A": 1}}, {"suffix": "1", "required": ["T"]}]),
            "group '1'",
            "no resources",
        ),
        (
            body(groups=[{"resources": {"A": 1}}, {"suffix": "1"}], same_subtree=[["1"]]),
            "group '1'",
            "a required trait or an aggregate",
        ),
        (
            body(groups=[{"suffix": "1", "resources": {"A": 1}}, {"suffix": "2", "resources": {"A": 1}}]),
            "group_policy",
            "'1', '2' need one",
        ),
        (
            body(groups=[{"suffix": str(n), "resources": {"A": 1}} for n in range(65)]),
            "groups",
            "64 are allowed",
        ),
        ({"consumer": CONSUMER, "flavor": {"vcpus": 0, "memory_mb": 1}}, "flavor.vcpus", "between 1 and"),
        ({"consumer": CONSUMER, "flavor": {"vcpus": 1}}, "flavor.memory_mb", "a whole number"),
        ({"consumer": CONSUMER, "flavor": {"ram": 1}}, "flavor.ram", "allowed are vcpus, memory_mb"),
        (
            {"consumer": CONSUMER, "flavor": {"vcpus": 1, "memory_mb": 1, "extra_specs": {"quota:x": None}}},
            "flavor.extra_specs.quota:x",
            "a text",
        ),
    ],
)
def test_what_is_refused_names_the_key_and_what_is_allowed(bad: object, path: str, allowed: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_claim(bad)
    assert caught.value.message.startswith(path), caught.value.message
    assert allowed in caught.value.message


MISSPELT = "HW_CPU_X86_AVX22"
MEANT = "HW_CPU_X86_AVX2"


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        (group(required=[MISSPELT]), "groups[0].required"),
        (group(required=[f"!{MISSPELT}"]), "groups[0].required"),
        (group(required=[f"in:CUSTOM_A,{MISSPELT}"]), "groups[0].required"),
        (body(root_required=[MISSPELT]), "root_required"),
        (body(root_required=[f"!{MISSPELT}"]), "root_required"),
        (
            body(groups=[{"resources": {"VCPU": 1}}, {"suffix": "1", "resources": {"VGPUS": 1}}]),
            "groups[1].resources.VGPUS",
        ),
    ],
)
def test_a_name_that_placement_cannot_have_is_refused_in_groups_as_in_a_flavor(
    asked: dict[str, Any], path: str
) -> None:
    """Placement answers 400 to it, also where it is forbidden or one of several."""
    for read in (parse_claim, lambda given: parse_addition(without_consumer(given), CONSUMER)):
        with pytest.raises(UsageError) as caught:
            read(asked)
        assert caught.value.message.startswith(f"{path}: "), caught.value.message
        assert "is no standard" in caught.value.message
        assert (
            f"did you mean {MEANT}?" in caught.value.message or "did you mean VGPU?" in caught.value.message
        )


def without_consumer(asked: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in asked.items() if key != "consumer"}


def test_what_the_agent_wrote_is_read_though_its_os_traits_lack_the_name_by_now() -> None:
    assert read_request(group(required=[f"!{MISSPELT}"])).groups[0].forbidden == {MISSPELT}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_no_body_breaks_the_parser(data: st.DataObject) -> None:
    """With any value in place of any part, the result is a request or a UsageError."""
    good = request_to_json(data.draw(requests()))
    key = data.draw(st.sampled_from(sorted(good)))
    good[key] = data.draw(json_values)
    try:
        parse_claim(good)
    except UsageError as error:
        assert error.message.endswith((".", "?"))


def test_a_long_value_is_shown_shortened() -> None:
    with pytest.raises(UsageError) as caught:
        parse_claim(body(consumer="x" * 1000))
    assert len(caught.value.message) < 120
    assert caught.value.details["path"] == "consumer"
