"""How long a guest that was let in is expected, when one counts as ended, and what ends with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kits.audit import CONSUMER, HOST_INDEX, MIGRATION, a_move, claimed, running
from kits.tracker import uuid_of

from agent.claims.claim import Claim, ClaimState
from agent.claims.domain_demand import GATE_USER
from agent.claims.fit import ProviderIndex
from agent.claims.rows import Row
from agent.driver import Guest, GuestState, HostSettings, UsedUnit
from agent.errors import PlacementError, PlacementUnavailable, PlimsollError, StateError, UnknownConsumer
from agent.gate.decision import CpuOrder, GateOutcome, HookCall
from agent.gate.gate import ExpectedGuests, Gate, Settler
from agent.moves.live_migratable import LIVE_MIGRATABLE
from agent.moves.states import Move, MoveRole, MoveState
from agent.tracker.tracker import ResourceTracker


class Tracker:
    """The methods of a tracker that are called."""

    def __init__(self) -> None:
        self.now = [100.0]
        self.forgotten: list[str] = []
        self.guests = SimpleNamespace(forget=self.forgotten.append)
        self.unexpected: list[str] = []

    def age_s(self, stamp: float) -> float:
        return self.now[0] - stamp

    def expect_no_more(self, uuid: str) -> None:
        self.unexpected.append(uuid)


def made() -> tuple[ExpectedGuests, Tracker, list[float]]:
    tracker = Tracker()
    now = tracker.now
    return ExpectedGuests(cast(ResourceTracker, tracker), lambda: now[0]), tracker, now


def test_a_guest_is_expected_for_the_grace_period() -> None:
    expected, tracker, _ = made()
    expected.let_in("a")
    expected.give_up(160.0, 60.0)
    assert expected.is_let_in("a") and tracker.unexpected == []
    expected.give_up(160.5, 60.0)
    assert not expected.is_let_in("a") and tracker.unexpected == ["a"]


def test_a_guest_that_ended_is_not_expected_and_one_that_comes_again_has_not_ended() -> None:
    expected, tracker, now = made()
    expected.let_in("a")
    expected.end("a")
    assert not expected.is_let_in("a")
    assert (tracker.forgotten, tracker.unexpected) == (["a"], ["a"])
    assert expected.ended_before(100.0) == frozenset()
    assert expected.ended_before(100.5) == {"a"}
    now[0] = 101.0
    expected.let_in("a")
    assert expected.ended_before(200.0) == frozenset()


def test_an_end_is_remembered_until_it_is_settled() -> None:
    expected, _, _ = made()
    for uuid in "ab":
        expected.end(uuid)
    expected.forget_ended(frozenset({"a", "c"}))
    assert expected.ended_before(200.0) == {"b"}


NOW, READ = 1000.0, 990.0
"""When it is now, and when the driver began to read, in seconds."""


class Settling(Tracker):
    """A host with one claim or one move of the gate's, and `done`: what its settler asks of the tracker."""

    def __init__(self, claim: Claim | None = None, move: Move | None = None) -> None:
        super().__init__()
        self.now = [NOW]
        self.done = self.forgotten
        self.claim, self.move, self.present = claim, move, claim
        self.refusal: PlimsollError | None = None
        self.backs_off = self.follows = False
        self.placement = SimpleNamespace(is_backing_off=lambda: self.backs_off)
        self.view = SimpleNamespace(host=HOST_INDEX)
        self.expected = ExpectedGuests(cast(ResourceTracker, self), lambda: self.now[0])

    def moves(self) -> dict[str, Move]:
        return {self.move.migration: self.move} if self.move is not None else {}

    def claims(self) -> dict[str, Claim]:
        return {self.claim.consumer: self.claim} if self.claim is not None else {}

    def claim_of(self, consumer: str) -> Claim | None:
        if isinstance(self.refusal, StateError):
            raise self.refusal
        is_gone = "release" in self.done or self.refusal is not None
        return None if is_gone else self.present

    def moved_away(self) -> frozenset[str]:
        return frozenset()

    def _does(self, what: str, unless: Callable[[], bool] = lambda: False) -> None:
        if self.refusal is not None:
            raise self.refusal
        if not unless():
            self.done.append(what)
            if self.move is not None and what == "revert":
                self.move = replace(self.move, state=MoveState.REVERTED)

    def confirm_move(self, migration: str) -> None:
        self._does("confirm")

    def revert_move(self, migration: str, *, unless: Callable[[], bool]) -> None:
        self._does("revert", unless)

    def release(self, consumer: str, *, unless: Callable[[], bool]) -> None:
        self._does("release", unless)

    def deliver(self) -> None:
        self.done.append("deliver")
        self.backs_off = self.follows

    def follow_moves(self) -> None:
        self.done.append("follow")
        self.backs_off = self.follows

    def settle(self, state: GuestState | None, *, ended: bool = False) -> list[str]:
        """What is done once the driver reports the guest in this state, or none; not what is forgotten."""
        if ended:
            self.now[0] = READ - 1
            self.expected.end(CONSUMER)
            self.now[0] = NOW
        guests = [replace(running(CONSUMER), state=state)] if state is not None else []
        Settler(cast(ResourceTracker, self), self.expected).settle(guests, READ)
        return [each for each in self.done if each != CONSUMER]


