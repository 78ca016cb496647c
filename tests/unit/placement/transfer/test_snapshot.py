"""Snapshots: sums, differences, and the consumers of others."""

from dataclasses import replace

from hypothesis import given
from kits.contents import consumer_uuid, contents, provider_uuid

from agent.placement.client import ConsumerAllocations
from agent.placement.transfer.snapshot import (
    UNTYPED,
    PlacementSnapshot,
    differences,
    foreign_consumers,
    same_consumer,
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
