"""Audits of two hosts while instances move between them, by this strategy, the old one, and both at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kits.moves import DISK, INSTANCE, MIGRATION, ON_A, ON_B, OTHER, SMALL, Agent, World, asks
from kits.placements import Placement
from kits.tracker import uuid_of

from agent.audit.auditor import AuditReport
from agent.moves.states import MoveKind, MoveState

ACROSS = (MoveKind.COLD_MIGRATE, MoveKind.RESIZE, MoveKind.LIVE_MIGRATE, MoveKind.EVACUATE)
LIGHT = {"PCPU": 1, "DISK_GB": 200}


@pytest.fixture
def world(any_placement: Placement, tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, any_placement) as world:
        yield world


@pytest.fixture
def claimed(world: World) -> World:
    world.a.tracker.claim(asks(**SMALL))
    return world


def kinds(agent: Agent) -> list[tuple[str, str]]:
    return [(each.kind, each.subject) for each in agent.auditor.audit().findings]


def heal(agent: Agent, *, everything: bool = False) -> AuditReport:
    return agent.auditor.audit(heal_own=True, heal_all=everything)


# Nothing false


def moving(world: World, kind: MoveKind, rounds: int) -> None:
    """To and fro, confirmed and reverted, by either side; deleted in the middle in the end."""
    instance = str(uuid4())
    here, there = world.agents
    here.tracker.claim(asks(instance, **LIGHT))
    for number in range(rounds):
        migration = str(uuid4())
        there.tracker.begin_move(asks(instance, **LIGHT), kind, migration)
        if number % 2:
            here.look()
        if number % 3:
            there.tracker.confirm_move(migration)
            here.look()
            here, there = there, here
        else:
            there.tracker.revert_move(migration)
    there.tracker.begin_move(asks(instance, **LIGHT), kind, str(uuid4()))
    here.look()  # else the claim is left there, which the audit is to find
    there.tracker.release(instance)
    here.look()


def in_place(world: World, kind: MoveKind, rounds: int) -> None:
    instance = str(uuid4())
    tracker = world.a.tracker
    tracker.claim(asks(instance, MEMORY_MB=64))
    for number in range(rounds):
        migration = str(uuid4())
        size = 64 if kind is MoveKind.REBUILD else 128 - 64 * (number // 2 % 2)
        tracker.begin_move(asks(instance, MEMORY_MB=size), kind, migration)
        (tracker.revert_move if number % 2 else tracker.confirm_move)(migration)


def coming_and_going(world: World, _: MoveKind, rounds: int) -> None:
    for number in range(rounds):
        agent = world.agents[number % 2]
        with suppress(RuntimeError), agent.tracker.claim(asks(str(uuid4()), VCPU=1)) as held:
            if number % 3 == 0:
                raise RuntimeError("no such image")
            agent.tracker.release(held.claim.consumer)


@pytest.mark.parametrize("kind", ACROSS)
def test_audits_in_a_loop_find_nothing_false_while_instances_move_between_two_hosts(
    world: World, kind: MoveKind
) -> None:
    """Scenarios 37, 52: each operation of each kind, with both hosts auditing and healing all the time."""
    found: list[object] = []
    passes = dict.fromkeys("ab", 0)
    stop = threading.Event()

    def auditing(agent: Agent) -> None:
        while not stop.is_set():
            report = agent.auditor.audit(heal_own=True, readings=1)
            passes[agent.name] += 1
            found.extend(report.findings)

    def client(work: Callable[[World, MoveKind, int], None], of: MoveKind, rounds: int) -> None:
        work(world, of, rounds)

    with ThreadPoolExecutor(6) as pool:
        auditors = [pool.submit(auditing, agent) for agent in world.agents]
        clients = [
            pool.submit(client, moving, kind, 8),
            pool.submit(client, in_place, MoveKind.SAME_HOST_RESIZE, 6),
            pool.submit(client, in_place, MoveKind.REBUILD, 6),
            pool.submit(client, coming_and_going, kind, 12),
        ]
        try:
            for each in clients:
                each.result()
        finally:
            stop.set()
        for each in auditors:
            each.result()
    assert found == []
    assert min(passes.values()) > 2
    world.settle()
    world.check_settled()
    assert [kinds(agent) for agent in world.agents] == [[], []]


@pytest.mark.parametrize("noticed", [False, True], ids=["source unaware", "source aware"])
def test_a_move_under_way_is_nobodys_finding(claimed: World, noticed: bool) -> None:
    """Scenario 110: what somebody is at work on is left alone, also by an audit that heals all."""
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    if noticed:
        claimed.settle()
    before = claimed.state()
    for agent in claimed.agents:
        assert heal(agent, everything=True).findings == ()
    assert claimed.state() == before


def test_an_instance_that_goes_while_the_host_is_read_may_not_be_the_migration(claimed: World) -> None:
    """It has as much as the instance that moves, and is claimed until the audit has read the claims."""
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    tracker, tap = claimed.a.tracker, claimed.a.tap
    amount = sum(sum(resources.values()) for resources in ON_A.values())
    there: list[str] = []
    gone: list[str] = []

    def passes(call: str) -> None:
        tap.before = lambda _: None  # its own requests pass
        if call == f"GET /resource_providers/{uuid_of('a')}/allocations":
            there.append(str(uuid4()))
            tracker.claim(asks(there[0], MEMORY_MB=amount))
        elif call == f"GET /allocations/{INSTANCE}" and there:
            tracker.release(there[0])
            gone.append(there.pop())
        tap.before = passes

    tap.before = passes
    assert claimed.a.auditor.audit().findings == ()
    assert len(gone) == 2


# Moves that do not go on


def test_a_migration_whose_instance_was_deleted_is_told_at_its_source(claimed: World) -> None:
    """The destination, which would free it, does not come back."""
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.EVACUATE, MIGRATION)
    claimed.a.look()
    claimed.raw.delete_allocations(INSTANCE)
    claimed.a.look()
    assert claimed.a.moving() is MoveState.BEGUN
    assert kinds(claimed.a) == [("stale migration", MIGRATION)]
    assert heal(claimed.a).healed == frozenset() and claimed.placed(MIGRATION) == ON_A
    assert heal(claimed.a, everything=True).healed == {0}
    assert claimed.placed_all() == {} and claimed.a.tracker.claims() == {}
    assert kinds(claimed.a) == []


def test_a_move_that_goes_on_while_the_audit_is_at_work_is_not_confirmed(claimed: World) -> None:
    """Its control plane takes the instance back, between what the audit found and its repair."""
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.EVACUATE, MIGRATION)
    claimed.a.look()
    moved = claimed.placed(INSTANCE)
    claimed.raw.delete_allocations(INSTANCE)
    claimed.a.look()
    tap, asked = claimed.a.tap, f"GET /allocations/{MIGRATION}"
    tap.calls.clear()
    assert kinds(claimed.a) == [("stale migration", MIGRATION)]
    reads = tap.calls.count(asked)
    tap.calls.clear()

    def goes_on(call: str) -> None:
        if tap.calls.count(asked) == reads and call == f"GET /allocations/{INSTANCE}":
            tap.before = lambda _: None
            claimed.schedule(INSTANCE, **moved)

    tap.before = goes_on
    report = heal(claimed.a, everything=True)
    assert report.failed is not None and "has changed since the audit read it" in report.failed[0]
    assert claimed.placed(MIGRATION) == ON_A and claimed.a.moving() is MoveState.BEGUN


def test_a_control_planes_move_that_another_one_overtook_is_told(claimed: World) -> None:
    """What it began is not ended by itself; what this agent began is."""
    claimed.schedule(INSTANCE, **ON_B, **DISK)
    claimed.schedule(MIGRATION, "MIGRATION", **ON_A)
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    claimed.schedule(INSTANCE, a={"VCPU": 1})
    claimed.b.look()
    assert claimed.b.moving() is MoveState.BEGUN
    assert kinds(claimed.b) == [("stale migration", MIGRATION)]
    assert heal(claimed.b, everything=True).healed == {0}
    claimed.b.look()
    assert claimed.placed_all() == {INSTANCE: {"a": {"VCPU": 1}}}
    assert claimed.b.tracker.claims() == {}


def test_a_resize_whose_end_cannot_be_told_is_told(world: World) -> None:
    """The amounts are the same before and after, and somebody freed the migration past this agent."""
    world.a.tracker.claim(asks(PCPU=1))
    world.a.tracker.begin_move(asks(PCPU=1), MoveKind.RESIZE, MIGRATION)
    world.raw.delete_allocations(MIGRATION)
    world.a.look()
    assert kinds(world.a) == [("stale migration", MIGRATION)]
    assert heal(world.a, everything=True).healed == {0}
    assert world.a.moving() is MoveState.CONFIRMED
    world.check_settled()


def test_a_guest_that_a_move_left_behind_is_told_until_it_is_gone(claimed: World) -> None:
    """Scenario 77: the evacuated host is back, with the guest."""
    claimed.a.see(INSTANCE)
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.EVACUATE, MIGRATION)
    claimed.a.look()
    claimed.b.tracker.confirm_move(MIGRATION)
    claimed.a.look()
    assert claimed.a.moving() is MoveState.LEAVING
    (finding,) = claimed.a.auditor.audit().findings
    assert (finding.kind, finding.subject) == ("moved away", INSTANCE)
    assert not finding.repair and "remove the guest" in finding.reason
    claimed.a.see()
    claimed.settle()
    assert kinds(claimed.a) == []
    claimed.check_settled()


def test_a_guest_whose_evacuation_was_confirmed_while_its_host_was_dead_is_told(claimed: World) -> None:
    """The host comes back with the guest; no migration is left that says what happened."""
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.EVACUATE, MIGRATION)
    claimed.b.tracker.confirm_move(MIGRATION)
    claimed.a.restart()
    claimed.a.see(INSTANCE)
    claimed.a.look()
    (finding,) = claimed.a.auditor.audit().findings
    assert (finding.kind, finding.subject) == ("moved away", INSTANCE)
    assert not finding.repair and "remove the guest" in finding.reason
    assert kinds(claimed.b) == []
    claimed.a.see()
    claimed.settle()
    assert kinds(claimed.a) == []
    claimed.check_settled()


@pytest.mark.counts_migrations
def test_an_evacuated_guest_is_told_beside_an_instance_that_was_placed_on_its_resources(
    claimed: World,
) -> None:
    """The instance has just as much as the guest, and its type says that it is no migration."""
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.EVACUATE, MIGRATION)
    claimed.b.tracker.confirm_move(MIGRATION)
    claimed.schedule(OTHER, **ON_A)
    claimed.a.restart()
    claimed.a.see(INSTANCE)
    claimed.a.look()
    found = {each.subject: each for each in claimed.a.auditor.audit().findings}
    assert {subject: each.kind for subject, each in found.items()} == {
        INSTANCE: "moved away",
        OTHER: "orphaned allocation",
    }
    assert INSTANCE not in found[OTHER].reason


@pytest.mark.parametrize("known", [False, True], ids=["source has not looked", "source knows"])
def test_a_guest_still_on_the_source_of_a_move_that_a_caller_confirmed_is_told(
    claimed: World, *, known: bool
) -> None:
    claimed.a.see(INSTANCE)
    claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    if known:
        claimed.a.look()
    claimed.b.tracker.confirm_move(MIGRATION)
    for _ in range(2):
        claimed.settle()
        assert kinds(claimed.a) == [("moved away", INSTANCE)]
    assert claimed.b.tracker.release(INSTANCE)  # Placement holds nothing at all any more
    claimed.settle()
    assert kinds(claimed.a) == [("amounts differ", INSTANCE)]


def test_a_consumer_that_may_be_a_migration_is_listed_and_neither_deleted_nor_advised_on(
    tmp_path: Path, any_placement: Placement
) -> None:
    """Below microversion 1.38 a migration and a new instance of the same size look the same."""
    with World(tmp_path, any_placement, microversion="1.37") as world:
        world.a.tracker.claim(asks(**SMALL))
        world.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
        world.a.look()
        before = world.placed_all()
        (finding,) = world.a.auditor.audit().findings
        assert (finding.kind, finding.subject) == ("orphaned allocation", MIGRATION)
        assert INSTANCE in finding.reason and not finding.repair
        assert "confirm" not in finding.reason and "revert" not in finding.reason
        assert heal(world.a, everything=True).healed == frozenset()
        assert world.placed_all() == before


def test_what_may_be_a_move_with_the_uuid_of_an_ended_one_is_listed_and_not_deleted(
    tmp_path: Path, any_placement: Placement
) -> None:
    """The source knows the uuid from a rebuild; the move that has it now can still be reverted."""
    with World(tmp_path, any_placement, microversion="1.37") as world:
        before = world.a.tracker.claim(asks(**SMALL)).claim
        world.a.tracker.begin_move(replace(asks(**SMALL), name="rebuilt"), MoveKind.REBUILD, MIGRATION)
        world.a.tracker.confirm_move(MIGRATION)
        wanted = world.a.tracker.claims()[INSTANCE].request
        world.b.tracker.begin_move(wanted, MoveKind.COLD_MIGRATE, MIGRATION)
        world.a.look()
        (finding,) = world.a.auditor.audit().findings
        assert (finding.kind, finding.subject) == ("stale migration", MIGRATION)
        assert INSTANCE in finding.reason and not finding.repair
        assert heal(world.a, everything=True).healed == frozenset()
        world.b.tracker.revert_move(MIGRATION)
        world.settle()
        assert world.placed_all() == {INSTANCE: {**ON_A, **DISK}}
        assert world.a.tracker.claims()[INSTANCE].units == before.units


def test_what_a_confirmed_move_left_is_healed_by_itself(claimed: World) -> None:
    """Scenarios 56, 58: a migration that holds something after its end is found, whoever wrote it back."""
    move = claimed.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION).move
    claimed.settle()
    claimed.b.tracker.confirm_move(MIGRATION)
    claimed.settle()
    claimed.schedule(MIGRATION, "MIGRATION", **ON_A)
    assert move.handed == claimed.raw.allocations_of(MIGRATION).allocations
    claimed.a.refresh()
    assert heal(claimed.a).findings[0].kind == "stale migration"
    assert claimed.placed_all() == {INSTANCE: {**ON_B, **DISK}}
    assert kinds(claimed.a) == []


# The old strategy


@pytest.mark.parametrize("disk", [200, 400], ids=["disk once", "disk summed up"])
@pytest.mark.parametrize("runs", ["a", "b"])
def test_a_doubled_allocation_is_reduced_to_where_the_instance_runs(
    claimed: World, runs: str, disk: int
) -> None:
    claimed.schedule(INSTANCE, **ON_A, **ON_B, pool={"DISK_GB": disk})
    {"a": claimed.a, "b": claimed.b}[runs].see(INSTANCE)
    claimed.settle()
    assert kinds(claimed.a) == [("doubled", INSTANCE)]
    assert heal(claimed.a).healed == frozenset()
    assert heal(claimed.a, everything=True).healed == {0}
    kept = {"pool": {"DISK_GB": disk}} if runs == "b" else DISK
    assert claimed.placed(INSTANCE) == {**(ON_A if runs == "a" else ON_B), **kept}
    claimed.settle()
    assert (claimed.a.tracker.claim_of(INSTANCE) is not None) is (runs == "a")
    assert kinds(claimed.a) == []


def test_a_guest_gets_no_place_of_its_own_while_a_migration_may_hold_it(claimed: World) -> None:
    """Else the second audit would take the migration for left over, by what the first one guessed."""
    claimed.a.see(INSTANCE)
    claimed.schedule(MIGRATION, "MIGRATION", **ON_A)
    claimed.schedule(INSTANCE, **ON_B, **DISK)
    claimed.raw.delete_allocations(INSTANCE)
    claimed.settle()
    for _ in range(2):
        assert heal(claimed.a, everything=True).healed == frozenset()
        assert claimed.placed_all() == {MIGRATION: ON_A}
    differs, stale = sorted(claimed.a.auditor.audit().findings, key=lambda finding: finding.kind)
    assert f"{MIGRATION} may hold its place here" in differs.reason and INSTANCE in stale.reason
    claimed.raw.delete_allocations(MIGRATION)
    assert len(heal(claimed.a, everything=True).healed) == 1
    assert claimed.placed(INSTANCE) == {**ON_A, **DISK}


@pytest.mark.parametrize("end", ["confirm", "revert"])
def test_a_pike_control_plane_moves_an_instance_past_both_agents(claimed: World, end: str) -> None:
    """It doubles the allocation, and takes one half away at the end; the destination only claims."""
    before = claimed.a.tracker.claim_of(INSTANCE)
    claimed.schedule(INSTANCE, **ON_A, **ON_B, **DISK)
    claimed.b.tracker.claim(asks(**SMALL))
    assert claimed.placed(INSTANCE) == {**ON_A, **ON_B, **DISK}
    left = ON_B if end == "confirm" else ON_A
    claimed.schedule(INSTANCE, **left, **DISK)
    claimed.settle()
    here, gone = (claimed.b, claimed.a) if end == "confirm" else (claimed.a, claimed.b)
    assert gone.tracker.claim_of(INSTANCE) is None
    kept = here.tracker.claim_of(INSTANCE)
    assert kept is not None and (end == "confirm" or kept == before)
    assert claimed.placed_all() == {INSTANCE: {**left, **DISK}}
    assert [kinds(agent) for agent in claimed.agents] == [[], []]
    claimed.check()


@pytest.mark.parametrize("gone", ["a", "b"])
def test_the_sum_of_two_disks_does_not_stay_when_one_side_is_gone(claimed: World, gone: str) -> None:
    """Pike sums up the pool; the side that is released cannot know which part of it is the other's."""
    claimed.schedule(INSTANCE, **ON_A, **ON_B, pool={"DISK_GB": 400})
    held = claimed.b.tracker.claim(asks(**SMALL)).claim
    assert held.allocations[uuid_of("pool")] == {"DISK_GB": 200}
    claimed.agents["ab".index(gone)].tracker.release(INSTANCE)
    here, left = (claimed.b, ON_B) if gone == "a" else (claimed.a, ON_A)
    assert claimed.placed(INSTANCE) == {**left, "pool": {"DISK_GB": 400}}
    assert kinds(here) == [("amounts differ", INSTANCE)]
    assert heal(here, everything=True).healed == {0}
    assert claimed.placed_all() == {INSTANCE: {**left, **DISK}}
    claimed.check_settled()


