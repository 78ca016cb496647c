"""What the agent is, will do, finds and did: `plimsoll status`, `plan`, `look`, `reshape`, `audit` and
`history`.

`plimsoll reshape` works online through the agent, or offline in its place.
"""

from __future__ import annotations

import argparse
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from agent.api.shapes.schema import local_time
from agent.cli import grammar
from agent.cli.client import (
    check_is_known,
    client_of,
    find_audit_subject,
    is_denied,
    migrations_under_way,
    read_names,
)
from agent.cli.output import Style, show, show_table, table_lines, waiting
from agent.cli.tree import tree_lines
from agent.errors import DaemonUnreachable, ExitCode, UsageError, counted, plain

if TYPE_CHECKING:
    from agent.api.shapes import host

STATE_COLOURS = {"ready": "green", "degraded": "yellow"}
"""Any other state is red."""

LIMIT_DEFAULT = 50
LIMIT_MAX = 10_000
WITHIN_MAX_S = 10**9
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGO = re.compile(r"(\d{1,6})([smhd])")


def add_status_command(add: grammar.CommandAdder) -> None:
    """Add `plimsoll status`."""
    add(
        "status",
        status,
        "show the state of the agent, and the reasons for it",
        "Shows whether the agent is starting, ready, degraded or stopping, with the reasons; whether the\n"
        "driver and Placement answer; whether claims are open; and what the last pass did.",
        "  plimsoll status\n  plimsoll status -o json | jq -r .state",
    )


def status(args: Namespace) -> ExitCode:
    """Show the state of the agent."""
    try:
        answer: host.StatusShape = client_of(args).get("/v1/status")
    except DaemonUnreachable as error:
        told = None if is_denied(error) else _with_gate(error, args.socket)
        if told is None:
            raise
        raise told from error
    show(args, answer, lambda style: status_lines(answer, style))
    return ExitCode.DONE


def _with_gate(error: DaemonUnreachable, socket: str) -> DaemonUnreachable | None:
    """The error, with what becomes of guests that start while no agent answers; None: as without an agent."""
    from agent.cli.gate import read_gate

    # An agent that was too slow for this command may answer the hook in time: ask as the hook does.
    was_slow = isinstance(error.__cause__, TimeoutError)
    try:
        _, effect = read_gate(silent=None if was_slow else socket)
    except DaemonUnreachable:  # the hook asks at another socket, which this user may not open
        return None
    if not effect.reasons:
        return None
    state = "in effect" if effect.in_effect else "NOT IN EFFECT"
    return DaemonUnreachable(
        f"{error.message.rstrip('.')}. The gate is {state}: {' '.join(effect.reasons)}",
        **error.details,
        gate={"in_effect": effect.in_effect, "reasons": list(effect.reasons)},
    )


def status_lines(status: host.StatusShape, style: Style) -> Iterator[str]:
    """The state of the agent, a line a field; a line without a title belongs to the field above."""
    driver, placement, claims = status["driver"], status["placement"], status["claims"]
    reasons = status["reasons"]
    fields = [
        ("host", f"{plain(status['host'])}  {plain(status['uuid'] or '(no provider yet)')}"),
        ("state", style.paint(STATE_COLOURS.get(status["state"], "red"), plain(status["state"]))),
        *(("", plain(reason)) for reason in reasons),
        ("since", local_time(status["since"])),
        ("agent", f"{plain(status['version'])}, pid {status['pid']}"),
        ("driver", f"{plain(driver['name'])}, {_health(driver, reasons, style)}"),
        ("placement", f"{plain(placement['kind'])}, {_health(placement, reasons, style)}"),
    ]
    told = "" if claims.get("schedulers", True) else "; schedulers pass the host over"
    taken = style.paint("green", "open")
    if not claims["open"]:
        taken = style.paint("red", "closed") + _because(claims["reason"] or "", reasons)
    fields.append(("claims", f"{claims['count']}, {taken}{told}"))
    pause = status.get("pause")
    if pause is not None:
        told = ", schedulers are told" if pause["schedulers"] else ""
        what = style.paint("yellow", "drained" if pause["drains"] else "paused")
        reason = f": {plain(pause['reason'])}" if pause["reason"] else ""
        fields.append(("", f"{what} since {local_time(pause['since'])} by uid {pause['uid']}{told}{reason}"))
    gate, effect = status.get("gate"), "disabled"
    if gate and gate["in_effect"] is not None:
        effect = (
            style.paint("green", "in effect") if gate["in_effect"] else style.paint("red", "NOT IN EFFECT")
        )
    elif gate and gate["hook"] == "unknown":
        effect = "unknown: `plimsoll gate status` tells"
    fields += [
        ("gate", effect),
        ("findings", _findings(status, style)),
        ("last pass", _last_pass(status["last_pass"], reasons)),
    ]
    next_try = status.get("next_try")
    if next_try is not None:
        fields.append(("next try", f"{local_time(next_try)}, or now by `plimsoll look`"))
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        yield f"{name:<{width}}  {value}".rstrip()


