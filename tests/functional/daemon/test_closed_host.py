"""A host that takes no claims is not offered to schedulers either, once that lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kits.agent import World, opened, request, told
from kits.placements import Placement
from kits.wire import Sent

from agent.config.settings import Settings
from agent.daemon.host_agent import HostAgent
from agent.errors import ClaimsClosed, IdentityError, StateError
from agent.placement.client import PlacementClient
from agent.placement.transport import Reply
from agent.reconcile.one_writer import writer_mark
from agent.state.operators import PauseRequest
from drivers.fake.host import Gpu

DISABLED = "COMPUTE_STATUS_DISABLED"
LIMIT_S = 60.0


class Closing:
    """A host on that Placement, with the time in the test's hands."""

    def __init__(self, placement: Placement, directory: Path, more: str = "") -> None:
        self.settings: Settings = told(directory, placement, more)
        self.world: World = opened(self.settings)
        self.agent.reconcile("the start")
        self.root = self.world.operations.tree()[0].roots[0]
        self.raw = PlacementClient(self.world.wire.inner)

    @property
    def agent(self) -> HostAgent:
        return self.world.agent

    def restart(self, *, away: bool) -> None:
        self.world.close()
        self.world = opened(self.settings)
        if away:
            self.world.driver.change(unavailable="it is being repaired")
        self.raw = PlacementClient(self.world.wire.inner)
        self.agent.reconcile("the start")

    def close(self) -> None:
        self.world.driver.change(unavailable="it is being repaired")
        self.agent.reconcile("an event")

    def open(self) -> None:
        self.world.driver.change(unavailable=None)
        self.agent.reconcile("an event")
        assert self.agent.condition.fault is None

    def wait(self, seconds: float) -> None:
        """Let the time pass; the job looks at the beginning and at the end."""
        self.agent.tell_schedulers()
        self.world.time[0] += seconds
        self.agent.tell_schedulers()

    def requests(self) -> int:
        return self.world.wire.requests

    @property
    def traits(self) -> frozenset[str]:
        return self.raw.provider_traits(self.root.uuid)

    def put(self, traits: frozenset[str]) -> None:
        now = self.raw.generations(self.root.uuid)[self.root.uuid]
        self.raw.put_traits(self.root.uuid, now, traits)


Make = Callable[..., Closing]


@pytest.fixture
def make(placement: Placement, tmp_path: Path) -> Iterator[Make]:
    made: list[Closing] = []

    def _make(more: str = "") -> Closing:
        made.append(Closing(placement, tmp_path, more))
        return made[-1]

    yield _make
    for each in made:
        each.world.close()


def test_schedulers_pass_over_a_host_whose_driver_is_away_until_it_is_back(make: Make) -> None:
    """Scenario N3: own claims are refused, schedulers are not sent here; both come back with the driver."""
    host = make()
    held = host.world.operations.claim(request(VCPU=1, DISK_GB=1))
    before, inventories = host.traits, host.raw.provider_inventories(host.root.uuid)[1]
    host.close()
    with pytest.raises(ClaimsClosed):
        host.world.operations.claim(request(VCPU=1))
    host.wait(LIMIT_S - 1)
    assert host.traits == before
    host.wait(1)
    assert DISABLED in host.traits and before < host.traits
    assert host.raw.provider_inventories(host.root.uuid)[1] == inventories
    assert host.raw.allocations_of(held.consumer).allocations == held.allocations
    status = host.world.agent.host_status.status()
    assert status.schedulers is False and status.closed
    asked = host.requests()
    host.wait(600)
    assert host.requests() == asked, "it is said once"
    host.open()
    assert host.traits == before
    assert host.world.agent.host_status.status().schedulers is True
    events = [event.event for event in host.world.journal.history()]
    assert events.count("schedulers_stopped") == events.count("schedulers_back") == 1
    host.agent.reconcile("its interval")
    asked = host.requests()
    for _ in range(3):
        host.agent.reconcile("its interval")
        host.wait(60)
    assert host.requests() == asked, "a quiet host asks nothing"


@pytest.mark.parametrize("away", [True, False], ids=["away still", "back"])
def test_a_restart_in_between_neither_forgets_the_trait_nor_takes_it_early(make: Make, *, away: bool) -> None:
    host = make()
    before = host.traits
    host.close()
    host.wait(LIMIT_S)
    host.restart(away=away)
    if away:
        host.agent.tell_schedulers()
        assert DISABLED in host.traits
        host.wait(LIMIT_S)
        assert DISABLED in host.traits
        host.open()
    assert host.traits == before


