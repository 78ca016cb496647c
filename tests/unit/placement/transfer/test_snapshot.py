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
def test_a_snapshot_does_not_differ_from_itself(snapshot: PlacementSnapshot) -> None:
    assert differences(snapshot, snapshot) == () == foreign_consumers(snapshot, snapshot)


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
    assert differences(one, one) == ()
    if differences(one, other) == ():
        assert one.providers.items() <= other.providers.items()
        assert one.consumers.keys() <= other.consumers.keys()
    else:
        assert one != other
