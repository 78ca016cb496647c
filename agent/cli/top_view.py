"""What an operator chose in `plimsoll top`: the selected instance, the order, the filter. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from agent.api.shapes.instances import InstanceShape

PAGE_LINES = 10
FILTER_CHARS_MAX = 64
HELP = "up, down: select  PgUp, PgDn: scroll  s: sort  /: filter  Enter: explain  q: quit"

_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)
_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("\x1b[A", "\x1bOA"), "up"),
    **dict.fromkeys(("\x1b[B", "\x1bOB"), "down"),
    **dict.fromkeys(("\x1b[H", "\x1bOH"), "home"),
    **dict.fromkeys(("\x1b[F", "\x1bOF"), "end"),
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\r": "enter",
    "\n": "enter",
    "\x1b": "escape",
    "\x7f": "erase",
    "\x08": "erase",
}


def keys_of(text: str) -> tuple[str, ...]:
    """The keys in what a terminal sent: names such as `page up`, else the character itself."""
    return tuple(_NAMES.get(key, key) for key in _KEY.findall(text))


def _amount(name: str) -> Callable[[InstanceShape], tuple[int, str]]:
    def order(instance: InstanceShape) -> tuple[int, str]:
        claim, guest = instance["claim"], instance["guest"]
        if claim is not None:
            amount = sum(held["resources"].get(name, 0) for held in claim["allocations"].values())
        else:
            amount = guest["resources"].get(name, 0) if guest else 0
        return -amount, instance["name"]

    return order


def _claim(instance: InstanceShape) -> tuple[int, str]:
    """What needs attention first: moved away, unclaimed, then the rest."""
    unclaimed = instance["claim"] is None and instance.get("migration") is None
    order = 0 if instance["moved_away"] else 1 if unclaimed else 2
    return order, instance["name"]


ORDERS: Mapping[str, Callable[[InstanceShape], tuple[int, str]]] = {
    "name": lambda instance: (0, instance["name"]),
    "claim": _claim,
    "MEMORY_MB": _amount("MEMORY_MB"),
    "VCPU": _amount("VCPU"),
}
"""{what the instances are sorted by: sort key}; amounts are the largest first."""


class TopView(NamedTuple):
    """The choices. `selected` is the uuid of an instance, or nothing; `scroll` the first line shown.

    `typing`: the keys go into `wanted`, the text that lines must contain. `explained` are the lines of an
    explanation that is shown in place of the host.
    """

    selected: str = ""
    scroll: int = 0
    order: str = "name"
    wanted: str = ""
    typing: bool = False
    explained: tuple[str, ...] | None = None

    def press(self, key: str, instances: Sequence[InstanceShape]) -> TopView:
        """The view after a key. `instances` are those shown, in their order."""
        if self.typing:
            return self._type(key)
        if key in ("page up", "page down"):
            step = PAGE_LINES if key == "page down" else -PAGE_LINES
            return self._replace(selected="", scroll=max(0, self.scroll + step))
        if self.explained is not None:
            return self._replace(explained=None, scroll=0)
        match key:
            case "up" | "k" | "down" | "j":
                return self._select(instances, 1 if key in ("down", "j") else -1)
            case "home" | "end":
                return self._replace(selected="", scroll=0 if key == "home" else 10**6)
            case "s":
                names = list(ORDERS)
                return self._replace(order=names[(names.index(self.order) + 1) % len(names)])
            case "/":
                return self._replace(typing=True)
            case "escape":
                return self._replace(wanted="", selected="", scroll=0)
            case _:
                return self

    def choose(self, instances: Sequence[InstanceShape]) -> list[InstanceShape]:
        """The instances to show, in their order."""
        matching = [instance for instance in instances if self.matches(_text(instance))]
        return sorted(matching, key=lambda instance: (ORDERS[self.order](instance), instance["uuid"]))

    def matches(self, text: str) -> bool:
        """Whether a line with this text is shown."""
        return self.wanted.lower() in text.lower()

    @property
    def prompt(self) -> str:
        """The last line of the screen."""
        if self.typing:
            return f"filter: {self.wanted}_  (Enter: done, Esc: none)"
        if self.explained is not None:
            return "PgUp, PgDn: scroll  any other key: back"
        chosen = f"  [by {self.order}{f', filter {self.wanted!r}' if self.wanted else ''}]"
        return HELP + chosen

    def _type(self, key: str) -> TopView:
        match key:
            case "enter":
                return self._replace(typing=False)
            case "escape":
                return self._replace(typing=False, wanted="")
            case "erase":
                return self._replace(wanted=self.wanted[:-1])
            case _ if len(key) == 1 and key.isprintable():
                return self._replace(wanted=(self.wanted + key)[:FILTER_CHARS_MAX], scroll=0)
            case _:
                return self

    def _select(self, instances: Sequence[InstanceShape], step: int) -> TopView:
        uuids = [instance["uuid"] for instance in instances]
        if not uuids:
            return self
        if self.selected not in uuids:
            return self._replace(selected=uuids[0 if step > 0 else -1])
        index = uuids.index(self.selected) + step
        return self._replace(selected=uuids[max(0, min(index, len(uuids) - 1))])


def _text(instance: InstanceShape) -> str:
    from agent.api.shapes.instances import INSTANCE_COLUMNS

    return "  ".join(str(column.show(instance)) for column in INSTANCE_COLUMNS)


def first_line(lines: int, rows: int, scroll: int, selected: int | None) -> int:
    """The first of so many lines to show: `scroll`, no further than needed, so that `selected` is seen."""
    first = min(scroll, max(0, lines - rows))
    if selected is None:
        return first
    return max(min(first, selected), selected - rows + 2)
