"""Random trees, moves, claims and reshapes on one host and on two: sums stay, and units stay the same."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from kits.examples import examples
from kits.placements import OPENSTACK, USUAL
from kits.reshape import FLAT, HOST, NESTED, World, host, provider, to_gpus, uuid_of
from kits.reshape_hosts import VF, Hosts, Node, asks, guest_of
from kits.tracker import fast_directory, request

from agent.driver import DescribedProvider, MoveInstruction
from agent.errors import DoesNotFit
from agent.moves.states import MoveKind

RUNS = 15 if os.environ.get(USUAL) == OPENSTACK else 100
CLASSES = ("VGPU", "SRIOV_NET_VF", "CUSTOM_THING")
NAMES = ("a", "b", "c", "d")


@dataclass(frozen=True)
class Case:
    """Totals before and after, {provider: {class: total}}, the moves between them, and who holds what."""

    before: dict[str, dict[str, int]]
    after: dict[str, dict[str, int]]
    moves: tuple[MoveInstruction, ...]
    held: dict[str, dict[str, dict[str, int]]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Each class of each provider stays, or goes whole or in part to one or two others."""
    places = (HOST, *NAMES)
    before = {
        name: draw(st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 8), max_size=3))
        for name in places
    }
    after: dict[str, Counter[str]] = {name: Counter(before[name]) for name in places}
    held: dict[str, dict[str, dict[str, int]]] = {}
    left = {(name, c): total for name in places for c, total in before[name].items()}
    for number in range(draw(st.integers(0, 6))):
        for name, c in draw(st.lists(st.sampled_from(sorted(left) or [("", "")]), max_size=3, unique=True)):
            if name and left[name, c]:
                amount = draw(st.integers(1, left[name, c]))
                left[name, c] -= amount
                held.setdefault(f"consumer {number}", {}).setdefault(name, {})[c] = amount
    moves = []
    for name, c in sorted(left):
        targets = draw(
            st.lists(st.sampled_from([each for each in places if each != name]), max_size=2, unique=True)
        )
        rest = before[name][c]
        for target in targets:
            amount = draw(st.integers(1, rest)) if rest else 0
            if draw(st.booleans()) and target == targets[-1]:
                amount = rest
            if not amount:
                continue
            rest -= amount
            after[name][c] -= amount
            after[target][c] += amount
            moves.append(MoveInstruction(name, {c: amount}, target, draw(_owners(held, name, c, amount))))
    return Case(before, {name: +totals for name, totals in after.items()}, tuple(moves), held)


def _owners(
    held: dict[str, dict[str, dict[str, int]]], name: str, c: str, amount: int
) -> st.SearchStrategy[dict[str, dict[str, int]] | None]:
    able = [who for who, places in held.items() if 0 < places.get(name, {}).get(c, 0) <= amount]
    told = {uuid_of(who): {c: held[who][name][c]} for who in able[:1]}
    return st.sampled_from([None, {}, told])


def described(totals: dict[str, dict[str, int]]) -> tuple[DescribedProvider, ...]:
    """Providers with nothing left are gone."""
    return (
        host(**totals[HOST]),
        *(provider(name, **totals[name]) for name in NAMES if totals[name]),
    )


