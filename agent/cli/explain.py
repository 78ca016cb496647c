"""`plimsoll explain`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from agent.cli.client import client_of
from agent.cli.grammar import complete_instances
from agent.cli.output import Output
from agent.cli.terminal import Style, plain
from agent.errors import ExitCode

if TYPE_CHECKING:
    from agent.api.shapes.history import ExplainedShape, FoundShape
    from agent.cli.grammar import CommandAdder


def add_explain_command(add: CommandAdder) -> None:
    """Add `plimsoll explain`."""
    command = add(
        "explain",
        explain,
        "explain who owns a device, a unit or an allocation, and why, since when",
        "WHAT is a consumer or provider by its uuid or name, a resource class, a device by its address, an\n"
        "exact unit (a virtual function, a mediated device, PCPU:3), or the receipt of a reshape.",
        "  plimsoll explain web1\n"
        "  plimsoll explain 0000:84:00.0\n"
        "  plimsoll explain VGPU\n"
        "  plimsoll explain 4b20d080-1b54-4048-85b3-a6a62d165c01",
    )
    what = "a uuid or its beginning, a name, a class, an address, a unit, a receipt"
    complete_instances(command.add_argument("what", metavar="WHAT", help=what))


def explain(args: Namespace) -> ExitCode:
    """Show everything with the given name, with its owner and its events."""
    answer: ExplainedShape = client_of(args).get(f"/v1/explain?what={quote(args.what, safe='')}")
    Output(args.output).show(answer, lambda style: explain_lines(answer["found"], style))
    return ExitCode.DONE


def explain_lines(subjects: Sequence[FoundShape], style: Style) -> Iterator[str]:
    """Each subject with its sentences and its latest events."""
    from agent.api.shapes.columns import local_time
    from agent.api.shapes.history import asker_text

    for number, subject in enumerate(subjects):
        if number:
            yield ""
        name = f"{plain(subject['name'])}  " if subject["name"] not in ("", subject["id"]) else ""
        yield f"{subject['kind']} {style.paint('bold', name)}{style.paint('dim', plain(subject['id']))}"
        for line in subject["lines"]:
            yield f"  {plain(line)}"
        if subject["events"]:
            yield "  lately"
        for event in reversed(subject["events"]):
            detail = f"  {plain(event['detail'])}" if event["detail"] else ""
            asker = "" if event["uid"] is None else f"  asked for by {asker_text(event)}"
            yield f"    {local_time(event['at'])}  {plain(event['event'])}{detail}{asker}"
