"""The pass over each real placement and a described host."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from kits.placements import Placement
from kits.wire import Wire, nothing

from agent.driver import DriverSettings, Guest, GuestState, HostSettings
from agent.errors import DriverUnavailable, IdentityError, PlacementConflict, PlacementUnavailable
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.providers.resolve import OwnedProviders
from agent.reconcile import reconciler as reconciler_module
from agent.reconcile.reconciler import Reconciler
from agent.shapes import Held
from agent.state.journal import Journal
from agent.state.operators import Pause
from agent.tracker.tracker import ResourceTracker
from agent.tree import Inventory, Provider, ProviderTree
from drivers.fake.driver import FakeDriver
from drivers.fake.host import FakeHost, Gpu, cell

ROOT = "0b5b8f9c-8a0c-4a53-9f6b-9b7f2a4f1a11"


class WatchedTracker(ResourceTracker):
    """A tracker that keeps each tree as the passes hand it over, and the book's allocations after that."""

    def __init__(self, journal: Journal, client: PlacementClient) -> None:
        super().__init__(journal, client)
        self.refreshed: list[tuple[ProviderTree, Held]] = []

    def refresh(self, tree: ProviderTree, held: Held, *rest: Any, **more: Any) -> None:
        super().refresh(tree, held, *rest, **more)
        self.refreshed.append((tree, self.view.held()))


@dataclass
class World:
    wire: Wire
    client: PlacementClient
    driver: FakeDriver
    tracker: WatchedTracker
    journal: Journal
    reconciler: Reconciler

    def holds(self) -> ProviderTree:
        return self.client.read_tree(ROOT)

    def hold(self, provider: Provider, **amounts: int) -> str:
        consumer = str(uuid4())
        self.client.write_allocations(ConsumerAllocations(consumer, {provider.uuid: amounts}))
        return consumer

    def asked(self) -> list[str]:
        asked, self.wire.asked = self.wire.asked, []
        return [f"{sent.method} {sent.path}" for sent in asked]


def host(gpus: int = 2, guests: int = 0) -> FakeHost:
    return FakeHost(
        cells=(cell(0, frozenset(range(8)), 16384),),
        disk_gb=100,
        gpus=tuple(Gpu(f"0000:{number:02x}:00.0", "VGPU", 4) for number in range(gpus)),
        guests=tuple(
            Guest(str(uuid4()), f"guest{number}", GuestState.RUNNING, {"VCPU": 1}) for number in range(guests)
        ),
    )


@pytest.fixture
def world(placement: Placement, tmp_path: Path) -> Iterator[World]:
    wire = Wire(placement.transport())
    client = PlacementClient(wire)
    driver = FakeDriver(host(), DriverSettings("node1", HostSettings()))
    journal = Journal.open(tmp_path)
    tracker = WatchedTracker(journal, client)
    yield World(wire, client, driver, tracker, journal, Reconciler(driver, client, tracker, journal, ROOT))
    journal.close()
    driver.close()
    client.close()


def test_the_first_pass_writes_the_host_and_tells_the_tracker(world: World) -> None:
    report = world.reconciler.reconcile("the start")
    assert report.error is None
    tree = world.holds()
    assert tree == world.tracker.refreshed[-1][0]
    assert tree[ROOT].name == "node1"
    assert {"VCPU", "MEMORY_MB", "DISK_GB"} <= set(tree[ROOT].inventories)
    assert sum(each.inventories["VGPU"].total for each in tree if "VGPU" in each.inventories) == 8
    assert (report.providers, report.changed) == (len(tree), len(tree))
    assert report.operations >= len(tree)
    assert report.sentence.startswith("After the start: ") and report.sentence.endswith(" more operations.")
    assert all(each.uuid in world.journal.owned() for each in tree)
    devices = world.journal.devices()
    assert devices.keys() <= {each.uuid for each in tree} and "pci:0000:01:00.0" in devices.values()


