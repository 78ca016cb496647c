"""A snapshot of some trees, of a document's counterpart, and of a state directory, from one core."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from kits.contents import consumer_uuid, provider_uuid
from kits.placements import Placement

from agent.errors import StateError, UsageError
from agent.placement.client import ConsumerAllocations
from agent.placement.snapshot import PlacementSnapshot
from agent.placement.transfer import (
    SnapshotClient,
    read_counterpart,
    read_service,
    read_state_dir,
    read_trees,
)
from agent.tree import Inventory, Provider

HOST, NEIGHBOUR = (Provider(provider_uuid(n), name) for n, name in enumerate(("host", "neighbour")))
CONSUMER = ConsumerAllocations(consumer_uuid(0), {HOST.uuid: {"VCPU": 1}, NEIGHBOUR.uuid: {"VCPU": 2}})


@pytest.fixture
def client(placement: Placement, tmp_path: Path) -> Iterator[SnapshotClient]:
    with closing(placement.anew(tmp_path).transport()) as transport:
        client = SnapshotClient(transport)
        for provider in (HOST, NEIGHBOUR):
            client.create_provider(provider)
            client.put_inventories(provider.uuid, 0, {"VCPU": Inventory(4)})
        client.write_allocations(CONSUMER)
        yield client


def test_some_trees_come_with_their_consumers_and_others_without_contents(client: SnapshotClient) -> None:
    snapshot = read_trees(client, ["host", "none"])
    assert snapshot.providers[HOST.uuid].inventories == {"VCPU": Inventory(4)}
    assert snapshot.providers[NEIGHBOUR.uuid].inventories == {}
    assert snapshot.consumers[CONSUMER.consumer] == replace(CONSUMER, generation=1)


def test_the_counterpart_of_a_document_has_the_holders_of_its_names(client: SnapshotClient) -> None:
    twin = Provider(provider_uuid(9), "neighbour")
    snapshot, evidence = read_counterpart(client, PlacementSnapshot.of([twin], []))
    assert set(snapshot.providers) == {NEIGHBOUR.uuid} and not snapshot.consumers
    assert "VCPU" in evidence.names


def test_the_whole_service_with_what_providers_show(client: SnapshotClient) -> None:
    snapshot, evidence = read_service(client, with_usages=True)
    assert set(snapshot.providers) == {HOST.uuid, NEIGHBOUR.uuid}
    assert evidence.usages[HOST.uuid] == {"VCPU": 1} and evidence.roots[HOST.uuid] == HOST.uuid
    assert evidence.held[NEIGHBOUR.uuid] == {CONSUMER.consumer: {"VCPU": 2}}
    assert client.has_consumer_types()


def test_a_state_directory_must_have_a_database_that_does_not_run(tmp_path: Path) -> None:
    from agent.placement.embedded import Core

    with pytest.raises(UsageError, match="no placement database"):
        read_state_dir(tmp_path)
    with closing(Core.open(tmp_path)), pytest.raises(StateError, match="in use by"):
        read_state_dir(tmp_path)
    assert read_state_dir(tmp_path)[0].providers == {}
