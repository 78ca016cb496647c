"""`plimsoll where`: on which hosts of the fleet a request fits, why not on others, what would make room."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agent.cli import claim_request
from agent.cli.client import client_of
from agent.cli.grammar import CommandAdder, not_empty
from agent.cli.output import NOTHING, Style, show, table_lines, titled_lines
from agent.errors import ExitCode, UsageError, counted, first_few, plain

if TYPE_CHECKING:
    from agent.api.shapes.fleet import ChangeShape, WhereShape

HOLDERS_SHOWN_MAX = 3
CLOSED_SHOWN_MAX = 8


def add_where_command(add: CommandAdder) -> None:
    """Add `plimsoll where`."""
    command = add(
        "where",
        where,
        "ask on which hosts of the fleet a request fits, and why not on the others",
        "Say what the guest needs as for `plimsoll claim`; nothing is claimed. The question goes to the\n"
        "Placement that this host's agent uses, or with --placement to another one, without an agent.\n"
        "\n"
        "If it fits, the best hosts come first. If not, the command says whether it never will (exit code\n"
        "7: no host has it, even with nothing in use) or not now (exit code 5), what the nearest hosts\n"
        "lack and who holds it there, and the smallest change that makes room. --or separates\n"
        "alternatives in the order of preference.",
        "  plimsoll where --flavor vcpus=4,memory_mb=8GiB --spec hw:cpu_policy=dedicated\n"
        "  plimsoll where --resources VCPU=4 --group 1:VGPU=2 --count 3 --strategy spread\n"
        "  plimsoll where --group 1:CUSTOM_GPU_H100=1 --or --group 1:CUSTOM_GPU_L40S=2\n"
        "  plimsoll where --resources MEMORY_MB=64GiB --host hv7.example\n"
        "  plimsoll where --resources VCPU=2 --placement https://placement.example --cafile CA.pem",
    )
    claim_request.add_claim_options(command)
    claim_request.add_or_option(command)
    command.add_argument(
        "--domain", metavar="FILE", action="append", help="what a domain's XML asks for; - is standard input"
    )
    command.add_argument(
        "--strategy",
        choices=("pack", "spread"),
        default="pack",
        help="which host is best: the fullest that fits (pack, default), or the emptiest",
    )
    command.add_argument("--count", metavar="N", default="1", help="so many guests together")
    command.add_argument(
        "--host", metavar="NAME", action="append", type=not_empty, help="ask of this host alone"
    )
    group = command.add_argument_group("another Placement than that of this host's agent")
    group.add_argument("--placement", metavar="URL", dest="url", help="http://..., https://... or unix:PATH")
    group.add_argument(
        "--token-file", metavar="FILE", type=Path, help="the token, as for `plimsoll placement ping`"
    )
    group.add_argument("--cafile", metavar="FILE", help="the authority of the certificate there, PEM")


def where(args: Namespace) -> ExitCode:
    """Ask, and show the answer."""
    body = _body(args)
    names: Mapping[str, str] = {}
    if args.url:
        from agent.cli.placement import naming_the_place, open_url
        from agent.fleet.answer import answer_body
        from agent.placement.client import PlacementClient

        if args.domain is not None:
            raise UsageError("where: --domain needs the driver of an agent, so it cannot go with --placement")
        with naming_the_place(args), closing(open_url(args, "--placement")) as transport:
            # This process asks that Placement itself.
            answer = cast("WhereShape", answer_body(PlacementClient(transport), body))
    else:
        client = client_of(args)
        answer = client.request("POST", "/v1/where", body)
        if any(each["holders"] for each in answer["nearest"]) and args.output == "table":
            instances = client.get("/v1/instances")["instances"]
            names = {each["uuid"]: each["name"] for each in instances if each["name"]}
    claim_request.show_notes(answer)
    show(args, answer, lambda style: _lines(answer, names, style))
    codes = {"fits": ExitCode.DONE, "not_now": ExitCode.REFUSED, "never": ExitCode.NEVER}
    return codes[answer["verdict"]]


def _body(args: Namespace) -> dict[str, Any]:
    """The body of POST /v1/where. Raises UsageError."""
    if args.host is not None and len(args.host) > 1:
        raise UsageError(f"--host is given {counted(len(args.host), 'time')}: ask of one host, or of all")
    if not args.count.isascii() or not args.count.isdigit() or not 1 <= int(args.count[:5]) <= 1000:
        raise UsageError(f"--count {args.count!r} is not a whole number from 1 to 1000")
    if args.domain is not None and len(args.domain) > 1:
        raise UsageError(
            f"--domain is given {counted(len(args.domain), 'time')}: alternatives are asked for beside one "
            "domain; ask for each domain on its own, in the order of preference, until one fits"
        )
    requests = claim_request.alternative_bodies(args, required=args.domain is None)
    body: dict[str, Any] = {"requests": requests, "strategy": args.strategy, "count": int(args.count)}
    if args.host:
        body["host"] = args.host[0]
    if args.domain is not None:
        body["xml"] = claim_request.read_text_file("where", args.domain[0])
    return body


def _lines(answer: WhereShape, names: Mapping[str, str], style: Style) -> Iterator[str]:
    from agent.api.shapes.fleet import PLACE_COLUMNS, SUMMARY_COLUMNS

    yield plain(answer["sentence"])
    closed = [f"{plain(each['host'])} ({plain(each['reason'])})" for each in answer["closed"]]
    if closed:
        yield f"closed: {first_few(closed, CLOSED_SHOWN_MAX)}"
    if answer["places"]:
        yield ""
        yield from table_lines(PLACE_COLUMNS, answer["places"], style)
    if answer["nearest"]:
        titles = ("HOST", "LACKS", "REQUEST", "ASKED", "FREE", "TOTAL", "PROVIDER", "HELD BY")
        rows = []
        for miss in answer["nearest"]:
            amounts = [
                NOTHING if each is None else each for each in (miss["asked"], miss["free"], miss["total"])
            ]
            most = sorted(miss["holders"].items(), key=lambda item: (-item[1], item[0]))
            held = [f"{names.get(who, who)} {amount}" for who, amount in most]
            lacks = miss["lacks"] if miss["asked"] is None else miss["lacks"].split()[-1]
            holders = first_few(held, HOLDERS_SHOWN_MAX) or NOTHING
            rows.append((miss["host"], lacks, miss["words"] or NOTHING, *amounts, miss["provider"], holders))
        yield ""
        yield from titled_lines(titles, rows, style)
    if answer["summary"]:
        yield ""
        yield from table_lines(SUMMARY_COLUMNS, answer["summary"], style)
    if answer["not_known"]:
        yield ""
        yield from (f"not known: {plain(each)}" for each in answer["not_known"])
    if answer["changes"]:
        yield ""
        yield "smallest change that makes room:"
        yield from (f"  {_change_text(change, names)}" for change in answer["changes"])


def _change_text(change: ChangeShape, names: Mapping[str, str]) -> str:
    host, providers = plain(change["host"]), plain(", ".join(change["providers"]))
    if change["kind"] == "resume":
        return (
            f"{host} has room once it takes claims again (`plimsoll resume` there if an operator paused it)"
        )
    if change["kind"] == "reshape":
        return f"{host} may have room once its reshape is done: {plain(change['reason'])}"
    if change["kind"] == "lift":
        return f"lift what is reserved as a whole on {providers} of {host} (a cordon, say)"
    pools = f" with its part of {providers}" if providers else ""
    moves = [
        f"confirm the move whose migration {who} has a place on {host} (`plimsoll move confirm`)"
        if who in change["migrations"]
        else f"revert the move of {names.get(who, who)} to {host} (`plimsoll move revert`)"
        if who in change["reverts"]
        else f"move {names.get(who, who)} from {host} to {plain(to)}"
        if to
        else f"release {names.get(who, who)}{pools or f' on {host} (no other host was found for it)'}"
        for who, to in change["instances"].items()
    ]
    many = f"{counted(len(moves), 'instance')}: " if len(moves) > 1 else ""
    return many + "; ".join(moves)
