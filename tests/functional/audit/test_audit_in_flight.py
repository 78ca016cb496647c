"""Audits before and after each request and each journal write of every operation: nothing false in between.

They look twice at each of these moments and heal what is their own; so an operation that they took for a
fault would be told, or be undone. Both hosts audit; while one of them is dead, the other one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kits.examples import boundaries
from kits.move_operations import INTERRUPTED, OPERATIONS, Operation
from kits.moves import INSTANCE, Agent, World
from kits.placements import Placement
from kits.reshape import OWN, ROOT, does, prepare, uuid_of
from kits.reshape import World as Reshaped
from kits.tracker import Death, dies, fast_directory

from agent.audit.auditor import Auditor, AuditReader
from agent.driver import Guest, GuestState
from agent.placement.client import PlacementClient
from agent.tracker.tracker import ResourceTracker

BOUNDARIES_MAX = 120
HEALTHY = [each for each in OPERATIONS if each.before is not None]
"""The others begin with what is a finding: with what somebody else wrote, or left over."""
DYING = [each for each in HEALTHY if each in INTERRUPTED]
GUEST_STAYS = [each for each in HEALTHY if each.name.startswith(("begin", "abort", "source links"))]


class Audits:
    """To be told of each moment: whoever there is then audits, and heals what is its own."""

    def __init__(self, *audited: tuple[ResourceTracker, Auditor]) -> None:
        self._audited = audited
        self._busy = False
        self.passes = 0
        self.found: list[object] = []

    @classmethod
    def by(cls, *agents: Agent) -> Audits:
        return cls(*((agent.tracker, agent.auditor) for agent in agents))

    def __call__(self, moment: str) -> None:
        if self._busy:
            return  # of an audit's own
        self._busy = True
        try:
            for tracker, auditor in self._audited:
                self._audit(moment, tracker, auditor)
        finally:
            self._busy = False

    def _audit(self, moment: str, tracker: ResourceTracker, auditor: Auditor) -> None:
        turns = tracker._context.turns
        patience, turns.wait_s = turns.wait_s, 0.0  # what is under way goes on only afterwards
        try:
            self.found += [(moment, each) for each in auditor.audit(heal_own=True).findings]
        finally:
            turns.wait_s = patience
        self.passes += 1


@contextmanager
def audited(world: World | Reshaped, agent: Agent | Reshaped, audits: Audits) -> Iterator[None]:
    """At each moment of what the agent does but the beginning of a journal write: its lock is held then."""
    with world.taps(agent, audits) if isinstance(world, World) else world.taps(audits):
        agent.journal.before = lambda _: None
        yield
    assert audits.found == []


@pytest.mark.parametrize("operation", HEALTHY, ids=lambda each: each.name)
def test_no_audit_takes_an_operation_under_way_for_a_fault(
    operation: Operation, any_placement: Placement, tmp_path: Path
) -> None:
    """Scenarios 37, 52: every operation of every kind."""
    with World(tmp_path, any_placement) as world:
        operation.prepare(world)
        audits = Audits.by(*world.agents)
        with audited(world, getattr(world, operation.agent), audits):
            operation.does(world)
        assert audits.passes >= 4
        world.settle()
        assert world.placed_all() == operation.after
        world.check_settled()


@pytest.mark.parametrize("operation", GUEST_STAYS, ids=lambda each: each.name)
def test_nor_while_the_guest_is_still_at_its_source(operation: Operation, tmp_path: Path) -> None:
    with World(tmp_path) as world:
        operation.prepare(world)
        world.a.see(INSTANCE)
        with audited(world, getattr(world, operation.agent), Audits.by(*world.agents)):
            operation.does(world)
        assert world.placed_all() == operation.after


@pytest.mark.parametrize(
    "operation", [each for each in HEALTHY if each in INTERRUPTED], ids=lambda each: each.name
)
def test_nor_while_an_agent_is_dead_and_comes_back(operation: Operation) -> None:
    """The other one audits all the time; the one that died does when it is back."""
    for number in boundaries(BOUNDARIES_MAX, INTERRUPTED.index(operation)):
        with fast_directory() as directory, World(Path(directory)) as world:
            operation.prepare(world)
            agent: Agent = getattr(world, operation.agent)
            other = world.b if agent is world.a else world.a
            if not dies(world.taps(agent, Death(number)), lambda: operation.does(world)):
                return
            audits = Audits.by(other)
            audits("it is dead")
            agent.restart()
            with audited(world, agent, audits):
                agent.come_back()
            both = Audits.by(agent, other)
            both("it is back")
            assert both.found == []
            assert world.placed_all() in (operation.before, operation.after, operation.midway)
    raise AssertionError(f"{operation.name} has more than {BOUNDARIES_MAX} boundaries")


@pytest.mark.parametrize("operation", ["there", "back", "undo"])
def test_nor_a_reshape(operation: str, any_placement: Placement, tmp_path: Path) -> None:
    """There, back and undone."""
    with Reshaped(tmp_path, any_placement) as world:
        prepare(world, operation)
        world.driver.domains = tuple(
            Guest(uuid, "guest", GuestState.RUNNING, {}) for uuid in (uuid_of("a"), OWN)
        )
        client = PlacementClient(world.tap)
        reader = AuditReader(world.tracker, client, ROOT, world.driver.guests, world.journal.devices)
        audits = Audits((world.tracker, Auditor(reader)))
        with audited(world, world, audits):
            does(world, operation)
        assert audits.passes > 20
        world.check()
