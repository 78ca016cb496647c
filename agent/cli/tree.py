"""What the host has, who has it, what still fits: `plimsoll tree`, `instances`, `explain` and `defrag`."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from agent.cli.claim import holding_lines, shortfall_lines
from agent.cli.claim_request import ASKING_NAMES, add_claim_options, claim_body, show_notes
from agent.cli.client import client_of, read_names
from agent.cli.grammar import CommandAdder, add_column_option, complete_instances
from agent.cli.output import Style, show, show_table, table_lines
from agent.errors import ExitCode, UsageError, counted, plain

if TYPE_CHECKING:
    from agent.api.shapes import host
    from agent.api.shapes.instance import CapacityShape, DefragMoveShape, DefragShape, InstancesShape

BAR_CELLS = 20
NEARLY_FULL = 0.75


class _Marks(NamedTuple):
    branch: str
    last: str
    down: str
    full: str
    unclaimed: str
    empty: str


BOXES = _Marks("├─ ", "└─ ", "│  ", "█", "▒", "░")
ASCII = _Marks("|- ", "`- ", "|  ", "#", "!", ".")
GAP = "   "


def add_tree_command(add: CommandAdder) -> None:
    """Add `plimsoll tree`."""
    command = add(
        "tree",
        tree,
        "draw the host's resource providers, as Placement has them",
        "Draws a bar for each resource class: in use / capacity. The capacity is (total - reserved) *\n"
        "allocation ratio. What is in use counts all consumers, not only this agent's claims.",
        "  plimsoll tree\n  plimsoll tree --traits\n  plimsoll tree -o yaml",
    )
    command.add_argument("--traits", action="store_true", help="show the traits of each provider")


def tree(args: Namespace) -> ExitCode:
    """Draw the provider tree."""
    answer: host.TreeShape = client_of(args).get("/v1/tree")
    providers = answer["resource_providers"]
    if providers:
        warnings = [f"warning: {plain(text)}" for text in answer.get("warnings", ())]
        show(args, answer, lambda style: [*tree_lines(providers, style, traits=args.traits), *warnings])
    else:
        show(args, answer, lambda _: ["no resource providers yet; `plimsoll status` says why"])
    return ExitCode.DONE


def add_instances_command(add: CommandAdder) -> None:
    """Add `plimsoll instances`."""
    command = add(
        "instances",
        instances,
        "list guests and claims side by side",
        "A guest without a claim is UNCLAIMED, and `moving` at the source of a move; a claim without a\n"
        "guest has the guest `none`.",
        "  plimsoll instances\n"
        "  plimsoll instances -o csv -c uuid -c name\n"
        "  plimsoll instances -o json | jq '.instances[] | select(.claim == null) | .uuid'",
    )
    add_column_option(command)


def instances(args: Namespace) -> ExitCode:
    """List the instances of the host."""
    from agent.api.shapes.instance import INSTANCE_COLUMNS

    answer: InstancesShape = client_of(args).get("/v1/instances")
    rows = answer["instances"]
    advice = [plain(row["advice"]) for row in rows if row.get("advice")]
    show_table(args, answer, INSTANCE_COLUMNS, rows, "no guests, no claims", advice)
    return ExitCode.DONE


class _Row(NamedTuple):
    """A provider, with the lines that lead to its name (`before`) and to its contents (`inner`)."""

    provider: host.ResourceProviderShape
    before: str
    inner: str


def tree_lines(
    providers: Sequence[host.ResourceProviderShape], style: Style, *, traits: bool = False
) -> Iterator[str]:
    """The lines of the tree. A provider whose parent is not among `providers` is drawn as a root."""
    marks = BOXES if style.unicode else ASCII
    rows = [(row, list(_classes(row.provider))) for row in _rows(providers, marks)]
    lengths = [
        (len(row.inner) + len(plain(line.name)), len(str(line.used)), len(str(line.capacity)))
        for row, lines in rows
        for line in lines
    ]
    bar_column, used_width, capacity_width = map(max, zip((0, 0, 0), *lengths, strict=True))
    for row, lines in rows:
        name, uuid = plain(row.provider["name"]), row.provider["uuid"]
        yield f"{row.before}{style.paint('bold', name)}  {style.paint('dim', uuid)}"
        for line in lines:
            title = f"{row.inner}{plain(line.name)}"
            amounts = f"{line.used:>{used_width}}/{line.capacity:<{capacity_width}}"
            note = _note(line)
            text = f"{title:<{bar_column}}  {_bar(line, marks, style)}  {amounts}"
            yield f"{text}{'  ' + note if note else ''}".rstrip()
        if traits and row.provider["traits"]:
            from textwrap import wrap

            title = f"{row.inner}traits: "
            yield from wrap(
                " ".join(map(plain, row.provider["traits"])),
                max(style.width, len(title) + 1),
                initial_indent=title,
                subsequent_indent=row.inner + " " * len("traits: "),
                break_long_words=False,
                break_on_hyphens=False,
            )


def _rows(providers: Sequence[host.ResourceProviderShape], marks: _Marks) -> list[_Row]:
    known = {provider["uuid"] for provider in providers}
    children: dict[str | None, list[host.ResourceProviderShape]] = {}
    for provider in providers:
        parent = provider["parent_provider_uuid"]
        children.setdefault(parent if parent in known else None, []).append(provider)
    rows = []
    waiting = [(root, "", "") for root in reversed(children.get(None, []))]
    while waiting:
        provider, before, under = waiting.pop()
        below = children.get(provider["uuid"], [])
        rows.append(_Row(provider, before, under + (marks.down if below else GAP)))
        for number, child in enumerate(reversed(below)):
            branch, beside = (marks.last, GAP) if number == 0 else (marks.branch, marks.down)
            waiting.append((child, under + branch, under + beside))
    return rows


class _Class(NamedTuple):
    """A resource class of a provider; one in use without an inventory has the capacity 0."""

    name: str
    used: int
    unclaimed: int
    capacity: int
    inventory: host.InventoryShape | None


def _classes(provider: host.ResourceProviderShape) -> Iterator[_Class]:
    unclaimed = provider.get("unclaimed", {})
    for name, used in provider["usages"].items():
        inventory = provider["inventories"].get(name)
        capacity = inventory["capacity"] if inventory else 0
        yield _Class(name, used, unclaimed.get(name, 0), capacity, inventory)


def _bar(line: _Class, marks: _Marks, style: Style) -> str:
    """A bar that is full only if all is used, and empty only if nothing is.

    What guests use unclaimed follows what is used, in a colour of its own. It is reserved, and so not in the
    capacity: the bar stands for both.
    """
    whole = line.capacity + line.unclaimed
    taken = _cells(line.used + line.unclaimed, whole)
    unclaimed = min(max(_cells(line.unclaimed, whole), line.unclaimed > 0), taken - (line.used > 0))
    rest = marks.empty * (BAR_CELLS - taken)
    colour = "yellow" if line.used > NEARLY_FULL * line.capacity else "green"
    if line.used >= line.capacity and line.used:
        colour = "red"
    claimed = style.paint(colour, marks.full * (taken - unclaimed) + ("" if unclaimed else rest))
    if not unclaimed:
        return claimed
    return claimed + style.paint("magenta", marks.unclaimed * unclaimed) + rest


def _cells(amount: int, whole: int) -> int:
    if amount <= 0:
        return 0
    if amount >= whole:
        return BAR_CELLS
    return min(max(int(BAR_CELLS * amount / whole + 0.5), 1), BAR_CELLS - 1)


def _note(line: _Class) -> str:
    """What is used unclaimed, why the capacity differs from the total, and faults of the usage."""
    parts = []
    inventory = line.inventory
    if not inventory:
        parts.append("no inventory")
    elif line.used > line.capacity:
        parts.append("over-used")
    if line.unclaimed:
        parts.append(f"{line.unclaimed} unclaimed")
    if inventory and line.capacity != inventory["total"]:
        parts.append(f"total {inventory['total']}")
        if inventory["reserved"]:
            parts.append(f"reserved {inventory['reserved']}")
        if inventory["allocation_ratio"] != 1.0:
            parts.append(f"ratio {inventory['allocation_ratio']:g}")
    return f"({', '.join(parts)})" if parts else ""


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
        if args.what is not None:
            raise UsageError("explain: give either WHAT or --capacity")
        capacity: CapacityShape = client_of(args).request("POST", "/v1/capacity", claim_body(args))
        show_notes(capacity)

        def lines(style: Style) -> Iterator[str]:
            from agent.api.shapes.instance import STRANDED_COLUMNS

            guests = counted(capacity["guests"], "guest fits", "guests fit")
            yield f"{guests}, and maybe more" if capacity["more"] else guests
            if capacity["shortfalls"]:
                yield "why not one more"
                yield from shortfall_lines(capacity["shortfalls"], style)
            for divided, what in (
                (False, "free, and of no use to one more"),
                (True, "free once one of these guests is gone"),
            ):
                rows = [row for row in capacity["stranded"] if row["divided"] is divided]
                if rows:
                    yield what
                    yield from table_lines(STRANDED_COLUMNS, rows, style)

        show(args, capacity, lines)
        return ExitCode.DONE
    if args.what is None:
        raise UsageError("explain: give WHAT to explain, or --capacity and what a guest needs")
    for option in ASKING_NAMES:
        if getattr(args, option):
            raise UsageError(f"explain: --{option.replace('_', '-')} needs --capacity")
    answer: host.ExplainedShape = client_of(args).get(f"/v1/explain?what={quote(args.what, safe='')}")
    show(args, answer, lambda style: explain_lines(answer["found"], style))
    return ExitCode.DONE


def explain_lines(subjects: Sequence[host.FoundShape], style: Style) -> Iterator[str]:
    """Each subject with its sentences and its latest events."""
    from agent.api.shapes import host
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
            asker = "" if event["uid"] is None else f"  asked for by {host.asker_text(event)}"
            yield f"    {local_time(event['at'])}  {plain(event['event'])}{detail}{asker}"


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

    def lines(style: Style) -> Iterator[str]:
        from agent.api.shapes.instance import name_of

        names = read_names(client)
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
            state = "while it runs" if move["kind"] == "live_migrate" else "shut off"
            where = "to another host" if here is None else f"on this host, {state}, to"
            yield f"{index}. {plain(name_of(move))} {where}"
            if here is None:
                yield f"   there: {_begin_line(move)}"
            else:
                yield from (f"   {line}" for line in holding_lines(here, names, style))
        if moves and answer["place"] is not None:
            yield ""
            yield "then it gets"
            yield from holding_lines(answer["place"], names, style)

    show(args, answer, lines)
    return ExitCode.DONE if answer["possible"] else ExitCode.REFUSED


_BEYOND = {"topology", "pci", "same_subtree", "root_required"}
_PLAIN = {"suffix", "resources"}


def _begin_line(move: DefragMoveShape) -> str:
    """The command that begins the move on the destination.

    What groups of resources alone do not say, the domain has to: its file is one that `virsh dumpxml` wrote.
    """
    request: Mapping[str, Any] = move["request"]
    groups = request["groups"]
    words = ["plimsoll", "move", "begin", move["consumer"], "--kind", move["kind"].replace("_", "-")]
    if request.keys() & _BEYOND or any(group.keys() - _PLAIN for group in groups):
        return " ".join([*words, "--domain", shlex.quote(f"{move['name'] or move['consumer']}.xml")])
    for group in groups:
        amounts = ",".join(f"{name}={amount}" for name, amount in group["resources"].items())
        suffix = group.get("suffix", "")
        words += ["--group", shlex.quote(f"{suffix}:{amounts}")] if suffix else ["--resources", amounts]
    if request.get("group_policy"):
        words += ["--group-policy", request["group_policy"]]
    return " ".join(words)
