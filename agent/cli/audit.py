"""`plimsoll audit`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent.cli.client import client_of, read_names
from agent.cli.consumers import check_is_known, find_audit_subject
from agent.cli.grammar import complete_instances
from agent.cli.output import Output
from agent.cli.terminal import plain
from agent.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from agent.api.shapes.host import AuditShape, FindingShape
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
    consumer = None if args.consumer is None else find_audit_subject(client, args.consumer)
    report: AuditShape = client.request(method, path)
    if consumer is not None:
        report["findings"] = [finding for finding in report["findings"] if _is_about(finding, consumer)]
        if not report["findings"]:
            check_is_known(client, consumer)
    findings = report["findings"]
    Output(args.output).show(report, lambda _: finding_lines(findings, read_names(client)))
    if not findings:
        return ExitCode.DONE
    healed = all(finding["healed"] for finding in findings)
    return ExitCode.DRIFT_HEALED if healed else ExitCode.DRIFT_FOUND


def _is_about(finding: FindingShape, consumer: str) -> bool:
    """Whether a consumer is the subject of a finding, or a migration's instance."""
    return consumer in (finding["subject"], finding["evidence"].get("instance"))


def finding_lines(findings: Sequence[FindingShape], names: Mapping[str, str]) -> Iterator[str]:
    """The findings, each with its evidence and its repair. `names` is {provider uuid: name}."""
    if not findings:
        yield "nothing differs"
    for finding in findings:
        yield f"{finding['kind']}: {plain(_named(finding['reason'], names))}"
        for source, evidence in finding["evidence"].items():
            if source != "generation":
                yield f"  {source}: {plain(_words(evidence, names))}"
        for step in finding["repair"]:
            yield f"  {'healed' if finding['healed'] else 'repair'}: {plain(_named(step, names))}"
        if finding["failed"]:
            yield f"  not healed: {plain(finding['failed'])}"
        if not finding["repair"]:
            yield (
                "  healed: gone with the repairs of others"
                if finding["healed"]
                else "  no repair: the agent only reports this"
            )


def _named(sentence: str, names: Mapping[str, str]) -> str:
    """The sentence with the names of providers for their uuids."""
    for uuid, name in names.items():
        sentence = sentence.replace(uuid, name)
    return sentence


def _words(evidence: Any, names: Mapping[str, str]) -> str:
    """What one source says, in words: amounts, where they are, and whose they are."""
    match evidence:
        case None:
            return "none"
        case {} if not evidence:
            return "nothing"
        case dict() if all(isinstance(value, int) for value in evidence.values()):
            return ", ".join(f"{amount} {name}" for name, amount in sorted(evidence.items()))
        case dict() if any(isinstance(value, dict) for value in evidence.values()):
            return "; ".join(_held(key, value, names) for key, value in evidence.items())
        case dict():
            return ", ".join(f"{key} {_words(value, names)}" for key, value in evidence.items())
        case list() | tuple():
            return ", ".join(_words(value, names) for value in evidence) or "nothing"
        case _:
            return _named(str(evidence), names)


def _held(key: str, held: Any, names: Mapping[str, str]) -> str:
    """The amounts on a provider, or all that a consumer holds."""
    if isinstance(held, dict) and held and all(isinstance(value, int) for value in held.values()):
        return f"{_words(held, names)} on {names.get(key, key)}"
    return f"{names.get(key, key)}: {_words(held, names)}"
