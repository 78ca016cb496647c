"""The database is put back to a backup: the agent writes its tree again, and says what is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kits.agent import World, opened, request, told
from kits.placements import Embedded, OpenStack, Placement

from agent.daemon.offline import adopt
from agent.driver import Guest, GuestState, UsedUnit
from agent.errors import PlimsollError
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.reconcile.placement_memory import CACHE_FILE
from agent.status.overview import HostState
from drivers.fake.host import Nic

KEPT, GONE, NEW = (request(VCPU=number, MEMORY_MB=64) for number in (1, 2, 3))
DISK_GB = 4321


class Site:
    """A host and the files of its placement, which may be saved and put back."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.state = directory / "state"
        self.state.mkdir()
        self._backup = directory / "backup"
        self._files = directory / "database"
        self._files.mkdir()
        self._openstack = OpenStack.on_sqlite(self._files) if kind == "openstack" else None
        placement: Placement = self._openstack or Embedded(self.state)
        self._settings = told(self.state, placement)
        self._names = "openstack.db*" if self._openstack else "placement.db*"
        self.world = self._opened()

    def _opened(self) -> World:
        world = opened(self._settings)
        world.driver.change(nics=(), gpus=())
        return world

    @property
    def client(self) -> PlacementClient:
        return PlacementClient(self.world.wire.inner)

    def _stop(self) -> Path:
        self.world.close()
        if self._openstack:
            self._openstack.down()
        return self._files if self._openstack else self.state

    def _start(self) -> None:
        if self._openstack:
            self._openstack.up()
        self.world = self._opened()

    def save(self) -> None:
        where = self._stop()
        self._backup.mkdir()
        for file in where.glob(self._names):
            shutil.copy(file, self._backup)
        self._start()

    def put_back(self) -> None:
        where = self._stop()
        for file in where.glob(self._names):
            file.unlink()
        for file in self._backup.iterdir():
            shutil.copy(file, where)
        self._start()

    def loses_all(self) -> None:
        where = self._stop()
        for file in where.glob(self._names):
            file.unlink()
        self._start()

    def state_is_put_back(self, change: Callable[[], None]) -> None:
        """An older copy of the agent's own database takes the place of what it is after the change."""
        self._stop()
        shutil.copy(self.state / "agent.db", self._backup / "agent.db")
        self._start()
        self.runs()
        change()
        self._stop()
        for file in self.state.glob("agent.db*"):
            file.unlink()
        shutil.copy(self._backup / "agent.db", self.state)
        self._start()

    def is_adopted(self) -> None:
        uuid = self.world.journal.host_uuid()
        assert uuid is not None
        self._stop()
        adopt(self._settings, uuid)
        self._start()

    def forget_what_was_seen(self) -> None:
        self._stop()
        (self.state / CACHE_FILE).unlink()
        self._start()

    def runs(self, *guests: str, disk_gb: int = DISK_GB) -> None:
        self.world.driver.change(disk_gb=disk_gb)
        uses = {asked.consumer: asked.resources for asked in (KEPT, GONE, NEW)}
        for uuid in guests:
            resources = uses.get(uuid, {"VCPU": 1})
            self.world.driver.add_guest(Guest(uuid, "guest", GuestState.RUNNING, resources))
        self.world.agent.reconcile("the start")
        assert self.world.agent.condition.state is HostState.READY, self.world.agent.condition.fault

    def findings(self, *, heal: bool = False) -> set[tuple[str, str]]:
        return {(each.kind, each.subject) for each in self.world.operations.audit(heal=heal).findings}

    def disk_gb(self) -> int:
        (root,) = self.world.operations.tree()[0].roots
        return self.client.provider_inventories(root.uuid)[1]["DISK_GB"].total

    def close(self) -> None:
        self.world.close()
        if self._openstack:
            self._openstack.down()


@pytest.fixture(params=["embedded", pytest.param("openstack", marks=pytest.mark.remote)])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """Three claims: one from before the backup, one released since, one newer than that."""
    with closing(Site(tmp_path, request.param)) as site:
        site.runs(KEPT.consumer, disk_gb=100)
        for each in (KEPT, GONE):
            site.world.operations.claim(each)
        site.save()
        site.runs(KEPT.consumer, disk_gb=100)
        site.world.operations.claim(NEW)
        assert site.world.operations.release(GONE.consumer)
        site.runs(KEPT.consumer, NEW.consumer)
        site.world.agent.verify()
        assert site.disk_gb() == DISK_GB and site.findings() == set()
        yield site


