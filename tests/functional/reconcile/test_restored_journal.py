"""The agent's journal, or Placement, is restored from a copy of an earlier time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kits.agent import World, opened, request, told
from kits.placements import Embedded, OpenStack, Placement
from kits.reshape import uuid_of
from kits.reshape_hosts import VF, Hosts, asks, guest_of

from agent.audit.auditor import Auditor, AuditReader, AuditReport
from agent.claims.claim import Claim
from agent.daemon.offline import adopt
from agent.driver import Guest, GuestState, UsedUnit
from agent.errors import PlimsollError
from agent.moves.states import MoveKind, MoveState
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.reconcile.pass_steps import PassSteps
from agent.reconcile.placement_memory import CACHE_FILE
from agent.shapes import Allocations
from agent.status.overview import HostState
from drivers.fake.host import Nic

WEB, OTHER, NEXT, MIGRATION = (uuid_of(name) for name in ("web", "other", "next", "web moves"))
AMOUNTS = {"VCPU": 1, "MEMORY_MB": 512}
PLACES: tuple[Mapping[str, int], ...] = ({**AMOUNTS, VF: 2}, {"VCPU": 2, "VGPU": 1}, AMOUNTS)
NESTED: Mapping[str, Any] = {"report_numa": True, "flat_devices": False}
FLAT: Mapping[str, Any] = {"report_numa": False, "flat_devices": True}


class Restored:
    """Two hosts; the state directory of the first one can be put back to what it was."""

    def __init__(self, directory: Path, placement: Placement, **changes: Any) -> None:
        self._directory = directory
        self.hosts = Hosts(directory, placement, **changes)
        self.a = self.hosts.a

    def save(self) -> None:
        self.a.close()
        shutil.copytree(self._directory / "a", self._directory / "copy")
        self.a.restart()

    def restore(self) -> None:
        """The journal of then, and one look with it."""
        self.a.close()
        shutil.rmtree(self._directory / "a")
        shutil.copytree(self._directory / "copy", self._directory / "a")
        self.a.restart()
        self.a.look()

    def audit(self, *, heal_own: bool = False, heal_all: bool = False) -> AuditReport:
        a, tree, leads = self.a, lambda: self.a.reconciler.tree, lambda: self.a.reconciler.leads
        reader = AuditReader(a.tracker, a.client, a.root, a.driver.guests, a.journal.devices, tree, leads)
        return Auditor(reader).audit(heal_own=heal_own, heal_all=heal_all)

    def findings(self, *, heal_own: bool = False) -> list[str]:
        return [finding.kind for finding in self.audit(heal_own=heal_own).findings]

    def heal(self) -> AuditReport:
        return self.audit(heal_own=True, heal_all=True)


@pytest.fixture(params=["flat first", "nested first"])
def world(request: pytest.FixtureRequest, placement: Placement, tmp_path: Path) -> Iterator[Restored]:
    first = FLAT if request.param == "flat first" else NESTED
    restored = Restored(tmp_path, placement, **first)
    with restored.hosts:
        yield restored


def reshape(world: Restored) -> None:
    now = NESTED if world.a.driver.describe().providers[0].units else FLAT
    world.a.change(**now)
    assert len(world.a.journal.reshapes(done=True)) > 0


def claim_all(world: Restored) -> dict[str, Claim]:
    return {who: world.a.claim(who, **place) for who, place in zip((WEB, OTHER, NEXT), PLACES, strict=True)}


@pytest.mark.parametrize("run", [False, True], ids=["no guests", "guests"])
def test_claims_of_before_a_reshape_follow_it_and_live_on(world: Restored, run: bool) -> None:
    claims = claim_all(world)
    if run:
        world.a.guests(*map(guest_of, claims.values()))
    world.save()
    units = {who: world.a.units(who) for who in claims}
    reshape(world)
    after = world.a.tracker.claims()
    world.restore()
    assert world.a.problems == ()
    assert {who: claim.allocations for who, claim in world.a.tracker.claims().items()} == {
        who: claim.allocations for who, claim in after.items()
    }
    assert {who: world.a.units(who) for who in claims} == units
    world.a.check()
    assert world.findings() == []
    world.a.guests()
    for who in claims:
        assert world.a.tracker.release(who)
    assert world.hosts.raw.allocations_of(WEB).allocations == {}


def test_the_audit_repairs_what_a_pass_could_not_follow(
    world: Restored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operation on the consumer was under way at each pass so far."""
    claim_all(world)
    world.hosts.b.tracker.begin_move(asks(NEXT, **PLACES[2]), MoveKind.COLD_MIGRATE, MIGRATION)
    world.a.look()
    world.save()
    reshape(world)
    with monkeypatch.context() as patch:
        patch.setattr(PassSteps, "_follow_placement", lambda *_: False)
        world.restore()
    calls: list[str] = []
    world.a.tap.before = calls.append
    assert world.findings(heal_own=True) == ["wrong provider"] * 3
    assert not [call for call in calls if not call.startswith("GET ")], "nothing is written to Placement"
    world.a.check()
    assert world.findings() == []


