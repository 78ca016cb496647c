"""`plimsoll defrag --dry-run`: the fewest moves that make room for a guest."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from shlex import quote
from typing import TYPE_CHECKING, Any

from agent.cli.claim import add_claim_options, show_notes
from agent.cli.claim_body import claim_body
from agent.cli.client import client_of, read_names
from agent.cli.output import Output
from agent.cli.tables import holding_lines, shortfall_lines
from agent.cli.terminal import Style, plain
from agent.errors import ExitCode, UsageError, counted

if TYPE_CHECKING:
    from agent.api.shapes.claims import DefragMoveShape, DefragShape
    from agent.cli.grammar import CommandAdder

_BEYOND = {"topology", "pci", "same_subtree", "root_required"}
_PLAIN = {"suffix", "resources"}


def add_defrag_command(add: CommandAdder) -> None:
    """Add `plimsoll defrag`."""
    command = add(
        "defrag",
        defrag,
        "show the fewest moves of guests that make room for another guest",
        "Say what the guest needs as for `plimsoll claim`. Guests that find another place on this host stay\n"
        "on it; for each of the others, the command prints what to run on its destination. Nothing is\n"
        "moved. Exit code 5: no moves of guests make room. `plimsoll explain --capacity` shows what is\n"
        "free, and who strands it.",
        "  plimsoll defrag --dry-run --flavor vcpus=8,memory_mb=16384 --spec resources:PGPU=1\n"
        "  plimsoll defrag --dry-run --resources VCPU=8,MEMORY_MB=16384 -o json | jq '.moves[].consumer'",
    )
    add_claim_options(command)
    command.add_argument("--dry-run", action="store_true", help="only show the moves; it must be given")
    command.set_defaults(consumer=None)


def defrag(args: Namespace) -> ExitCode:
    """Show the moves that make room."""
    if not args.dry_run:
        raise UsageError("defrag: the agent moves no guest by itself: give --dry-run to see what to move")
    client = client_of(args)
    answer: DefragShape = client.request("POST", "/v1/defrag", claim_body(args))
    show_notes(answer)
    Output(args.output).show(answer, lambda style: _lines(answer, read_names(client), style))
    return ExitCode.DONE if answer["possible"] else ExitCode.REFUSED


def _lines(answer: DefragShape, names: Mapping[str, str], style: Style) -> Iterator[str]:
    from agent.api.shapes.claims import name_of

    if not answer["possible"]:
        yield "no moves of guests make room for it"
        yield from shortfall_lines(answer["shortfalls"], style)
        return
    moves = answer["moves"]
    if not moves:
        yield "it fits: no guest has to move"
    else:
        more = "" if answer["fewest"] else "; fewer may do, the search has ended"
        yield f"{counted(len(moves), 'move makes', 'moves make')} room for it{more}"
    for index, move in enumerate(moves, start=1):
        yield ""
        here = move["here"]
        yield f"{index}. {plain(name_of(move))} {_whither(move)}"
        if here is None:
            yield f"   there: {begin_line(move)}"
        else:
            yield from (f"   {line}" for line in holding_lines(here, names, style))
    if moves and answer["place"] is not None:
        yield ""
        yield "then it gets"
        yield from holding_lines(answer["place"], names, style)


def _whither(move: DefragMoveShape) -> str:
    if move["here"] is None:
        return "to another host"
    return "on this host, " + ("while it runs, to" if move["kind"] == "live_migrate" else "shut off, to")


def begin_line(move: DefragMoveShape) -> str:
    """The command that begins the move on the destination.

    What groups of resources alone do not say, the domain has to: its file is one that `virsh dumpxml` wrote.
    """
    request: Mapping[str, Any] = move["request"]
    groups = request["groups"]
    words = ["plimsoll", "move", "begin", move["consumer"], "--kind", move["kind"].replace("_", "-")]
    if request.keys() & _BEYOND or any(group.keys() - _PLAIN for group in groups):
        return " ".join([*words, "--domain", quote(f"{move['name'] or move['consumer']}.xml")])
    for group in groups:
        amounts = ",".join(f"{name}={amount}" for name, amount in group["resources"].items())
        suffix = group.get("suffix", "")
        words += ["--group", quote(f"{suffix}:{amounts}")] if suffix else ["--resources", amounts]
    if request.get("group_policy"):
        words += ["--group-policy", request["group_policy"]]
    return " ".join(words)
