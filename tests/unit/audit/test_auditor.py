"""Which consumers are read, and what is checked right before each step of a repair, without a Placement."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kits.audit import CONSUMER, ELSEWHERE, MIGRATION, a_move, claimed, observe, running
from kits.tracker import uuid_of

from agent.audit.auditor import AuditReader, Repairer
from agent.audit.finding import (
    ClaimUse,
    DropClaim,
    EndMove,
    Finding,
    FollowGuests,
    FollowReshape,
    RecordUse,
    Repair,
    WriteAllocations,
)
from agent.audit.observation import Observation
from agent.claims.claim import Restriction
from agent.errors import PlacementConflict
from agent.moves.states import MoveState
from agent.placement.client import ConsumerAllocations
from agent.shapes import Allocations

((_, CLAIM),) = claimed({"VCPU": 2}).items()
OTHER = replace(CLAIM, consumer=MIGRATION)
HERE, THERE = CLAIM.allocations, {ELSEWHERE: {"VCPU": 2}}
OF_ANOTHER = replace(a_move(MoveState.BEGUN), instance=uuid_of("moving"))
"""A move of another instance, with MIGRATION."""


def reader(**answers: Any) -> AuditReader:
    """A reader whose Placement answers no other calls than these."""
    no: Any = None
    return AuditReader(no, SimpleNamespace(**answers), "host", no, no)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "seen",
    [
        observe({CONSUMER: CLAIM, MIGRATION: OTHER}, placed={MIGRATION: HERE}),
        observe({CONSUMER: CLAIM}, placed={MIGRATION: HERE}, guests=(running(MIGRATION, VCPU=2),)),
        observe({CONSUMER: CLAIM}, placed={MIGRATION: HERE}, moves=(OF_ANOTHER,)),
    ],
    ids=["a claim", "a guest", "a move"],
)
def test_no_consumer_is_read_for_a_lost_claim_that_something_here_explains(seen: Observation) -> None:
    assert reader()._with_others(seen) is seen


@pytest.mark.parametrize(
    ("placed", "kind", "seen", "counted"),
    [
        (HERE, "unknown", observe(), 7),
        (HERE, "MIGRATION", observe(), 0),
        (THERE, "unknown", observe(), 0),
        (HERE, "unknown", observe({MIGRATION: OTHER}), 0),
        (HERE, "unknown", observe(guests=(running(MIGRATION),)), 0),
        (HERE, "unknown", observe(moves=(OF_ANOTHER,)), 0),
    ],
    ids=["nobody knows it", "it is one", "elsewhere", "a claim", "a guest", "a move"],
)
def test_the_migrations_of_an_owner_are_counted_for_a_consumer_that_nothing_here_explains(
    placed: Allocations, kind: str, seen: Observation, counted: int
) -> None:
    asked: list[tuple[str, ...]] = []
    counts = reader(count_consumers=lambda *owner: asked.append(owner) or 7)
    consumer = ConsumerAllocations(MIGRATION, placed, 1, "demo", "user", kind)
    assert counts._migrations(seen, consumer, seen.claims) == counted
    assert asked == ([("MIGRATION", "demo", "user")] if counted else [])


@pytest.mark.parametrize(
    ("placed", "kind", "seen", "found"),
    [
        (HERE, "unknown", observe(guests=(running(CONSUMER),)), True),
        (HERE, "MIGRATION", observe(guests=(running(CONSUMER),)), True),
        (HERE, "INSTANCE", observe(guests=(running(CONSUMER),)), False),
        (THERE, "unknown", observe(guests=(running(CONSUMER),)), False),
        (HERE, "unknown", observe(guests=(running(CONSUMER),), placed={CONSUMER: HERE}), False),
        (HERE, "unknown", observe({MIGRATION: OTHER}, guests=(running(CONSUMER),)), False),
        (HERE, "unknown", observe(guests=(running(CONSUMER), running(MIGRATION))), False),
    ],
    ids=["untyped", "typed", "an instance", "elsewhere", "the guest has its own", "a claim", "a guest"],
)
def test_a_guest_without_an_allocation_here_may_have_its_place_in_a_migration(
    placed: Allocations, kind: str, seen: Observation, *, found: bool
) -> None:
    consumer = ConsumerAllocations(MIGRATION, placed, 1, "demo", "user", kind)
    there = ConsumerAllocations(CONSUMER, THERE, 1)
    departed = reader(allocations_of={CONSUMER: there}.__getitem__)._departed(seen, consumer, seen.claims)
    assert departed == ({CONSUMER: there} if found else {})


STEPS = (
    WriteAllocations(ConsumerAllocations(CONSUMER, {})),
    DropClaim(CONSUMER),
    ClaimUse(CLAIM.request, Restriction()),
    RecordUse(CLAIM, CLAIM),
    FollowGuests(((CLAIM, CLAIM),)),
    FollowReshape(CONSUMER, ()),
    EndMove(MIGRATION),
)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
@pytest.mark.parametrize("now", ["the same", "another finding", "a guest came", "its guest left"])
def test_a_step_is_taken_only_while_the_finding_is_as_it_was(step: Repair, now: str) -> None:
    """A guest that came since may be that of which the consumer is the migration."""
    move = a_move(MoveState.BEGUN)
    finding = Finding("a kind", CONSUMER, "a reason", {}, repair=(step,))
    judged = finding if now != "another finding" else None
    here = observe(guests=(running(CONSUMER),))
    guests = {"a guest came": (CONSUMER, MIGRATION), "its guest left": ()}
    done: list[str] = []

    def judge_alone(observation: Any, consumer: str) -> Finding | None:
        return judged if not (now == "a guest came" and MIGRATION in observation.guests) else None

    judge: Any = SimpleNamespace(
        judge_consumer_alone=judge_alone,
        judge_row_alone=lambda observation, row: (),
        judge_move=lambda observation, move: judged,
        guests_now=lambda: {uuid: running(uuid) for uuid in guests.get(now, (CONSUMER,))},
    )
    use = SimpleNamespace(record=lambda *_: done.append("use"), follow_records=lambda *_: done.append("use"))
    turns = SimpleNamespace(take=lambda *_: nullcontext())
    tracker: Any = SimpleNamespace(turns=turns, turns_on=lambda *_: nullcontext(), use=use)
    tracker.moves = lambda: {MIGRATION: move}
    for name in ("heal", "drop_claim", "claim", "follow_placement", "confirm_move"):
        setattr(tracker, name, lambda *_, name=name: done.append(name))
    repairer = Repairer(tracker, judge)
    of_guests = isinstance(step, RecordUse | FollowGuests | EndMove)  # these are about a guest that is here
    if now == "the same" or (of_guests and now in guests):
        repairer.repair(here, finding)
        assert len(done) == 1
    else:
        with pytest.raises(PlacementConflict, match="has changed since the audit read it"):
            repairer.repair(here, finding)
        assert done == []


@pytest.mark.parametrize("subject", [CONSUMER, MIGRATION])
@pytest.mark.parametrize("state", [MoveState.BEGUN, MoveState.CONFIRMED])
def test_a_claim_follows_a_reshape_in_the_turns_of_both_consumers_of_a_move_under_way(
    state: MoveState, subject: str
) -> None:
    asked: list[tuple[object, set[str]]] = []
    finding = Finding("a kind", subject, "a reason", {}, repair=(FollowReshape(subject, ()),))
    judge: Any = SimpleNamespace(
        judge_consumer_alone=lambda *_: finding, judge_row_alone=lambda *_: (), guests_now=dict
    )
    tracker: Any = SimpleNamespace(
        moves=lambda: {MIGRATION: a_move(state)},
        turns_on=lambda *turns: asked.append(turns) or nullcontext(),
        follow_placement=lambda *_: None,
    )
    Repairer(tracker, judge).repair(observe(), finding)
    assert asked == [((), {CONSUMER, MIGRATION} if state is MoveState.BEGUN else {subject})]


@pytest.mark.parametrize(
    ("state", "taken"),
    [(MoveState.BEGUN, (CONSUMER, MIGRATION)), (MoveState.CONFIRMED, (CONSUMER,))],
)
def test_a_row_is_judged_in_the_turns_of_its_instance_and_of_the_migration_under_way(
    state: MoveState, taken: tuple[str, ...]
) -> None:
    asked: list[tuple[str, ...]] = []

    def take(*consumers: str) -> AbstractContextManager[None]:
        asked.append(consumers)
        return nullcontext()

    seen = observe(moves=(a_move(state),), guests=(running(CONSUMER, VCPU=2),))
    snapshot = SimpleNamespace(claims=seen.claims, moves=seen.moves)
    turns = SimpleNamespace(take=take, take_both=take)
    tracker: Any = SimpleNamespace(turns=turns, view=SimpleNamespace(snapshot=lambda: snapshot))
    no: Any = None
    judged = AuditReader(tracker, no, "host", no, no).judge_row(seen, CONSUMER)
    assert asked == [taken] and all(finding.subject == CONSUMER for finding in judged)
