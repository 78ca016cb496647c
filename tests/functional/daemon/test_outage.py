"""Placement goes away at each step of each operation, and comes back: nothing is leaked, nothing is lost.

Each operation is run again and again, with placement pulled one request later each time, just before the
request, or just after it was done and before its answer came. The real one's port is closed for that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from kits.agent import World, opened, request, told
from kits.daemon_process import eventually
from kits.outage import Outage
from kits.placements import OpenStack, Placement
from kits.tracker import fast_directory

from agent.claims.claim import ClaimState
from agent.claims.request import ClaimRequest
from agent.errors import ClaimsClosed, PlacementUnavailable, ReshapeRefused
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.status.overview import HostState
from drivers.fake.host import Gpu

REQUESTS_MAX = 40
ASKED = request(VCPU=2, MEMORY_MB=64, PGPU=1)
OTHER = request(VCPU=1)
GPUS = (Gpu("0000:83:00.0", "PGPU"),)


class Host:
    """One agent on one placement, which may go away."""

    def __init__(self, directory: str, placement: Placement) -> None:
        self.placement = placement.anew(Path(directory))
        self.settings = told(Path(directory), self.placement)
        self.schedulers: set[str] = set()
        self.flat = False
        self.outage = Outage(self.placement)
        self.open()

    def pull_at(self, number: int, *, after: bool) -> None:
        """At the request with that number Placement goes away."""
        self.outage = Outage(self.placement, number, after=after)
        self.outage.listen(self.world.wire)

    def open(self) -> None:
        self.world: World = opened(self.settings)
        self.outage.listen(self.world.wire)
        self.world.driver.change(nics=(), gpus=GPUS, flat_devices=self.flat)
        self.agent = self.world.agent
        self.operations = self.world.operations
        self.raw = PlacementClient(self.world.wire.inner)

    def close(self) -> None:
        self.outage.end()
        self.world.close()

    def restart(self) -> None:
        """Placement still goes away where it was to."""
        self.world.close()
        self.open()

    def recover(self) -> None:
        """Placement is back: one pass later all is well."""
        self.outage.end()
        if self.agent.condition.state is not HostState.READY:
            if self.world.retries:
                self.world.retry()
            else:
                self.agent.reconcile("the start")
        assert self.agent.condition.state is HostState.READY, self.agent.condition.fault
        self.agent.deliver()

    def held(self) -> dict[str, dict[str, Mapping[str, int]]]:
        """{consumer: {provider: amounts}} of all that placement holds on this host."""
        found: dict[str, dict[str, Mapping[str, int]]] = {}
        for provider in self.operations.tree()[0]:
            for consumer, amounts in self.raw.provider_allocations(provider.uuid).consumers.items():
                found.setdefault(consumer, {})[provider.uuid] = amounts
        return found

    def claims(self) -> dict[str, dict[str, Mapping[str, int]]]:
        claims = list(self.operations.tracker.claims().values())
        assert {claim.state for claim in claims} <= {ClaimState.CLAIMED}
        return {claim.consumer: dict(claim.allocations) for claim in claims}

    def check(self) -> None:
        """The tree is what the host is; each allocation has its claim, and each claim its allocation."""
        assert self.operations.reconciler.next_plan().empty
        claims = self.claims()
        assert {consumer: held for consumer, held in self.held().items() if consumer in claims} == claims
        assert self.held().keys() - claims.keys() <= self.schedulers


Operation = Callable[[Host], None]


def start(host: Host) -> None:
    host.restart()
    host.agent.reconcile("the start")


def claim(host: Host) -> None:
    tell(host, ASKED)


def adopt(host: Host) -> None:
    """A scheduler was there first."""
    host.schedulers = {ASKED.consumer}
    foreseen = host.operations.explain(ASKED).allocations
    host.raw.write_allocations(ConsumerAllocations(ASKED.consumer, foreseen, None, "demo", "admin"))
    tell(host, ASKED)


def release(host: Host) -> None:
    host.operations.release(OTHER.consumer)


def grow(host: Host) -> None:
    host.world.driver.change(disk_gb=4321)
    host.agent.reconcile("an event")


def shrink(host: Host) -> None:
    host.world.driver.change(gpus=())
    host.agent.reconcile("an event")


def verify(host: Host) -> None:
    host.agent.verify()


def nest(host: Host) -> None:
    """The card gets a provider of its own, and whoever has it goes along."""
    host.flat = False
    host.world.driver.change(flat_devices=False)
    host.agent.reconcile("an event")


def flatten(host: Host) -> None:
    host.flat = True
    host.world.driver.change(flat_devices=True)
    host.agent.reconcile("an event")


def start_nested(host: Host) -> None:
    host.flat = False
    start(host)


def undo(host: Host) -> None:
    host.flat = False
    receipt = [*host.world.journal.reshapes(done=True)][-1]
    with suppress(PlacementUnavailable, ReshapeRefused):
        host.operations.reshape(receipt)


def holding_its_card(host: Host) -> None:
    host.operations.claim(ASKED)


def holding_a_card_of_the_host(host: Host) -> None:
    flatten(host)
    holding_its_card(host)


def reshaped(host: Host) -> None:
    holding_a_card_of_the_host(host)
    nest(host)


PREPARED = {
    nest: holding_a_card_of_the_host,
    start_nested: holding_a_card_of_the_host,
    flatten: holding_its_card,
    undo: reshaped,
}


def tell(host: Host, asked: ClaimRequest) -> None:
    """Whoever is told that it has something, has it."""
    with suppress(PlacementUnavailable, ClaimsClosed):
        granted = host.operations.claim(asked)
        assert host.claims()[asked.consumer] == granted.allocations


@contextmanager
def a_host(placement: Placement, *, reported: bool = True) -> Iterator[Host]:
    with fast_directory() as directory, closing(Host(directory, placement)) as host:
        if reported:
            host.agent.reconcile("the start")
            host.operations.claim(OTHER)
        yield host


BOTH = pytest.mark.parametrize("after", [False, True], ids=["before a request", "after a request"])


def each_of(*operations: Operation) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("operation", operations, ids=lambda each: each.__name__)


@BOTH
@each_of(start, claim)
def test_pulled_at_each_step(placement: Placement, operation: Operation, after: bool) -> None:
    pull_at_each_step(placement, operation, after)


@BOTH
@each_of(adopt, release, grow, shrink, verify)
def test_pulled_at_each_step_of_what_else_an_agent_does(
    any_placement: Placement, operation: Operation, after: bool
) -> None:
    pull_at_each_step(any_placement, operation, after)


@BOTH
@each_of(nest, flatten, start_nested, undo)
def test_pulled_at_each_step_of_a_reshape(
    any_placement: Placement, operation: Operation, after: bool
) -> None:
    """Scenario 10: one that was due at the start is done without another one, once placement is back."""
    pull_at_each_step(any_placement, operation, after)


@each_of(claim, release)
def test_pulled_at_each_step_and_the_agent_killed_meanwhile(
    placement: Placement, operation: Operation
) -> None:
    pull_at_each_step(placement, operation, after=True, killed=True)


def pull_at_each_step(
    placement: Placement, operation: Operation, after: bool, *, killed: bool = False
) -> None:
    for number in range(1, REQUESTS_MAX):
        with a_host(placement) as host:
            PREPARED.get(operation, lambda _: None)(host)
            host.pull_at(number, after=after)
            operation(host)
            pulled = host.outage.begun
            if killed:
                host.outage.end()
                host.restart()
            host.recover()
            host.check()
            nothing_is_leaked(host)
        if not pulled:
            assert number > 1
            return
    raise AssertionError(f"{operation.__name__} makes more than {REQUESTS_MAX} requests")


@BOTH
def test_pulled_at_each_step_of_the_first_report(placement: Placement, after: bool) -> None:
    for number in range(1, REQUESTS_MAX):
        with a_host(placement, reported=False) as host:
            host.pull_at(number, after=after)
            host.agent.reconcile("the start")
            assert host.outage.begun is (host.agent.condition.state is HostState.DEGRADED)
            pulled = host.outage.begun
            host.outage.call_off()
            with suppress(ClaimsClosed):
                host.operations.claim(ASKED)
                assert not pulled
            host.recover()
            host.check()
        if not pulled:
            return
    raise AssertionError(f"the first report makes more than {REQUESTS_MAX} requests")


def nothing_is_leaked(host: Host) -> None:
    """Everything that was ever claimed can be given back, and then nothing is held."""
    for consumer in host.claims():
        assert host.operations.release(consumer)
    assert host.held().keys() <= host.schedulers


def test_away_at_the_start_the_agent_is_up_and_says_why(
    placement: Placement, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario 11."""
    caplog.set_level(logging.INFO)
    with a_host(placement, reported=False) as host:
        host.outage.begin()
        host.agent.reconcile("the start")
        for _ in range(5):
            host.world.retry()
        status = host.operations.host_status.status()
        assert status.state == "degraded" and status.error("placement")
        assert "answer" in status.reasons[0] and "answer" in (status.closed or "")
        with pytest.raises(ClaimsClosed, match="answer"):
            host.operations.claim(ASKED)
        assert [each.levelname for each in caplog.records] == ["WARNING"]
        host.recover()
        assert host.operations.claim(ASKED).state is ClaimState.CLAIMED
        host.check()


def undecided(host: Host) -> list[str]:
    """The claims of which it is not known, after one more delivery, whether Placement has them."""
    host.agent.deliver()
    claims = list(host.operations.tracker.claims().values())
    return [claim.consumer for claim in claims if claim.state is not ClaimState.CLAIMED]


def test_a_placement_that_hangs_is_given_up_in_time(openstack: OpenStack) -> None:
    """And what it may do once it goes on, it does not do unseen."""
    openstack.empty()
    openstack.options["timeout"] = 2
    try:
        with a_host(openstack) as host:
            with openstack.hanging(), pytest.raises(PlacementUnavailable, match="no answer in time"):
                host.operations.claim(ASKED)
            assert host.operations.host_status.status().state == "degraded"
            host.recover()
            # Placement may have been stopped in the midst of the write, which goes on beside this.
            eventually("the claim is done or undone", lambda: not undecided(host))
            host.check()
            nothing_is_leaked(host)
    finally:
        openstack.options["timeout"] = 10
