"""The agent of one host without its process: how it is, what it answers, how it comes back from a fault."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

import pytest
from kits.agent import World, opened, request, told
from kits.api_client import ask
from kits.cli_process import output_of
from kits.daemon_process import eventually
from kits.late_writes import by_a_balancer
from kits.placements import Embedded, Placement
from kits.wire import Sent, Wire, nothing

from agent.backoff import BASE_S, MAX_S
from agent.carving.files import read_plan_file
from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest, RequestGroup
from agent.config.settings import Settings, load
from agent.daemon import host_agent as host_module
from agent.daemon import service
from agent.daemon.service import Service
from agent.driver import CarvedUnit, Guest, GuestState
from agent.errors import (
    ClaimsClosed,
    DoesNotFit,
    PlacementUnavailable,
    PlimsollError,
    StateError,
    UnknownConsumer,
)
from agent.moves.states import MoveKind
from agent.placement.client import PlacementClient
from agent.placement.transport import Reply, reply_of_answer
from agent.state.journal import PendingWrite
from agent.status.overview import HostState
from agent.systemd.notify import Notifier
from drivers.fake.driver import FakeDriver
from drivers.fake.host import Gpu


@pytest.fixture
def settings(tmp_path: Path, placement: Placement) -> Settings:
    return told(tmp_path, placement)


@pytest.fixture
def world(settings: Settings) -> Iterator[World]:
    world = opened(settings)
    yield world
    world.close()


def test_claims_are_closed_until_the_host_was_seen_whole(world: World) -> None:
    assert world.agent.host_status.status().state == "starting"
    with pytest.raises(ClaimsClosed, match="has not seen the whole host"):
        world.operations.claim(request(VCPU=1))
    world.driver.fail(1)
    world.agent.reconcile("the start")
    assert world.agent.host_status.status().state == "degraded"
    with pytest.raises(ClaimsClosed, match="fake hypervisor does not answer"):
        world.operations.claim(request(VCPU=1))
    world.retry()
    assert world.agent.host_status.status().state == "ready"
    assert world.operations.claim(request(VCPU=1)).state == "claimed"


def test_the_first_audit_is_requested_as_soon_as_the_agent_is_ready(world: World) -> None:
    world.driver.fail(1)
    world.agent.reconcile("the start")
    assert world.audits_requested == []
    world.retry()
    assert world.audits_requested != []
    world.agent.run_audit()
    world.audits_requested.clear()
    world.agent.reconcile("its interval")
    assert world.audits_requested == []


def test_status_says_how_everything_is(world: World, settings: Settings) -> None:
    world.agent.reconcile("the start")
    world.operations.claim(request(VCPU=1))
    status = world.agent.host_status.status()
    assert status.reasons == () and status.host == "node1"
    assert (status.driver, status.placement, status.fault) == ("fake", settings.placement.kind, None)
    assert (status.closed, status.claims, status.schedulers) == (None, 1, True)
    assert status.last_pass and status.last_pass.sentence.startswith("After the start: ")


def test_placement_away_is_one_line_bounded_retries_and_caught_up_within_one_pass(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario 11."""
    world.agent.reconcile("the start")
    caplog.set_level(logging.INFO)
    caplog.clear()
    world.wire.cut = True
    with pytest.raises(PlacementUnavailable):
        world.operations.claim(request(VCPU=1))
    world.driver.change(disk_gb=4000)
    for _ in range(12):
        world.retry()
    degraded = [record for record in caplog.records if record.getMessage().startswith("Degraded")]
    assert len(degraded) == 1 and degraded[0].levelno == logging.WARNING
    assert len(caplog.records) == 1
    assert world.retries == sorted(world.retries) and world.retries[-1] == MAX_S
    assert world.agent.host_status.status().error("placement")
    world.wire.cut = False
    world.retry()
    assert world.agent.condition.state is HostState.READY
    tree, usages = world.operations.tree()
    assert tree.roots[0].inventories["DISK_GB"].total == 4000
    assert not any(amount for each in usages.values() for amount in each.values())