def test_the_trait_that_another_client_takes_away_is_written_again_at_the_next_verification(
    make: Make,
) -> None:
    """While the driver is away no pass reads Placement."""
    host = make()
    host.close()
    host.wait(LIMIT_S)
    host.put(host.traits - {DISABLED})
    host.wait(600)
    assert DISABLED not in host.traits, "nothing is asked between the verifications"
    host.agent.verify()
    host.wait(1)
    assert DISABLED in host.traits
    asked = host.requests()
    host.wait(600)
    assert host.requests() == asked
    host.open()
    assert DISABLED not in host.traits


def test_a_first_pass_that_never_was_is_no_hindrance(make: Make) -> None:
    host = make()
    host.restart(away=True)
    host.wait(LIMIT_S)
    assert DISABLED in host.traits


def test_a_host_that_opens_in_between_starts_again(make: Make) -> None:
    host = make()
    for _ in range(3):
        host.close()
        host.wait(LIMIT_S - 1)
        host.open()
    host.close()
    host.wait(LIMIT_S - 1)
    assert DISABLED not in host.traits


def test_what_another_client_said_of_the_host_stays(make: Make) -> None:
    host = make()
    theirs = host.traits | {DISABLED}
    host.put(theirs)
    host.close()
    host.wait(LIMIT_S)
    host.open()
    host.agent.verify()
    assert host.traits == theirs


def test_a_trait_that_the_agent_does_not_know_for_its_own_has_a_reason_and_a_way_out(make: Make) -> None:
    """Another client took the agent's mark away while it did not run: the trait may be an operator's."""
    host = make()
    host.close()
    host.wait(LIMIT_S)
    assert host.traits >= {DISABLED, "CUSTOM_PLIMSOLL_CLOSED"}
    host.put(host.traits - {"CUSTOM_PLIMSOLL_CLOSED"})
    host.restart(away=False)
    status = host.agent.host_status.status()
    assert status.state == "ready" and status.schedulers is False
    (reason,) = status.reasons
    assert "COMPUTE_STATUS_DISABLED" in reason
    assert "`plimsoll pause --schedulers`, `plimsoll look` and `plimsoll resume`" in reason
    host.world.operations.pause(PauseRequest(0, 0.0, schedulers=True))
    host.agent.reconcile("the pause")
    assert host.agent.host_status.status().reasons == ()
    host.world.operations.resume()
    assert host.agent.host_status.status().reasons == ()
    host.agent.reconcile("its end")
    assert DISABLED not in host.traits
    status = host.agent.host_status.status()
    assert status.schedulers is True and status.reasons == ()


def test_another_writer_in_between_costs_another_look(make: Make) -> None:
    host = make()
    host.close()
    host.agent.tell_schedulers()
    host.world.time[0] += LIMIT_S
    host.raw.ensure_trait("CUSTOM_GOLD")
    placement = host.world.wire.inner
    late: list[str] = []

    def overtaken(sent: Sent) -> None:
        if (sent.method, sent.path.rsplit("/", 1)[-1]) == ("PUT", "traits") and not late:
            late.append(sent.path)
            now = sent._replace(method="GET").to(placement).body
            named = {**now, "traits": [*now["traits"], "CUSTOM_GOLD"]}
            assert sent._replace(body=named).to(placement).status == 200

    host.world.wire.answer = overtaken
    host.agent.tell_schedulers()
    assert late and {DISABLED, "CUSTOM_GOLD"} <= host.traits
    host.open()
    assert DISABLED not in host.traits and "CUSTOM_GOLD" in host.traits


@pytest.mark.parametrize("schedulers", [False, True])
def test_a_pause_counts_and_its_own_word_stays_its_own(make: Make, *, schedulers: bool) -> None:
    """A pause with --schedulers tells them at once, as ever, also where the host was closed before."""
    host = make()
    before = host.traits
    host.close()
    host.wait(LIMIT_S)
    host.world.operations.pause(PauseRequest(0, 0.0, "new disks", schedulers=schedulers))
    host.open()
    host.agent.verify()
    host.agent.tell_schedulers()
    assert DISABLED in host.traits
    host.world.operations.resume()
    host.agent.tell_schedulers()
    host.agent.reconcile("the resume")
    assert host.traits == before


