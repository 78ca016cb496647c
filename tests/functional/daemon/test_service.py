"""The agent of one host without its process: how it is, what it answers, how it comes back from a fault."""

from __future__ import annotations

import errno
import logging
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

import pytest
from kits.agent import World, opened, request, told, world_of
from kits.api_client import ask
from kits.cli_process import output_of
from kits.daemon_process import eventually
from kits.late_writes import by_a_balancer
from kits.placements import Embedded, Placement
from kits.threads import at_once
from kits.wire import Sent, Wire, nothing

from agent.api.views import moves_view
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
    PlacementError,
    PlacementUnavailable,
    PlimsollError,
    ReshapeRefused,
    StateError,
    UnknownConsumer,
)
from agent.moves.states import MoveKind
from agent.placement.client import PlacementClient
from agent.placement.host_note import HostNote
from agent.placement.transport import Reply, reply_of_answer
from agent.state.journal import PendingWrite
from agent.state.operators import PauseRequest
from agent.status.overview import HostState
from agent.systemd.notify import Notifier
from drivers.fake.driver import FakeDriver
from drivers.fake.host import Gpu


@pytest.fixture
def settings(tmp_path: Path, placement: Placement) -> Settings:
    return told(tmp_path, placement)


@pytest.fixture
def world(settings: Settings) -> Iterator[World]:
    with opened(settings) as world:
        yield world


@pytest.fixture
def started(world: World) -> World:
    """It has seen its host."""
    world.agent.reconcile("the start")
    return world


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


def test_status_says_how_everything_is(started: World, settings: Settings) -> None:
    started.operations.claim(request(VCPU=1))
    status = started.agent.host_status.status()
    assert status.reasons == () and status.host == "node1"
    assert (status.driver, status.placement, status.fault) == ("fake", settings.placement.kind, None)
    assert (status.closed, status.claims, status.schedulers) == (None, 1, True)
    assert status.last_pass and status.last_pass.sentence.startswith("After the start: ")