def sums(held: dict[str, dict[str, int]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for amounts in held.values():
        found.update(amounts)
    return found


@settings(max_examples=examples(RUNS), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_sums_are_conserved_nobody_is_lost_and_a_replay_is_nothing(case: Case) -> None:
    with fast_directory() as directory, World(Path(directory)) as world:
        assert world.see(*described(case.before)).error is None
        for who, places in case.held.items():
            world.hold(who, **places)
        world.hold("bystander", node1={"VCPU": 1})
        bystander = world.raw.allocations_of(uuid_of("bystander"))
        generations = {each.uuid: each.generation for each in world.tree()}
        names = {each.uuid: each.name for each in world.tree()}
        report = world.see(*described(case.after), moves=case.moves)
        assert report.error is None, report.error
        event("pending" if report.pending else f"{len(world.journal.reshapes(done=True))} reshapes")
        assert world.raw.allocations_of(uuid_of("bystander")) == bystander
        for who, places in case.held.items():
            now = world.placed(who)
            assert sums(now) == sums(places), "conserved"
            if report.pending:
                assert now == places, "all or nothing"
            for place, amounts in now.items():
                for c, amount in amounts.items():
                    assert amount <= world.totals()[place][c]
        touched = {name for m in case.moves for name in (m.from_resource_provider, m.to_resource_provider)}
        touched |= {name for places in case.held.values() if touched & places.keys() for name in places}
        for each in world.tree():
            if names.get(each.uuid) not in {None, HOST, *touched}:
                assert each.generation == generations[each.uuid], "only the touched are written to"
        if not report.pending:
            wanted = {each.name: set(each.inventories) for each in described(case.after)}
            assert {name: set(totals) for name, totals in world.totals().items()} == wanted
            before = world.everything()
            world.tap.calls.clear()
            again = world.again()
            assert (again.operations, again.error, again.pending) == (0, None, None)
            assert not any(call.startswith(("P", "D")) for call in world.tap.calls), "a replay is nothing"
            assert world.everything() == before


@settings(max_examples=examples(RUNS // 2), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_what_was_done_is_undone_by_its_receipt(case: Case) -> None:
    with fast_directory() as directory, World(Path(directory)) as world:
        world.see(*described(case.before))
        for who, places in case.held.items():
            world.hold(who, **places)
        report = world.see(*described(case.after), moves=case.moves)
        done = list(world.journal.reshapes(done=True))
        if report.pending or not done:
            return
        assert len(done) == 1
        world.ask(done[0])
        for who, places in case.held.items():
            assert world.placed(who) == places
        (receipt,) = [each for each in world.journal.reshapes(done=True).values() if each.id == done[0]]
        moving = receipt.source_slots
        for name, c in moving:
            assert world.totals()[name][c] == case.before[name][c]
        assert world.again().operations == 0
        assert all(each.reserved == 0 for p in world.tree() for each in p.inventories.values())


SHAPES: tuple[Mapping[str, bool], ...] = (
    {"flat_devices": True, "report_numa": False},
    {"flat_devices": False, "report_numa": False},
    {"flat_devices": False, "report_numa": True},
)
STEPS = st.one_of(
    st.tuples(st.just("claim"), st.integers(1, 2), st.integers(0, 1)),
    st.tuples(st.just("release"), st.integers(0, 5)),
    st.tuples(st.just("guest"), st.integers(0, 5)),
    st.tuples(st.sampled_from(["migrate", "resize"]), st.integers(0, 5)),
    st.tuples(st.just("end"), st.integers(0, 5), st.sampled_from(["confirm", "revert"]), st.booleans()),
    st.tuples(st.just("shape"), st.integers(0, 2)),
    st.tuples(st.just("shape"), st.integers(0, 2)),
)


class Story:
    """Host a is reshaped; instances move to host b, or are resized in place."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.told: dict[str, set[tuple[str, str]]] = {}
        self.moving: dict[str, tuple[str, bool]] = {}
        self._count = 0

    @property
    def a(self) -> Node:
        return self.hosts.a

    def step(self, name: str, *arguments: int | str | bool) -> None:
        getattr(self, f"_{name}")(*arguments)

    def check(self) -> None:
        claims = self.a.tracker.claims()
        found = {consumer: {(n, u) for _, n, u in claim.exact} for consumer, claim in claims.items()}
        assert found == self.told
        self.a.check()
        for consumer, claim in claims.items():
            amounts: Counter[str] = Counter()
            for held in claim.allocations.values():
                amounts.update(held)
            exact = Counter(name for name, _ in self.told[consumer])
            assert {name: amounts[name] for name in exact} == exact
            assert amounts["VCPU"] == 1

    def end_all(self, end: str) -> None:
        for instance, (migration, _) in sorted(self.moving.items()):
            self._finish(instance, migration, end, at_a=True)
            self.check()

    def _pick(self, number: int) -> str | None:
        idle = sorted(
            self.told.keys() - {each for pair in self.moving.items() for each in (pair[0], pair[1][0])}
        )
        return idle[number % len(idle)] if idle else None

    def _claim(self, vfs: int, vgpus: int) -> None:
        self._count += 1
        wanted = {"VCPU": 1, VF: vfs, **({"VGPU": vgpus} if vgpus else {})}
        try:
            claim = self.a.claim(uuid_of(f"instance {self._count}"), **wanted)
        except DoesNotFit:
            return
        self.told[claim.consumer] = {(name, unit) for _, name, unit in claim.exact}

    def _release(self, number: int) -> None:
        consumer = self._pick(number)
        if consumer is not None:
            self._leave(consumer)
            self.a.tracker.release(consumer)
            del self.told[consumer]

    def _guest(self, number: int) -> None:
        consumer = self._pick(number)
        if consumer is not None:
            claim = self.a.tracker.claims()[consumer]
            self.a.driver.add_guest(guest_of(claim))
            self.a.look()

    def _leave(self, consumer: str) -> None:
        guests = self.a.driver.host.guests
        self.a.driver.change(guests=tuple(guest for guest in guests if guest.uuid != consumer))
        self.a.look()

    def _migrate(self, number: int) -> None:
        self._begin(number, self.hosts.b, MoveKind.COLD_MIGRATE)

    def _resize(self, number: int) -> None:
        self._begin(number, self.a, MoveKind.SAME_HOST_RESIZE)

    def _begin(self, number: int, node: Node, kind: MoveKind) -> None:
        instance = self._pick(number)
        if instance is None:
            return
        migration = uuid_of(f"{instance} {len(self.a.journal.moves())} moves")
        try:
            node.tracker.begin_move(asks(instance, VCPU=1, SRIOV_NET_VF=1), kind, migration)
        except DoesNotFit:
            return
        self.told[migration] = self.told.pop(instance)
        if node is self.a:
            claim = self.a.tracker.claims()[instance]
            self.told[instance] = {(name, unit) for _, name, unit in claim.exact}
        else:
            self.a.look()
        self.moving[instance] = (migration, node is self.a)

    def _end(self, number: int, end: str, at_a: bool) -> None:
        if self.moving:
            instance = sorted(self.moving)[number % len(self.moving)]
            self._finish(instance, self.moving[instance][0], end, at_a=at_a)
            del self.moving[instance]

    def _finish(self, instance: str, migration: str, end: str, *, at_a: bool) -> None:
        in_place = self.moving[instance][1]
        if end == "confirm" and not in_place:
            self._leave(instance)
        node = self.a if at_a or in_place else self.hosts.b
        getattr(node.tracker, f"{end}_move")(migration)
        self.hosts.settle()
        old = self.told.pop(migration)
        if end == "revert":
            self.told[instance] = old
        assert self.hosts.raw.allocations_of(migration).allocations == {}
        assert (instance in self.hosts.b.tracker.claims()) == (end == "confirm" and not in_place)

    def _shape(self, number: int) -> None:
        self.a.change(**SHAPES[number])


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, min_size=3, max_size=12), st.sampled_from(["confirm", "revert"]))
def test_units_stay_and_every_move_ends_as_it_was_told(steps: list[tuple[str, ...]], end: str) -> None:
    with fast_directory() as directory, Hosts(Path(directory), vfs=3) as hosts:
        story = Story(hosts)
        for name, *arguments in steps:
            story.step(name, *arguments)
            story.check()
        story.end_all(end)


def test_a_move_under_way_is_reverted_to_where_its_old_place_is_now(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.see(*FLAT)
        instance, migration = uuid_of("a"), uuid_of("a's migration")
        world.tracker.claim(request(instance, VCPU=2, VGPU=1))
        world.tracker.begin_move(request(instance, VCPU=4, VGPU=3), MoveKind.SAME_HOST_RESIZE, migration)
        assert world.placed(migration) == {HOST: {"VCPU": 2, "VGPU": 1}}
        report = world.see(*NESTED, moves=to_gpus())
        assert (report.error, report.pending) == (None, None)
        world.check()
        assert world.placed(instance) == {HOST: {"VCPU": 4}, "gpu0": {"VGPU": 3}}
        old = world.placed(migration)
        assert sum(amounts.get("VGPU", 0) for amounts in old.values()) == 1 and "VGPU" not in old[HOST]
        world.restart()
        world.again()
        world.tracker.recover([])
        world.tracker.revert_move(migration)
        assert world.placed(instance) == old
        assert world.placed(migration) == {}
        world.check()