@pytest.mark.parametrize("end", ["confirm", "revert"])
@pytest.mark.parametrize("kind", [MoveKind.COLD_MIGRATE, MoveKind.SAME_HOST_RESIZE])
def test_a_move_of_before_a_reshape_follows_it_and_ends(world: Restored, kind: MoveKind, end: str) -> None:
    a, place = world.a, PLACES[0]
    before = a.claim(WEB, **place)
    begins = a if kind is MoveKind.SAME_HOST_RESIZE else world.hosts.b
    begins.tracker.begin_move(asks(WEB, **{**place, "VCPU": 2}), kind, MIGRATION)
    a.look()
    world.save()
    reshape(world)
    world.restore()
    assert a.tracker.moves()[MIGRATION].state is MoveState.BEGUN
    a.check()
    getattr(begins.tracker, f"{end}_move")(MIGRATION)
    world.hosts.settle()
    a.check()
    world.hosts.b.check()
    assert world.hosts.raw.allocations_of(MIGRATION).allocations == {}
    if end == "revert":
        now = a.tracker.claim_of(WEB)
        assert now is not None
        assert {unit for _, _, unit in now.exact} == {unit for _, _, unit in before.exact}
    assert world.findings() == []


def test_a_claim_of_which_nothing_is_held_follows_beside_others_of_its_size(world: Restored) -> None:
    """None of them is its migration: its instance lives nowhere else."""
    a, raw = world.a, world.hosts.raw
    a.guests(guest_of(a.claim(WEB, **AMOUNTS)))
    world.save()
    reshape(world)
    raw.write_allocations(replace(raw.allocations_of(WEB), allocations={}))
    cells = [each for each in raw.read_tree(a.root) if "VCPU" in each.inventories]
    for each in cells:
        raw.write_allocations(ConsumerAllocations(uuid_of(f"beside {each.name}"), {each.uuid: AMOUNTS}))
    world.restore()
    assert a.tracker.claims()[WEB].allocations in [{each.uuid: AMOUNTS} for each in cells]
    assert not world.heal().failed
    a.check()


@pytest.mark.parametrize("end", ["confirm", "revert"])
@pytest.mark.parametrize("twin", [False, True], ids=["alone", "beside another one"])
def test_a_move_of_after_a_reshape_is_known_to_a_journal_from_before_both(
    world: Restored, end: str, twin: bool
) -> None:
    """The claim is on providers that are gone; a migration has its place where the reshape led it."""
    a, b, place = world.a, world.hosts.b, PLACES[0]
    before = a.claim(WEB, **place)
    moving = {WEB: MIGRATION, **({OTHER: uuid_of("other moves")} if twin else {})}
    if twin:
        a.claim(OTHER, **PLACES[1])
    world.save()
    reshape(world)
    for who, migration in moving.items():
        b.tracker.begin_move(asks(who, **AMOUNTS), MoveKind.COLD_MIGRATE, migration)
    world.restore()
    a.look()
    assert {move.migration: move.instance for move in a.tracker.moves().values()} == {
        migration: who for who, migration in moving.items()
    }
    assert world.findings() == []
    a.check()
    for migration in moving.values():
        getattr(b.tracker, f"{end}_move")(migration)
    world.hosts.settle()
    for host in (a, b):
        host.check()
    now = a.tracker.claim_of(WEB)
    if end == "revert":
        assert now is not None
        assert {unit for *_, unit in now.exact} == {unit for *_, unit in before.exact}
    else:
        assert now is None
    assert world.findings() == []