def test_a_failed_claim_while_placement_is_away_leaves_nothing(world: World) -> None:
    world.agent.reconcile("the start")
    world.wire.cut = True
    with pytest.raises(PlacementUnavailable):
        world.operations.claim(request(VCPU=1))
    with pytest.raises(ClaimsClosed, match="Placement does not answer"):
        world.operations.claim(request(VCPU=1))
    world.wire.cut = False
    world.retry()
    world.agent.deliver()
    assert not any(amount for each in world.operations.tree()[1].values() for amount in each.values())


def test_a_release_while_placement_is_away_is_delivered_later(world: World) -> None:
    world.agent.reconcile("the start")
    consumer = world.operations.claim(request(VCPU=2)).consumer
    world.wire.cut = True
    assert world.operations.release(consumer) is False
    world.agent.deliver()
    world.wire.cut = False
    world.retry()
    world.agent.deliver()
    assert not any(amount for each in world.operations.tree()[1].values() for amount in each.values())
    with pytest.raises(UnknownConsumer):
        world.operations.release(consumer)


def test_while_placement_is_away_nothing_on_the_host_makes_it_be_asked(world: World) -> None:
    world.agent.reconcile("the start")
    consumer = world.operations.claim(request(VCPU=2)).consumer
    world.wire.cut = True
    world.agent.verify()
    asked = world.wire.requests
    for _ in range(50):
        world.agent.reconcile("an event")
        world.agent.verify()
        world.agent.deliver()
    assert world.operations.release(consumer) is False
    assert world.wire.requests == asked
    assert world.retries[-1] <= MAX_S
    world.retry()
    assert world.wire.requests == asked + 1


def test_retry_after_is_honoured(world: World) -> None:
    world.agent.reconcile("the start")
    world.wire.answer = by_a_balancer(503, retry_after="120")
    consumer = str(uuid4())
    with pytest.raises(PlacementUnavailable, match="not known yet"):
        world.operations.claim(replace(request(VCPU=1), consumer=consumer))
    assert world.wire.calls[-1] == f"PUT /allocations/{consumer}"  # and no read behind it
    assert 120 < world.retries[-1] <= 120 + MAX_S
    world.wire.answer = None
    world.time[0] += 119
    world.agent.reconcile("an event")
    assert world.agent.condition.state is HostState.DEGRADED
    world.retry()
    assert world.agent.condition.state is HostState.READY
    assert world.agent.host_status.overview().instances == ()