def test_nothing_new_is_no_request_and_quick(world: World, placement: Placement) -> None:
    gpus = 255 if placement.kind == "embedded" else 15
    world.driver.change(gpus=host(gpus=gpus).gpus, guests=host(guests=500).guests)
    assert world.reconciler.reconcile("the start").error is None
    assert len(world.holds()) == gpus + 1
    world.asked()
    told = len(world.tracker.refreshed)
    durations = []
    for _ in range(20):
        started = time.perf_counter()
        report = world.reconciler.reconcile("its interval")
        durations.append(time.perf_counter() - started)
    assert world.asked() == []
    assert len(world.tracker.refreshed) == told
    assert report.sentence == "After its interval: nothing changed."
    assert min(durations) < 0.005


def test_an_equal_description_is_nothing_new(world: World) -> None:
    world.reconciler.reconcile("the start")
    world.asked()
    other = FakeDriver(host(), DriverSettings("node1", HostSettings()))
    world.reconciler.replace_driver(other).close()
    world.driver = other
    assert world.reconciler.reconcile("the reload").error is None
    assert not [line for line in world.asked() if not line.startswith("GET")]


def test_a_change_of_the_host_follows(world: World) -> None:
    world.reconciler.reconcile("the start")
    world.driver.change(disk_gb=200, gpus=host(gpus=1).gpus)
    report = world.reconciler.reconcile("an event")
    assert report.error is None and report.changed == 2
    assert world.holds()[ROOT].inventories["DISK_GB"].total == 200
    assert len(world.holds()) == 2
    assert world.holds() == world.tracker.refreshed[-1][0]


def test_what_the_agent_owns_is_what_its_last_pass_left_in_placement(world: World) -> None:
    world.reconciler.reconcile("the start")
    assert world.journal.owned().providers.keys() == {each.uuid for each in world.holds()}
    world.driver.change(gpus=host(gpus=1).gpus)
    world.reconciler.reconcile("an event")
    assert world.journal.owned().providers.keys() == {each.uuid for each in world.holds()}


def test_the_first_report_costs_few_requests(world: World) -> None:
    world.driver.change(gpus=host(gpus=20).gpus)
    report = world.reconciler.reconcile("the start")
    assert len(world.asked()) <= 3 * report.providers + 2


def test_one_changed_inventory_is_one_request(world: World) -> None:
    world.driver.change(gpus=host(gpus=20).gpus)
    world.reconciler.reconcile("the start")
    world.driver.change(disk_gb=200)
    world.asked()
    assert world.reconciler.reconcile("an event").operations == 1
    assert world.asked() == [f"PUT /resource_providers/{ROOT}/inventories"]


def test_who_holds_what_is_known_without_asking_for_what_we_wrote_ourselves(world: World) -> None:
    world.reconciler.reconcile("the start")
    consumer = world.hold(world.holds()[ROOT], VCPU=2)
    world.reconciler.verify("verification")
    world.driver.change(disk_gb=200)
    world.asked()
    world.reconciler.reconcile("an event")
    assert len(world.asked()) == 1
    assert world.tracker.refreshed[-1][1] == {ROOT: {consumer: {"VCPU": 2}}}


def test_a_claim_in_between_is_met_and_learnt(world: World) -> None:
    world.reconciler.reconcile("the start")
    consumer = world.hold(world.holds()[ROOT], VCPU=2)
    world.driver.change(disk_gb=200)
    assert world.reconciler.reconcile("an event").error is None
    assert world.tracker.refreshed[-1][1] == {ROOT: {consumer: {"VCPU": 2}}}
    assert world.tracker.refreshed[-1][0] == world.holds()


def test_verification_sees_what_others_did_and_mends_what_is_ours(world: World) -> None:
    world.reconciler.reconcile("the start")
    gpu = next(each for each in world.holds() if "VGPU" in each.inventories)
    world.client.ensure_trait("CUSTOM_ADMINS")
    generation = world.client.put_traits(gpu.uuid, gpu.generation or 0, {*gpu.traits, "CUSTOM_ADMINS"})
    world.client.put_inventories(gpu.uuid, generation, {"VGPU": Inventory(99, max_unit=99)})
    consumer = world.hold(world.holds()[ROOT], VCPU=2)
    world.asked()
    assert world.reconciler.reconcile("its interval").sentence == "After its interval: nothing changed."
    report = world.reconciler.verify("verification")
    assert report.error is None and report.changed == 1
    now = world.holds()[gpu.uuid]
    assert now.inventories["VGPU"].total == 4 and "CUSTOM_ADMINS" in now.traits
    assert world.tracker.refreshed[-1][1] == {ROOT: {consumer: {"VCPU": 2}}}
    world.asked()
    assert world.reconciler.verify("verification").operations == 0
    assert len(world.asked()) == 2, "the tree, and who is on its root"


