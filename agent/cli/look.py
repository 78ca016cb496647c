"""`plimsoll look`: a pass and an audit now."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from agent.cli.audit import finding_lines
from agent.cli.client import client_of, read_names
from agent.cli.output import Output
from agent.cli.status import status_lines
from agent.cli.terminal import Style, plain
from agent.cli.waiting import waiting
from agent.errors import ExitCode, counted

if TYPE_CHECKING:
    from agent.api.shapes.host import LookShape
    from agent.cli.grammar import CommandAdder


def add_look_command(add: CommandAdder) -> None:
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
        answer: LookShape = client.request("POST", "/v1/look", {})
    Output(args.output).show(answer, lambda style: _lines(answer, read_names(client), style))
    good = not answer["audit"]["findings"] and not answer["status"]["reasons"]
    return ExitCode.DONE if good else ExitCode.DRIFT_FOUND


def _lines(answer: LookShape, names: Mapping[str, str], style: Style) -> Iterator[str]:
    yield from status_lines(answer["status"], style)
    reasons = answer["status"]["reasons"]
    if reasons and not answer["audit"]["findings"]:
        yield ""
        yield f"the audit found nothing, but the status gives {counted(len(reasons), 'reason')}:"
        yield from (f"  {plain(reason)}" for reason in reasons)
    if answer["audit"]["findings"]:
        yield ""
        yield from finding_lines(answer["audit"]["findings"], names)
