"""Two hosts, a shared pool, every operation, both strategies, crashes, outages and restarts in any order.

Nothing is over-committed; every unit has at most one owner; what a consumer holds sums up to what it asked
for; both sides agree in the end; a refused call changes nothing; repeating a call is harmless.
`PLIMSOLL_STEPS` multiplies the number of runs: 180 (with --timeout=0) make more than 100 000 steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from kits.moves import PROVIDERS, Agent, World, asks
from kits.placements import OpenStack, Placement
from kits.tracker import Crash, fast_directory, uuid_of

from agent.audit.finding import Finding
from agent.claims.claim import Claim, ClaimState
from agent.errors import (
    ClaimConflict,
    DoesNotFit,
    PlacementError,
    PlacementFull,
    PlacementUnavailable,
    Refused,
    UnknownConsumer,
)
from agent.moves.states import Move, MoveKind, MoveRole
from agent.placement.client import DEFAULT_MICROVERSION
from agent.tracker.guarded_write import HALF_DONE_S

STEPS = 25
RUNS = 25 * int(os.environ.get("PLIMSOLL_STEPS", "1"))
INSTANCES = tuple(uuid_of(f"instance {number}") for number in range(4))
MIGRATIONS = tuple(uuid_of(f"migration {number}") for number in range(5))

sides = st.sampled_from(["a", "b"])
instances = st.sampled_from(INSTANCES)
migrations = st.sampled_from(MIGRATIONS)
kinds = st.sampled_from(sorted(set(MoveKind) - {MoveKind.UNKNOWN}))
wishes = st.sampled_from(
    [
        {"VCPU": 2},
        {"VCPU": 12, "MEMORY_MB": 1024},
        {"PCPU": 1},
        {"PCPU": 2, "DISK_GB": 200},
        {"SRIOV_NET_VF": 1, "VCPU": 1},
        {"MEMORY_MB": 5000, "DISK_GB": 400},
    ]
)
faults = st.sampled_from(["none", "none", "before", "after", "write before", "write after"])


@dataclass(frozen=True)
class Doubled:
    """Between two hosts; `pool` is what the instance held of the pool before."""

    source: str
    to: str
    pool: dict[str, int]


class Moves(RuleBasedStateMachine):
    """`where`: the placement to run on. Guests follow what the agents say, as far as they say it."""

    where: Placement | None = None
    microversion = DEFAULT_MICROVERSION
    untyped = False

    def __init__(self) -> None:
        super().__init__()
        self.directory = fast_directory()
        self.world = World(Path(self.directory.name), self.where, self.microversion)
        self.meddled = False
        self.at_work: set[str] = set()
        """Who is in the middle of something."""
        self.auditing: set[str] = set()
        """Who of them audits: another audit of the same host would wait for it, here for good."""
        self.doubled: dict[str, Doubled] = {}
        """By a control plane of the old way, which ends it, too; {instance: as it was}."""
        self.theirs: set[str] = set()
        """Whatever such a control plane has moved: it may be all alone in knowing of it."""

    def teardown(self) -> None:
        with self.directory, self.world as world:
            self.heal()
            for agent in world.agents:
                agent.later_s = 2 * HALF_DONE_S  # a first write that was cut is either done or not by now
            for agent in world.agents:
                agent.see()
                agent.tracker.admission.open()
            for number, instance in enumerate(sorted(self.doubled)):
                self.end_doubled(instance, back=bool(number % 2))
            self.come_to_rest()
            self.delete_what_no_agent_knows()
            self.come_to_rest()
            self.mend_what_was_doubled()
            self.agree()
            self.end_all()
            self.come_to_rest()
            for agent in world.agents:
                agent.auditor.audit(heal_own=True)
            self.come_to_rest()
            world.check_settled()
            for agent in world.agents:
                assert agent.auditor.audit().findings == ()

    def come_to_rest(self) -> None:
        for _ in range(4):
            self.world.settle()

    def end_all(self) -> None:
        """Each move that still goes on is ended by the host that began it, one this way, one that way."""
        for agent in self.world.agents:
            for number, move in enumerate(agent.tracker.moves().values()):
                if move.ended or move.role is MoveRole.SOURCE:
                    continue
                tracker = agent.tracker
                with suppress(ClaimConflict):
                    (tracker.revert_move if number % 2 else tracker.confirm_move)(move.migration)

    def delete_what_no_agent_knows(self) -> None:
        """Where it is now, nobody claimed for it."""
        for instance in self.theirs:
            held = self.world.placed(instance)
            here = [agent for agent in self.world.agents if any(n.startswith(agent.name) for n in held)]
            if held and not any(instance in agent.tracker.claims() for agent in here):
                self.world.schedule(instance)

    def mend_what_was_doubled(self) -> None:
        """An operator does: one of the two sides may be gone, and the sum of the two disks be left."""
        for agent in self.world.agents:
            for finding in agent.auditor.audit(heal_all=True).findings:
                assert finding.own or self.is_expected(finding), finding

    def is_expected(self, finding: Finding) -> bool:
        """Whether the finding is what it should be, although the agent did not cause it.

        A host that never had a claim for what was moved on from it does not know the migration. Nor does one
        on which the migration has no type; then it guesses, and repairs nothing.
        """
        moving = {move.migration: move.instance for agent in self.world.agents for move in moves_of(agent)}
        instance = moving.get(finding.subject)
        if finding.kind == "amounts differ":
            return finding.subject in self.theirs
        is_migration = finding.kind in ("orphaned allocation", "stale migration") and instance is not None
        return is_migration and (instance in self.theirs or (self.untyped and not finding.repair))

    def heal(self) -> None:
        for agent in self.world.agents:
            agent.tap.before = agent.tap.after = agent.journal.before = agent.journal.after = _nothing

    def at(self, side: str) -> Agent:
        return self.world.a if side == "a" else self.world.b

    def ask(self, agent: Agent, call: Callable[[], object]) -> bool:
        """A call may die with its agent: False; else a refusal of a settled world changes nothing."""
        settled = all(each.tracker.pending == 0 for each in self.world.agents)
        before = self.world.state() if settled else None
        self.meddled = False
        try:
            with self.working(agent.name):
                call()
        except Crash:
            agent.restart()
            agent.come_back()
            return False
        except (DoesNotFit, UnknownConsumer):
            if settled and not self.meddled:
                assert _claims(self.world.state()) == _claims(before)
        except (Refused, PlacementError):
            pass
        return True

    @contextmanager
    def working(self, side: str) -> Iterator[None]:
        before = set(self.at_work)
        self.at_work.add(side)
        try:
            yield
        finally:
            self.at_work = before

    @rule(side=sides, instance=instances, wish=wishes)
    def claim(self, side: str, instance: str, wish: dict[str, int]) -> None:
        agent = self.at(side)
        self.ask(agent, lambda: agent.tracker.claim(asks(instance, **wish)))

    @rule(side=sides, instance=instances)
    def release(self, side: str, instance: str) -> None:
        agent = self.at(side)
        self.ask(agent, lambda: agent.tracker.release(instance))

    @rule(side=sides, instance=instances, migration=migrations, kind=kinds, wish=wishes)
    def begin(self, side: str, instance: str, migration: str, kind: MoveKind, wish: dict[str, int]) -> None:
        agent = self.at(side)
        self.ask(agent, lambda: agent.tracker.begin_move(asks(instance, **wish), kind, migration))

    @rule(side=sides, instance=instances, migration=migrations, kind=kinds)
    def begin_with_the_same(self, side: str, instance: str, migration: str, kind: MoveKind) -> None:
        """What it has already: a begin that is likely to succeed."""
        agent = self.at(side)
        for other in self.world.agents:
            claim = other.tracker.claim_of(instance)
            if claim is not None:
                wanted = replace(claim.request, consumer=instance)
                self.ask(agent, lambda wanted=wanted: agent.tracker.begin_move(wanted, kind, migration))
                return

    @rule(side=sides, migration=migrations, other=migrations)
    def begin_again(self, side: str, migration: str, other: str) -> None:
        """The destination reverts a move, and begins it again under another uuid before the source looks."""
        agent = self.at(side)
        move = agent.move(migration)
        if move is None or move.ended or move.new is None or move.role is MoveRole.SOURCE:
            return
        wanted, kind = move.new.request, move.kind
        if self.ask(agent, lambda: agent.tracker.revert_move(migration)):
            self.ask(agent, lambda: agent.tracker.begin_move(wanted, kind, other))

    @rule(side=sides, migration=migrations, back=st.booleans())
    def end(self, side: str, migration: str, back: bool) -> None:
        agent = self.at(side)
        tracker = agent.tracker
        self.ask(agent, lambda: tracker.revert_move(migration) if back else tracker.confirm_move(migration))

    @rule(side=sides, migration=migrations, back=st.booleans())
    def end_again(self, side: str, migration: str, back: bool) -> None:
        """What has ended stays as it is, whatever is asked."""
        agent = self.at(side)
        move = agent.move(migration)
        if move is None or not move.ended:
            return
        before = self.world.state()
        with suppress(ClaimConflict):
            (agent.tracker.revert_move if back else agent.tracker.confirm_move)(migration)
        assert self.world.state() == before

    @rule(number=st.integers(0, 7), summed=st.booleans(), told=st.booleans())
    def double(self, number: int, summed: bool, told: bool) -> None:
        """The way before migrations owned anything, and today's evacuation: the instance holds source and
        destination at once, its disk once or summed up; `told`: the destination's agent claims, too."""
        likely = self.settled_claims()
        if not likely:
            return
        source, claim = likely[number % len(likely)]
        to = self.world.b if source is self.world.a else self.world.a
        held = self.world.placed(claim.consumer)
        twin = {name.replace(source.name, to.name, 1): each for name, each in held.items() if name != "pool"}
        pool = {name: amount * (2 if summed else 1) for name, amount in held.get("pool", {}).items()}
        try:
            self.world.schedule(claim.consumer, **held | twin | ({"pool": pool} if pool else {}))
        except PlacementFull:
            return
        self.doubled[claim.consumer] = Doubled(source.name, to.name, held.get("pool", {}))
        self.theirs.add(claim.consumer)
        if told:
            self.ask(to, lambda: to.tracker.claim(claim.request))

    def settled_claims(self) -> list[tuple[Agent, Claim]]:
        """Of instances that are not moving, held in placement just as they were claimed."""
        return [
            (agent, claim)
            for agent in self.world.agents
            for consumer, claim in sorted(agent.tracker.claims().items())
            if claim.state is ClaimState.CLAIMED
            and not any(consumer in (m.instance, m.migration) for m in moves_of(agent) if not m.ended)
            and self.world.placed(consumer) == _named(claim.allocations)
        ]

    @rule(instance=instances, back=st.booleans())
    def end_doubled(self, instance: str, back: bool) -> None:
        """What is doubled still is reduced to one of the two."""
        was = self.doubled.pop(instance, None)
        held = self.world.placed(instance)
        if was is None or not all(any(n.startswith(side) for n in held) for side in (was.source, was.to)):
            return
        kept = was.source if back else was.to
        left = {name: each for name, each in held.items() if name.startswith(kept)}
        self.world.schedule(instance, **left | ({"pool": was.pool} if was.pool else {}))

    @rule(side=sides)
    def look(self, side: str) -> None:
        agent = self.at(side)
        self.ask(agent, agent.look)

    @rule(
        side=sides,
        by=sides,
        number=st.integers(1, 8),
        what=st.sampled_from(["audit", "look", "confirm", "revert", "release", "claim", "begin"]),
        instance=instances,
        migration=migrations,
        wish=wishes,
    )
    def meddle(
        self, side: str, by: str, number: int, what: str, instance: str, migration: str, wish: dict[str, int]
    ) -> None:
        """In the middle of what that agent does next, the other one, or itself, does something else.

        An agent that dies is gone with all that it was doing, so nobody else may be in the middle of that.
        """
        agent, other = self.at(side), self.at(by)
        left = [number]

        def interrupt(_: str) -> None:
            left[0] -= 1
            if left[0] or (by != side and by in self.at_work) or (what == "audit" and by in self.auditing):
                return
            agent.tap.before = agent.tap.after = _nothing
            self.meddled = True
            tracker = other.tracker
            deeds: dict[str, Callable[[], object]] = {
                "audit": partial(self.audited, by, heal_own=True, readings=1),
                "look": other.look,
                "confirm": partial(tracker.confirm_move, migration),
                "revert": partial(tracker.revert_move, migration),
                "release": partial(tracker.release, instance),
                "claim": partial(tracker.claim, asks(instance, **wish)),
                "begin": partial(tracker.begin_move, asks(instance, **wish), MoveKind.RESIZE, migration),
            }
            patience, tracker._context.turns.wait_s = tracker._context.turns.wait_s, 0.0
            try:
                with self.working(by):
                    deeds[what]()
            except (Refused, PlacementError, UnknownConsumer):
                pass
            except Crash:
                if by == side:
                    raise
                other.restart()
                other.come_back()
            finally:
                tracker._context.turns.wait_s = patience

        agent.tap.before = agent.tap.after = interrupt

    @rule(side=sides, heal=st.sampled_from(["nothing", "own", "all"]), readings=st.integers(1, 2))
    def audit(self, side: str, heal: str, readings: int) -> None:
        agent = self.at(side)
        before = self.world.state()
        heals = {"heal_own": heal != "nothing", "heal_all": heal == "all"}
        run = partial(self.audited, side, **heals, readings=readings)
        done = self.ask(agent, run)
        if done and heal == "nothing" and not self.meddled:
            assert self.world.state() == before

    def audited(self, side: str, **how: Any) -> None:
        self.auditing.add(side)
        try:
            self.at(side).auditor.audit(**how)
        finally:
            self.auditing.discard(side)

    @rule(side=sides, guests=st.frozensets(instances, max_size=2))
    def guests(self, side: str, guests: frozenset[str]) -> None:
        """Whatever the driver sees there."""
        self.at(side).see(*guests)

    @rule(side=sides)
    def restart(self, side: str) -> None:
        agent = self.at(side)
        before, after = agent.tap.before, agent.tap.after
        agent.restart()
        agent.tap.before, agent.tap.after = before, after
        self.ask(agent, agent.come_back)
        agent.tracker.admission.open()

    @rule(side=sides, kind=faults)
    def outage(self, side: str, kind: str) -> None:
        agent = self.at(side)
        agent.tap.before = agent.tap.after = _nothing
        if kind != "none":
            silent = _silent(("PUT", "POST") if kind.startswith("write") else ("",))
            if kind.endswith("before"):
                agent.tap.before = silent
            else:
                agent.tap.after = silent

    @rule(side=sides, number=st.integers(1, 12))
    def crash(self, side: str, number: int) -> None:
        """The agent dies at its so-manieth boundary from now on."""
        agent = self.at(side)
        left = [number]

        def die(_: str) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Crash

        agent.tap.before = agent.tap.after = agent.journal.before = agent.journal.after = die

    @invariant()
    def nothing_is_over_committed_and_every_unit_has_one_owner(self) -> None:
        self.world.check()

    @invariant()
    def the_whole_is_the_sum_of_what_was_asked(self) -> None:
        """Whatever placement holds belongs to a claim or a move that some agent knows, or soon forgets."""
        assert set(self.world.placed_all()) <= self.known() | self.theirs

    def known(self) -> set[str]:
        return {
            consumer
            for agent in self.world.agents
            for consumer in (
                *agent.tracker.claims(),
                *(each for m in moves_of(agent) for each in (m.instance, m.migration)),
            )
        }

    def agree(self) -> None:
        """Each consumer holds in placement what one agent's claim says, and nothing else.

        Only which of several migrations that look the same is whose may not be known at the source yet.
        """
        everything = self.world.placed_all()
        held: dict[str, str] = {}
        for agent in self.world.agents:
            for consumer, claim in agent.tracker.claims().items():
                if everything.get(consumer) == _named(claim.allocations):
                    assert held.setdefault(consumer, agent.name) == agent.name
        going_on = {
            move.migration
            for agent in self.world.agents
            for move in agent.tracker.moves().values()
            if not move.ended
        }
        for consumer in everything:
            assert consumer in held or consumer in going_on, (consumer, everything[consumer])


