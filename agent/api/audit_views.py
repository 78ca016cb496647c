"""What an audit looks like in the API."""

from typing import Any

from agent.audit.auditor import AuditReport
from agent.audit.finding import Finding

Json = dict[str, Any]


def audit_view(report: AuditReport) -> Json:
    """`failed` says why a repair was not done."""
    failed = report.failed or {}
    return {
        "findings": [
            finding_view(finding, healed=index in report.healed, failed=failed.get(index))
            for index, finding in enumerate(report.findings)
        ]
    }


def finding_view(finding: Finding, *, healed: bool = False, failed: str | None = None) -> Json:
    """`repair` in lines for people."""
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