def test_verification_takes_away_a_trait_that_the_driver_could_report_and_does_not(world: World) -> None:
    world.reconciler.reconcile("the start")
    root = next(provider for provider in world.holds() if provider.uuid == ROOT)
    world.client.put_traits(ROOT, root.generation or 0, {*root.traits, "HW_CPU_X86_AMD_SEV"})
    world.reconciler.verify("verification")
    assert world.holds()[ROOT].traits == root.traits


def test_a_hypervisor_that_does_not_answer_wipes_nothing(world: World) -> None:
    world.reconciler.reconcile("the start")
    before = world.holds()
    world.asked()
    world.driver.fail(1)
    report = world.reconciler.reconcile("its interval")
    assert isinstance(report.error, DriverUnavailable)
    assert world.asked() == [] and world.holds() == before
    assert world.reconciler.reconcile("its interval").error is None


def test_placement_away_is_a_state_and_the_pass_catches_up(world: World) -> None:
    world.reconciler.reconcile("the start")
    world.wire.cut = True
    world.driver.change(disk_gb=300)
    for _ in range(3):
        assert isinstance(world.reconciler.reconcile("an event").error, PlacementUnavailable)
    world.wire.cut = False
    assert world.reconciler.reconcile("the retry").error is None
    assert world.holds()[ROOT].inventories["DISK_GB"].total == 300


def test_what_a_verification_found_and_could_not_write_is_written_by_the_next_pass(world: World) -> None:
    world.reconciler.reconcile("the start")
    wanted = world.holds()[ROOT]
    others = {**wanted.inventories, "DISK_GB": replace(wanted.inventories["DISK_GB"], total=1)}
    world.client.put_inventories(ROOT, wanted.generation or 0, others)

    def cut(request: str) -> None:
        world.wire.cut = request.startswith("PUT")

    world.wire.before = cut
    assert isinstance(world.reconciler.verify("verification").error, PlacementUnavailable)
    world.wire.before, world.wire.cut = nothing, False
    assert world.reconciler.reconcile("the retry").error is None
    assert world.holds()[ROOT].inventories == wanted.inventories


def test_cut_off_after_any_request_the_next_pass_reaches_the_end(world: World) -> None:
    world.reconciler.reconcile("the start")
    total = len(world.asked())
    wanted = world.holds()
    for number in range(total):
        for provider in world.holds().bottom_up():
            world.client.delete_provider(provider.uuid)
        reconciler = Reconciler(world.driver, world.client, world.tracker, world.journal, ROOT)
        world.asked()

        def cut(_: str, number: int = number) -> None:
            world.wire.cut = world.wire.requests > number

        world.wire.before = cut
        assert isinstance(reconciler.reconcile("the start").error, PlacementUnavailable)
        world.wire.before, world.wire.cut = nothing, False
        assert reconciler.reconcile("the retry").error is None
        assert world.holds() == wanted


def test_what_is_held_of_a_class_that_goes_away_stays_and_the_rest_is_reserved(world: World) -> None:
    """Scenario 98: after a boot there are no virtual functions until something makes them again."""
    world.reconciler.reconcile("the start")
    before = world.holds()
    gpu = next(each for each in before if "VGPU" in each.inventories)
    consumer = world.hold(gpu, VGPU=1)
    world.driver.change(gpus=(), disk_gb=777)
    report = world.reconciler.reconcile("an event")
    assert report.error is None
    (told,) = report.problems
    assert consumer in told and f"no VGPU on provider {gpu.name} any more" in told
    now = world.holds()
    assert {each.name for each in now} == {"node1", gpu.name}
    assert now[ROOT].inventories["DISK_GB"].total == 777, "all else is brought up to date"
    kept = now[gpu.uuid].inventories["VGPU"]
    assert (kept.total, kept.capacity) == (gpu.inventories["VGPU"].total, 1)
    assert world.reconciler.next_plan().empty
    assert world.reconciler.reconcile("its interval").operations == 0
    world.driver.change(gpus=host().gpus)
    assert world.reconciler.reconcile("they are back").problems == ()
    assert {each.name: each.inventories.get("VGPU") for each in world.holds()} == {
        each.name: each.inventories.get("VGPU") for each in before
    }
    world.driver.change(gpus=())
    world.reconciler.reconcile("they are gone again")
    world.client.delete_allocations(consumer)
    assert world.reconciler.reconcile("the release").problems == ()
    assert len(world.holds()) == 1


