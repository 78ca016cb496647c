"""The report of an audit in the shapes of the local API."""

from agent.api.shapes.audit import AuditShape, FindingShape
from agent.audit.auditor import AuditReport
from agent.audit.finding import Finding


def audit_view(report: AuditReport) -> AuditShape:
    """The findings, each with the outcome of its repair."""
    failed = report.failed or {}
    return {
        "findings": [
            finding_view(finding, healed=index in report.healed, failed=failed.get(index))
            for index, finding in enumerate(report.findings)
        ]
    }


def finding_view(finding: Finding, *, healed: bool = False, failed: str | None = None) -> FindingShape:
    """A finding; `failed` is the reason why its repair was not done."""
    return {
        "kind": finding.kind,
        "subject": finding.subject,
        "reason": finding.reason,
        "evidence": dict(finding.evidence),
        "own": finding.own,
        "repair": [str(step) for step in finding.repair],
        "healed": healed,
        "failed": failed,
    }
