"""Which words of a request ask for what a host lacks, and how Placement is asked."""

from typing import Any
from urllib.parse import parse_qsl

import pytest

from agent.claims.parse_request import parse_addition
from agent.claims.request import ClaimRequest
from agent.fleet.answer import AskedRequest, query_of, words_of
from agent.fleet.where import conditions_of

FLAVOR = {"vcpus": 4, "memory_mb": 8192, "disk_gb": 20}


def words(body: dict[str, Any]) -> dict[tuple[str, str], str]:
    """{(group, condition): words}"""
    asked = AskedRequest(parse_addition(body, ""), body)
    return {(each.group, each.text): words_of(each, asked) for each in conditions_of(asked.request)}


@pytest.mark.parametrize(
    ("specs", "image", "told"),
    [
        ({}, {}, {("", "4 VCPU"): "vcpus=4", ("", "8192 MEMORY_MB"): "memory_mb=8192"}),
        ({}, {}, {("", "20 DISK_GB"): "disk_gb=20"}),
        ({"resources1:VGPU": "2"}, {}, {("1", "2 VGPU"): "resources1:VGPU=2"}),
        (
            {"resources1:VGPU": "2", "trait1:HW_GPU_API_VULKAN": "required"},
            {},
            {("1", "trait HW_GPU_API_VULKAN"): "trait1:HW_GPU_API_VULKAN=required"},
        ),
        (
            {"trait:COMPUTE_NODE": "forbidden"},
            {},
            {("", "no trait COMPUTE_NODE"): "trait:COMPUTE_NODE=forbidden"},
        ),
        (
            {"hw:cpu_policy": "dedicated", "hw:numa_nodes": "2"},
            {},
            {
                ("cell 0", "2 PCPU"): "hw:cpu_policy=dedicated hw:numa_nodes=2",
                ("cell 1", "4096 MEMORY_MB"): "memory_mb=8192 hw:numa_nodes=2",
                ("", "2 NUMA cells at once"): "hw:numa_nodes=2",
            },
        ),
        ({}, {"hw_cpu_policy": "dedicated"}, {("cell 0", "4 PCPU"): "hw_cpu_policy=dedicated"}),
        ({"hw:tpm_version": "2.0"}, {}, {("", "trait COMPUTE_SECURITY_TPM_2_0"): "hw:tpm_version=2.0"}),
        ({}, {"hw_disk_bus": "sata"}, {("", "trait COMPUTE_STORAGE_BUS_SATA"): "hw_disk_bus=sata"}),
        (
            {"hw:mem_encryption": "true"},
            {},
            {("", "1 MEM_ENCRYPTION_CONTEXT"): "hw:mem_encryption=true"},
        ),
        (
            {"resources1:VGPU": "1", "resources2:VGPU": "1", "group_policy": "isolate"},
            {},
            {("", "2 groups, each on a provider of its own"): "group_policy=isolate"},
        ),
    ],
)
def test_what_a_flavor_or_an_image_asks_for_has_its_words(
    specs: dict[str, str], image: dict[str, str], told: dict[tuple[str, str], str]
) -> None:
    found = words({"flavor": {**FLAVOR, "extra_specs": specs}, **({"image": image} if image else {})})
    assert {key: found.get(key) for key in told} == told, found


def test_groups_are_told_as_the_command_line_takes_them() -> None:
    groups = [{"resources": {"VCPU": 2}}, {"suffix": "1", "resources": {"VGPU": 1}}]
    assert words({"groups": groups}) == {("", "2 VCPU"): "VCPU=2", ("1", "1 VGPU"): "1:VGPU=1"}


def test_the_query_has_a_group_for_each_cell_and_the_whole_request_beside_them() -> None:
    body = {
        "flavor": {
            **FLAVOR,
            "extra_specs": {
                "hw:numa_nodes": "2",
                "trait:CUSTOM_FAST": "required",
                "trait:CUSTOM_OLD": "forbidden",
                "resources1:VGPU": "1",
                "hw:tpm_version": "2.0",
            },
        }
    }
    request: ClaimRequest = parse_addition(body, "")
    assert sorted(parse_qsl(query_of(conditions_of(request), "a-root"))) == sorted(
        [
            ("resources", "DISK_GB:20"),
            ("required", "CUSTOM_FAST"),
            ("required", "!CUSTOM_OLD"),
            ("in_tree", "a-root"),
            ("resources1", "VGPU:1"),
            ("in_tree1", "a-root"),
            ("resources_CELL0", "VCPU:2,MEMORY_MB:4096"),
            ("required_CELL0", "!CUSTOM_OLD"),
            ("in_tree_CELL0", "a-root"),
            ("resources_CELL1", "VCPU:2,MEMORY_MB:4096"),
            ("required_CELL1", "!CUSTOM_OLD"),
            ("in_tree_CELL1", "a-root"),
            ("group_policy", "none"),
            ("root_required", "COMPUTE_SECURITY_TPM_2_0,COMPUTE_SECURITY_TPM_TIS"),
        ]
    )
