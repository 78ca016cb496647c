"""The report of an audit as JSON."""

from agent.api.audit_views import audit_view
from agent.audit.auditor import AuditReport
from agent.audit.finding import Finding

FINDINGS = (
    Finding("leaked claim", "c1", "It is gone.", own=True),
    Finding("doubled", "c2", "It is twice here."),
)


def test_each_finding_has_the_outcome_of_its_repair() -> None:
    report = AuditReport(FINDINGS, healed=frozenset({0}), failed={1: "Placement refused it."})
    healed, failed = audit_view(report)["findings"]
    assert (healed["kind"], healed["own"], healed["healed"], healed["failed"]) == (
        "leaked claim",
        True,
        True,
        None,
    )
    assert (failed["healed"], failed["failed"], failed["repair"]) == (False, "Placement refused it.", [])