def test_a_foreign_provider_with_our_name_is_named(world: World) -> None:
    foreign = str(uuid4())
    world.client.create_provider(Provider(foreign, "node1"))
    report = world.reconciler.reconcile("the start")
    assert isinstance(report.error, IdentityError)
    assert f"plimsoll adopt {foreign}" in report.error.message


def test_a_foreign_provider_with_our_name_is_taken_over_by_its_uuid(world: World) -> None:
    foreign = str(uuid4())
    world.client.create_provider(Provider(foreign, "node1"))
    reconciler = Reconciler(world.driver, world.client, world.tracker, world.journal, foreign)
    assert reconciler.reconcile("the start").error is None
    assert world.client.read_tree(foreign)[foreign].inventories


def test_providers_over_capacity_are_shown_until_they_are_not(world: World) -> None:
    world.reconciler.reconcile("the start")
    gpu = next(each for each in world.holds() if "VGPU" in each.inventories)
    first, second = world.hold(gpu, VGPU=2), world.hold(gpu, VGPU=2)
    now = world.holds()[gpu.uuid]
    world.client.put_inventories(gpu.uuid, now.generation or 0, {"VGPU": Inventory(3, max_unit=4)})
    world.driver.change(gpus=tuple(replace(each, total=3) for each in host().gpus))
    (problem,) = world.reconciler.verify("verification").problems
    assert f"Provider {gpu.name} is over capacity: 4 VGPU are in use of 3" in problem
    assert first in problem and second in problem
    world.client.delete_allocations(first)
    assert world.reconciler.verify("verification").problems == ()


def test_a_lost_record_of_what_is_ours_does_not_keep_what_is_gone(world: World) -> None:
    world.reconciler.reconcile("the start")
    foreign = Provider(str(uuid4()), "a network agent's", ROOT)
    world.client.create_provider(foreign)
    world.driver.change(gpus=host(gpus=1).gpus)
    world.journal.remember_owned(OwnedProviders())
    reconciler = Reconciler(world.driver, world.client, world.tracker, world.journal, ROOT)
    assert reconciler.reconcile("the start").error is None
    assert {each.name for each in world.holds()} == {"node1", foreign.name, "node1_pci_0000:00:00.0"}


def test_bad_names_are_left_out_and_told(world: World) -> None:
    """Scenario 22: the rest of the tree is reported, and the agent is told to log them; it is no fault."""
    world.driver.change(gpus=(replace(host().gpus[0], traits=frozenset(("NO_SUCH_TRAIT",))),))
    report = world.reconciler.reconcile("the start")
    assert report.error is None and not report.problems
    assert "NO_SUCH_TRAIT" in report.notices[0]
    assert not any("NO_SUCH_TRAIT" in each.traits for each in world.holds())


def test_what_is_not_known_before_the_first_pass_is_nothing(world: World) -> None:
    known = world.reconciler
    assert (known.tree, known.guests, known.leads, known.vanished) == (None, None, (), frozenset())
    assert (known.is_disabled, known.is_disabled_by_others, known.is_contested) == (False, False, False)
    assert (known.needs_pass, known.holds_back(), known.waits_for_another()) == (False, None, False)
    assert known.running_s() == 0.0
    with pytest.raises(DriverUnavailable, match="nothing was compared: No pass has described this host yet"):
        known.read_known_guests()
    known.reconcile("the start")
    assert known.read_known_guests() == known.guests == () and not known.needs_pass
    world.driver.fail(1)
    known.reconcile("an event")
    with pytest.raises(DriverUnavailable, match="so nothing was compared: "):
        known.read_known_guests()