def _health(
    part: host.DriverStatusShape | host.PlacementStatusShape, reasons: Sequence[str], style: Style
) -> str:
    if part["ok"]:
        return style.paint("green", "ok")
    return f"{style.paint('red', 'not ok')}{_because(part['error'] or 'no reason given', reasons)}"


def _because(sentence: str, reasons: Sequence[str]) -> str:
    """The reason after a state; nothing where the lines above have said it."""
    said = {reason.rstrip(".") for reason in reasons}
    return f": {plain(sentence)}" if sentence and sentence.rstrip(".") not in said else ""


def _findings(status: host.StatusShape, style: Style) -> str:
    audited, number = status.get("audited"), status.get("findings", 0)
    if audited is None:
        return style.paint("yellow", "not audited yet; `plimsoll look` audits now")
    if number:
        return style.paint("yellow", f"{number}, which `plimsoll audit` shows")
    return f"none, audited {local_time(audited)}"


def _last_pass(last_pass: host.LastPassShape | None, reasons: Sequence[str]) -> str:
    if not last_pass or not last_pass["sentence"]:
        return "none yet"
    failed = any(reason.rstrip(".") in last_pass["sentence"] for reason in reasons)
    sentence = "failed" if failed else plain(last_pass["sentence"])
    return f"{local_time(last_pass['at'])}  {sentence} ({last_pass['duration_ms']:.1f} ms)"


def add_plan_command(add: grammar.CommandAdder) -> None:
    """Add `plimsoll plan`."""
    add(
        "plan",
        plan,
        "list what the next pass would change in Placement",
        "Prints the operations in their order and changes nothing. Ends with 3 if there is something to\n"
        "change and with 0 if there is not.",
        "  plimsoll plan\n  plimsoll plan -o json | jq '.operations | length'",
    )


def plan(args: Namespace) -> ExitCode:
    """List the operations of the next pass."""
    answer: host.PlanShape = client_of(args).get("/v1/plan")
    lines = answer["lines"] or ["nothing to change"]
    show(args, answer, lambda _: map(plain, lines))
    return ExitCode.DRIFT_FOUND if answer["operations"] else ExitCode.DONE


def add_look_command(add: grammar.CommandAdder) -> None:
    """Add `plimsoll look`."""
    add(
        "look",
        look,
        "have the agent make a pass and an audit now, and show what it found",
        "The agent does both by itself at intervals; after a mend, this command shows at once whether it\n"
        "helped, also while the agent waits before it tries again. The audit repairs nothing. Ends with 3\n"
        "if the status gives a reason or the audit found something.",
        "  plimsoll look\n  plimsoll look -o json | jq .status.state",
    )


