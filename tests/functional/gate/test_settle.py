"""When the gate's claims end: with their guest, or if the guest did not come."""

import threading
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kits.agent import opened, told
from kits.gate import GatedHost, claim_of, domain, guest
from kits.placements import usual_placement
from kits.tracker import request

from agent.claims.claim import ClaimState
from agent.clock import HostClock
from agent.gate import gate
from agent.gate.decision import HookCall
from agent.placement.transport import Reply
from agent.status.overview import HostState


def test_a_guest_that_starts_is_claimed_for_and_released_when_it_is_gone(host: GatedHost) -> None:
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    assert host.held(vm.uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}
    host.ends(vm, domain(vm.uuid))
    assert host.held(vm.uuid) == {} and claim_of(host, vm.uuid) is None


def test_a_defined_guest_keeps_its_claim_until_it_is_undefined(
    host: GatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    host.ends(vm, domain(vm.uuid), defined=True)
    assert claim_of(host, vm.uuid) is ClaimState.CLAIMED
    host.starts(vm, domain(vm.uuid))
    host.ends(vm, domain(vm.uuid), defined=True)
    monkeypatch.setattr(gate, "GRACE_S", 0.0)
    host.world.agent.reconcile("its interval")
    assert claim_of(host, vm.uuid) is ClaimState.CLAIMED
    host.driver.remove_guest(vm.uuid)
    host.world.agent.reconcile("undefined")
    assert claim_of(host, vm.uuid) is None


def test_who_did_not_come_is_released_after_a_while(host: GatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = str(uuid4())
    host.allowed("prepare", "begin", domain(uuid))
    host.world.agent.reconcile("its interval")
    assert claim_of(host, uuid) is ClaimState.CLAIMED
    monkeypatch.setattr(gate, "GRACE_S", 0.0)
    host.world.agent.reconcile("its interval, later")
    assert claim_of(host, uuid) is None


def test_the_grace_period_is_by_the_clock_of_the_host(tmp_path: Path) -> None:
    """Of the claim, of the guest that is expected and of the look: one clock has stamped all three."""
    now = [1000.0]
    world = opened(told(tmp_path, usual_placement(tmp_path)), clock=HostClock(lambda: now[0], lambda: now[0]))
    try:
        world.agent.reconcile("the start")
        uuid = str(uuid4())
        now[0] += 100
        world.operations.gate(HookCall("prepare", "begin", domain(uuid)))
        for waited_s, expected in ((gate.GRACE_S, True), (1.5, False)):
            now[0] += waited_s
            world.agent.reconcile("its interval")
            assert (uuid in world.agent._tracker.claims()) is expected
            assert world.agent._gate._expected.is_let_in(uuid) is expected
    finally:
        world.close()


def test_once_placement_asks_to_be_left_alone_what_is_over_waits_for_the_next_look(
    host: GatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, uuids = host.world, [str(uuid4()) for _ in range(4)]
    for uuid in uuids:
        host.allowed("prepare", "begin", domain(uuid))
    busy = Reply(503, None, {"retry-after": "120"})
    world.wire.answer = lambda sent: None if sent.method == "GET" else busy
    asked = world.wire.requests
    monkeypatch.setattr(gate, "GRACE_S", 0.0)
    for _ in range(3):
        world.agent.reconcile("its interval")
        world.agent.deliver()
    writes = [sent for sent in world.wire.asked[asked:] if sent.method != "GET"]
    assert len(writes) == 1 and world.agent.condition.state is HostState.DEGRADED
    assert world.retries[-1] > 100
    world.wire.answer = None
    world.retry()
    assert world.agent.condition.state is HostState.READY
    assert [claim_of(host, uuid) for uuid in uuids] == [None] * 4
    assert not any(host.held(uuid) for uuid in uuids)


def test_who_came_after_a_look_had_begun_keeps_the_claim_that_let_it_in(host: GatedHost) -> None:
    """A guest that nobody defined is destroyed, and created again by an old claim of its own."""
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    host.driver.remove_guest(vm.uuid)
    at = time.time()
    host.allowed("prepare", "begin", domain(vm.uuid))
    host.world.agent._gate.settle((), at + gate.GRACE_S)
    assert claim_of(host, vm.uuid) is ClaimState.CLAIMED
    host.world.agent._gate.settle((), time.time() + gate.GRACE_S + 1)
    assert claim_of(host, vm.uuid) is None


def test_held_is_never_followed_by_a_release(host: GatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guest starts on its old claim just as the agent has found that it is gone."""
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    host.driver.remove_guest(vm.uuid)
    tracker = host.world.agent._tracker
    release, outcomes = tracker.release, []

    def release_late(consumer: str, **how: Any) -> bool:
        host.allowed("prepare", "begin", domain(vm.uuid))
        outcomes.append(claim_of(host, consumer))
        return release(consumer, **how)

    monkeypatch.setattr(tracker, "release", release_late)
    host.world.agent._gate.settle((), time.time() + gate.GRACE_S + 1)
    assert outcomes == [ClaimState.CLAIMED] and claim_of(host, vm.uuid) is ClaimState.CLAIMED
    assert host.held(vm.uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}


def test_a_guest_that_starts_while_its_claim_is_released_is_claimed_for(
    host: GatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook comes while the release is in flight: it waits, and the claim that it gets is not released."""
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    host.driver.remove_guest(vm.uuid)
    start = threading.Thread(target=host.allowed, args=("prepare", "begin", domain(vm.uuid)))

    def starts() -> None:
        start.start()
        time.sleep(0.3)

    host.world.wire.once("PUT /allocations", starts)
    host.world.agent._gate.settle((), time.time() + gate.GRACE_S + 1)
    start.join()
    assert claim_of(host, vm.uuid) is ClaimState.CLAIMED
    assert host.held(vm.uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}


def test_the_end_of_a_guest_does_not_release_a_claim_that_was_made_since(
    host: GatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another pass has released the gate's claim, and an operator has claimed, before this pass does."""
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    tracker = host.world.agent._tracker
    release = tracker.release

    def late(consumer: str, **options: Any) -> bool:
        monkeypatch.setattr(tracker, "release", release)
        assert release(consumer)
        tracker.claim(request(consumer, VCPU=1))
        return release(consumer, **options)

    monkeypatch.setattr(tracker, "release", late)
    host.ends(vm, domain(vm.uuid))
    assert host.held(vm.uuid) == {"node1": {"VCPU": 1}}
    assert claim_of(host, vm.uuid) is ClaimState.CLAIMED