@pytest.mark.parametrize("step", ["release", "confirm_move", "revert_move"])
def test_retry_after_is_honoured_by_what_is_journaled(
    world: World, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.agent.reconcile("the start")
    asked, migration = request(VCPU=1), str(uuid4())
    world.operations.claim(asked)
    if step != "release":
        grown = replace(request(VCPU=2), consumer=asked.consumer)
        world.operations.begin_move(MoveKind.RESIZE, migration, grown)
    world.wire.answer = by_a_balancer(503, retry_after="120")
    before = world.wire.requests
    for _ in range(3):
        if step == "release":
            assert world.operations.release(asked.consumer) is False
        else:
            assert not getattr(world.operations, step)(migration, None).ended
        world.agent.reconcile("an event")
        world.agent.deliver()
    assert world.wire.requests - before == 1
    assert world.agent.condition.state is HostState.DEGRADED and 120 < world.retries[0] <= 120 + MAX_S
    assert len([each for each in caplog.records if each.getMessage().startswith("Degraded")]) == 1
    world.wire.answer = None
    world.time[0] += 120 + MAX_S
    world.agent.reconcile("the retry")
    assert world.agent.condition.state is HostState.READY
    assert all(claim.state == "claimed" for _, claim in world.agent.host_status.overview().instances if claim)
    assert all(move.ended for move in world.agent.host_status.overview().moves)


def test_what_was_in_flight_when_placement_went_away_is_one_failure(world: World) -> None:
    world.agent.reconcile("the start")
    consumers = [world.operations.claim(request(VCPU=1)).consumer for _ in range(10)]
    all_are_in_flight = threading.Barrier(len(consumers))

    def slow(call: str) -> None:
        if not call.startswith("GET"):
            all_are_in_flight.wait(10.0)
            raise PlacementUnavailable("Placement did not answer in time.", busy=True)

    world.wire.before = slow
    threads = [threading.Thread(target=world.operations.release, args=(each,)) for each in consumers]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    world.wire.before = nothing
    assert max(world.retries) <= 2 * BASE_S
    world.retry()
    assert (
        world.agent.condition.state is HostState.READY and world.agent.host_status.overview().instances == ()
    )


def test_one_release_that_is_never_answered_closes_nobodys_host(world: World) -> None:
    world.agent.reconcile("the start")
    poison = world.operations.claim(request(VCPU=1)).consumer
    other = world.operations.claim(request(VCPU=1)).consumer

    def poisoned(sent: Sent) -> None:
        if sent.method != "GET" and poison in f"{sent.path} {sent.body}":
            raise PlacementUnavailable("Placement did not answer in time.", busy=True)

    world.wire.answer = poisoned
    assert world.operations.release(poison) is False
    assert world.agent.condition.state is HostState.DEGRADED
    for _ in range(3):
        world.retry()
        world.agent.deliver()
        assert world.agent.condition.state is HostState.READY
    world.operations.claim(request(VCPU=1))
    assert world.operations.release(other) is True


def test_retry_after_is_honoured_by_a_move_that_begins(world: World) -> None:
    world.agent.reconcile("the start")
    asked, migration = request(VCPU=1), str(uuid4())
    world.operations.claim(asked)
    grown = replace(request(VCPU=2), consumer=asked.consumer)
    busy = by_a_balancer(503, retry_after="120")
    world.wire.answer = lambda sent: busy(sent) if sent.method == "POST" else None
    with pytest.raises(PlacementUnavailable, match="not known yet"):
        world.operations.begin_move(MoveKind.RESIZE, migration, grown)
    assert world.wire.calls[-1] == "POST /allocations"  # and no read behind it
    assert 120 < world.retries[-1] <= 120 + MAX_S
    world.wire.answer = None
    world.retry()
    assert world.agent.condition.state is HostState.READY
    assert all(move.ended for move in world.agent.host_status.overview().moves)
    assert [claim.request for claim in world.operations.tracker.claims().values()] == [asked]


class NoReshape:
    """Placement is asked for a reshape, and nobody knows whether it will be done.

    With `then_cut` nothing is answered after that, either. With `done_before_fence` Placement does the
    reshape just before the next write that it is sent.
    """

    def __init__(self, wire: Wire, *, then_cut: bool = False, done_before_fence: bool = False) -> None:
        self._wire = wire
        self._then_cut = then_cut
        self._done_before_fence = done_before_fence
        self.asked: list[Sent] = []
        wire.answer = self._answer

    def _answer(self, sent: Sent) -> None:
        if sent.path == "/reshaper":
            self.asked.append(sent)
        if sent.path == "/reshaper" or (self._then_cut and self.asked):
            raise PlacementUnavailable("Placement did not answer in time.", busy=True)
        if self._done_before_fence and self.asked and sent.method == "PUT":
            self._done_before_fence = False
            assert self.execute() == [204]

    def execute(self) -> list[int]:
        """Have Placement execute each reshape that it was asked for now; returns the statuses."""
        return [sent.to(self._wire.inner).status for sent in self.asked]


def followed(world: World, claimed: Iterable[Claim]) -> None:
    """Each claim is on two providers, where placement has it."""
    now = {claim.consumer: claim.allocations for claim in world.operations.tracker.claims().values()}
    client = PlacementClient(world.wire.inner)
    for each in claimed:
        assert len(now[each.consumer]) == 2
        assert client.allocations_of(each.consumer).allocations == now[each.consumer]


CARD = {"nics": (), "gpus": (Gpu("0000:83:00.0", "VGPU", 16),)}


def test_a_reshape_that_was_not_answered_and_was_done_is_followed_at_once(world: World) -> None:
    """A large one may take longer than the agent waits, and be seen by nobody until it is done."""
    world.driver.change(flat_devices=True, **CARD)
    world.agent.reconcile("the start")
    claimed = [world.operations.claim(request(VGPU=1, VCPU=1)) for _ in range(3)]
    lost = NoReshape(world.wire, done_before_fence=True)
    world.driver.change(flat_devices=False)
    world.agent.reconcile("an event")
    assert len(lost.asked) == 1, "it is not asked for twice"
    assert world.agent.condition.state is HostState.READY, world.agent.condition.fault
    assert len(world.journal.reshapes(done=True)) == 1 and not world.journal.reshapes(done=False)
    followed(world, claimed)


def test_a_reshape_that_was_not_answered_and_was_not_done_can_never_be_done(world: World) -> None:
    """Each attempt is fenced before the next, so that none is executed behind the agent's back."""
    world.driver.change(flat_devices=True, **CARD)
    world.agent.reconcile("the start")
    claimed = [world.operations.claim(request(VGPU=1, VCPU=1)) for _ in range(3)]
    lost = NoReshape(world.wire)
    world.driver.change(flat_devices=False)
    world.agent.reconcile("an event")
    for attempts in range(1, 4):
        assert len(lost.asked) == attempts
        assert world.agent.condition.state is HostState.DEGRADED
        assert not world.journal.reshapes(done=False), "what became of each is known"
        assert lost.execute() == [409] * attempts
        world.retry()
    world.wire.answer = None
    world.retry()
    assert world.agent.condition.state is HostState.READY, world.agent.condition.fault
    assert lost.execute() == [409] * len(lost.asked)
    assert len(world.journal.reshapes(done=True)) == 1 and not world.journal.reshapes(done=False)
    followed(world, claimed)


def test_a_reshape_that_comes_after_a_restart_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent could not fence it before it ended, so the next one raises a generation that it names."""
    with closing(opened(settings)) as world:
        world.driver.change(flat_devices=True, **CARD)
        world.agent.reconcile("the start")
        claimed = [world.operations.claim(request(VGPU=1, VCPU=1)) for _ in range(3)]
        lost = NoReshape(world.wire, then_cut=True)
        world.driver.change(flat_devices=False)
        world.agent.reconcile("an event")
        assert len(world.journal.reshapes(done=False)) == 1, "its outcome is unknown"
    with closing(opened(settings)) as world:
        world.driver.change(**CARD)
        late: list[int] = []
        forget = world.journal.drop_reshape

        def forgotten(receipt: str) -> PendingWrite:
            late.append(lost.asked[0].to(world.wire.inner).status)
            return forget(receipt)

        monkeypatch.setattr(world.journal, "drop_reshape", forgotten)
        world.agent.reconcile("the start")
        assert late == [409], "when it was forgotten"
        assert world.agent.condition.state is HostState.READY
        followed(world, claimed)


def test_hours_without_placement_end_within_one_pass(world: World) -> None:
    world.agent.reconcile("the start")
    kept, given = (world.operations.claim(request(VCPU=amount)).consumer for amount in (1, 2))
    world.wire.cut = True
    world.agent.verify()
    asked = world.wire.requests
    world.operations.release(given)
    world.driver.change(disk_gb=4000)
    while world.time[0] < 6 * 3600:
        world.retry()
    assert world.wire.requests - asked < 6 * 3600 / MAX_S + 10
    world.wire.cut = False
    world.retry()
    assert world.agent.condition.state is HostState.READY
    assert [claim.consumer for claim in world.operations.tracker.claims().values()] == [kept]
    tree, usages = world.operations.tree()
    assert tree.roots[0].inventories["DISK_GB"].total == 4000
    assert sum(each.get("VCPU", 0) for each in usages.values()) == 1


def test_a_placement_that_is_lost_meanwhile_is_not_offered_what_is_held(world: World) -> None:
    """A host that is full must not be written anew as if it were empty."""
    world.agent.reconcile("the start")
    asked = request(VCPU=2)
    world.operations.claim(asked)
    client = PlacementClient(world.wire.inner)
    tree = world.operations.tree()[0]
    client.delete_allocations(asked.consumer)
    for each in tree.bottom_up():
        client.delete_provider(each.uuid)
    for _ in range(2):
        world.agent.verify()
        assert "no longer knows its providers" in world.agent.host_status.status().reasons[0]
        assert client.find_provider(name="node1") is None
        world.time[0] += world.retries[-1]
    with pytest.raises(ClaimsClosed, match="no longer knows"):
        world.operations.claim(request(VCPU=1))
    assert world.operations.release(asked.consumer)
    world.retry()
    assert world.agent.condition.state is HostState.READY
    assert client.read_tree(tree.roots[0].uuid) == tree


def test_a_restart_finds_the_claims(world: World, settings: Settings) -> None:
    world.agent.reconcile("the start")
    claim = world.operations.claim(request(VCPU=2, PGPU=1))
    world.close()
    again = opened(settings)
    try:
        again.agent.reconcile("the start")
        assert [found for _, found in again.operations.host_status.overview().instances] == [claim]
        with pytest.raises(DoesNotFit):
            again.operations.claim(request(PGPU=1))
        assert again.operations.release(claim.consumer)
        assert again.operations.claim(request(PGPU=1)).state == "claimed"
    finally:
        again.close()


def test_guests_and_claims_stand_side_by_side(world: World) -> None:
    both, lone = str(uuid4()), str(uuid4())
    for uuid in (both, lone):
        world.driver.add_guest(Guest(uuid, f"guest-{uuid[:4]}", GuestState.RUNNING, {"VCPU": 1}))
    world.agent.reconcile("the start")
    claim = world.operations.claim(ClaimRequest(both, (RequestGroup(resources={"VCPU": 1}),)))
    pairs = {
        guest.uuid if guest else found.consumer if found else "": (guest, found)
        for guest, found in world.agent.host_status.overview().instances
    }
    assert pairs[both][1] == claim and pairs[both][0] is not None
    assert pairs[lone][1] is None and pairs[lone][0] is not None


def test_asking_and_planning_change_nothing(world: World) -> None:
    world.agent.reconcile("the start")
    before = world.operations.tree()
    assert world.operations.explain(request(VCPU=1)).fits
    refused = world.operations.explain(request(PGPU=9))
    assert not refused.fits and refused.shortfalls[0].asked == 9
    world.driver.change(disk_gb=5)
    assert len(world.operations.reconciler.next_plan().operations) == 1
    assert world.operations.tree() == before


def test_other_settings_bring_another_inventory(world: World, settings: Settings, tmp_path: Path) -> None:
    world.agent.reconcile("the start")
    file = tmp_path / "plimsoll.conf"
    file.write_text(file.read_text() + "reserved_host_memory_mb = 1024\n")
    other = load([file])
    world.agent.apply_settings(other, FakeDriver.create(other.driver))
    world.agent.reconcile("the reload")
    assert world.operations.tree()[0].roots[0].inventories["MEMORY_MB"].reserved == 1024
    assert world.operations.configuration()["DEFAULT"]["reserved_host_memory_mb"]["value"] == 1024


def test_a_mistake_of_ours_degrades_and_is_survived(world: World) -> None:
    world.agent.reconcile("the start")
    world.agent.report_job_failure("look", RuntimeError("a mistake"))
    assert (
        world.agent.host_status.status().state == "degraded"
        and "a mistake" in world.agent.host_status.status().reasons[0]
    )
    world.retry()
    assert world.agent.host_status.status().state == "ready"


def test_stopping_closes_claims_for_good(world: World) -> None:
    world.agent.reconcile("the start")
    world.agent.stop()
    world.agent.reconcile("its interval")
    with pytest.raises(ClaimsClosed, match="stopping"):
        world.operations.claim(request(VCPU=1))
    assert world.agent.is_alive()


def test_a_stuck_pass_is_not_called_alive(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.agent.reconcile("the start")
    assert world.agent.is_alive()
    monkeypatch.setattr(host_module, "PASS_STUCK_S", 0.05)
    world.driver.delay(30)
    stuck = threading.Thread(target=world.agent.reconcile, args=("an event",))
    stuck.start()
    end = time.monotonic() + 10
    while world.agent.is_alive():
        assert time.monotonic() < end
        time.sleep(0.01)
    world.driver.close()
    stuck.join(10)
    assert world.agent.is_alive()


def test_a_journal_that_cannot_be_written_closes_claims_until_it_can(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.agent.reconcile("the start")

    def full(*_: object, **__: object) -> NoReturn:
        raise StateError("The agent's journal was not written: no space is left.")

    with monkeypatch.context() as disk:
        disk.setattr(world.journal, "put_claim", full)
        disk.setattr(world.journal, "remember_host", full)
        with pytest.raises(StateError):
            world.operations.claim(request(VCPU=1))
        for _ in range(3):
            world.retry()
            with pytest.raises(ClaimsClosed, match="no space is left"):
                world.operations.claim(request(VCPU=1))
    assert len([each for each in caplog.records if each.getMessage().startswith("Degraded")]) == 1
    world.retry()
    assert world.operations.claim(request(VCPU=1)).state == "claimed"


FIVE_MINUTES_S = 300.0


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """The service sets handlers of its own."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


class Slowest:
    """Dice that always throw the longest delay."""

    def uniform(self, _: float, most: float) -> float:
        return most


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    settings = told(tmp_path, Embedded(tmp_path), f"[api]\nsocket = {tmp_path / 's'}\n")
    assert settings.audit_interval_s > FIVE_MINUTES_S, "else the schedule alone would pass"
    monkeypatch.setattr("agent.daemon.service._DICE", Slowest())
    return Service(settings, [tmp_path / "plimsoll.conf"], [], Notifier({}))


def test_the_first_audit_is_planned_within_a_minute(
    own: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_DICE", Slowest())
    begun = time.time()
    with own:
        planned = own._jobs._scheduler.get_job(service.AUDIT).next_run_time.timestamp()
        assert "findings   not audited yet" in output_of(tmp_path / "s", "status")
    assert begun < planned <= begun + 60


def test_the_service_runs_that_audit_without_a_request(
    own: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delay alone is shortened."""
    monkeypatch.setattr(service, "FIRST_AUDIT_S", (0.1, 0.1))
    path = tmp_path / "s"
    with own:
        eventually("the first audit", lambda: ask(path, "GET", "/v1/status").body["audited"], 20)
        assert "findings   none, audited " in output_of(path, "status")


def test_a_reload_that_came_before_the_service_is_done_by_it(
    own: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    reloads: list[bool] = []

    def reload(service: Service) -> None:
        reloads.append(True)
        service._stop = True

    monkeypatch.setattr(Service, "_reload_settings", reload)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # as agent.cli.main does
    signal.raise_signal(signal.SIGHUP)
    with own as service_:
        service_.serve()
    assert reloads == [True]


CARDS = ("0000:41:02", "0000:81:02")
VFS = tuple(f"{card}.{number}" for card in CARDS for number in range(8))


def test_a_claim_is_in_the_plan_file_until_it_is_released(
    tmp_path: Path, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    carved = tuple(CarvedUnit(vf, f"{vf[:8]}00.0", vf) for vf in VFS)
    monkeypatch.setattr(FakeDriver, "carved_units", lambda self: carved)
    world = opened(told(tmp_path, placement))
    tmp_path.chmod(0o700)
    try:
        world.agent.write_needs()  # the guests are not known yet
        assert read_plan_file(tmp_path) == ()
        world.agent.reconcile("the start")
        claimed = world.operations.claim(request(SRIOV_NET_VF=2))
        assert world.carvings_requested, "the claim wakes what writes the file"
        world.agent.write_needs()
        needs = read_plan_file(tmp_path)
        assert len(needs) == 2 and all(need.unit in carved for need in needs)
        assert {need.holder for need in needs} == {f"instance {claimed.consumer}"}
        world.operations.release(claimed.consumer)
        world.agent.write_needs()
        assert read_plan_file(tmp_path) == ()
    finally:
        world.close()


GPUS = (Gpu("0000:83:00.0", "PGPU"), Gpu("0000:84:00.0", "PGPU"))


def stumbling(sent: Sent, *, own: bool = True) -> Reply:
    """500, of Placement's own or of a proxy."""
    body = {"errors": [{"status": 500, "detail": "A NUL."}]}
    return reply_of_answer(
        sent.method, sent.path, 500, body, {"x-openstack-request-id": "req-1"} if own else {}
    )


@pytest.fixture
def ready(placement: Placement, tmp_path: Path) -> Iterator[World]:
    with closing(opened(told(tmp_path, placement))) as ready:
        ready.driver.change(gpus=GPUS, nics=())
        ready.agent.reconcile("the start")
        assert ready.agent.condition.state is HostState.READY
        yield ready


@pytest.mark.parametrize("own", [False, True], ids=["of a proxy", "of Placement"])
def test_a_body_that_makes_placement_stumble_does_not_close_the_host(ready: World, *, own: bool) -> None:
    ready.wire.answer = lambda sent: (
        stumbling(sent, own=own) if sent.call.startswith("PUT /allocations") else None
    )
    with pytest.raises(PlacementUnavailable):
        ready.operations.claim(request(VCPU=1))
    assert ready.agent.condition.state is HostState.READY
    ready.wire.answer = None
    assert ready.operations.claim(request(VCPU=1)).state is ClaimState.CLAIMED
    ready.agent.deliver()
    claims = list(ready.operations.tracker.claims().values())
    assert [claim.state for claim in claims] == [ClaimState.CLAIMED]


def test_the_host_closes_for_claims_when_a_probe_fails_too(ready: World) -> None:
    ready.wire.answer = stumbling
    with pytest.raises(PlacementUnavailable):
        ready.operations.claim(request(VCPU=1))
    assert ready.agent.condition.state is HostState.DEGRADED
    ready.wire.answer = None
    ready.retry()
    assert ready.agent.condition.state is HostState.READY


def test_a_text_with_a_nul_is_the_outcome_of_its_own_claim_alone(ready: World) -> None:
    """PostgreSQL takes no NUL, so OpenStack Placement answers 500 there."""
    asked = request(VCPU=1)
    odd = type(asked)(asked.consumer, asked.groups, project_id="a\0b")
    try:
        ready.operations.claim(odd)
    except PlimsollError:
        assert ready.agent.condition.state is HostState.READY
    assert ready.operations.claim(request(VCPU=1)).state is ClaimState.CLAIMED


def card_of(ready: World, allocations: Any) -> str:
    ((uuid, _),) = [(uuid, amounts) for uuid, amounts in allocations.items() if "PGPU" in amounts]
    return str(uuid)


def test_a_provider_that_an_admin_deleted_is_left_out_and_written_again(ready: World) -> None:
    """The claim is tried elsewhere, then refused in the agent's words; no verification is waited for."""
    first = ready.operations.claim(request(PGPU=1))
    deleted = card_of(ready, first.allocations)
    assert ready.operations.release(first.consumer)
    ready.agent.reconcile("a release")
    client = PlacementClient(ready.wire.inner)
    assert client.delete_provider(deleted)
    second = ready.operations.claim(request(PGPU=1))
    assert card_of(ready, second.allocations) != deleted
    with pytest.raises(DoesNotFit, match="PGPU"):
        ready.operations.claim(request(PGPU=1))
    ready.agent.reconcile("at once, as it was requested")
    assert ready.agent.condition.state is HostState.READY
    third = ready.operations.claim(request(PGPU=1))
    assert card_of(ready, third.allocations) == deleted


def test_a_claim_that_fits_only_on_a_deleted_provider_is_told_that(ready: World) -> None:
    ready.operations.claim(request(PGPU=1))
    second = ready.operations.claim(request(PGPU=1))
    deleted = card_of(ready, second.allocations)
    assert ready.operations.release(second.consumer)
    ready.agent.reconcile("a release")
    PlacementClient(ready.wire.inner).delete_provider(deleted)
    asked_for = len(ready.retries)
    with pytest.raises(
        DoesNotFit, match=r"Another client deleted .* of this host in Placement: the agent writes"
    ):
        ready.operations.claim(request(PGPU=1))
    assert len(ready.retries) > asked_for, "a pass is requested"
    ready.agent.reconcile("that pass")
    assert ready.operations.claim(request(PGPU=1)).state is ClaimState.CLAIMED
