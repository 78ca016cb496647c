"""Claim requests: the local API's JSON into values and back, and what is refused on the way."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.claims.parse_request import (
    CELLS_MAX,
    Flavor,
    _realtime,
    claim_for_flavor,
    notes_of,
    parse_addition,
    parse_claim,
    read_request,
    read_whole_spec,
    request_to_json,
    topology_of,
)
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


def test_the_number_of_an_alternative_survives_its_json_and_may_be_missing() -> None:
    request = parse_claim(body())
    assert "alternative" not in request_to_json(request), "an agent that knows no alternatives reads it"
    second = replace(request, alternative=2)
    assert read_request(json.loads(json.dumps(request_to_json(second)))).alternative == 2
    assert read_request(body()).alternative == 0
    assert second == request, "it says where the request comes from, and nothing of what it asks for"


def flavor_of(**specs: str) -> dict[str, Any]:
    keys = {key.replace("__", ":"): text for key, text in specs.items()}
    return {"consumer": CONSUMER, "flavor": {"vcpus": 1, "memory_mb": 64, "extra_specs": keys}}


def test_an_alternative_of_a_flavor_has_a_text_in_place_of_the_flavors_or_none() -> None:
    request = parse_claim(
        flavor_of(
            resources__VGPU="1",
            trait__CUSTOM_A="required",
            plimsoll__or2__resources__VGPU="2",
            plimsoll__or3__resources__VGPU="",
            plimsoll__or3__trait__CUSTOM_A="",
            plimsoll__or3__hw__cpu_policy="dedicated",
        )
    )
    own = {"VCPU": 1, "MEMORY_MB": 64}
    trait = (frozenset({"CUSTOM_A"}),)
    assert [(each.alternative, each.resources, each.groups[0].required) for each in request.options] == [
        (1, {**own, "VGPU": 1}, trait),
        (2, {**own, "VGPU": 2}, trait),
        (3, {"PCPU": 1, "MEMORY_MB": 64}, ()),
    ]
    assert parse_claim(flavor_of(resources__VGPU="1")).options == (
        parse_claim(flavor_of(resources__VGPU="1")),
    )


def test_alternatives_are_for_the_instance_of_the_body_and_each_is_by_groups_or_by_a_flavor() -> None:
    given = body(
        name="ai1",
        project_id="p",
        alternatives=[{"groups": [{"resources": {"PCPU": 1}}]}, {"flavor": flavor_of()["flavor"]}],
    )
    request = parse_claim(given)
    assert [(each.consumer, each.name, each.project_id) for each in request.options] == [
        (CONSUMER, "ai1", "p")
    ] * 3
    assert [each.resources for each in request.options] == [
        {"VCPU": 2},
        {"PCPU": 1},
        {"VCPU": 1, "MEMORY_MB": 64},
    ]
    without_consumer = {key: given[key] for key in given if key != "consumer"}
    with pytest.raises(UsageError, match="consumer"):
        parse_claim(without_consumer)
    named = parse_claim(without_consumer, by_name=True)
    assert {each.consumer for each in replace(named, consumer=CONSUMER).options} == {CONSUMER}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (flavor_of(plimsoll__or__resources__VGPU="1"), "plimsoll:or:resources:VGPU: unknown extra spec; "),
        (flavor_of(plimsoll__or1__resources__VGPU="1"), "the flavor's KEY, N from 2 to 16."),
        (flavor_of(plimsoll__or17__resources__VGPU="1"), "plimsoll:or17:resources:VGPU: unknown extra spec"),
        (flavor_of(plimsoll__or2__="1"), "plimsoll:or2:: unknown extra spec"),
        (flavor_of(plimsoll__first__x="1"), "plimsoll:first:x: unknown extra spec"),
        (flavor_of(Plimsoll__or2__resources__VGPU="1"), "Plimsoll:or2:resources:VGPU: unknown extra spec"),
        (flavor_of(plimsoll__or3__resources__VGPU="1"), "plimsoll:or2: missing; plimsoll:or3 is given."),
        (
            flavor_of(resources__VGPU="1", plimsoll__or2__resources__VGPUS=""),
            "plimsoll:or2:resources:VGPUS: the flavor has no resources:VGPUS that it could take away.",
        ),
        (flavor_of(plimsoll__or2__resources__VGPU="x"), "Alternative 2: resources:VGPU: "),
        (flavor_of(plimsoll__or2__hw__cpu_polcy="x"), "Alternative 2: hw:cpu_polcy: unknown extra spec"),
        (flavor_of(plimsoll__or2__plimsoll__or2__x="x"), "plimsoll:or2:plimsoll:or2:x: unknown extra spec"),
        (body(alternatives={}), "alternatives: "),
        (body(alternatives=[3]), "alternatives[0]: "),
        (body(alternatives=[{"consumer": CONSUMER}]), "alternatives[0].consumer: unknown key"),
        (body(alternatives=[{}]), "Alternative 2: groups (or flavor): missing"),
        (body(alternatives=[{"groups": []}]), "Alternative 2: groups: the request is empty"),
        (body(alternatives=[{"groups": [], "flavor": {}}]), "Alternative 2: groups: unknown key"),
        (
            body(alternatives=[{"groups": [{"resources": {"VCPU": 1}}]}] * 16),
            "at most 16 are asked for, not 17",
        ),
        (body(alternative=17), "alternative: "),
        (body(alternative="2"), "alternative: "),
    ],
)
def test_malformed_alternatives_are_refused_with_the_number_and_the_key(bad: object, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_claim(bad)
    assert said in caught.value.message, caught.value.message


def test_notes_are_those_of_all_alternatives() -> None:
    given = flavor_of(quota__cpu_shares="1", plimsoll__or2__quota__vif_inbound_average="1")
    notes = notes_of(given)
    assert len(notes) == 2
    assert not any("plimsoll" in note for note in notes)


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
    good["alternatives"] = [{"groups": good["groups"]}, {"flavor": flavor_of(plimsoll__or2__a="1")["flavor"]}]
    key = data.draw(st.sampled_from(sorted(good)))
    good[key] = data.draw(json_values | st.just([{"flavor": data.draw(json_values)}]))
    specs = {f"plimsoll:{data.draw(st.text('or:23', max_size=6))}": data.draw(json_values)}
    for body in (good, {"consumer": CONSUMER, "flavor": {"vcpus": 1, "memory_mb": 1, "extra_specs": specs}}):
        try:
            parse_claim(body)
        except UsageError as error:
            assert error.message.endswith((".", "?"))


def test_a_long_value_is_shown_shortened() -> None:
    with pytest.raises(UsageError) as caught:
        parse_claim(body(consumer="x" * 1000))
    assert len(caught.value.message) < 120
    assert caught.value.details["path"] == "consumer"


def with_specs(specs: dict[str, str], vcpus: int = 4, memory_mb: int = 4096) -> Any:
    return claim_for_flavor(CONSUMER, Flavor(vcpus, memory_mb, 10, specs))


PLAIN = {"VCPU": 4, "MEMORY_MB": 4096, "DISK_GB": 10}


def test_suffixed_groups_and_traits() -> None:
    request = with_specs(
        {
            "resources1:VGPU": "1",
            "trait1:CUSTOM_T4": "required",
            "resources_NET:SRIOV_NET_VF": "2",
            "trait_NET:CUSTOM_OLD": "forbidden",
            "trait:HW_CPU_X86_AVX2": "required",
            "trait_N:HW_NUMA_ROOT": "required",
            "group_policy": "isolate",
            "same_subtree": "1,_N; _NET,_N",
        }
    )
    assert request.groups == (
        RequestGroup("", PLAIN, (frozenset({"HW_CPU_X86_AVX2"}),)),
        RequestGroup("1", {"VGPU": 1}, (frozenset({"CUSTOM_T4"}),)),
        RequestGroup("_N", {}, (frozenset({"HW_NUMA_ROOT"}),)),
        RequestGroup("_NET", {"SRIOV_NET_VF": 2}, (), frozenset({"CUSTOM_OLD"})),
    )
    assert request.group_policy == "isolate"
    assert request.same_subtree == (frozenset({"1", "_N"}), frozenset({"_NET", "_N"}))


@pytest.mark.parametrize(
    ("specs", "cpus", "topology"),
    [
        ({}, {"VCPU": 4}, TopologyRequest()),
        ({"hw:cpu_policy": "shared"}, {"VCPU": 4}, TopologyRequest()),
        ({"resources:PCPU": "4"}, {"PCPU": 4}, TopologyRequest("dedicated")),
        (
            {"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-1"},
            {"VCPU": 2, "PCPU": 2},
            TopologyRequest("mixed", dedicated_cpus=frozenset({0, 1})),
        ),
        (
            {
                "hw:numa_nodes": "2",
                "hw:numa_cpus.0": "0",
                "hw:numa_cpus.1": "1-3",
                "hw:numa_mem.0": "1024",
                "hw:numa_mem.1": "3072",
            },
            {"VCPU": 4},
            TopologyRequest(
                cells=2, cell_cpus=(frozenset({0}), frozenset({1, 2, 3})), cell_memory_mb=(1024, 3072)
            ),
        ),
        ({"hw:mem_page_size": "large"}, {"VCPU": 4}, TopologyRequest(mem_page_size="large")),
        ({"hw:mem_page_size": "2048"}, {"VCPU": 4}, TopologyRequest(mem_page_size=2048)),
        ({"hw:mem_page_size": "1GiB"}, {"VCPU": 4}, TopologyRequest(mem_page_size=1 << 20)),
    ],
)
def test_cpus_cells_and_pages(specs: dict[str, str], cpus: dict[str, int], topology: TopologyRequest) -> None:
    request = with_specs(specs)
    assert request.groups[0].resources == {**cpus, "MEMORY_MB": 4096, "DISK_GB": 10}
    assert request.topology == topology


def test_a_resource_of_any_group_replaces_the_flavors_own() -> None:
    first, second = with_specs({"resources1:MEMORY_MB": "512", "resources:DISK_GB": "1"}).groups
    assert first.resources == {"VCPU": 4, "DISK_GB": 1} and second.resources == {"MEMORY_MB": 512}


@pytest.mark.parametrize(
    ("specs", "cpus"),
    [
        ({"hw:cpu_policy": "dedicated"}, {"PCPU": 5}),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-1"}, {"VCPU": 2, "PCPU": 3}),
        ({"resources:PCPU": "5"}, {"PCPU": 5}),
    ],
)
def test_isolated_emulator_threads_ask_for_one_more_pcpu(specs: dict[str, str], cpus: dict[str, int]) -> None:
    request = with_specs({**specs, "hw:emulator_threads_policy": "isolate"})
    assert request.resources == {**cpus, "MEMORY_MB": 4096, "DISK_GB": 10}
    assert request.topology.isolate_emulator


@pytest.mark.parametrize("key", ["trait:HW_CPU_HYPERTHREADING", "trait1:HW_CPU_HYPERTHREADING"])
def test_the_trait_of_threads_is_a_policy_wherever_the_flavor_has_it(key: str) -> None:
    specs = {"hw:cpu_policy": "dedicated", "resources1:VGPU": "1", key: "required"}
    assert with_specs(specs).topology.cpu_thread_policy == "require"


def test_the_trait_of_threads_is_a_policy_when_the_image_requires_it() -> None:
    flavor = Flavor(4, 4096, 10, {"hw:cpu_policy": "dedicated"})
    request = claim_for_flavor(CONSUMER, flavor, {"trait:HW_CPU_HYPERTHREADING": "required"})
    assert request.topology.cpu_thread_policy == "require"


def test_devices_by_alias() -> None:
    assert with_specs({"pci_passthrough:alias": "a1:2, fpga:1,a1:1"}).pci == (("a1", 3), ("fpga", 1))


def test_other_namespaces_and_what_only_shapes_the_guest_say_nothing() -> None:
    request = with_specs(
        {
            "quota:cpu_shares": "512",
            "os:secure_boot": "disabled",
            "capabilities:hypervisor_type": "s== QEMU",
            "aggregate_instance_extra_specs:ssd": "true",
            "ssd": "true",
            "hw:watchdog_action": "reset",
            "hw:emulator_threads_policy": "share",
            "hw_rng:allowed": "true",
        }
    )
    assert request == with_specs({})


@pytest.mark.parametrize(
    ("specs", "named", "why"),
    [
        ({"resources:VGPU": "one"}, "resources:VGPU", "a whole number between 0"),
        ({"resources:VGPU": "-1"}, "resources:VGPU", "a whole number"),
        ({"resources:vgpu": "1"}, "resources:vgpu", "resource class"),
        ({"trait:": "required"}, "trait:", "a name of trait"),
        ({"trait:CUSTOM_A": "wanted"}, "trait:CUSTOM_A", "required or forbidden"),
        ({"resources1:VGPU": "1", "resources2:VGPU": "1"}, "group_policy", "'1', '2' need one"),
        ({"group_policy": "isolated"}, "group_policy", "none or isolate"),
        ({"same_subtree": "_A,_B"}, "same_subtree", "'_A', '_B' is no suffix"),
        ({"hw:cpu_polcy": "dedicated"}, "hw:cpu_polcy", "did you mean hw:cpu_policy?"),
        ({"hw:cpu_policy": "pinned"}, "hw:cpu_policy", "one of shared, dedicated, mixed"),
        ({"hw:cpu_policy": "dedicated", "resources:VCPU": "2"}, "resources:VCPU", "remove one of the two"),
        ({"hw:cpu_policy": "dedicated", "hw:cpu_dedicated_mask": "0"}, "hw:cpu_dedicated_mask", "mixed"),
        ({"hw:cpu_policy": "mixed"}, "hw:cpu_dedicated_mask", "=mixed needs it"),
        (
            {"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-3"},
            "hw:cpu_dedicated_mask",
            "leave at least",
        ),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "7"}, "hw:cpu_dedicated_mask", "CPUs 0-3"),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "a"}, "hw:cpu_dedicated_mask", "CPU id"),
        ({"hw:cpu_thread_policy": "prefer"}, "hw:cpu_thread_policy", "needs hw:cpu_policy=dedicated"),
        ({"hw:numa_nodes": "0"}, "hw:numa_nodes", "between 1 and 64"),
        ({"hw:numa_nodes": "5"}, "hw:numa_nodes", "the flavor has 4 vCPUs: each cell needs one"),
        ({"hw:numa_nodes": "3"}, "hw:numa_nodes", "cannot be split evenly"),
        ({"hw:numa_cpus.0": "0-3"}, "hw:numa_cpus.0", "needs hw:numa_nodes"),
        ({"hw:numa_nodes": "2", "hw:numa_cpus.0": "0-3"}, "hw:numa_cpus.N", "each of the guest's cells 0-1"),
        ({"hw:numa_nodes": "1", "hw:numa_cpus.0": "0-2"}, "hw:numa_cpus.N", "CPU 3"),
        ({"hw:numa_nodes": "1", "hw:numa_cpus.0": "0-4"}, "hw:numa_cpus.0", "CPUs of the guest"),
        (
            {"hw:numa_nodes": "2", "hw:numa_cpus.0": "0-2", "hw:numa_cpus.1": "2-3"},
            "hw:numa_cpus.1",
            "no cell before it has",
        ),
        ({"hw:numa_nodes": "1", "hw:numa_mem.0": "1024"}, "hw:numa_mem.N", "1024 MiB together"),
        ({"hw:mem_page_size": "huge"}, "hw:mem_page_size", "small, large, any"),
        ({"hw:mem_page_size": "0"}, "hw:mem_page_size", "small, large, any"),
        ({"hw:mem_encryption": "perhaps"}, "hw:mem_encryption", "not a truth value"),
        ({"hw:mem_encryption_model": "amd"}, "hw:mem_encryption_model", "one of amd-sev,"),
        ({"hw:pmem": "6 GB"}, "hw:pmem", "labels of"),
        ({"hw:sound_model": "loud"}, "hw:sound_model", "one of virtio,"),
        ({"accel:device_profile": "fpga1"}, "accel:device_profile=fpga1", "resources1:FPGA=1"),
        ({"resources:PCPU": "3"}, "resources:PCPU", "the flavor's 4 CPUs need 4"),
        ({"resources:PCPU": "4", "resources:VCPU": "1"}, "resources:PCPU", "hw:cpu_policy=mixed"),
        ({"resources1:PCPU": "4"}, "resources1:PCPU", "hw:cpu_policy=dedicated"),
        (
            {"hw:cpu_policy": "dedicated", "resources1:VCPU": "1"},
            "resources1:VCPU",
            "already determines the number",
        ),
        (
            {"hw:cpu_policy": "shared", "resources:VCPU": "0", "resources_NET:VCPU": "1"},
            "resources_NET:VCPU",
            "already determines the number",
        ),
        ({"resources:PCPU": "4", "resources_NET:VCPU": "1"}, "resources:PCPU", "resources_NET:VCPU is given"),
        (
            {"trait:HW_CPU_X86_AVX52": "forbidden"},
            "trait:HW_CPU_X86_AVX52",
            "did you mean HW_CPU_X86_AVX2?",
        ),
        ({"trait1:MISSING": "forbidden"}, "trait1:MISSING", "begins with CUSTOM_"),
        ({"resources:DISK_GBB": "0"}, "resources:DISK_GBB", "did you mean DISK_GB?"),
        ({"hw:mem_page_size": "2Mb"}, "hw:mem_page_size", "2MB"),
        (
            {"pci_passthrough:aliases": "a:1"},
            "pci_passthrough:aliases",
            "did you mean pci_passthrough:alias?",
        ),
        ({"pci_passthrough:alias": "a1"}, "pci_passthrough:alias", "name:count"),
        ({"pci_passthrough:alias": "a1:0"}, "pci_passthrough:alias", "name:count"),
    ],
)
def test_contradictions_and_malformed_values_name_the_spec(
    specs: dict[str, str], named: str, why: str
) -> None:
    with pytest.raises(UsageError) as caught:
        with_specs(specs)
    assert caught.value.message.startswith(named), caught.value.message
    assert why in caught.value.message


specs_keys = st.one_of(
    st.sampled_from(
        [
            *(
                "resources:VGPU",
                "resources1:VGPU",
                "trait1:T",
                "group_policy",
                "same_subtree",
                "hw:cpu_policy",
            ),
            *(
                "hw:cpu_dedicated_mask",
                "hw:numa_nodes",
                "hw:numa_cpus.0",
                "hw:numa_mem.1",
                "hw:mem_page_size",
            ),
            *("pci_passthrough:alias", "hw:cpu_thread_policy"),
        ]
    ),
    st.text(max_size=10),
)
specs_values = st.one_of(
    st.sampled_from(["1", "2", "mixed", "0-1", "^0", "required", "none"]), st.text(max_size=8)
)


@example({"resources:VGPU": "0\x1f"})  # which str.strip() takes away, and int() does not
@given(st.dictionaries(specs_keys, specs_values, max_size=5))
def test_no_flavor_breaks_the_translation(specs: dict[str, str]) -> None:
    """Every flavor becomes a claim, in which the CPUs add up unless it says otherwise, or a UsageError."""
    try:
        request = with_specs(specs)
    except UsageError as error:
        assert error.message.endswith((".", "?"))
        return
    asked = request.resources
    assert asked.get("VCPU", 0) + asked.get("PCPU", 0) == 4
    assert all(amount > 0 for amount in asked.values())


@pytest.mark.parametrize(
    "cells",
    [{"hw:numa_nodes": "2"}, {"hw:cpu_policy": "dedicated"}, {"hw:mem_page_size": "2MB"}, {"hw:pmem": "6GB"}],
)
@pytest.mark.parametrize("memory", [{"resources1:MEMORY_MB": "512"}, {"resources:MEMORY_MB": "0"}])
def test_cells_without_memory_are_refused(cells: dict[str, str], memory: dict[str, str]) -> None:
    """nova would give the cells memory that Placement does not count."""
    (spec,) = memory
    with pytest.raises(UsageError, match=f"^{spec}: the guest has NUMA cells"):
        with_specs({**cells, **memory})
    assert with_specs(memory).groups, "without cells, memory may be of any group"
    both = with_specs({**cells, "resources1:MEMORY_MB": "512", "resources:MEMORY_MB": "256"})
    assert both.resources["MEMORY_MB"] == 768


@pytest.mark.parametrize(
    ("specs", "cpus"),
    [
        ({}, set()),
        ({"hw:cpu_realtime": "no", "hw:cpu_realtime_mask": "1"}, set()),
        ({"hw:cpu_realtime": "yes", "hw:cpu_realtime_mask": "^0-1"}, {2, 3}),
    ],
)
def test_the_cpus_with_realtime_priority_are_those_of_the_mask_where_it_is_asked_for(
    specs: dict[str, str], cpus: set[int]
) -> None:
    assert _realtime(specs, "dedicated", 4) == cpus


@pytest.mark.parametrize(
    ("specs", "cpus"),
    [
        ({"hw:cpu_realtime": "yes", "hw:cpu_realtime_mask": "^0"}, {1, 2, 3}),
        ({"hw:cpu_realtime": "true", "hw:cpu_realtime_mask": "2-3"}, {2, 3}),
        ({"hw:cpu_dedicated_mask": "0", "hw:cpu_realtime": "no", "hw:cpu_realtime_mask": "2-3"}, {0}),
    ],
)
def test_a_realtime_mask_alone_says_which_cpus_of_a_mixed_guest_are_pinned(
    specs: dict[str, str], cpus: set[int]
) -> None:
    topology = topology_of(4, 4096, {"hw:cpu_policy": "mixed", **specs})
    assert topology.dedicated_cpus == cpus


@pytest.mark.parametrize(
    ("policy", "specs", "why"),
    [
        ("mixed", {"hw:cpu_realtime_mask": "^0"}, "hw:cpu_dedicated_mask: .* needs it"),
        (
            "mixed",
            {"hw:cpu_realtime": "yes", "hw:cpu_realtime_mask": "0", "hw:cpu_dedicated_mask": "0"},
            "not both",
        ),
        ("mixed", {"hw:cpu_realtime": "yes"}, "hw:cpu_realtime_mask: it must leave a CPU"),
        (
            "mixed",
            {"hw:cpu_realtime": "yes", "hw:emulator_threads_policy": "isolate"},
            "hw:cpu_realtime_mask: .* leave at least one",
        ),
        ("shared", {"hw:cpu_realtime": "yes", "hw:cpu_realtime_mask": "0"}, "hw:cpu_realtime: it needs"),
        ("dedicated", {"hw:cpu_realtime": "maybe"}, "hw:cpu_realtime: 'maybe' is not a truth value"),
        ("dedicated", {"hw:cpu_realtime": "yes", "hw:cpu_realtime_mask": "9"}, "CPUs 0-3"),
        ("dedicated", {"hw:cpu_realtime": "yes", "hw:cpu_realtime_mask": "^0-3"}, "'\\^0-3' must name some"),
        ("shared", {"hw:emulator_threads_policy": "isolate"}, "emulator_threads_policy=isolate: it needs"),
        ("dedicated", {"hw:emulator_threads_policy": "none"}, "one of share, isolate"),
    ],
)
def test_a_realtime_mask_or_an_emulator_policy_that_nova_refuses_is_refused(
    policy: str, specs: dict[str, str], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        topology_of(4, 4096, {"hw:cpu_policy": policy, **specs})


def test_a_guest_with_persistent_memory_has_a_cell_of_its_own() -> None:
    assert topology_of(4, 4096, {"hw:pmem": "6GB, 6GB"}).cells == 1
    assert topology_of(4, 4096, {"hw:pmem": "6GB", "hw:numa_nodes": "2"}).cells == 2


@pytest.mark.parametrize(
    ("trait", "policy"), [("required", "require"), ("forbidden", "isolate"), (None, None)]
)
def test_the_trait_of_threads_is_a_thread_policy_of_pinned_cpus(
    trait: str | None, policy: str | None
) -> None:
    specs = {"hw:cpu_policy": "dedicated"} | ({"trait:HW_CPU_HYPERTHREADING": trait} if trait else {})
    assert topology_of(4, 4096, specs).cpu_thread_policy == policy
    if trait:
        with pytest.raises(UsageError, match="remove one of the two"):
            topology_of(4, 4096, {**specs, "hw:cpu_thread_policy": "prefer"})


@given(st.integers(1, CELLS_MAX), st.integers(1, 8), st.integers(1, 4096))
def test_cells_given_one_by_one_are_those_of_the_guest(count: int, cpus_each: int, mb_each: int) -> None:
    specs = {"hw:numa_nodes": str(count)}
    for cell in range(count):
        specs[f"hw:numa_cpus.{cell}"] = f"{cell * cpus_each}-{(cell + 1) * cpus_each - 1}"
        specs[f"hw:numa_mem.{cell}"] = str(mb_each)
    topology = topology_of(count * cpus_each, count * mb_each, specs)
    assert topology.cells == count and topology.cell_memory_mb == (mb_each,) * count
    assert frozenset().union(*topology.cell_cpus) == frozenset(range(count * cpus_each))
    assert [len(cpus) for cpus in topology.cell_cpus] == [cpus_each] * count
    with pytest.raises(UsageError, match=r"hw:numa_mem\.N"):
        topology_of(count * cpus_each, count * mb_each + 1, specs)


@given(st.integers(-(10**11), 10**11), st.integers(0, 99), st.integers(0, 10**9))
def test_a_whole_number_is_read_within_its_bounds(number: int, least: int, most: int) -> None:
    text = f" {number} "
    if least <= number <= most:
        assert read_whole_spec("hw:x", text, least, most) == number
    else:
        with pytest.raises(UsageError):
            read_whole_spec("hw:x", text, least, most)


@pytest.mark.parametrize("text", ["+1", "1_0", "\u0661", "1.0", "", "0x1"])
def test_what_only_python_takes_for_a_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_whole_spec("hw:x", text, 0, 99)


def test_a_spec_that_takes_the_memory_of_the_cells_away_is_named_itself() -> None:
    specs = {"hw:cpu_policy": "dedicated", "resources:DISK_GB": "0", "resources:MEMORY_MB": "0"}
    with pytest.raises(UsageError) as refused:
        claim_for_flavor(CONSUMER, Flavor(2, 512, 1, specs))
    assert refused.value.details["spec"] == "resources:MEMORY_MB"


def test_a_policy_of_affinity_is_of_the_groups_with_devices() -> None:
    specs = {
        "hw:pci_numa_affinity_policy": "required",
        "resources_DISK:DISK_GB": "1",
        "resources_GPU:VGPU": "1",
        "group_policy": "none",
    }
    found = claim_for_flavor(CONSUMER, Flavor(2, 512, 1, specs))
    policies = {group.suffix: group.numa_policy for group in found.groups}
    assert policies == {"": None, "_DISK": None, "_GPU": "required"}


@pytest.mark.parametrize("value", [None, 5, "flavor", [], ["flavor"], True])
def test_a_body_that_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(UsageError):
        parse_claim(value)
    with pytest.raises(UsageError):
        parse_addition(value, CONSUMER)


@pytest.mark.parametrize("form", [{"groups": []}, {"flavor": {"vcpus": 1, "memory_mb": 1}}])
@pytest.mark.parametrize("key", ["consumer", "process", "unknown"])
def test_an_addition_says_nothing_of_who_it_is_for(form: dict[str, Any], key: str) -> None:
    assert parse_addition(form, CONSUMER).consumer == CONSUMER
    with pytest.raises(UsageError, match=key):
        parse_addition({**form, key: {}}, CONSUMER)


def test_a_request_without_groups_is_written_with_none() -> None:
    written = request_to_json(ClaimRequest(CONSUMER, ()))
    assert written["groups"] == []


@pytest.mark.parametrize("size", [None, "any", 2048])
def test_a_page_size_that_is_not_given_is_any(size: object) -> None:
    asked = body(topology={"mem_page_size": size})
    assert parse_claim(asked).topology.mem_page_size == size


def test_the_groups_of_an_addition_agree_and_its_image_is_told_of() -> None:
    two = [{"suffix": suffix, "resources": {"VGPU": 1}} for suffix in ("_a", "_b")]
    assert len(parse_addition({"groups": two, "group_policy": "none"}, CONSUMER).groups) == 2
    with pytest.raises(UsageError, match="group_policy"):
        parse_addition({"groups": two}, CONSUMER)
    given_ = {
        "flavor": {"vcpus": 1, "memory_mb": 1, "extra_specs": {"my:key": "1"}},
        "image": {"my_key": "1"},
    }
    assert notes_of(given_) == (
        "my:key has no effect: it is no extra spec of nova",
        "image my_key has no effect: it is no image property of nova",
    )
