"""`plimsoll audit`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from agent.cli.client import client_of
from agent.cli.consumers import find_event_subject
from agent.cli.grammar import complete_instances
from agent.cli.output import Output
from agent.cli.terminal import plain
from agent.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from agent.api.shapes.audit import AuditShape, FindingShape
    from agent.cli.grammar import CommandAdder


def add_audit_command(add: CommandAdder) -> None:
    """Add `plimsoll audit`."""
    command = add(
        "audit",
        audit,
        "compare guests, claims and Placement; show each difference and its repair, or heal",
        "Leaves out operations under way, and shows only what two consecutive audits found. Without --heal\n"
        "it writes nothing. Ends with 3 if it found something, with 4 if all of it was healed.",
        "  plimsoll audit\n  plimsoll audit web1\n  plimsoll audit --heal",
    )
    subject = command.add_argument(
        "consumer", metavar="CONSUMER", nargs="?", help="show only findings about this instance or migration"
    )
    complete_instances(subject)
    mode = command.add_mutually_exclusive_group()
    mode.add_argument("--heal", action="store_true", help="do every repair, also of what others may own")
    mode.add_argument("--dry-run", action="store_true", help="only show; the default without --heal")


def audit(args: Namespace) -> ExitCode:
    """Show the findings of an audit, or heal them."""
    method, path = ("POST", "/v1/audit?heal=true") if args.heal else ("GET", "/v1/audit")
    if args.consumer is not None and args.heal:
        raise UsageError("audit: --heal repairs everything that the audit finds, so it takes no CONSUMER")
    client = client_of(args)
    consumer = None if args.consumer is None else find_event_subject(client, args.consumer).lower()
    report: AuditShape = client.request(method, path)
    if consumer is not None:
        report["findings"] = [finding for finding in report["findings"] if _is_about(finding, consumer)]
    findings = report["findings"]
    Output(args.output).show(report, lambda _: finding_lines(findings))
    if not findings:
        return ExitCode.DONE
    healed = all(finding["healed"] for finding in findings)
    return ExitCode.DRIFT_HEALED if healed else ExitCode.DRIFT_FOUND


def _is_about(finding: FindingShape, consumer: str) -> bool:
    """Whether a consumer is the subject of a finding, or a migration's instance."""
    return consumer in (finding["subject"], finding["evidence"].get("instance"))


def finding_lines(findings: Sequence[FindingShape]) -> Iterator[str]:
    """The findings, each with its evidence and its repair."""
    if not findings:
        yield "nothing differs"
    for finding in findings:
        yield f"{finding['kind']}: {plain(finding['reason'])}"
        for source, evidence in finding["evidence"].items():
            yield f"  {source}: {plain(str(evidence))}"
        for step in finding["repair"]:
            yield f"  {'healed' if finding['healed'] else 'repair'}: {plain(step)}"
        if finding["failed"]:
            yield f"  not healed: {plain(finding['failed'])}"
        if not finding["repair"]:
            yield "  no repair: the agent only reports this"
