"""A kind of finding judges only what it overrides."""

from __future__ import annotations

from kits.audit import a_move, claimed, consumer_case, move_case, observe, row_findings

from agent.audit.finding import Finding, FindingKind
from agent.moves.states import MoveState


def test_a_kind_that_overrides_nothing_reports_nothing() -> None:
    kind = FindingKind()
    assert kind.judge_consumer(consumer_case(observe(), {})) is None
    assert kind.judge_move(move_case(a_move(MoveState.BEGUN), instance={}, migration={})) is None
    assert [*kind.judge_host(observe())] == []
    assert row_findings(kind, observe(claimed({"VCPU": 1}))) == []


def test_a_finding_has_no_repair_and_is_not_the_agents_by_default() -> None:
    finding = Finding("kind", "subject", "reason")
    assert (finding.own, finding.repair, finding.evidence) == (False, (), {})