def test_a_pause_keeps_the_trait_over_a_restart_and_passes(make: Make) -> None:
    host = make()
    before = host.traits
    host.world.operations.pause(PauseRequest(0, 0.0))
    host.wait(LIMIT_S)
    assert DISABLED in host.traits
    host.restart(away=False)
    host.agent.tell_schedulers()
    assert DISABLED in host.traits
    host.world.operations.resume()
    host.agent.tell_schedulers()
    assert host.traits == before
    host.world.driver.change(gpus=(Gpu("0000:83:00.0", "VGPU", 4),))
    host.agent.reconcile("a card was plugged in")
    host.world.operations.pause(PauseRequest(0, 0.0))
    host.wait(LIMIT_S)
    host.world.driver.change(gpus=(Gpu("0000:83:00.0", "VGPU", 2),))
    host.agent.reconcile("a card that has less")
    host.world.operations.resume()
    host.agent.tell_schedulers()
    assert host.traits == before


def test_placement_is_told_as_soon_as_it_is_back(make: Make) -> None:
    """The driver goes first, then Placement; Placement comes first."""
    host = make()
    host.close()
    host.world.wire.cut = True
    host.wait(LIMIT_S)
    asked = host.requests()
    host.agent.tell_schedulers()
    assert host.requests() == asked, "not again before its back-off has elapsed"
    host.world.wire.cut = False
    assert DISABLED not in host.traits
    host.wait(LIMIT_S)
    assert DISABLED in host.traits


def test_a_placement_that_fails_in_one_request_alone_is_told_by_another(make: Make) -> None:
    host = make()
    fault = Reply(500, {"errors": [{"title": "Internal Server Error", "detail": "no"}]}, {})
    host.world.wire.answer = lambda sent: (
        fault if sent.path.endswith("/inventories") and sent.method == "PUT" else None
    )
    host.world.driver.change(disk_gb=4321)
    host.agent.reconcile("an event")
    host.agent.tell_schedulers()
    host.world.time[0] += LIMIT_S
    host.world.retry()
    assert DISABLED in host.traits
    host.world.wire.answer = None
    host.world.retry()
    assert host.agent.condition.fault is None and DISABLED not in host.traits


def test_a_journal_that_cannot_be_written_closes_the_host_for_schedulers_too(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make()

    def full(*_: object, **__: object) -> None:
        raise StateError("The disk is full.")

    with monkeypatch.context() as patch:
        for name in ("remember_host", "remember_owned", "record_event"):
            patch.setattr(host.world.journal, name, full)
        host.agent.report_fault(StateError("The disk is full."))
        host.wait(LIMIT_S)
        assert DISABLED in host.traits
        for _ in range(3):
            host.world.retry()
            host.agent.tell_schedulers()
            assert DISABLED in host.traits, "it neither comes nor goes while the host is closed"
    host.world.retry()
    assert host.agent.condition.fault is None and DISABLED not in host.traits


@pytest.mark.parametrize("who", ["identity", "owner", "writer", "gone"])
def test_nothing_is_written_where_the_root_may_be_anothers(make: Make, who: str) -> None:
    host = make()
    if who == "identity":
        host.agent.report_fault(IdentityError("Another agent writes as this host."))
    else:
        host.close()
    if who == "owner":
        host.raw.ensure_trait("CUSTOM_OWNER_CLOUD")
        host.put(host.traits | {"CUSTOM_OWNER_CLOUD"})
    if who == "writer":
        root = host.raw.read_provider(host.root)
        marks = root.aggregates | {writer_mark(root.uuid, "another machine")}
        host.raw.put_aggregates(root.uuid, root.generation or 0, marks)
    if who == "gone":
        for each in reversed(list(host.world.operations.tree()[0])):
            host.raw.delete_provider(each.uuid)
    before = host.traits
    host.wait(LIMIT_S)
    is_shared = host.agent.settings.placement.shared_owner_trait is not None
    assert host.traits == before or (who in {"owner", "writer"} and not is_shared)


def test_zero_means_never_also_after_a_reload(make: Make) -> None:
    host = make("[compute]\nclosed_disable_after = 0\n")
    host.close()
    host.wait(86400)
    assert DISABLED not in host.traits
    host.agent.apply_settings(replace(host.settings, closed_disable_after_s=30), None)
    host.agent.tell_schedulers()
    assert DISABLED in host.traits
    host.agent.apply_settings(host.settings, None)
    host.agent.tell_schedulers()
    assert DISABLED not in host.traits
    host.agent.apply_settings(replace(host.settings, closed_disable_after_s=30), None)
    host.agent.tell_schedulers()
    host.world.operations.pause(PauseRequest(0, 0.0, schedulers=True))
    host.agent.apply_settings(host.settings, None)
    host.agent.tell_schedulers()
    assert DISABLED in host.traits, "the pause says so"