def test_one_pass_writes_the_tree_again_and_an_audit_the_claims(site: Site) -> None:
    site.put_back()
    site.runs(KEPT.consumer, NEW.consumer)
    assert site.disk_gb() == DISK_GB
    lost, left = ("amounts differ", NEW.consumer), ("orphaned allocation", GONE.consumer)
    assert site.findings() == {lost, left}
    site.findings(heal=True)
    (root,) = site.world.operations.tree()[0].roots
    assert site.client.allocations_of(NEW.consumer).allocations == {root.uuid: dict(NEW.resources)}
    assert site.findings() == set()
    assert site.client.provider_allocations(root.uuid).consumers.keys() == {KEPT.consumer, NEW.consumer}


@pytest.mark.parametrize("how", ["put back", "emptied"])
def test_a_claim_that_placement_lost_is_given_up_by_nobody(site: Site, how: str) -> None:
    """It was acknowledged, and its guest is still to start: no instance was deleted meanwhile."""
    later = request(VCPU=4, MEMORY_MB=64)
    site.world.operations.claim(later)
    site.world.agent.verify()
    if how == "put back":
        site.put_back()
    else:
        site.loses_all()
        site.is_adopted()
    site.runs(KEPT.consumer, NEW.consumer)
    for _ in range(3):
        site.world.agent.run_audit()
    assert ("amounts differ", later.consumer) in site.findings()
    site.world.agent.verify()
    site.findings(heal=True)
    (held,) = site.client.allocations_of(later.consumer).allocations.values()
    assert held == later.resources and site.findings() == set()
    site.client.delete_allocations(later.consumer)
    assert site.findings() == {("leaked claim", later.consumer)}, "as ever, once Placement had it again"


def test_generations_that_meet_by_chance_deceive_nobody_once_what_was_seen_is_forgotten(
    site: Site,
) -> None:
    (root,) = site.world.operations.tree()[0].roots
    seen = site.client.generations(root.uuid)[root.uuid]
    site.put_back()
    while site.client.generations(root.uuid)[root.uuid] < seen:
        consumer = f"{seen:08}-0000-4000-8000-{site.client.generations(root.uuid)[root.uuid]:012}"
        site.client.write_allocations(ConsumerAllocations(consumer, {root.uuid: {"VCPU": 1}}))
    site.forget_what_was_seen()
    site.runs(KEPT.consumer, NEW.consumer)
    assert site.disk_gb() == DISK_GB


def test_an_empty_database_is_no_good_audit_and_adopt_and_heal_write_it_again(site: Site) -> None:
    site.loses_all()
    agent = site.world.agent
    agent.reconcile("the start")
    fault = agent.condition.fault
    assert fault is not None and "lost or replaced" in fault.sentence and "plimsoll adopt" in fault.sentence
    with pytest.raises(PlimsollError, match="lost or replaced"):
        site.world.operations.audit(heal=True)
    site.is_adopted()
    site.runs(KEPT.consumer, NEW.consumer)
    lost = {("amounts differ", KEPT.consumer), ("amounts differ", NEW.consumer)}
    assert site.findings() == lost
    assert site.findings(heal=True) == lost
    assert site.world.operations.status().findings == 0, "without those that were repaired"
    for asked in (KEPT, NEW):
        (held,) = site.client.allocations_of(asked.consumer).allocations.values()
        assert held == asked.resources
    assert site.findings() == set()


def test_status_says_at_once_that_a_restored_journal_gives_a_unit_that_another_guest_uses(site: Site) -> None:
    """The copy has the claim that was released since; another guest runs with its CPU meanwhile."""
    old, new = (request(VCPU=1, SRIOV_NET_VF=1) for _ in range(2))
    nic = Nic("eth0", "0000:31:00.0", ("0000:31:02.0",))
    uses = UsedUnit("SRIOV_NET_VF", "0000:31:02.0", "pci:0000:31:00.0")
    site.world.driver.change(nics=(nic,))
    site.runs(KEPT.consumer, NEW.consumer)
    site.world.operations.claim(old)

    def change() -> None:
        site.world.driver.change(nics=(nic,))
        site.runs(KEPT.consumer, NEW.consumer)
        assert site.world.operations.release(old.consumer)
        assert site.world.operations.claim(new)

    site.state_is_put_back(change)
    site.world.driver.change(nics=(nic,))
    site.world.driver.add_guest(
        Guest(new.consumer, "later", GuestState.RUNNING, {"VCPU": 1, "SRIOV_NET_VF": 1}, (uses,))
    )
    site.runs(KEPT.consumer, NEW.consumer)
    told = [each for each in site.world.operations.status().reasons if "records are older" in each]
    assert told and old.consumer in told[0] and new.consumer in told[0]
