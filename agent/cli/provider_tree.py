"""Draws the provider tree: a bar for each resource class, children under their parent. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from agent.cli.terminal import Style, plain

if TYPE_CHECKING:
    from agent.api.shapes.providers import InventoryShape, ResourceProviderShape

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


class _Row(NamedTuple):
    """A provider, with the lines that lead to its name (`before`) and to its contents (`inner`)."""

    provider: ResourceProviderShape
    before: str
    inner: str


class _Columns(NamedTuple):
    """The column where bars begin, and the widths of the two numbers."""

    bar: int
    used: int
    capacity: int


def tree_lines(
    providers: Sequence[ResourceProviderShape], style: Style, *, traits: bool = False
) -> Iterator[str]:
    """The lines of the tree. A provider whose parent is not among `providers` is drawn as a root."""
    marks = BOXES if style.unicode else ASCII
    rows = _rows(providers, marks)
    columns = _columns(rows)
    for row in rows:
        name, uuid = plain(row.provider["name"]), row.provider["uuid"]
        yield f"{row.before}{style.paint('bold', name)}  {style.paint('dim', uuid)}"
        for line in _inside(row, columns, marks, style, traits):
            yield row.inner + line


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


def _columns(rows: Sequence[_Row]) -> _Columns:
    widths = [
        (len(row.inner) + len(plain(line.name)), len(str(line.used)), len(str(line.capacity)))
        for row in rows
        for line in _classes(row.provider)
    ]
    return _Columns(*(max((width[column] for width in widths), default=0) for column in range(3)))


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


def _inside(row: _Row, columns: _Columns, marks: _Marks, style: Style, traits: bool) -> Iterator[str]:
    width = columns.bar - len(row.inner)
    for line in _classes(row.provider):
        bar = _bar(line, marks, style)
        amounts = f"{line.used:>{columns.used}}/{line.capacity:<{columns.capacity}}"
        note = _note(line)
        yield f"{plain(line.name):<{width}}  {bar}  {amounts}{'  ' + note if note else ''}".rstrip()
    if traits and row.provider["traits"]:
        yield from _wrapped("traits: ", row.provider["traits"], style.width - len(row.inner))


def _bar(line: _Class, marks: _Marks, style: Style) -> str:
    """A bar that is full only if all is used, and empty only if nothing is.

    What guests use unclaimed follows what is used, in a colour of its own. It is reserved, and so not in the
    capacity: the bar stands for both.
    """
    whole = line.capacity + line.unclaimed
    taken = _cells(line.used + line.unclaimed, whole)
    unclaimed = min(max(_cells(line.unclaimed, whole), line.unclaimed > 0), taken - (line.used > 0))
    filled = taken - unclaimed
    rest = marks.empty * (BAR_CELLS - taken)
    claimed = style.paint(
        _colour(line.used, line.capacity), marks.full * filled + ("" if unclaimed else rest)
    )
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


def _wrapped(label: str, words: Sequence[str], width: int) -> Iterator[str]:
    line = label
    for word in map(plain, words):
        if line.strip() and line != label and len(line) + len(word) > width:
            yield line.rstrip()
            line = " " * len(label)
        line += word + " "
    yield line.rstrip()