def test_placement_away_is_one_line_bounded_retries_and_caught_up_within_one_pass(
    started: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario 11."""
    caplog.set_level(logging.INFO)
    caplog.clear()
    started.wire.cut = True
    with pytest.raises(PlacementUnavailable):
        started.operations.claim(request(VCPU=1))
    started.driver.change(disk_gb=4000)
    for _ in range(12):
        started.retry()
    degraded = [record for record in caplog.records if record.getMessage().startswith("Degraded")]
    assert len(degraded) == 1 and degraded[0].levelno == logging.WARNING
    assert len(caplog.records) == 1
    assert started.retries == sorted(started.retries) and started.retries[-1] == MAX_S
    assert started.agent.host_status.status().error("placement")
    started.wire.cut = False
    started.retry()
    assert started.agent.condition.state is HostState.READY
    tree, usages = started.operations.tree()
    assert tree.roots[0].inventories["DISK_GB"].total == 4000
    assert not any(amount for each in usages.values() for amount in each.values())


def test_a_failed_claim_while_placement_is_away_leaves_nothing(started: World) -> None:
    started.wire.cut = True
    with pytest.raises(PlacementUnavailable):
        started.operations.claim(request(VCPU=1))
    with pytest.raises(ClaimsClosed, match="Placement does not answer"):
        started.operations.claim(request(VCPU=1))
    started.wire.cut = False
    started.retry()
    started.agent.deliver()
    assert not any(amount for each in started.operations.tree()[1].values() for amount in each.values())


def test_a_release_while_placement_is_away_is_delivered_later(started: World) -> None:
    consumer = started.operations.claim(request(VCPU=2)).consumer
    started.wire.cut = True
    assert started.operations.release(consumer) is False
    started.agent.deliver()
    started.wire.cut = False
    started.retry()
    started.agent.deliver()
    assert not any(amount for each in started.operations.tree()[1].values() for amount in each.values())
    with pytest.raises(UnknownConsumer):
        started.operations.release(consumer)


def test_while_placement_is_away_nothing_on_the_host_makes_it_be_asked(started: World) -> None:
    consumer = started.operations.claim(request(VCPU=2)).consumer
    started.wire.cut = True
    started.agent.verify()
    asked = started.wire.requests
    for _ in range(50):
        started.agent.reconcile("an event")
        started.agent.verify()
        started.agent.deliver()
    assert started.operations.release(consumer) is False
    assert started.wire.requests == asked
    assert started.retries[-1] <= MAX_S
    started.retry()
    assert started.wire.requests == asked + 1


def test_retry_after_is_honoured(started: World) -> None:
    started.wire.answer = by_a_balancer(503, retry_after="120")
    consumer = str(uuid4())
    with pytest.raises(PlacementUnavailable, match="not known yet"):
        started.operations.claim(replace(request(VCPU=1), consumer=consumer))
    assert started.wire.calls[-1] == f"PUT /allocations/{consumer}"  # and no read behind it
    assert 120 < started.retries[-1] <= 120 + MAX_S
    started.wire.answer = None
    started.time[0] += 119
    started.agent.reconcile("an event")
    assert started.agent.condition.state is HostState.DEGRADED
    started.retry()
    assert started.agent.condition.state is HostState.READY
    assert started.agent.host_status.overview().instances == ()


@pytest.mark.parametrize("step", ["release", "confirm_move", "revert_move"])
def test_retry_after_is_honoured_by_what_is_journaled(
    started: World, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked, migration = request(VCPU=1), str(uuid4())
    started.operations.claim(asked)
    if step != "release":
        grown = replace(request(VCPU=2), consumer=asked.consumer)
        started.operations.begin_move(MoveKind.RESIZE, migration, grown)
    started.wire.answer = by_a_balancer(503, retry_after="120")
    before = started.wire.requests
    for _ in range(3):
        if step == "release":
            assert started.operations.release(asked.consumer) is False
        else:
            assert not getattr(started.operations, step)(migration, None).ended
        started.agent.reconcile("an event")
        started.agent.deliver()
    assert started.wire.requests - before == 1
    assert started.agent.condition.state is HostState.DEGRADED and 120 < started.retries[0] <= 120 + MAX_S
    assert len([each for each in caplog.records if each.getMessage().startswith("Degraded")]) == 1
    started.wire.answer = None
    started.time[0] += 120 + MAX_S
    started.agent.reconcile("the retry")
    assert started.agent.condition.state is HostState.READY
    assert all(
        claim.state == "claimed" for _, claim in started.agent.host_status.overview().instances if claim
    )
    assert all(move.ended for move in started.agent.host_status.overview().moves)


def test_what_was_in_flight_when_placement_went_away_is_one_failure(started: World) -> None:
    consumers = [started.operations.claim(request(VCPU=1)).consumer for _ in range(10)]
    all_are_in_flight = threading.Barrier(len(consumers))

    def slow(call: str) -> None:
        if not call.startswith("GET"):
            all_are_in_flight.wait(10.0)
            raise PlacementUnavailable("Placement did not answer in time.", busy=True)

    started.wire.before = slow
    at_once(*(partial(started.operations.release, each) for each in consumers))
    started.wire.before = nothing
    assert max(started.retries) <= 2 * BASE_S
    started.retry()
    assert started.agent.condition.state is HostState.READY
    assert started.agent.host_status.overview().instances == ()


def test_one_release_that_is_never_answered_closes_nobodys_host(started: World) -> None:
    poison = started.operations.claim(request(VCPU=1)).consumer
    other = started.operations.claim(request(VCPU=1)).consumer

    def poisoned(sent: Sent) -> None:
        if sent.method != "GET" and poison in f"{sent.path} {sent.body}":
            raise PlacementUnavailable("Placement did not answer in time.", busy=True)

    started.wire.answer = poisoned
    assert started.operations.release(poison) is False
    assert started.agent.condition.state is HostState.DEGRADED
    for _ in range(3):
        started.retry()
        started.agent.deliver()
        assert started.agent.condition.state is HostState.READY
    started.operations.claim(request(VCPU=1))
    assert started.operations.release(other) is True


def test_what_placement_refuses_for_good_is_sent_ever_more_rarely_and_again_by_a_look(
    started: World, caplog: pytest.LogCaptureFixture
) -> None:
    asked, lone, migration = request(VCPU=1), request(VCPU=1), str(uuid4())
    for each in (asked, lone):
        started.operations.claim(each)
    grown = replace(request(VCPU=2), consumer=asked.consumer)
    started.operations.begin_move(MoveKind.RESIZE, migration, grown)
    refused = Reply(403, {"errors": [{"detail": "the role was taken away"}]})
    started.wire.answer = lambda sent: None if sent.method == "GET" else refused
    with pytest.raises(PlacementError, match="the role was taken away"):
        started.operations.confirm_move(migration, None)

    def writes() -> int:
        return sum(not call.startswith("GET") for call in started.wire.calls)

    def told() -> tuple[bool, ...]:
        overview = started.agent.host_status.overview()
        (shown,) = moves_view(overview.moves, overview)
        return tuple("the role was taken away" in each for each in (shown["next"], *overview.status.reasons))

    sent = writes()
    for _ in range(360):
        started.time[0] += 10
        started.agent.deliver()
        started.operations.tracker.deliver()  # as the gate does
    assert 5 <= writes() - sent <= 40
    assert [record.getMessage() for record in caplog.records if "Pending" in record.getMessage()] == [
        f"Pending: Placement did not write the allocations of consumer {migration}: "
        "the role was taken away (status 403)."
    ]
    assert told() == (True, True)
    sent = writes()
    started.agent.look()
    assert (writes(), told()) == (sent + 1, (True, True))
    with pytest.raises(PlacementError, match="the role was taken away"):
        started.operations.release(lone.consumer)
    started.agent.deliver()
    sent = writes()
    started.agent.deliver()
    assert writes() == sent
    started.operations.audit(heal=True)
    assert writes() > sent, "the repair of a claim that waits for its release"
    started.wire.answer = None
    assert started.operations.confirm_move(migration, None).ended, "what is asked for anew is sent at once"
    assert started.operations.release(lone.consumer)
    started.agent.deliver()
    assert told() == (False,)


def test_retry_after_is_honoured_by_a_move_that_begins(started: World) -> None:
    asked, migration = request(VCPU=1), str(uuid4())
    started.operations.claim(asked)
    grown = replace(request(VCPU=2), consumer=asked.consumer)
    busy = by_a_balancer(503, retry_after="120")
    started.wire.answer = lambda sent: busy(sent) if sent.method == "POST" else None
    with pytest.raises(PlacementUnavailable, match="not known yet"):
        started.operations.begin_move(MoveKind.RESIZE, migration, grown)
    assert started.wire.calls[-1] == "POST /allocations"  # and no read behind it
    assert 120 < started.retries[-1] <= 120 + MAX_S
    started.wire.answer = None
    started.retry()
    assert started.agent.condition.state is HostState.READY
    assert all(move.ended for move in started.agent.host_status.overview().moves)
    assert [claim.request for claim in started.operations.tracker.claims().values()] == [asked]


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
    with opened(settings) as world:
        world.driver.change(flat_devices=True, **CARD)
        world.agent.reconcile("the start")
        claimed = [world.operations.claim(request(VGPU=1, VCPU=1)) for _ in range(3)]
        lost = NoReshape(world.wire, then_cut=True)
        world.driver.change(flat_devices=False)
        world.agent.reconcile("an event")
        assert len(world.journal.reshapes(done=False)) == 1, "its outcome is unknown"
    with opened(settings) as world:
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


def test_hours_without_placement_end_within_one_pass(started: World) -> None:
    kept, given = (started.operations.claim(request(VCPU=amount)).consumer for amount in (1, 2))
    started.wire.cut = True
    started.agent.verify()
    asked = started.wire.requests
    started.operations.release(given)
    started.driver.change(disk_gb=4000)
    while started.time[0] < 6 * 3600:
        started.retry()
    assert started.wire.requests - asked < 6 * 3600 / MAX_S + 10
    started.wire.cut = False
    started.retry()
    assert started.agent.condition.state is HostState.READY
    assert [claim.consumer for claim in started.operations.tracker.claims().values()] == [kept]
    tree, usages = started.operations.tree()
    assert tree.roots[0].inventories["DISK_GB"].total == 4000
    assert sum(each.get("VCPU", 0) for each in usages.values()) == 1


def test_a_placement_that_is_lost_meanwhile_is_not_offered_what_is_held(started: World) -> None:
    """A host that is full must not be written anew as if it were empty."""
    asked = request(VCPU=2)
    started.operations.claim(asked)
    client = PlacementClient(started.wire.inner)
    tree = started.operations.tree()[0]
    client.delete_allocations(asked.consumer)
    for each in tree.bottom_up():
        client.delete_provider(each.uuid)
    for _ in range(2):
        started.agent.verify()
        assert "no longer knows its providers" in started.agent.host_status.status().reasons[0]
        assert client.find_provider(name="node1") is None
        started.time[0] += started.retries[-1]
    with pytest.raises(ClaimsClosed, match="no longer knows"):
        started.operations.claim(request(VCPU=1))
    assert started.operations.release(asked.consumer)
    started.retry()
    assert started.agent.condition.state is HostState.READY
    assert client.read_tree(tree.roots[0].uuid) == tree


def test_a_restart_finds_the_claims(started: World, settings: Settings) -> None:
    claim = started.operations.claim(request(VCPU=2, PGPU=1))
    started.close()
    with world_of(settings) as again:
        assert [found for _, found in again.operations.host_status.overview().instances] == [claim]
        with pytest.raises(DoesNotFit):
            again.operations.claim(request(PGPU=1))
        assert again.operations.release(claim.consumer)
        assert again.operations.claim(request(PGPU=1)).state == "claimed"


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


def test_asking_and_planning_change_nothing(started: World) -> None:
    before = started.operations.tree()
    assert started.operations.explain(request(VCPU=1)).fits
    refused = started.operations.explain(request(PGPU=9))
    assert not refused.fits and refused.shortfalls[0].asked == 9
    started.driver.change(disk_gb=5)
    assert len(started.operations.reconciler.next_plan().operations) == 1
    assert started.operations.tree() == before


def test_other_settings_bring_another_inventory(started: World, settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "plimsoll.conf"
    file.write_text(file.read_text() + "reserved_host_memory_mb = 1024\n")
    other = load([file])
    former = started.agent.apply_settings(other, FakeDriver.create(other.driver))
    assert former is started.driver
    former.close()
    started.agent.reconcile("the reload")
    assert started.operations.tree()[0].roots[0].inventories["MEMORY_MB"].reserved == 1024
    assert started.operations.configuration()["DEFAULT"]["reserved_host_memory_mb"]["value"] == 1024


def test_a_mistake_of_ours_degrades_and_is_survived(started: World) -> None:
    started.agent.report_job_failure("look", RuntimeError("a mistake"))
    status = started.agent.host_status.status()
    assert status.state == "degraded" and "a mistake" in status.reasons[0]
    started.retry()
    assert started.agent.host_status.status().state == "ready"


def test_stopping_closes_claims_for_good(started: World) -> None:
    started.agent.stop()
    started.agent.reconcile("its interval")
    with pytest.raises(ClaimsClosed, match="stopping"):
        started.operations.claim(request(VCPU=1))
    assert started.agent.is_alive()


def test_a_stuck_pass_is_not_called_alive(started: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert started.agent.is_alive()
    monkeypatch.setattr(host_module, "PASS_STUCK_S", 0.05)
    started.driver.delay(30)
    stuck = threading.Thread(target=started.agent.reconcile, args=("an event",))
    stuck.start()
    end = time.monotonic() + 10
    while started.agent.is_alive():
        assert time.monotonic() < end
        time.sleep(0.01)
    started.driver.close()
    stuck.join(10)
    assert started.agent.is_alive()


def test_a_journal_that_cannot_be_written_closes_claims_until_it_can(
    started: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> NoReturn:
        raise StateError("The agent's journal was not written: no space is left.")

    with monkeypatch.context() as disk:
        disk.setattr(started.journal, "put_claim", full)
        disk.setattr(started.journal, "remember_host", full)
        with pytest.raises(StateError):
            started.operations.claim(request(VCPU=1))
        for _ in range(3):
            started.retry()
            with pytest.raises(ClaimsClosed, match="no space is left"):
                started.operations.claim(request(VCPU=1))
    assert len([each for each in caplog.records if each.getMessage().startswith("Degraded")]) == 1
    started.retry()
    assert started.operations.claim(request(VCPU=1)).state == "claimed"


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


def test_a_note_is_left_by_an_agent_whose_journal_cannot_be_read(
    started: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable() -> NoReturn:
        raise StateError("agent.db cannot be read.")

    monkeypatch.setattr(started.journal, "devices", unreadable)
    note = started.agent.host_status.note()
    assert (note.state, note.withheld) == ("ready", {})
    started.agent.leave_note()
    assert started.agent.host_status.status().state == "ready"


def test_a_note_says_which_reshape_waits_and_what_is_stranded(started: World) -> None:
    status = started.agent.host_status
    last = status.status().last_pass
    assert last is not None and status.note().reshape is None
    status.record_pass(replace(last, pending=ReshapeRefused("A reshape waits for a move.")))
    assert (status.note().reshape, status.note().stranded) == ("A reshape waits for a move.", {})


def test_the_service_leaves_a_note_after_a_pass_that_changed_something_and_as_its_state_changes(
    own: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The regular notes alone come too late for this: with these dice the first one after 50 s."""
    with own:

        def note() -> HostNote | None:
            (host,) = own._agent._client.hosts() or ()
            return host.note

        def left(state: str) -> HostNote | None:
            found = note()
            return found if found is not None and found.state == state else None

        def fault_left() -> HostNote | None:
            if own._agent.condition.fault is None:  # also again, where a pass that was under way has ended it
                own._agent.report_job_failure("look", RuntimeError("a mistake"))
            return left("degraded")

        eventually("the note of the first pass", lambda: left("ready"), 20)
        found = eventually("the note of the fault", fault_left, 20)
        assert found is not None and found.closed is not None and "a mistake" in found.reasons[0]


def test_a_pause_is_in_a_note_at_once(own: Service) -> None:
    """A scheduler that asks the fleet would go on to send guests here for a minute."""
    with own:

        def closed() -> str | None:
            (host,) = own._agent._client.hosts() or ()
            return host.note.closed if host.note else "no note"

        eventually("the note of the first pass", lambda: closed() is None, 20)
        own._operations.pause(PauseRequest(0, 0.0, "new disks"))
        eventually("the note of the pause", lambda: "new disks" in (closed() or ""), 10)
        own._operations.resume()
        eventually("the note of its end", lambda: closed() is None, 10)


def test_a_move_is_in_a_note_at_once_when_it_begins_and_no_more_when_it_has_ended(own: Service) -> None:
    """What makes room on its hosts is its end, which the fleet learns from the note."""
    with own:

        def moves() -> list[str] | None:
            (host,) = own._agent._client.hosts() or ()
            return [move.state for move in host.note.moves] if host.note else None

        eventually("the note of the first pass", lambda: moves() == [], 20)
        asked, migration = request(VCPU=1), str(uuid4())
        own._operations.claim(asked)
        eventually("the claim's note, if it gets one", lambda: moves() == [], 20)
        own._operations.begin_move(MoveKind.RESIZE, migration, asked)
        eventually("the note of the move", lambda: moves() == ["begun"], 10)
        own._operations.revert_move(migration, None)
        eventually("the note of its end", lambda: moves() == [], 10)


def test_a_note_that_no_server_takes_closes_claims_until_one_answers(
    own: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes without changes ask Placement nothing: status said ready for as long as all servers hang."""
    with own:
        agent = own._agent
        eventually("the first pass", lambda: agent.condition.state is HostState.READY, 20)

        def silent(*_: object, **__: object) -> Reply:
            raise PlacementUnavailable("Placement did not answer in time.", busy=True)

        with monkeypatch.context() as patch:
            patch.setattr(agent._client._transport, "request", silent)
            agent.leave_note()
            assert agent.condition.state is HostState.DEGRADED and agent.condition.fault is not None
            assert "did not answer in time" in agent.condition.fault.sentence
            assert agent._tracker.admission.closed_reason is not None
        eventually("its end", lambda: agent.condition.state is HostState.READY, 30)
        assert agent._tracker.admission.closed_reason is None


def test_what_a_served_placement_can_lose_is_a_reason_in_status(
    own: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own:
        agent = own._agent
        request, risks = agent._client._transport.request, ["the database has replicas", ""]

        def answer(method: str, path: str, *more: Any, **options: Any) -> Reply:
            reply = request(method, path, *more, **options)
            return replace(reply, headers={**reply.headers, "plimsoll-risk": risks[0]})

        monkeypatch.setattr(agent._client._transport, "request", answer)
        while risks:
            agent.leave_note()
            sentence = "Placement can lose claims: the database has replicas."
            assert (sentence in agent.host_status.status().reasons) is bool(risks.pop(0))


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


@pytest.mark.parametrize("broken", ["reload", "create", "apply"])
def test_a_reload_that_breaks_ends_nothing(
    own: Service,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    broken: str,
) -> None:
    """With any error: the mode of a file that was gone raised FileNotFoundError."""

    def fail(*_: object) -> NoReturn:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "default")

    file = tmp_path / "plimsoll.conf"
    with own:
        running = own._settings
        file.write_text(file.read_text() + "[compute]\ncpu_shared_set = 0-1\n")
        where = {
            "reload": (service.settings, "reload"),
            "create": (FakeDriver, "create"),
            "apply": (own._agent, "apply_settings"),
        }[broken]
        with monkeypatch.context() as patches:
            patches.setattr(*where, fail)
            own._reload_settings()
        assert own._settings is running and own._agent.settings is running
        assert (
            "The settings were not reloaded, the running ones stay in force: the reload broke" in caplog.text
        )
        own._reload_settings()
        assert own._agent.settings.driver.host_settings.cpu_shared_set == frozenset((0, 1))


CARDS = ("0000:41:02", "0000:81:02")
VFS = tuple(f"{card}.{number}" for card in CARDS for number in range(8))


def test_a_claim_is_in_the_plan_file_until_it_is_released(
    tmp_path: Path, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    carved = tuple(CarvedUnit(vf, f"{vf[:8]}00.0", vf) for vf in VFS)
    monkeypatch.setattr(FakeDriver, "carved_units", lambda self: carved)
    with opened(told(tmp_path, placement)) as world:
        tmp_path.chmod(0o700)
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


GPUS = (Gpu("0000:83:00.0", "PGPU"), Gpu("0000:84:00.0", "PGPU"))


def stumbling(sent: Sent, *, own: bool = True) -> Reply:
    """500, of Placement's own or of a proxy."""
    body = {"errors": [{"status": 500, "detail": "A NUL."}]}
    return reply_of_answer(
        sent.method, sent.path, 500, body, {"x-openstack-request-id": "req-1"} if own else {}
    )


@pytest.fixture
def ready(world: World) -> World:
    world.driver.change(gpus=GPUS, nics=())
    world.agent.reconcile("the start")
    assert world.agent.condition.state is HostState.READY
    return world


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
    first = ready.operations.claim(request(VCPU=1, PGPU=1))
    deleted = card_of(ready, first.allocations)
    assert ready.operations.release(first.consumer)
    ready.agent.reconcile("a release")
    client = PlacementClient(ready.wire.inner)
    assert client.delete_provider(deleted)
    second = ready.operations.claim(request(VCPU=1, PGPU=1))
    assert card_of(ready, second.allocations) != deleted
    with pytest.raises(DoesNotFit, match="PGPU"):
        ready.operations.claim(request(VCPU=1, PGPU=1))
    ready.agent.reconcile("at once, as it was requested")
    assert ready.agent.condition.state is HostState.READY
    third = ready.operations.claim(request(VCPU=1, PGPU=1))
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
