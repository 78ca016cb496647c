"""Random claims, moves and reshapes on two hosts: every unit keeps its identity, and every move can be ended.

The expectation is a table {consumer: exact units that it was told}, kept by hand: a reshape changes nothing
in it, a begun move gives the instance's units to its migration, a revert gives them back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.examples import examples
from kits.reshape import uuid_of
from kits.reshape_hosts import VF, Hosts, Node, asks, guest_of
from kits.tracker import fast_directory

from agent.errors import DoesNotFit
from agent.moves.states import MoveKind

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
