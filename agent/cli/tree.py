"""Draws the provider tree: one bar a resource class, children under their parent. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from agent.cli.terminal import Style, plain

BAR_CELLS = 20
NEARLY_FULL = 0.75

Provider = dict[str, Any]


class _Marks(NamedTuple):
    branch: str
    last: str
    down: str
    full: str
    empty: str


BOXES = _Marks("├─ ", "└─ ", "│  ", "█", "░")
ASCII = _Marks("|- ", "`- ", "|  ", "#", ".")
GAP = "   "


def tree_lines(providers: Sequence[Provider], style: Style, *, traits: bool = False) -> Iterator[str]:
    """`providers` as GET /v1/tree gives them; one whose parent is not among them is drawn as a root."""
    marks = BOXES if style.unicode else ASCII
    known = {provider["uuid"] for provider in providers}
    children: dict[str | None, list[Provider]] = {}
    for provider in providers:
        parent = provider["parent_provider_uuid"]
        children.setdefault(parent if parent in known else None, []).append(provider)
    columns = _columns(providers)
    # Each entry: the provider, what stands before its name, what stands before all that is under it.
    waiting = [(root, "", "") for root in reversed(children.get(None, []))]
    while waiting:
        provider, before, under = waiting.pop()
        below = children.get(provider["uuid"], [])
        yield (
            before
            + style.paint("bold", plain(provider["name"]))
            + "  "
            + style.paint("dim", provider["uuid"])
        )
        inner = under + (marks.down if below else GAP)
        for line in _inside(provider, columns, marks, style, traits, len(inner)):
            yield inner + line
        for number, child in enumerate(reversed(below)):
            last = number == 0
            waiting.append(
                (child, under + (marks.last if last else marks.branch), under + (GAP if last else marks.down))
            )


class _Columns(NamedTuple):
    name: int
    used: int
    capacity: int


def _columns(providers: Sequence[Provider]) -> _Columns:
    amounts = [
        (len(plain(name)), len(str(used)), len(str(capacity)))
        for provider in providers
        for name, used, capacity, _ in _classes(provider)
    ]
    return _Columns(*(max((row[column] for row in amounts), default=0) for column in range(3)))


def _classes(provider: Provider) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    """Resource class, used, capacity, inventory; a class in use that is not there any more has capacity 0."""
    for name, used in provider["usages"].items():
        inventory = provider["inventories"].get(name, {})
        yield name, used, inventory.get("capacity", 0), inventory


def _inside(
    provider: Provider, columns: _Columns, marks: _Marks, style: Style, traits: bool, indent: int
) -> Iterator[str]:
    for name, used, capacity, inventory in _classes(provider):
        bar = style.paint(_colour(used, capacity), _bar(used, capacity, marks))
        amounts = f"{used:>{columns.used}}/{capacity:<{columns.capacity}}"
        note = _note(used, capacity, inventory)
        yield f"{plain(name):<{columns.name}}  {bar}  {amounts}{'  ' + note if note else ''}".rstrip()
    if traits and provider["traits"]:
        yield from _wrapped("traits: ", provider["traits"], style.width - indent)


def _bar(used: int, capacity: int, marks: _Marks) -> str:
    """A bar is full only if all is used, and empty only if nothing is."""
    if used <= 0:
        filled = 0
    elif used >= capacity:
        filled = BAR_CELLS
    else:
        filled = min(max(int(BAR_CELLS * used / capacity + 0.5), 1), BAR_CELLS - 1)
    return marks.full * filled + marks.empty * (BAR_CELLS - filled)


def _colour(used: int, capacity: int) -> str:
    if used >= capacity and used:
        return "red"
    return "yellow" if used > NEARLY_FULL * capacity else "green"


def _note(used: int, capacity: int, inventory: dict[str, Any]) -> str:
    """Why the capacity is not simply the total, and what is wrong with the use."""
    parts = []
    if not inventory:
        parts.append("no inventory")
    elif used > capacity:
        parts.append("over-used")
    if inventory and capacity != inventory["total"]:
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