def look(args: Namespace) -> ExitCode:
    """Make a pass and an audit."""
    client = client_of(args)
    with waiting("looking at the host and at Placement, and auditing"):
        answer: host.LookShape = client.request("POST", "/v1/look", {})
    reasons, findings = answer["status"]["reasons"], answer["audit"]["findings"]

    def lines(style: Style) -> Iterator[str]:
        yield from status_lines(answer["status"], style)
        if findings:
            yield ""
            yield from finding_lines(findings, read_names(client))
        elif reasons:
            yield ""
            yield f"the audit found nothing, but the status gives {counted(len(reasons), 'reason')}:"
            yield from (f"  {plain(reason)}" for reason in reasons)

    show(args, answer, lines)
    return ExitCode.DRIFT_FOUND if findings or reasons else ExitCode.DONE


def add_audit_command(add: grammar.CommandAdder) -> None:
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
    grammar.complete_instances(subject)
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
    report: host.AuditShape = client.request(method, path)
    if consumer is not None:
        concerned = {consumer, *migrations_under_way(client, consumer)}
        report["findings"] = [
            finding
            for finding in report["findings"]
            if any(who in str(finding) for who in concerned)  # whom a finding names, it concerns
        ]
        if not report["findings"]:
            check_is_known(client, consumer)
    findings = report["findings"]
    show(args, report, lambda _: finding_lines(findings, read_names(client)))
    if not findings:
        return ExitCode.DONE
    healed = all(finding["healed"] for finding in findings)
    return ExitCode.DRIFT_HEALED if healed else ExitCode.DRIFT_FOUND


def finding_lines(findings: Sequence[host.FindingShape], names: Mapping[str, str]) -> Iterator[str]:
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
            parts = []
            for key, held in evidence.items():
                name, words = names.get(key, key), _words(held, names)
                # The amounts on a provider, or all that a consumer holds.
                is_amounts = (
                    isinstance(held, dict) and held and all(isinstance(n, int) for n in held.values())
                )
                parts.append(f"{words} on {name}" if is_amounts else f"{name}: {words}")
            return "; ".join(parts)
        case dict():
            return ", ".join(f"{key} {_words(value, names)}" for key, value in evidence.items())
        case list() | tuple():
            return ", ".join(_words(value, names) for value in evidence) or "nothing"
        case _:
            return _named(str(evidence), names)


def add_history_command(add: grammar.CommandAdder) -> None:
    """Add `plimsoll history`."""
    command = add(
        "history",
        history,
        "list what the agent did and why, the newest last",
        "Shows steps of claims and moves, refusals with their reasons, passes that changed Placement,\n"
        "reshapes, repairs, and when the agent was degraded. The agent keeps the last 10000 events.",
        "  plimsoll history --since 1h\n"
        "  plimsoll history --consumer web1\n"
        "  plimsoll history -o json | jq '.events[] | select(.event == \"refused\") | .detail'",
    )
    consumer = command.add_argument(
        "--consumer",
        metavar="CONSUMER",
        help="only events of this instance or migration: its name, its uuid, or the beginning of its uuid; "
        "also of one that was released",
    )
    grammar.complete_instances(consumer)
    command.add_argument(
        "--since", metavar="WHEN", help="only later events: 30m, 2h, 7d, or 2026-11-21T10:00 (local time)"
    )
    command.add_argument(
        "--limit",
        metavar="N",
        type=_limit,
        default=LIMIT_DEFAULT,
        help=f"at most so many events, the newest (default {LIMIT_DEFAULT})",
    )
    grammar.add_column_option(command)


def history(args: Namespace) -> ExitCode:
    """List events of the history."""
    from datetime import datetime

    from agent.api.shapes.host import EVENT_COLUMNS

    query = {"limit": str(args.limit)}
    client = client_of(args)
    if args.consumer is not None:
        query["consumer"] = args.consumer
    ago = _AGO.fullmatch(args.since or "")
    if ago:  # the agent measures a duration: the clock may have been set since
        query["within"] = str(max(1, min(int(ago[1]) * SECONDS[ago[2]], WITHIN_MAX_S)))
    elif args.since:
        try:
            query["since"] = datetime.fromisoformat(args.since).astimezone().isoformat()
        except (ValueError, OverflowError):
            raise UsageError(
                f"--since {args.since!r} is no time; give how long ago, such as 30m, 2h or 7d, or a moment, "
                "such as 2026-11-21T10:00"
            ) from None
    answer: host.HistoryShape = client.get(f"/v1/history?{urlencode(query)}")
    show_table(args, answer, EVENT_COLUMNS, answer["events"][::-1], "nothing happened")
    return ExitCode.DONE


