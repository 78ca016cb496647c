"""What an audit looks like in the API."""

from typing import Any

from agent.audit.auditing import AuditReport

Json = dict[str, Any]


def audit_view(report: AuditReport) -> Json:
    """`repair` in lines for people; `failed` says why a repair was not done."""
    failed = report.failed or {}
    return {
        "findings": [
            {
                "kind": finding.kind.value,
                "subject": finding.subject,
                "reason": finding.reason,
                "evidence": dict(finding.evidence),
                "own": finding.own,
                "repair": [str(step) for step in finding.repair],
                "healed": index in report.healed,
                "failed": failed.get(index),
            }
            for index, finding in enumerate(report.findings)
        ]
    }