def test_a_claim_can_be_resized_and_moved_away_afterwards(world: Restored) -> None:
    a, b = world.a, world.hosts.b
    a.claim(WEB, **PLACES[0])
    world.save()
    reshape(world)
    world.restore()
    a.tracker.begin_move(asks(WEB, **{**PLACES[0], "VCPU": 2}), MoveKind.SAME_HOST_RESIZE, MIGRATION)
    a.tracker.confirm_move(MIGRATION)
    b.tracker.begin_move(asks(WEB, **PLACES[0]), MoveKind.COLD_MIGRATE, OTHER)
    b.tracker.confirm_move(OTHER)
    world.hosts.settle()
    a.check()
    b.check()
    assert a.tracker.claims() == {} and set(b.tracker.claims()) == {WEB}


WITH_CARD, WITH_VF, BOTH = {"VCPU": 1, "VGPU": 1}, {"VCPU": 1, VF: 1}, {"VGPU": 2, VF: 1, "VCPU": 3}
CARD_AND_VF = {"VCPU": 1, "VGPU": 2, VF: 1}


@pytest.mark.parametrize(
    ("then", "since", "runs"),
    [
        ({WEB: WITH_CARD, OTHER: WITH_CARD}, {OTHER: WITH_CARD, WEB: WITH_CARD}, (WEB, OTHER)),
        ({WEB: BOTH, OTHER: WITH_VF}, {NEXT: WITH_CARD, OTHER: BOTH, WEB: WITH_VF}, (WEB, OTHER, NEXT)),
        ({WEB: WITH_VF, OTHER: WITH_CARD}, {NEXT: WITH_VF, OTHER: WITH_CARD}, (OTHER, NEXT)),
        ({WEB: {**WITH_CARD, VF: 1}, OTHER: WITH_CARD}, {OTHER: WITH_VF}, (OTHER,)),
        (
            {WEB: WITH_VF, OTHER: {"VGPU": 1, VF: 1}},
            {NEXT: {"VGPU": 1, VF: 1}, OTHER: WITH_CARD},
            (NEXT, OTHER),
        ),
    ],
    ids=["exchanged", "three, resized", "one left", "one left its unit to one resized", "two anew"],
)
def test_claims_of_before_they_were_released_and_made_anew_follow_the_guests_in_one_repair(
    world: Restored,
    then: Mapping[str, Mapping[str, int]],
    since: Mapping[str, Mapping[str, int]],
    runs: tuple[str, ...],
) -> None:
    now, held = restore_from_before(world, then, since, runs)
    report = world.heal()
    assert not report.failed and not report.left
    check_follows(world, now, held)


def test_a_claim_whose_guest_is_shut_off_follows_its_definition_where_placement_has_just_that(
    world: Restored,
) -> None:
    """Two guests have each other's card and function, and one of them does not run.

    Placement tells that by the card's provider, or, where all units are on one provider, by other amounts.
    """
    then = {WEB: CARD_AND_VF, OTHER: CARD_AND_VF}
    place = {**CARD_AND_VF, "VCPU": 2} if world.a.driver.describe().providers[0].units else CARD_AND_VF
    now, held = restore_from_before(world, then, {OTHER: place, WEB: place}, (WEB,), off=(OTHER,))
    report = world.heal()
    assert not report.failed and not report.left
    check_follows(world, now, held)


