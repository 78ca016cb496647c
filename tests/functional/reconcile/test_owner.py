"""A host in a Placement that it shares with nova: whose providers are whose, and whom nova chooses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kits.nova_queries import BEFORE_OWNERS, MICROVERSION, WITH_OWNERS
from kits.placements import Placement

from agent.driver import DriverSettings, HostSettings
from agent.errors import ForeignOwner
from agent.placement.client import PlacementClient
from agent.placement.transport import Transport
from agent.providers.owner import OWNER_TRAIT
from agent.reconcile.reconciler import Reconciler
from agent.state.journal import Journal
from agent.tracker.tracker import ResourceTracker
from agent.tree import Inventory, Provider
from drivers.fake.driver import FakeDriver
from drivers.fake.host import FakeHost, Gpu, cell

ROOT = "7d5a0c5b-8e4c-4e0e-9b7a-0f6b9f1d1a01"
CHILD = "7d5a0c5b-8e4c-4e0e-9b7a-0f6b9f1d1a02"
OTHER = "7d5a0c5b-8e4c-4e0e-9b7a-0f6b9f1d1a03"


@dataclass
class World:
    transport: Transport
    client: PlacementClient
    reconciler: Reconciler

    def candidates(self, query: str) -> set[str]:
        """The roots among which nova's scheduler chooses, by its own query."""
        reply = self.transport.request("GET", query, microversion=MICROVERSION)
        assert reply.status == 200
        return set(reply.body["provider_summaries"])


@pytest.fixture
def world(placement: Placement, tmp_path: Path) -> Iterator[World]:
    transport = placement.transport()
    client = PlacementClient(transport)
    host = FakeHost(
        cells=(cell(0, frozenset(range(8)), 16384),), disk_gb=100, gpus=(Gpu("0000:41:00.0", "VGPU", 4),)
    )
    driver = FakeDriver(host, DriverSettings("node1", HostSettings()))
    journal = Journal.open(tmp_path)
    tracker = ResourceTracker(journal, client)
    reconciler = Reconciler(driver, client, tracker, journal, ROOT, owner_trait=OWNER_TRAIT)
    yield World(transport, client, reconciler)
    journal.close()
    driver.close()
    client.close()


def test_every_provider_has_the_agents_mark_and_no_other(world: World) -> None:
    assert world.reconciler.reconcile("the start").error is None
    tree = world.client.read_tree(ROOT)
    assert len(tree) == 2 and all(OWNER_TRAIT in provider.traits for provider in tree)
    assert world.reconciler.verify("again").operations == 0


def test_a_nova_whose_computes_have_owners_does_not_choose_the_host(world: World) -> None:
    """nova before 34 gets it as a candidate; it leaves it out, as it knows no compute node of that uuid."""
    world.reconciler.reconcile("the start")
    assert ROOT in world.candidates(BEFORE_OWNERS)
    assert ROOT not in world.candidates(WITH_OWNERS)
    assert ROOT in world.candidates(WITH_OWNERS.replace("OWNER_NOVA", OWNER_TRAIT))


def test_the_same_query_finds_a_host_of_nova(world: World) -> None:
    """It is the owner's trait alone that decides."""
    other = world.client.create_provider(Provider(OTHER, "compute2"))
    amounts = {"VCPU": Inventory(8), "MEMORY_MB": Inventory(4096), "DISK_GB": Inventory(100)}
    other = world.client.put_inventories(OTHER, other, amounts)
    world.client.put_traits(OTHER, other, ["OWNER_NOVA"])
    world.reconciler.reconcile("the start")
    chosen = world.candidates(WITH_OWNERS)
    assert OTHER in chosen and ROOT not in chosen
    assert {ROOT, OTHER} <= world.candidates(BEFORE_OWNERS)


def test_the_root_of_another_service_is_refused_and_left_as_it_is(world: World) -> None:
    root = Provider(ROOT, "node1")
    generation = world.client.create_provider(root)
    world.client.put_traits(ROOT, generation, ["OWNER_NOVA"])
    report = world.reconciler.verify("the start")
    assert isinstance(report.error, ForeignOwner)
    (held,) = world.client.read_tree(ROOT)
    assert held.traits == {"OWNER_NOVA"} and not held.inventories
    with pytest.raises(ForeignOwner):
        world.reconciler.tell_schedulers(closed=True)
    assert world.client.provider_traits(ROOT) == {"OWNER_NOVA"}
    world.client.put_traits(ROOT, held.generation or 0, [])
    assert world.reconciler.verify("the operator took the trait away").error is None
    assert OWNER_TRAIT in world.client.read_tree(ROOT)[ROOT].traits


def test_the_trait_of_another_owner_is_kept_below_the_root(world: World) -> None:
    world.reconciler.reconcile("the start")
    generation = world.client.create_provider(Provider(CHILD, "node1_fpga", ROOT))
    world.client.put_traits(CHILD, generation, ["OWNER_CYBORG"])
    assert world.reconciler.verify("a while later").error is None
    assert world.client.read_tree(ROOT)[CHILD].traits == {"OWNER_CYBORG"}
