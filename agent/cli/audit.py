"""`plimsoll audit`: its grammar, and what it shows."""

import argparse
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

from agent.cli.client import Client
from agent.cli.output import Output
from agent.cli.terminal import plain
from agent.errors import ExitCode

Json = dict[str, Any]


def add_audit_command(add: Callable[..., argparse.ArgumentParser]) -> None:
    command = add(
        "audit",
        audit,
        "compare guests, claims and placement; show each difference and its repair, or heal",
        "What is under way is left out; what is shown was seen in two looks. Without --heal nothing is\n"
        "written. Ends with 3 when something was found, with 4 when all of it was healed.",
        "  plimsoll audit\n  plimsoll audit --heal",
    )
    how = command.add_mutually_exclusive_group()
    how.add_argument("--heal", action="store_true", help="do every repair, also of what others may own")
    how.add_argument("--dry-run", action="store_true", help="only show; this is what it does without --heal")


def audit(args: Namespace) -> ExitCode:
    client = Client(args.socket, args.timeout)
    answer = client.request("POST", "/v1/audit?heal=true") if args.heal else client.get("/v1/audit")
    Output(args.output).show(answer, lambda _: _lines(answer["findings"]))
    if not answer["findings"]:
        return ExitCode.DONE
    healed = all(finding["healed"] for finding in answer["findings"])
    return ExitCode.DRIFT_HEALED if healed else ExitCode.DRIFT_FOUND


def _lines(findings: list[Json]) -> Iterator[str]:
    if not findings:
        yield "nothing differs"
    for finding in findings:
        yield f"{finding['kind']}: {plain(finding['reason'])}"
        for truth, told in finding["evidence"].items():
            yield f"  {truth}: {plain(str(told))}"
        for step in finding["repair"]:
            yield f"  {'healed' if finding['healed'] else 'repair'}: {plain(step)}"
        if finding["failed"]:
            yield f"  not healed: {plain(finding['failed'])}"
        if not finding["repair"]:
            yield "  no repair: this is only told"