def test_no_repair_is_offered_that_a_claim_which_does_not_follow_would_refuse(world: Restored) -> None:
    """Placement tells functions of one card not apart, so a definition alone does not say who has which."""
    since = {NEXT: WITH_VF, OTHER: WITH_VF, WEB: WITH_VF}
    then = {OTHER: WITH_VF, WEB: WITH_VF, NEXT: WITH_VF}
    now, held = restore_from_before(world, then, since, (WEB, NEXT), off=(OTHER,))
    a = world.a
    assert {who: claim.allocations for who, claim in a.tracker.claims().items()} == held
    report = world.heal()
    assert not report.failed and not report.healed
    told = {finding.subject: finding for finding in report.left if finding.kind == "another unit"}
    assert told.keys() == {WEB, NEXT}
    for finding in told.values():
        assert not finding.repair
        assert f"Nothing is repaired while the claim of {OTHER} has the {VF}" in finding.reason
        assert "plimsoll release" in finding.reason
    assert a.tracker.release(OTHER)
    assert not world.heal().failed
    a.claim(OTHER, **WITH_VF)
    check_follows(world, now, held)


def restore_from_before(
    world: Restored,
    then: Mapping[str, Mapping[str, int]],
    since: Mapping[str, Mapping[str, int]],
    runs: tuple[str, ...],
    off: tuple[str, ...] = (),
) -> tuple[dict[str, Claim], dict[str, Allocations]]:
    """A journal of when `then` was claimed, beside guests of `since`; the claims and allocations of now."""
    a = world.a
    for who, place in then.items():
        a.claim(who, **place)
    world.save()
    a.look()
    for who in then:
        a.tracker.release(who)
    for who, place in since.items():
        a.claim(who, **place)
    now = dict(a.tracker.claims())
    idle = (replace(guest_of(now[who]), state=GuestState.SHUTOFF) for who in off)
    a.guests(*(guest_of(now[who]) for who in runs), *idle)
    held = {who: world.hosts.raw.allocations_of(who).allocations for who in since}
    world.restore()
    return now, held


def check_follows(world: Restored, now: Mapping[str, Claim], held: Mapping[str, Allocations]) -> None:
    assert {who: world.hosts.raw.allocations_of(who).allocations for who in held} == held
    claims = world.a.tracker.claims()
    assert {who: (claim.allocations, sorted(claim.exact)) for who, claim in claims.items()} == {
        who: (claim.allocations, sorted(claim.exact)) for who, claim in now.items()
    }
    world.a.look()
    world.a.check()
    assert world.findings() == []


@pytest.mark.parametrize("first", [FLAT, NESTED], ids=["flat first", "nested first"])
def test_placement_of_before_a_reshape_is_reshaped_to_where_the_claims_are(
    tmp_path: Path, first: Mapping[str, Any]
) -> None:
    """Nothing but the claims knows who is on which card: a plan by uuid would exchange them."""
    placement = Embedded(tmp_path)
    world = Restored(tmp_path, placement, **first)
    a, hosts = world.a, world.hosts
    with hosts:
        hosts.b.close()
        for name in sorted((uuid_of(f"web{number}") for number in range(4)), reverse=True):
            a.claim(name, **PLACES[0])
        a.close()
        hosts._transport.close()
        files = [file for file in tmp_path.glob("placement.db*") if not file.name.endswith(".lock")]
        for file in files:
            shutil.copy(file, tmp_path / f"copy of {file.name}")
        reopen(hosts, placement)
        reshape(world)
        claims = a.tracker.claims()
        a.close()
        hosts._transport.close()
        for file in tmp_path.glob("placement.db*"):
            file.unlink()
        for file in files:
            shutil.copy(tmp_path / f"copy of {file.name}", file)
        reopen(hosts, placement)
        a.look()
        assert a.tracker.claims() == claims
        a.check()
        assert world.findings() == []
        hosts.b._transport = hosts._transport
        hosts.b._open()


def reopen(hosts: Hosts, placement: Placement) -> None:
    hosts._transport = hosts.a._transport = placement.transport()
    hosts.raw = PlacementClient(hosts._transport)
    hosts.a._open()


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
    assert site.world.agent.host_status.status().findings == 0, "without those that were repaired"
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
    told = [each for each in site.world.agent.host_status.status().reasons if "records are older" in each]
    assert told and old.consumer in told[0] and new.consumer in told[0]
