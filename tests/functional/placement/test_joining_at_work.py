"""A host joins a fleet that is at work, and leaves it: neither the fleet's size nor its work matter."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from kits.contents import small
from kits.placements import Placement
from kits.wire import Wire

from agent.errors import ImportRefused, UsageError
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.snapshot import PlacementSnapshot, differences, select_trees
from agent.placement.transfer import (
    UNTYPED_MICROVERSION,
    SnapshotClient,
    apply_import,
    apply_removal,
    plan_import,
    plan_removal,
    read_counterpart,
    read_trees,
)
from agent.placement.transport import Transport
from agent.tree import Inventory, Provider


class Fleet(Wire):
    """Other hosts on one placement, which claim before each request."""

    def __init__(self, inner: Transport, hosts: int) -> None:
        super().__init__(inner)
        self.before = self._claim
        self._client = PlacementClient(inner)
        self._hosts = [Provider(str(uuid4()), f"other{number}") for number in range(hosts)]
        for each in self._hosts:
            generation = self._client.create_provider(each)
            self._client.put_inventories(each.uuid, generation, {"VCPU": Inventory(10_000)})

    def _claim(self, _: str) -> None:
        on = self._hosts[self.requests % len(self._hosts)].uuid
        self._client.write_allocations(ConsumerAllocations(str(uuid4()), {on: {"VCPU": 1}}))


def join(transport: Transport, wanted: PlacementSnapshot) -> None:
    client = SnapshotClient(transport)
    found, evidence = read_counterpart(client, wanted)
    plan = plan_import(wanted, found, evidence.names)
    apply_import(client, SnapshotClient(transport, microversion=UNTYPED_MICROVERSION), plan)
    assert differences(wanted, read_counterpart(client, wanted)[0]) == ()


def export(transport: Transport, roots: list[str]) -> PlacementSnapshot:
    return select_trees(read_trees(SnapshotClient(transport), roots), roots)


def leave(transport: Transport, unwanted: PlacementSnapshot) -> None:
    client = SnapshotClient(transport)
    apply_removal(client, plan_removal(unwanted, read_counterpart(client, unwanted)[0]))
    found, _ = read_counterpart(client, unwanted)
    assert not found.providers and not found.consumers


def roots_of(content: PlacementSnapshot) -> list[str]:
    return [each.name for each in content.providers.values() if each.parent is None]


def test_there_and_back_while_others_claim_at_the_same_cost_for_any_fleet(
    placement: Placement, tmp_path: Path
) -> None:
    counts = []
    for hosts in (1, 12):
        directory = tmp_path / str(hosts)
        directory.mkdir()
        with closing(Fleet(placement.anew(directory).transport(), hosts)) as fleet:
            join(fleet, small())
            carried = export(fleet, roots_of(small()))
            assert differences(small(), carried) == ()
            leave(fleet, carried)
            counts.append(fleet.requests)
    assert counts[0] == counts[1]


def test_who_has_the_name_already_is_found(placement: Placement, tmp_path: Path) -> None:
    with closing(placement.transport()) as transport:
        client = PlacementClient(transport)
        root, child = (Provider(str(uuid4()), "root"), Provider(str(uuid4()), roots_of(small())[0]))
        client.create_provider(root)
        client.create_provider(Provider(child.uuid, child.name, root.uuid))
        with pytest.raises(ImportRefused, match=f"is {child.uuid}, not "):
            join(transport, small())


def test_a_consumer_that_holds_something_elsewhere_is_found(placement: Placement) -> None:
    with closing(placement.transport()) as transport:
        client = PlacementClient(transport)
        other = Provider(str(uuid4()), "other")
        client.put_inventories(other.uuid, client.create_provider(other), {"VCPU": Inventory(8)})
        consumer = next(iter(small().consumers))
        client.write_allocations(ConsumerAllocations(consumer, {other.uuid: {"VCPU": 1}}))
        with pytest.raises(ImportRefused, match=consumer):
            join(transport, small())


def test_what_is_held_together_with_another_tree_names_that(placement: Placement) -> None:
    with closing(placement.transport()) as transport:
        client = PlacementClient(transport)
        hosts = [Provider(str(uuid4()), name) for name in ("one", "two")]
        for each in hosts:
            client.put_inventories(each.uuid, client.create_provider(each), {"VCPU": Inventory(8)})
        held = {each.uuid: {"VCPU": 1} for each in hosts}
        client.write_allocations(ConsumerAllocations(str(uuid4()), held))
        with pytest.raises(UsageError, match="also have allocations on two"):
            export(transport, ["one"])
        with pytest.raises(UsageError, match="no root provider 'nobody'"):
            export(transport, ["nobody"])
        both = export(transport, ["one", hosts[1].uuid])
        assert both.providers.keys() == {each.uuid for each in hosts}
