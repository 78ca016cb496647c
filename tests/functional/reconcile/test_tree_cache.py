"""What a restart costs: what placement held is kept in a file, and only what changed since is read again."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from kits.agent import World, opened, request, told, world_of
from kits.placements import Placement

from agent.config.settings import Settings
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.reconcile.placement_memory import CACHE_FILE
from agent.status.overview import HostState
from agent.tree import Inventory, Provider

ASKED = request(VCPU=2, MEMORY_MB=64)
SOMEBODY = "8f3ad0f2-4f4c-4b9f-93b5-0a4f9ec4b5a6"


@pytest.fixture
def site(placement: Placement, tmp_path: Path) -> Settings:
    """A host that was reported, claimed on and verified once; its agent does not run."""
    settings = told(tmp_path, placement)
    with world_of(settings) as world:
        world.operations.claim(ASKED)
        world.agent.verify()
        assert world.agent.condition.state is HostState.READY
    return settings


def restarted(settings: Settings) -> tuple[World, int]:
    """The agent after its first pass, and how many requests that took."""
    world = world_of(settings)
    return world, world.wire.requests


def test_a_restart_with_nothing_new_is_three_requests(site: Settings) -> None:
    """Is the database still the one that has the claims, which generations are there, and what is in use?"""
    world, requests = restarted(site)
    with closing(world):
        assert world.agent.condition.state is HostState.READY
        assert requests == 3
        assert len(world.operations.tree()[0]) == 9
        assert world.operations.claim(request(VCPU=1)).allocations
        world.agent.verify()


def change_inventory(client: PlacementClient, there: Provider) -> None:
    grown = {**there.inventories, "VCPU": Inventory(2, max_unit=2)}
    client.put_inventories(there.uuid, there.generation or 0, grown)


def change_traits(client: PlacementClient, there: Provider) -> None:
    client.put_traits(there.uuid, there.generation or 0, {*there.traits, "COMPUTE_STATUS_DISABLED"})


def change_aggregates(client: PlacementClient, there: Provider) -> None:
    client.put_aggregates(there.uuid, there.generation or 0, {*there.aggregates, SOMEBODY})


def allocate(client: PlacementClient, there: Provider) -> None:
    client.write_allocations(ConsumerAllocations(SOMEBODY, {there.uuid: {"VCPU": 1}}))


def release(client: PlacementClient, _: Provider) -> None:
    held = client.allocations_of(ASKED.consumer)
    client.write_allocations(ConsumerAllocations(ASKED.consumer, {}, held.generation))


@pytest.mark.parametrize(
    "change",
    [change_inventory, change_traits, change_aggregates, allocate, release],
    ids=lambda each: each.__name__,
)
def test_what_somebody_else_changed_meanwhile_is_read_and_nothing_else(
    site: Settings, change: Callable[[PlacementClient, Provider], None]
) -> None:
    with opened(site) as world:
        (root,) = world.operations.tree()[0].roots
        change(PlacementClient(world.wire.inner), root)
    world, requests = restarted(site)
    # One more mends it, or sees who shares by the aggregates. Before the pass reserves what a claim lacks,
    # and once more when it has, the agent asks where the claimed instance is now.
    mends = {change_inventory: 1, change_aggregates: 1, release: 2}.get(change, 0)
    with closing(world):
        assert world.agent.condition.state is HostState.READY
        assert requests == 3 + 4 + mends
        as_told = world.operations.tree()[0]
        suspects = world.operations.explain(request(VCPU=1)).fits
    (site.state_path / CACHE_FILE).unlink()
    world, requests = restarted(site)
    with closing(world):
        assert requests > 3 + 4
        assert world.operations.tree()[0] == as_told
        assert world.operations.explain(request(VCPU=1)).fits is suspects


@pytest.mark.parametrize("text", ["", "{", "[]", '{"place": "elsewhere", "content": {}}', "\udcff"])
def test_a_file_of_no_use_is_as_good_as_none(site: Settings, text: str) -> None:
    file = site.state_path / CACHE_FILE
    before = file.read_text()
    file.write_bytes(text.encode(errors="surrogateescape"))
    world, requests = restarted(site)
    with closing(world):
        assert world.agent.condition.state is HostState.READY
        assert requests > 3
    assert file.read_text() == before


def test_what_another_placement_said_is_not_believed(site: Settings) -> None:
    file = site.state_path / CACHE_FILE
    before = file.read_text()
    file.write_text(before.replace('"place": "', '"place": "not '))
    world, requests = restarted(site)
    with closing(world):
        assert requests > 3
    assert file.read_text() == before


def test_a_file_that_cannot_be_written_is_told_once(site: Settings, caplog: pytest.LogCaptureFixture) -> None:
    file = site.state_path / CACHE_FILE
    file.unlink()
    file.mkdir()
    world, _ = restarted(site)
    with closing(world):
        for asked in (request(VCPU=1), request(VCPU=1)):
            world.operations.claim(asked)
            world.agent.verify()
        assert world.agent.condition.state is HostState.READY
    assert [each.levelname for each in caplog.records].count("WARNING") == 2  # not read, not written


def test_a_pass_with_nothing_new_does_not_touch_the_file(site: Settings) -> None:
    file = site.state_path / CACHE_FILE
    before = file.stat()
    world, _ = restarted(site)
    with closing(world):
        world.agent.verify()
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
