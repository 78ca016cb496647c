"""Claims, releases, retries, outages, restarts and another writer in any order, against a model.

Never over-committed; what a consumer holds sums up to what it asked for; every unit has one owner; a refused
call changes nothing; repeating a call is harmless. `PLIMSOLL_STEPS=160`, with --timeout=0, is 100 000 steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from kits.placements import OpenStack, Placement
from kits.tracker import Kit, fast_directory, guest, request, uuid_of

from agent.claims.claim import ClaimState
from agent.claims.request import ClaimRequest, TopologyRequest
from agent.errors import (
    ClaimConflict,
    ClaimsClosed,
    DoesNotFit,
    PlacementConflict,
    PlacementFull,
    PlacementUnavailable,
    UnknownConsumer,
)
from agent.tracker.guarded_write import HALF_DONE_S

CONSUMERS = tuple(uuid_of(f"consumer {number}") for number in range(6))
STRANGERS = tuple(uuid_of(f"stranger {number}") for number in range(2))
MIXED = TopologyRequest("mixed", cells=2, dedicated_cpus=frozenset({0, 2}))
RUNS = 25 * int(os.environ.get("PLIMSOLL_STEPS", "1"))

consumers = st.sampled_from(CONSUMERS)
strangers = st.sampled_from(STRANGERS)
wishes = st.sampled_from(
    [
        {"VCPU": 2},
        {"VCPU": 9, "MEMORY_MB": 1024},
        {"PCPU": 1},
        {"PCPU": 2, "VGPU": 2},
        {"VGPU": 3},
        {"SRIOV_NET_VF": 1, "VCPU": 1},
        {"MEMORY_MB": 5000},
    ]
)
topologies = st.sampled_from(
    [
        ({"PCPU": 2, "MEMORY_MB": 256}, TopologyRequest("dedicated")),
        ({"PCPU": 1, "MEMORY_MB": 256, "VGPU": 1}, TopologyRequest("dedicated", "isolate")),
        ({"PCPU": 2, "MEMORY_MB": 512}, TopologyRequest("dedicated", "require", mem_page_size="large")),
        ({"PCPU": 2, "VCPU": 2, "MEMORY_MB": 768}, MIXED),
        ({"VCPU": 2, "MEMORY_MB": 2048}, TopologyRequest(cells=2)),
        ({"VCPU": 1, "MEMORY_MB": 512, "SRIOV_NET_VF": 1}, TopologyRequest(mem_page_size=2048)),
        ({"PCPU": 2, "MEMORY_MB": 512}, TopologyRequest("dedicated", "isolate", 2, mem_page_size="any")),
    ]
)
groups = st.sampled_from([0, 0, 1, 2])
outages = st.sampled_from(["none", "none", "none", "before", "after", "write before", "write after"])


class Claims(RuleBasedStateMachine):
    """`granted`: what callers were told they have. `unsure`: consumers whose call ended with no answer."""

    where: Placement | None = None

    def __init__(self) -> None:
        super().__init__()
        self.directory = fast_directory()
        self.kit = Kit(Path(self.directory.name), placement=self.where)
        self.granted: dict[str, ClaimRequest] = {}
        self.unsure: set[str] = set()

    def teardown(self) -> None:
        with self.directory, self.kit:
            self.end_the_outage()
            self.kit.later_s = 2 * HALF_DONE_S  # a first write that was cut is either done or not by now
            self.kit.tracker.deliver(limit=None)
            self.forget_what_is_settled()
            self.kit.check()
            assert self.kit.tracker.pending == 0
            assert set(self.kit.tracker.claims()) == set(self.granted)

    def end_the_outage(self) -> None:
        self.kit.tap.before = self.kit.tap.after = lambda _: None

    @rule(consumer=consumers, wish=wishes, suffixed=groups)
    def claim(self, consumer: str, wish: dict[str, int], suffixed: int) -> None:
        self.ask(request(consumer, suffixed=suffixed, **wish))

    @rule(consumer=consumers, wish=topologies)
    def claim_cells(self, consumer: str, wish: tuple[dict[str, int], TopologyRequest]) -> None:
        amounts, topology = wish
        self.ask(replace(request(consumer, **amounts), topology=topology))

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def claim_again(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(sorted(self.granted)))
        before = self.kit.state()
        self.ask(self.granted[consumer])
        assert self.kit.state() == before

    def ask(self, asked: ClaimRequest) -> None:
        consumer = asked.consumer
        settled = consumer not in self.unsure
        before = self.kit.state()
        try:
            claim = self.kit.tracker.claim(asked).claim
        except (DoesNotFit, ClaimConflict, ClaimsClosed):
            if settled:
                assert self.kit.state() == before
            elif self.kit.tracker.claim_of(consumer) is None:
                self.unsure.discard(consumer)
        except PlacementUnavailable:
            assert consumer not in self.granted
            if self.kit.tracker.claim_of(consumer) is not None:
                self.unsure.add(consumer)
            else:
                self.unsure.discard(consumer)
        else:
            assert claim.state is ClaimState.CLAIMED
            self.granted[consumer] = asked
            self.unsure.discard(consumer)

    @rule(consumer=consumers)
    def release(self, consumer: str) -> None:
        before = self.kit.state()
        try:
            done = self.kit.tracker.release(consumer)
        except UnknownConsumer:
            assert consumer not in self.granted
            assert self.kit.state() == before
            return
        self.granted.pop(consumer, None)
        if done:
            self.unsure.discard(consumer)
            assert self.kit.tracker.claim_of(consumer) is None
        else:
            self.unsure.add(consumer)

    @rule(kind=outages)
    def placement(self, kind: str) -> None:
        """From now on it is away, or loses its answers, for all requests or for writes; or it is back."""
        self.end_the_outage()
        if kind != "none":
            silent = _silent("PUT" if kind.startswith("write") else "")
            if kind.endswith("before"):
                self.kit.tap.before = silent
            else:
                self.kit.tap.after = silent

    @rule()
    def deliver(self) -> None:
        self.kit.tracker.deliver()
        self.forget_what_is_settled()

    @rule()
    def look_again(self) -> None:
        self.kit.refresh()

    @rule(running=st.frozensets(consumers, max_size=3))
    def restart(self, running: frozenset[str]) -> None:
        """With some guests there: an interrupted claim of theirs is finished, of others undone."""
        before, after = self.kit.tap.before, self.kit.tap.after
        self.kit.restart()
        self.kit.tap.before, self.kit.tap.after = before, after
        self.kit.refresh()
        self.kit.tracker.recover([guest(consumer) for consumer in running])
        self.kit.tracker.admission.open()
        self.forget_what_is_settled()

    def forget_what_is_settled(self) -> None:
        for consumer in list(self.unsure):
            claim = self.kit.tracker.claim_of(consumer)
            if claim is None:
                self.unsure.discard(consumer)
            elif claim.state is ClaimState.CLAIMED:
                self.granted[consumer] = claim.request
                self.unsure.discard(consumer)

    @rule(stranger=strangers, name=st.sampled_from(["gpu0", "gpu1"]), amount=st.integers(1, 4))
    def somebody_takes(self, stranger: str, name: str, amount: int) -> None:
        with suppress(PlacementFull, PlacementConflict):
            self.kit.schedule(stranger, **{name: {"VGPU": amount}})

    @rule(stranger=strangers)
    def somebody_frees(self, stranger: str) -> None:
        self.kit.raw.delete_allocations(stranger)

    @rule()
    def close_and_open(self) -> None:
        self.kit.tracker.admission.close("for a moment")
        before = self.kit.state()
        with suppress(ClaimsClosed):
            self.kit.tracker.claim(request(VCPU=1))
        assert self.kit.state() == before
        self.kit.tracker.admission.open()

    @invariant()
    def everything_adds_up(self) -> None:
        self.kit.check()
        for consumer, asked in self.granted.items():
            claim = self.kit.tracker.claim_of(consumer)
            assert claim is not None
            assert (claim.state, claim.request) == (ClaimState.CLAIMED, asked)
        waiting = {
            consumer
            for consumer, claim in self.kit.tracker.claims().items()
            if claim.state is not ClaimState.CLAIMED
        }
        assert waiting == self.unsure

    @invariant()
    def nobody_else_holds_anything(self) -> None:
        """No leak: whoever holds something in placement is granted, unsure, or a stranger."""
        assert set(self.kit.placed_all()) <= {*self.granted, *self.unsure, *STRANGERS}


def _silent(only: str) -> Callable[[str], None]:
    def silent(call: str) -> None:
        if call.startswith(only):
            raise PlacementUnavailable("placement is away, as it was told")

    return silent


def runs(number: int) -> settings:
    return settings(
        max_examples=number,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


TestClaims: Any = Claims.TestCase
TestClaims.settings = runs(RUNS)


@pytest.mark.remote
def test_the_same_on_openstack_placement(openstack: OpenStack) -> None:
    class ClaimsThere(Claims):
        where = openstack

    run_state_machine_as_test(ClaimsThere, settings=runs(RUNS // 4))
