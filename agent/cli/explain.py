"""`plimsoll explain`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from agent.cli.claim import add_claim_options, show_notes
from agent.cli.claim_body import claim_body
from agent.cli.client import client_of
from agent.cli.grammar import complete_instances
from agent.cli.output import Output
from agent.cli.tables import shortfall_lines, table_lines
from agent.cli.terminal import Style, plain
from agent.errors import ExitCode, UsageError, counted

if TYPE_CHECKING:
    from agent.api.shapes.claims import CapacityShape
    from agent.api.shapes.host import ExplainedShape, FoundShape
    from agent.cli.grammar import CommandAdder


def add_explain_command(add: CommandAdder) -> None:
    """Add `plimsoll explain`."""
    command = add(
        "explain",
        explain,
        "explain who owns a device, a unit or an allocation, and why, since when",
        "WHAT is a consumer or provider by its uuid or name, a resource class, a device by its address, an\n"
        "exact unit (a virtual function, a mediated device, PCPU:3), or the receipt of a reshape.\n"
        "\n"
        "With --capacity: how many guests of a flavor the host can still get, why not one more, and what\n"
        "is free that none of them can have, with the guests that strand it. Say what a guest needs as for\n"
        "`plimsoll claim`.",
        "  plimsoll explain web1\n"
        "  plimsoll explain 0000:84:00.0\n"
        "  plimsoll explain VGPU\n"
        "  plimsoll explain --capacity --flavor vcpus=8,memory_mb=16384 --spec resources:PGPU=1\n"
        "  plimsoll explain 4b20d080-1b54-4048-85b3-a6a62d165c01",
    )
    what = "a uuid or its beginning, a name, a class, an address, a unit, a receipt"
    complete_instances(command.add_argument("what", nargs="?", metavar="WHAT", help=what))
    command.add_argument("--capacity", action="store_true", help="what guests the host can still get")
    add_claim_options(command)
    command.set_defaults(consumer=None)


def explain(args: Namespace) -> ExitCode:
    """Show everything with the given name, with its owner and its events; or the host's capacity."""
    if args.capacity:
        return _explain_capacity(args)
    if args.what is None:
        raise UsageError("explain: give WHAT to explain, or --capacity and what a guest needs")
    _check_plain(args)
    answer: ExplainedShape = client_of(args).get(f"/v1/explain?what={quote(args.what, safe='')}")
    Output(args.output).show(answer, lambda style: explain_lines(answer["found"], style))
    return ExitCode.DONE


def _check_plain(args: Namespace) -> None:
    for option in ("resources", "group", "required", "group_policy", "flavor", "spec", "image", "file"):
        if getattr(args, option):
            raise UsageError(f"explain: --{option.replace('_', '-')} needs --capacity")


def _explain_capacity(args: Namespace) -> ExitCode:
    if args.what is not None:
        raise UsageError("explain: give either WHAT or --capacity")
    answer: CapacityShape = client_of(args).request("POST", "/v1/capacity", claim_body(args))
    show_notes(answer)
    Output(args.output).show(answer, lambda style: capacity_lines(answer, style))
    return ExitCode.DONE


def capacity_lines(answer: CapacityShape, style: Style) -> Iterator[str]:
    """How many guests fit, why not one more, and what is stranded."""
    from agent.api.shapes.claims import STRANDED_COLUMNS

    guests = counted(answer["guests"], "guest fits", "guests fit")
    yield f"{guests}, and maybe more" if answer["more"] else guests
    if answer["shortfalls"]:
        yield "why not one more"
        yield from shortfall_lines(answer["shortfalls"], style)
    if answer["stranded"]:
        yield "free, and of no use to one more"
        yield from table_lines(STRANDED_COLUMNS, answer["stranded"], style)


def explain_lines(subjects: Sequence[FoundShape], style: Style) -> Iterator[str]:
    """Each subject with its sentences and its latest events."""
    from agent.api.shapes.host import asker_text
    from agent.api.shapes.schema import local_time

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
