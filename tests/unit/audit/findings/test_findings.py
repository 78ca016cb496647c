"""The registry of findings, and all kinds together: a healthy host has no finding, whatever was claimed."""

from __future__ import annotations

import pkgutil

from hypothesis import given
from hypothesis import strategies as st
from kits.audit import (
    ELSEWHERE,
    HOST_INDEX,
    MIGRATION,
    a_move,
    claimed,
    consumer_case,
    move_case,
    observe,
    running,
)

from agent.audit import findings
from agent.audit.cases import RowCase
from agent.audit.findings import FINDING_KINDS, KIND_NAMES, judge_consumer, judge_host, judge_move, judge_row
from agent.audit.suspects import suspects
from agent.moves.states import MoveState

WANTED = st.fixed_dictionaries(
    {},
    optional={
        "VCPU": st.integers(1, 4),
        "PCPU": st.integers(1, 2),
        "VGPU": st.integers(1, 2),
        "MEMORY_MB": st.integers(1, 512),
        "DISK_GB": st.integers(1, 10),
        "SRIOV_NET_VF": st.integers(1, 1),
    },
).filter(bool)


def test_each_module_holds_one_kind_that_is_registered_under_its_name() -> None:
    modules = {module.name for module in pkgutil.iter_modules(findings.__path__)}
    assert modules == {kind.__module__.rpartition(".")[2] for kind in FINDING_KINDS}
    assert modules == {name.replace(" ", "_") for name in KIND_NAMES}
    assert all(kind.rows for kind in FINDING_KINDS)


@given(st.lists(WANTED, max_size=8), st.booleans())
def test_a_healthy_host_has_no_finding(wanted: list[dict[str, int]], guests: bool) -> None:
    claims = claimed(*wanted)
    seen = [running(consumer, **claim.request.resources) for consumer, claim in claims.items()]
    observation = observe(claims, guests=seen if guests else ())
    assert not suspects(observation)
    assert [*judge_host(observation)] == []
    assert [*(finding for case in RowCase.all_of(observation) for finding in judge_row(case))] == []
    for consumer, claim in claims.items():
        assert judge_consumer(consumer_case(observation, claim.allocations, consumer)) is None


@given(st.lists(WANTED, min_size=1, max_size=4))
def test_a_claim_with_neither_guest_nor_allocation_is_leaked(wanted: list[dict[str, int]]) -> None:
    claims = claimed(*wanted)
    lost = next(iter(claims))
    rest = {consumer: claim.allocations for consumer, claim in claims.items() if consumer != lost}
    observation = observe(claims, placed=rest)
    if any(HOST_INDEX.is_own(uuid) for uuid in claims[lost].allocations):
        assert lost in suspects(observation)
    finding = judge_consumer(consumer_case(observation, {}, lost))
    assert finding is not None and finding.kind == "leaked claim" and finding.own
    assert [str(step) for step in finding.repair] == [f"release the claim of {lost}"]


@given(st.lists(WANTED, min_size=1, max_size=4))
def test_doubled_is_reduced_to_where_the_guest_is(wanted: list[dict[str, int]]) -> None:
    claims = claimed(*wanted)
    consumer, claim = next(iter(claims.items()))
    here = {uuid: amounts for uuid, amounts in claim.allocations.items() if HOST_INDEX.is_own(uuid)}
    if not here:
        return
    for guests in ((running(consumer),), ()):
        case = consumer_case(
            observe(claims, guests=guests), {**claim.allocations, ELSEWHERE: {"VCPU": 1}}, consumer
        )
        finding = judge_consumer(case)
        assert finding is not None and finding.kind == "doubled" and not finding.own
        (step,) = finding.repair
        left = step.write.allocations  # type: ignore[union-attr]
        assert (ELSEWHERE in left) is not bool(guests)
        assert all((uuid in left) is bool(guests) for uuid in here)


def test_a_move_under_way_is_no_finding() -> None:
    move = a_move(MoveState.BEGUN)
    instance = {ELSEWHERE: {"VCPU": 2}}
    assert judge_move(move_case(move, instance=instance, migration=move.handed)) is None
    observation = observe(moves=(move,), placed={MIGRATION: move.handed})
    assert judge_consumer(consumer_case(observation, move.handed, MIGRATION)) is None