def of_gate(age_s: float, *, adopted: bool = False) -> Claim:
    """The claim of CONSUMER that the gate made so long before the driver began to read."""
    (claim,) = claimed({"VCPU": 2}).values()
    asked = replace(claim.request, user_id=GATE_USER)
    return replace(claim, request=asked, since=READ - age_s, adopted=adopted)


@pytest.mark.parametrize(
    ("state", "age_s", "ended", "done"),
    [
        (None, 60.0, False, []),
        (None, 60.5, False, ["revert"]),
        (None, 5.0, True, ["revert"]),
        (GuestState.SHUTOFF, 60.0, False, []),
        (GuestState.SHUTOFF, 60.5, False, ["revert"]),
        (GuestState.MIGRATING, 60.5, False, []),
        (GuestState.PAUSED, 60.0, False, []),
        (GuestState.PAUSED, 60.5, False, ["confirm"]),
        (GuestState.RUNNING, 5.0, False, ["confirm"]),
        (GuestState.SUSPENDED, 5.0, False, ["confirm"]),
    ],
)
def test_a_guest_that_comes_in_is_waited_for_a_minute(
    state: GuestState | None, age_s: float, *, ended: bool, done: list[str]
) -> None:
    """By what the driver says, also where the agent was started since and has not let it in itself."""
    claim = of_gate(age_s)
    begun = a_move(MoveState.BEGUN, MoveRole.DESTINATION)
    host = Settling(move=replace(begun, new=claim, since=claim.since))
    assert host.settle(state, ended=ended) == [*(["follow"] if ended else []), *done]
    assert (CONSUMER in host.forgotten) is (done == ["revert"] or ended), "it may need its units"
    of_others = replace(claim, request=replace(claim.request, user_id="nova"))
    for move in (
        replace(begun, since=claim.since),
        replace(begun, new=of_others, since=claim.since),
        replace(begun, new=claim, since=claim.since, role=MoveRole.BOTH),
        *(
            replace(begun, new=claim, since=claim.since, state=other)
            for other in (MoveState.BEGINNING, MoveState.CONFIRMING, MoveState.CONFIRMED)
        ),
    ):
        assert Settling(move=move).settle(state) == []