def moves_of(agent: Agent) -> Collection[Move]:
    return agent.tracker.moves().values()


def _named(allocations: Any) -> dict[str, dict[str, int]]:
    names = {each.uuid: each.name for each in PROVIDERS}
    return {names[uuid]: dict(amounts) for uuid, amounts in allocations.items()}


def _claims(state: Any) -> object:
    placed, memory, disk = state
    return placed, [claims for claims, _ in memory], [claims for claims, _ in disk]


def _silent(only: tuple[str, ...]) -> Callable[[str], None]:
    def silent(call: str) -> None:
        if call.startswith(only) and not call.startswith("move_"):
            raise PlacementUnavailable("placement is away, as it was told")

    return silent


def _nothing(_: str) -> None:
    pass


def runs(number: int) -> settings:
    return settings(
        max_examples=number,
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


TestMoves: Any = Moves.TestCase
TestMoves.settings = runs(RUNS)


class UntypedMoves(Moves):
    """Below microversion 1.38 nothing says that a consumer is a migration."""

    microversion = "1.37"
    untyped = True


TestUntypedMoves: Any = UntypedMoves.TestCase
TestUntypedMoves.settings = runs(max(1, RUNS // 2))


@pytest.mark.remote
def test_the_same_on_openstack_placement(openstack: OpenStack) -> None:
    class MovesThere(Moves):
        where = openstack

    run_state_machine_as_test(MovesThere, settings=runs(RUNS // 4))