def test_schedulers_are_told_between_the_writes_of_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    tries: list[int] = []
    reconciler = Reconciler(
        world.driver, world.client, world.tracker, world.journal, ROOT, sleep=pauses.append
    )
    assert reconciler.reconcile("the start").error is None
    put = world.client.put_traits

    def overtaken(uuid: str, generation: int, traits: Iterable[str]) -> int:
        tries.append(generation)
        if len(tries) % 9:  # it gives up after the eighth
            raise PlacementConflict("another client was faster")
        return put(uuid, generation, traits)

    monkeypatch.setattr(world.client, "put_traits", overtaken)
    with pytest.raises(PlacementConflict):
        reconciler.tell_schedulers(closed=True)
    assert (len(tries), len(pauses)) == (8, 6) and 0 < max(pauses) <= 0.5
    assert reconciler.owes_schedulers(closed=True)
    assert reconciler.tell_schedulers(closed=True) and len(tries) == 9
    assert not reconciler.owes_schedulers(closed=True)
    reconciler.doubt_traits()
    assert reconciler.owes_schedulers(closed=True)
    assert not reconciler.tell_schedulers(closed=True), "Placement has them still"
    assert not reconciler.owes_schedulers(closed=True)


@pytest.mark.parametrize("conflicts", [2, 3])
def test_a_pass_is_planned_anew_twice_where_others_write(
    world: World, monkeypatch: pytest.MonkeyPatch, conflicts: int
) -> None:
    world.reconciler.reconcile("the start")
    put, tries = world.client.put_inventories, list[int]()

    def overtaken(uuid: str, generation: int, inventories: Mapping[str, Inventory]) -> int:
        tries.append(generation)
        if len(tries) <= conflicts:
            raise PlacementConflict("another client was faster")
        return put(uuid, generation, inventories)

    monkeypatch.setattr(world.client, "put_inventories", overtaken)
    monkeypatch.setattr("agent.placement.apply.ATTEMPTS_MAX", 1)
    world.driver.change(disk_gb=200)
    error = world.reconciler.reconcile("an event").error
    assert (error is None) is (conflicts == 2), len(tries)


def test_a_host_that_placement_does_not_have_is_told_of_to_no_scheduler(world: World) -> None:
    world.reconciler.doubt_traits()
    assert not world.reconciler.tell_schedulers(closed=True)
    assert not world.holds() and not world.reconciler.owes_schedulers(closed=False)


def test_the_next_pass_reads_placement_anew_although_schedulers_were_told_in_between(world: World) -> None:
    world.reconciler.reconcile("the start")
    root = world.holds()[ROOT]
    others = {**root.inventories, "DISK_GB": replace(root.inventories["DISK_GB"], total=1)}
    world.client.put_inventories(ROOT, root.generation or 0, others)
    world.reconciler.invalidate()
    assert world.reconciler.tell_schedulers(closed=True)
    world.reconciler.reconcile("an event")
    assert world.holds()[ROOT].inventories == root.inventories


def test_a_report_says_in_milliseconds_how_long_the_pass_took(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter((10.0, 10.0 + 1 / 3))
    monkeypatch.setattr(reconciler_module, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    assert world.reconciler.reconcile("the start").duration_ms == 333.333
    assert world.reconciler.running_s() == 0.0


def test_the_next_plan_is_what_the_next_pass_does(world: World) -> None:
    world.reconciler.reconcile("the start")
    assert world.reconciler.next_plan().empty
    world.driver.change(disk_gb=5)
    foreseen = world.reconciler.next_plan()
    assert world.reconciler.reconcile("an event").operations == len(foreseen.operations) == 1


@pytest.mark.parametrize("schedulers", [True, False])
def test_an_open_host_is_offered_unless_its_pause_is_for_schedulers_too(
    world: World, *, schedulers: bool
) -> None:
    world.reconciler.reconcile("the start")
    before = world.holds()[ROOT].traits
    assert world.reconciler.tell_schedulers(closed=True)
    assert not world.reconciler.tell_schedulers(closed=True), "Placement knows it"
    world.tracker.set_pause(Pause("", 0, 0.0, schedulers=schedulers))
    assert world.reconciler.tell_schedulers(closed=False)
    still = {"COMPUTE_STATUS_DISABLED"} if schedulers else set()
    assert world.holds()[ROOT].traits == before | still
