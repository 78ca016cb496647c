"""What the host has: `plimsoll tree` draws its providers, `plimsoll instances` lists guests and claims."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from agent.cli.client import client_of
from agent.cli.grammar import CommandAdder, add_column_option
from agent.cli.output import Style, show, show_table
from agent.errors import ExitCode, plain

if TYPE_CHECKING:
    from agent.api.shapes.instances import InstancesShape
    from agent.api.shapes.providers import InventoryShape, ResourceProviderShape, TreeShape

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
    answer: TreeShape = client_of(args).get("/v1/tree")
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
    from agent.api.shapes.instances import INSTANCE_COLUMNS

    answer: InstancesShape = client_of(args).get("/v1/instances")
    rows = answer["instances"]
    advice = [plain(row["advice"]) for row in rows if row.get("advice")]
    show_table(args, answer, INSTANCE_COLUMNS, rows, "no guests, no claims", advice)
    return ExitCode.DONE


class _Row(NamedTuple):
    """A provider, with the lines that lead to its name (`before`) and to its contents (`inner`)."""

    provider: ResourceProviderShape
    before: str
    inner: str


def tree_lines(
    providers: Sequence[ResourceProviderShape], style: Style, *, traits: bool = False
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


def _rows(providers: Sequence[ResourceProviderShape], marks: _Marks) -> list[_Row]:
    known = {provider["uuid"] for provider in providers}
    children: dict[str | None, list[ResourceProviderShape]] = {}
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
    inventory: InventoryShape | None


def _classes(provider: ResourceProviderShape) -> Iterator[_Class]:
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


def _colour(used: int, capacity: int) -> str:
    if used >= capacity and used:
        return "red"
    return "yellow" if used > NEARLY_FULL * capacity else "green"


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