@pytest.mark.parametrize(
    ("state", "age_s", "ended", "done"),
    [
        (None, 60.0, False, []),
        (None, 60.5, False, ["release"]),
        (None, 5.0, True, ["release"]),
        (GuestState.SHUTOFF, 99.0, False, []),
        (GuestState.RUNNING, 99.0, False, []),
    ],
)
def test_a_claim_of_the_gate_lives_as_long_as_its_guest_is_here(
    state: GuestState | None, age_s: float, *, ended: bool, done: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    claim = of_gate(age_s)
    host = Settling(claim)
    assert host.settle(state, ended=ended) == [*(["follow"] if ended else []), *done]
    assert ("its guest is not on this host any more" in caplog.text) is bool(done)
    caplog.clear()
    for other in (of_gate(age_s, adopted=True), replace(claim, state=ClaimState.RELEASING)):
        assert Settling(other).settle(state, ended=ended) == (["follow"] if ended else [])
    moving = Settling(claim, move=a_move(MoveState.BEGUN))
    assert moving.settle(state, ended=ended) == (["follow"] if ended else [])
    let_in = Settling(claim)
    let_in.expected.let_in(CONSUMER)
    assert let_in.settle(state) == [], "it starts just now"
    anew = Settling(claim)
    anew.present = replace(claim, since=READ)
    assert anew.settle(state) == [], "it was released and claimed again meanwhile"
    assert "Released" not in caplog.text
    for refusal in (UnknownConsumer("It has ended."), PlacementError("You may not.")):
        refused = Settling(claim)
        refused.refusal = refusal
        assert refused.settle(state) == [] and "Released" not in caplog.text
    unreachable = Settling(claim)
    unreachable.refusal = PlacementUnavailable("Placement does not answer.")
    if done and not ended:
        with pytest.raises(PlacementUnavailable):
            unreachable.settle(state)


def test_while_the_agent_backs_off_from_placement_nothing_is_asked_of_it() -> None:
    leaves = a_move(MoveState.BEGUN)
    leaves = replace(leaves, old=of_gate(99.0))
    host = Settling(move=leaves)
    assert host.settle(None) == ["deliver", "follow"]
    assert Settling(move=leaves).settle(GuestState.RUNNING) == []
    host = Settling(of_gate(99.0))
    host.backs_off = True
    assert host.settle(None) == []
    host = Settling(move=leaves)
    host.backs_off = True
    assert host.settle(None) == []
    host = Settling(replace(of_gate(99.0), consumer=MIGRATION), move=leaves)
    host.follows = True
    assert host.settle(None) == ["deliver"], "the delivery has found Placement away"
    arrives = replace(a_move(MoveState.BEGUN, MoveRole.DESTINATION), new=of_gate(5.0), since=READ - 5.0)
    for host, ends in ((Settling(move=arrives), "revert"), (Settling(of_gate(5.0)), "release")):
        host.follows = True
        assert host.settle(None, ended=True) == ["follow"]
        assert host.expected.ended_before(READ) == {CONSUMER}, "the next call goes on with it"
        host.backs_off = host.follows = False
        assert host.settle(None) == ["follow", "follow", ends]
        assert host.expected.ended_before(READ) == frozenset()


def test_what_a_failed_arrival_may_be_owed_to_is_told_once_it_is_reverted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cpus = replace(HOST_INDEX.tree[uuid_of("host")], traits=frozenset({LIVE_MIGRATABLE}))
    begun = a_move(MoveState.BEGUN, MoveRole.DESTINATION)
    for is_let_in in (True, False):
        host = Settling(move=replace(begun, new=of_gate(99.0), since=READ - 99.0))
        host.view.host = ProviderIndex.of(HOST_INDEX.tree.with_provider(cpus), uuid_of("host"))
        if is_let_in:
            host.expected.let_in(CONSUMER)
        assert host.settle(None) == ([] if is_let_in else ["revert"])
        assert ("its guest did not arrive" in caplog.text) is not is_let_in


@pytest.mark.parametrize(
    ("instance", "state", "backs_off", "ends"),
    [
        (CONSUMER, MoveState.LEAVING, False, True),
        (CONSUMER, MoveState.REVERTING, False, True),
        (CONSUMER, MoveState.CONFIRMING, False, True),
        (CONSUMER, MoveState.LEAVING, True, False),
        (CONSUMER, MoveState.BEGUN, False, False),
        (MIGRATION, MoveState.LEAVING, False, False),
    ],
)
def test_a_guest_that_comes_in_has_left_so_its_former_move_may_end(
    instance: str, state: MoveState, *, backs_off: bool, ends: bool
) -> None:
    host = Settling(move=replace(a_move(state), instance=instance))
    host.backs_off = backs_off
    unused: Any = None
    gate = Gate(cast(ResourceTracker, host), unused, unused, dict)
    host.refusal = StateError("The rest is not of interest.")
    with pytest.raises(StateError):
        gate._come_in(running(CONSUMER))
    assert host.done == [CONSUMER, *(["deliver"] if ends else [])]


def test_the_cpus_of_a_guest_that_ended_go_down_but_for_those_that_others_have() -> None:
    def using(uuid: str, *cpus: str) -> Guest:
        return running(uuid, *(UsedUnit("PCPU", cpu, "host") for cpu in cpus))

    ended, other = using(CONSUMER, "2", "3", "4", "5"), using(MIGRATION, "3")
    off = replace(using("off", "2"), state=GuestState.SHUTOFF)
    claim = replace(of_gate(5.0), units={uuid_of("host"): {"PCPU": ("4",)}})
    host = Settling()
    host.view.rows = lambda: {
        CONSUMER: Row(CONSUMER, guest=ended),
        MIGRATION: Row(MIGRATION, guest=other),
        "off": Row("off", guest=off),
        "claimed": Row("claimed", claimed={"claimed": claim}),
    }
    unused: Any = None
    driver: Any = SimpleNamespace(guest_of=lambda xml: ended)
    gate = Gate(cast(ResourceTracker, host), unused, lambda: driver, dict)
    settings = HostSettings(cpu_dedicated_set=frozenset(range(2, 8)), cpu_power_management=True)
    verdict = gate.decide(HookCall("release", "end", "<domain/>"), settings)
    assert (verdict.outcome, verdict.cpu_power) == (GateOutcome.NOTED, CpuOrder((2, 5), "offline"))
    assert host.unexpected == [CONSUMER]