@pytest.mark.counts_migrations
@pytest.mark.parametrize("end", ["confirm", "revert"])
def test_both_strategies_in_one_fleet(world: World, end: str) -> None:
    """One instance moves by a migration of its own, another one is doubled, at the same time, on the same
    hosts."""
    for instance in (INSTANCE, OTHER):
        world.a.tracker.claim(asks(instance, **LIGHT))
    doubled = uuid_of("what was doubled")
    world.b.tracker.begin_move(asks(**LIGHT), MoveKind.COLD_MIGRATE, MIGRATION)
    world.schedule(OTHER, a={"PCPU": 1}, b={"PCPU": 1}, pool={"DISK_GB": 400})
    world.settle()
    for agent in world.agents:
        assert kinds(agent) == [("doubled", OTHER)]
    world.b.tracker.begin_move(asks(OTHER, **LIGHT), MoveKind.EVACUATE, doubled)
    world.settle()
    assert [kinds(agent) for agent in world.agents] == [[], []]
    assert world.placed(doubled) == {"a": {"PCPU": 1}}
    world.check_settled()
    for migration in (MIGRATION, doubled):
        getattr(world.b.tracker, f"{end}_move")(migration)
    world.settle()
    left = {("b" if end == "confirm" else "a"): {"PCPU": 1}, **DISK}
    assert world.placed_all() == {INSTANCE: left, OTHER: left}
    world.check_settled()