def _limit(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= LIMIT_MAX:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {LIMIT_MAX}")


def add_reshape_command(add: grammar.CommandAdder) -> None:
    """Add `plimsoll reshape`."""
    command = add(
        "reshape",
        reshape,
        "move inventory and the allocations on it in one step, or undo that",
        "The agent does the reshapes of its driver by itself, at the start and later. This command asks for\n"
        "one now, also for one that was undone; or shows it; or undoes the one of a receipt. --offline does\n"
        "the same while the agent is not running. A dry run ends with 3 if there is something to move.",
        "  plimsoll reshape --dry-run\n"
        "  plimsoll reshape\n"
        "  plimsoll reshape --undo 3f0f7f0e-3c1b-4b6e-9d0a-6f1d2c3b4a59",
    )
    command.add_argument(
        "--dry-run", action="store_true", help="show the tree before and after, and each move; change nothing"
    )
    command.add_argument("--undo", metavar="RECEIPT", help="move back what that reshape moved")
    command.add_argument(
        "--offline", action="store_true", help="read the settings and do it here; the agent must not run"
    )
    grammar.add_settings_options(command)


def reshape(args: Namespace) -> ExitCode:
    """Do, undo or preview a reshape."""
    if args.dry_run:
        if args.offline:
            from agent.api.views import preview_view
            from agent.daemon import offline

            with waiting("looking at the host and at Placement"):
                preview = preview_view(offline.preview_reshape(grammar.load_settings(args), args.undo))
        else:
            query = f"?{urlencode({'undo': args.undo})}" if args.undo is not None else ""
            preview = client_of(args).get(f"/v1/reshape{query}")
        show(args, preview, lambda style: preview_lines(preview, style))
        if preview["refused"]:
            return ExitCode.REFUSED
        return ExitCode.DRIFT_FOUND if preview["due"] else ExitCode.DONE
    if args.offline:
        from agent.api.views import reshaped_view
        from agent.daemon import offline

        with waiting("looking at the host, and reshaping"):
            answer = reshaped_view(offline.reshape(grammar.load_settings(args), args.undo))
    else:
        body = {} if args.undo is None else {"undo": args.undo}
        answer = client_of(args).request("POST", "/v1/reshape", body)
    receipts = answer["receipts"]

    def lines(style: Style) -> Iterator[str]:
        from agent.api.shapes.host import RECEIPT_COLUMNS

        yield "done" if receipts else "nothing to move"
        if receipts:
            yield from table_lines(RECEIPT_COLUMNS, receipts, style)

    show(args, answer, lines)
    return ExitCode.DONE


def preview_lines(preview: host.PreviewShape, style: Style) -> Iterator[str]:
    """The trees before and after, the moves, the parked units and the receipts."""
    from agent.api.shapes.host import RECEIPT_COLUMNS, RELOCATION_COLUMNS

    if preview["refused"]:
        yield f"refused: {plain(preview['refused'])}"
    elif not preview["due"]:
        yield "nothing to move"
    if preview["due"] or preview["refused"]:
        for title, tree in (("before", preview["before"]), ("after", preview["after"])):
            yield style.paint("bold", f"{title}:")
            yield from tree_lines(tree["resource_providers"], style)
        yield style.paint("bold", "moves:")
        if preview["moves"]:
            yield from table_lines(RELOCATION_COLUMNS, preview["moves"], style)
        elif preview["refused"]:
            yield "none, as the reshape is refused"
        else:
            yield "inventory only; no allocation is touched"
    if preview["parked"]:
        yield style.paint("bold", "parked:")
        yield from map(plain, preview["parked"])
    if preview["receipts"]:
        yield style.paint("bold", "receipts:")
        yield from table_lines(RECEIPT_COLUMNS, preview["receipts"], style)
