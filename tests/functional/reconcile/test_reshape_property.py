"""Random trees, moves and allocations on a host that is reshaped: sums stay, and an undo restores all."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from kits.examples import examples
from kits.placements import OPENSTACK, USUAL
from kits.reshape import HOST, World, host, provider, uuid_of
from kits.tracker import fast_directory

from agent.driver import DescribedProvider, MoveInstruction

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
