"""Snapshots: sums, differences, and the consumers of others."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from kits.contents import consumer_uuid, contents, provider_uuid, small

from agent.errors import UsageError
from agent.placement.client import ConsumerAllocations
from agent.placement.snapshot import (
    UNTYPED,
    PlacementSnapshot,
    ServiceEvidence,
    broken_invariants,
    differences,
    foreign_consumers,
    from_document,
    from_text,
    same_consumer,
    to_document,
    to_text,
)
from agent.tree import Inventory, Provider

HOST = provider_uuid(0)
ONE = ConsumerAllocations(consumer_uuid(0), {HOST: {"VCPU": 2}}, 1)
OTHER = replace(ONE, consumer=consumer_uuid(1), allocations={HOST: {"VCPU": 3, "DISK_GB": 1}})
PROVIDER = Provider(HOST, "host", None, {"VCPU": Inventory(8)})
SNAPSHOT = PlacementSnapshot.of([PROVIDER], [OTHER, ONE], ["CUSTOM_T"])


def test_usages_are_the_sums_of_the_allocations() -> None:
    assert SNAPSHOT.usages() == {HOST: {"VCPU": 5, "DISK_GB": 1}}
    assert SNAPSHOT.counts() == {"resource_providers": 1, "consumers": 2, "traits": 1, "resource_classes": 0}
    assert {c.consumer_type for c in SNAPSHOT.without_types().consumers.values()} == {UNTYPED}


def test_a_difference_is_a_missing_record_or_one_aspect() -> None:
    present = PlacementSnapshot.of([replace(PROVIDER, name="other", generation=9)], [ONE], ["CUSTOM_T"])
    name, missing = differences(SNAPSHOT, present)
    assert name.line() == f"provider host ({HOST}): name is other, not host" and not name.missing
    assert missing.line() == f"consumer {OTHER.consumer}: missing" and missing.missing
    assert missing.to_json()["aspect"] is None
    assert differences(present, replace(present, traits=frozenset({"CUSTOM_T", "CUSTOM_MORE"}))) == ()


def test_generations_are_not_compared() -> None:
    assert same_consumer(ONE, replace(ONE, generation=7)) and not same_consumer(ONE, OTHER)


def test_foreign_consumers_use_the_same_providers() -> None:
    wanted = PlacementSnapshot.of([PROVIDER], [ONE])
    assert foreign_consumers(wanted, SNAPSHOT) == (OTHER.consumer,)
    elsewhere = replace(OTHER, allocations={provider_uuid(9): {"VCPU": 1}})
    assert foreign_consumers(wanted, PlacementSnapshot.of([PROVIDER], [ONE, elsewhere])) == ()


@given(contents())
def test_a_document_is_read_as_what_was_written(content: PlacementSnapshot) -> None:
    read = from_text(to_text(content))
    assert read == content
    assert [each.generation for each in read.providers.values()] == [
        each.generation for each in content.providers.values()
    ]


@given(contents())
def test_the_order_of_things_in_memory_does_not_show(content: PlacementSnapshot) -> None:
    backwards = PlacementSnapshot.of(
        list(content.providers.values())[::-1],
        list(content.consumers.values())[::-1],
        content.traits,
        content.resource_classes,
    )
    assert to_text(backwards) == to_text(content)


def test_a_document_looks_as_documented() -> None:
    document = to_document(small())
    assert list(document) == [
        "format",
        "version",
        "resource_classes",
        "traits",
        "resource_providers",
        "consumers",
    ]
    assert document["resource_providers"][1] == {
        "uuid": provider_uuid(1),
        "name": "host1_gpu",
        "parent_provider_uuid": provider_uuid(0),
        "generation": 1,
        "inventories": {
            "VGPU": {
                "total": 4,
                "reserved": 0,
                "min_unit": 1,
                "max_unit": 2147483647,
                "step_size": 1,
                "allocation_ratio": 1.0,
            }
        },
        "traits": [],
        "aggregates": [],
    }


MISTAKES: list[tuple[list[str | int], Any, str]] = [
    (["format"], "other", "format"),
    (["version"], 2, "version 2"),
    (["surprise"], 1, "surprise: unknown key"),
    (["traits", 0], "HW_CPU_X86_AVX2", r"traits\[0\]"),
    (["resource_classes"], ["CUSTOM_lower"], r"resource_classes\[0\]"),
    (["resource_providers", 0, "uuid"], "x", r"resource_providers\[0\].uuid"),
    (["resource_providers", 0, "name"], "", r"resource_providers\[0\].name"),
    (["resource_providers", 0, "name"], "x" * 201, r"resource_providers\[0\].name"),
    (["resource_providers", 0, "generation"], -1, "generation"),
    (["resource_providers", 0, "extra"], 1, "extra: unknown key"),
    (["resource_providers", 1, "uuid"], provider_uuid(0), "has the uuid"),
    (["resource_providers", 0, "inventories", "VCPU", "total"], 0, "inventories.VCPU.total"),
    (["resource_providers", 0, "inventories", "VCPU", "total"], 1.5, "inventories.VCPU.total"),
    (["resource_providers", 0, "inventories", "VCPU", "allocation_ratio"], -1, "allocation_ratio"),
    (["resource_providers", 0, "inventories", "VCPU", "allocation_ratio"], float("nan"), "allocation_ratio"),
    (["resource_providers", 0, "aggregates", 0], 7, "aggregates"),
    (["consumers", 0, "consumer_type"], "instance", "consumer_type"),
    (["consumers", 0, "project_id"], None, "project_id"),
    (["consumers", 0, "allocations", provider_uuid(0), "VCPU"], 0, "VCPU"),
    (["consumers", 0, "allocations", provider_uuid(0), "VCPU"], True, "VCPU"),
]


@pytest.mark.parametrize(("where", "value", "said"), MISTAKES)
def test_a_mistake_is_named_by_its_place(where: list[str | int], value: Any, said: str) -> None:
    document = copy.deepcopy(to_document(small()))
    inner: Any = document
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    with pytest.raises(UsageError, match=said):
        from_document(document)


@pytest.mark.parametrize("key", ["traits", "resource_providers"])
def test_a_key_that_lacks_is_named(key: str) -> None:
    document = to_document(small())
    del document[key]
    with pytest.raises(UsageError, match=f"{key}: missing"):
        from_document(document)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, json.dumps({"format": "x"})])
def test_what_is_no_document_is_said_to_be_none(text: str) -> None:
    with pytest.raises(UsageError, match="no export document"):
        from_text(text)


@given(contents(), contents())
def test_no_difference_means_that_everything_is_there(
    one: PlacementSnapshot, other: PlacementSnapshot
) -> None:
    assert differences(one, one) == () == foreign_consumers(one, one)
    if differences(one, other) == ():
        assert one.providers.items() <= other.providers.items()
        assert one.consumers.keys() <= other.consumers.keys()
    else:
        assert one != other


ROOT_UUID, GPU = provider_uuid(0), provider_uuid(1)


def broken(content: PlacementSnapshot, evidence: ServiceEvidence | None = None) -> list[str]:
    found = broken_invariants(content, evidence)
    for each in found:
        assert each.sentence.endswith(".") and each.remedy.endswith(".")
        assert each.subject in each.sentence or each.subject in each.remedy
    return [each.name for each in found]


def with_host(**changes: object) -> PlacementSnapshot:
    content = small()
    host = replace(content.providers[ROOT_UUID], **changes)  # type: ignore[arg-type]
    return replace(content, providers={**content.providers, ROOT_UUID: host})


def with_consumer(allocations: dict[str, dict[str, int]]) -> PlacementSnapshot:
    content = small()
    consumer = ConsumerAllocations(consumer_uuid(1), allocations, 1)
    return replace(content, consumers={**content.consumers, consumer.consumer: consumer})


def test_a_sound_content_has_no_findings() -> None:
    told = ServiceEvidence(
        roots={ROOT_UUID: ROOT_UUID, GPU: ROOT_UUID},
        usages={ROOT_UUID: {"VCPU": 2, "MEMORY_MB": 512}, GPU: {"VGPU": 1}},
        held={ROOT_UUID: {consumer_uuid(0): {"VCPU": 2, "MEMORY_MB": 512}}},
    )
    assert broken(small(), told) == []


@given(contents())
def test_what_the_api_lets_happen_is_strain_and_no_more(content: PlacementSnapshot) -> None:
    assert all(finding.accepted for finding in broken_invariants(content))


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (with_host(name="host1_gpu"), ["duplicate_name"]),
        (with_host(parent=provider_uuid(9)), ["missing_parent"]),
        (with_host(parent=GPU), ["cycle", "cycle"]),
        (with_host(parent=ROOT_UUID), ["cycle", "cycle"]),
        (with_host(traits=frozenset({"HW_NO_SUCH"})), ["unknown_trait"]),
        (with_host(traits=frozenset({"CUSTOM_NEW"})), ["unknown_trait"]),
        (
            with_host(inventories={**small().providers[ROOT_UUID].inventories, "NO_SUCH": Inventory(1)}),
            ["unknown_class"],
        ),
        (
            with_host(inventories={"VCPU": Inventory(8, reserved=9), "MEMORY_MB": Inventory(4096)}),
            ["impossible_inventory", "over_capacity"],
        ),
        (with_host(inventories={"VCPU": Inventory(8)}), ["no_inventory"]),
        (with_host(inventories={"VCPU": Inventory(1), "MEMORY_MB": Inventory(4096)}), ["over_capacity"]),
        (
            with_host(
                inventories={"VCPU": Inventory(8, step_size=3), "MEMORY_MB": Inventory(4096, max_unit=8)}
            ),
            ["outside_limits", "outside_limits"],
        ),
        (with_consumer({}), ["empty_consumer"]),
        (with_consumer({ROOT_UUID: {}}), ["empty_consumer"]),
        (with_consumer({provider_uuid(9): {"VCPU": 1}}), ["orphan_allocation"]),
        (with_consumer({GPU: {"VGPU": 4}}), ["over_capacity"]),
    ],
)
def test_each_kind_of_damage_is_found_by_its_name(content: PlacementSnapshot, names: list[str]) -> None:
    assert broken(content) == names


def test_names_that_the_service_knows_are_not_unknown() -> None:
    newer = with_host(traits=frozenset({"HW_OF_NEXT_YEAR"}))
    assert broken(newer) == ["unknown_trait"]
    assert broken(newer, ServiceEvidence(names=frozenset({"HW_OF_NEXT_YEAR"}))) == []


@pytest.mark.parametrize(
    ("evidence", "names"),
    [
        (ServiceEvidence(roots={ROOT_UUID: ROOT_UUID, GPU: GPU}), ["wrong_root"]),
        (ServiceEvidence(usages={GPU: {"VGPU": 2}}), ["usage_mismatch"]),
        (ServiceEvidence(usages={GPU: {}}), ["usage_mismatch"]),
        (ServiceEvidence(usages={ROOT_UUID: {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 0}}), []),
        (ServiceEvidence(held={GPU: {consumer_uuid(0): {"VGPU": 2}}}), ["views_differ"]),
        (ServiceEvidence(held={GPU: {consumer_uuid(7): {"VGPU": 1}}}), ["views_differ"]),
    ],
)
def test_what_a_service_says_twice_must_be_the_same(evidence: ServiceEvidence, names: list[str]) -> None:
    assert broken(small(), evidence) == names


def test_a_capacity_with_a_fraction_is_compared_as_placement_does() -> None:
    host = Provider(ROOT_UUID, "h", None, {"VCPU": Inventory(3, allocation_ratio=1.5)})
    fits, over = ({ROOT_UUID: {"VCPU": amount}} for amount in (4, 5))
    assert broken(PlacementSnapshot.of([host], [ConsumerAllocations(consumer_uuid(0), fits)])) == []
    assert broken(PlacementSnapshot.of([host], [ConsumerAllocations(consumer_uuid(0), over)])) == [
        "over_capacity"
    ]


def test_the_largest_consumers_are_named_where_there_is_too_much() -> None:
    (found,) = broken_invariants(with_consumer({GPU: {"VGPU": 4}}))
    assert f"{consumer_uuid(1)} with 4, {consumer_uuid(0)} with 1" in found.remedy
