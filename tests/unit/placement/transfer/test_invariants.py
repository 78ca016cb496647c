"""Each broken invariant is found by its name, with something to do about it; a sound content has none."""

from dataclasses import replace

import pytest
from hypothesis import given
from kits.contents import consumer_uuid, contents, provider_uuid, small

from agent.placement.client import ConsumerAllocations
from agent.placement.snapshot import PlacementSnapshot, ServiceEvidence, broken_invariants
from agent.tree import Inventory, Provider

HOST, GPU = provider_uuid(0), provider_uuid(1)


def broken(content: PlacementSnapshot, evidence: ServiceEvidence | None = None) -> list[str]:
    found = broken_invariants(content, evidence)
    for each in found:
        assert each.sentence.endswith(".") and each.remedy.endswith(".")
        assert each.subject in each.sentence or each.subject in each.remedy
    return [each.name for each in found]


def with_host(**changes: object) -> PlacementSnapshot:
    content = small()
    host = replace(content.providers[HOST], **changes)  # type: ignore[arg-type]
    return replace(content, providers={**content.providers, HOST: host})


def with_consumer(allocations: dict[str, dict[str, int]]) -> PlacementSnapshot:
    content = small()
    consumer = ConsumerAllocations(consumer_uuid(1), allocations, 1)
    return replace(content, consumers={**content.consumers, consumer.consumer: consumer})


def test_a_sound_content_has_no_findings() -> None:
    told = ServiceEvidence(
        roots={HOST: HOST, GPU: HOST},
        usages={HOST: {"VCPU": 2, "MEMORY_MB": 512}, GPU: {"VGPU": 1}},
        held={HOST: {consumer_uuid(0): {"VCPU": 2, "MEMORY_MB": 512}}},
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
        (with_host(parent=HOST), ["cycle", "cycle"]),
        (with_host(traits=frozenset({"HW_NO_SUCH"})), ["unknown_trait"]),
        (with_host(traits=frozenset({"CUSTOM_NEW"})), ["unknown_trait"]),
        (
            with_host(inventories={**small().providers[HOST].inventories, "NO_SUCH": Inventory(1)}),
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
        (with_consumer({HOST: {}}), ["empty_consumer"]),
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
        (ServiceEvidence(roots={HOST: HOST, GPU: GPU}), ["wrong_root"]),
        (ServiceEvidence(usages={GPU: {"VGPU": 2}}), ["usage_mismatch"]),
        (ServiceEvidence(usages={GPU: {}}), ["usage_mismatch"]),
        (ServiceEvidence(usages={HOST: {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 0}}), []),
        (ServiceEvidence(held={GPU: {consumer_uuid(0): {"VGPU": 2}}}), ["views_differ"]),
        (ServiceEvidence(held={GPU: {consumer_uuid(7): {"VGPU": 1}}}), ["views_differ"]),
    ],
)
def test_what_a_service_says_twice_must_be_the_same(evidence: ServiceEvidence, names: list[str]) -> None:
    assert broken(small(), evidence) == names


def test_a_capacity_with_a_fraction_is_compared_as_placement_does() -> None:
    host = Provider(HOST, "h", None, {"VCPU": Inventory(3, allocation_ratio=1.5)})
    fits, over = ({HOST: {"VCPU": amount}} for amount in (4, 5))
    assert broken(PlacementSnapshot.of([host], [ConsumerAllocations(consumer_uuid(0), fits)])) == []
    assert broken(PlacementSnapshot.of([host], [ConsumerAllocations(consumer_uuid(0), over)])) == [
        "over_capacity"
    ]


def test_the_largest_consumers_are_named_where_there_is_too_much() -> None:
    (found,) = broken_invariants(with_consumer({GPU: {"VGPU": 4}}))
    assert f"{consumer_uuid(1)} with 4, {consumer_uuid(0)} with 1" in found.remedy
