"""`plimsoll top`: the host on one screen, drawn again every few seconds.

The view is what an operator chose: the selected instance, the order, the filter. The keys change it, and
the frame shows the host with it.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import sys
import termios
import time
import tty
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, NamedTuple

from agent.cli.client import Client, client_of
from agent.cli.grammar import CommandAdder, seconds_or_zero
from agent.cli.output import WIDTH_DEFAULT, Style, show, style_of, table_lines
from agent.cli.status import STATE_COLOURS
from agent.cli.tree import explain_lines, tree_lines
from agent.errors import DaemonUnreachable, ExitCode, PlimsollError, counted, plain

if TYPE_CHECKING:
    from agent.api.shapes.host import EventShape, OverviewShape
    from agent.api.shapes.instance import InstanceShape

INTERVAL_DEFAULT_S = 2.0
INTERVAL_MIN_S = 0.5
INTERVAL_MAX_S = 3600.0
EVENTS_SHOWN = 5
HEIGHT_DEFAULT = 24
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, TO_END_OF_LINE, TO_END = "\x1b[H", "\x1b[K", "\x1b[J"
REVERSE, NORMAL = "\x1b[7m", "\x1b[0m"
PROMPT_ROWS_MIN = 10
"""A screen with fewer rows has no line for the keys."""
_ESCAPE = re.compile(r"(\x1b\[[0-9;]*m)")

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
            case "up" | "k" | "down" | "j" if instances:
                uuids, is_down = [instance["uuid"] for instance in instances], key in ("down", "j")
                index = 0 if is_down else len(uuids) - 1
                if self.selected in uuids:
                    index = uuids.index(self.selected) + (1 if is_down else -1)
                return self._replace(selected=uuids[max(0, min(index, len(uuids) - 1))])
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
        from agent.api.shapes.instance import INSTANCE_COLUMNS

        matching = [
            instance
            for instance in instances
            if self.matches("  ".join(str(column.show(instance)) for column in INSTANCE_COLUMNS))
        ]
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


EVERYTHING = TopView()


def add_top_command(add: CommandAdder) -> None:
    """Add `plimsoll top`."""
    command = add(
        "top",
        top,
        "watch the host on one screen: what is in use, guests, moves, findings",
        "Draws the screen every two seconds until q or Ctrl-C; once with --once, or without a terminal.\n"
        "Up and Down select an instance and Enter explains it; PgUp and PgDn scroll; s sorts by name,\n"
        "claim, memory or CPUs; / filters, Esc ends that.\n"
        "The agent answers from its memory: it asks neither the hypervisor nor Placement.",
        "  plimsoll top\n  plimsoll top --interval 10\n  plimsoll top --once",
    )
    command.add_argument(
        "--interval",
        metavar="SECONDS",
        type=interval,
        default=INTERVAL_DEFAULT_S,
        help=f"how often (default {INTERVAL_DEFAULT_S:g})",
    )
    command.add_argument("--once", action="store_true", help="draw once")


def interval(text: str) -> float:
    """The seconds between two drawings, from the command line."""
    seconds = seconds_or_zero(text)
    if not INTERVAL_MIN_S <= seconds <= INTERVAL_MAX_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds from {INTERVAL_MIN_S:g} to {INTERVAL_MAX_S:g}"
        )
    return seconds


def top(args: Namespace) -> ExitCode:
    """Draw the host, once or until the operator quits."""
    live = not args.once and args.output == "table" and sys.stdout.isatty()
    client = client_of(args, quiet=live)
    if not live:
        overview, events = _read(client)
        show(args, overview, lambda style: frame(overview, events, style))
        return ExitCode.DONE
    with _screen(), suppress(KeyboardInterrupt):
        _watch(client, args.interval)
    return ExitCode.DONE


def _watch(client: Client, interval_s: float) -> None:
    """Draw the host, read again at each interval and drawn again after each key, until q is pressed."""
    view = TopView()
    answer: _Answer | DaemonUnreachable = _try_read(client)
    due = time.monotonic() + interval_s
    while True:
        view = _draw(answer, view)
        keys = _pressed(max(0.0, due - time.monotonic()))
        if not keys:
            answer, due = _try_read(client), time.monotonic() + interval_s
        for key in keys:
            if key in ("q", "Q", "") and not view.typing and view.explained is None:
                return
            if key == "enter" and not view.typing and view.explained is None and view.selected:
                try:
                    found = client.get(f"/v1/explain?what={view.selected}")["found"]
                    lines = tuple(explain_lines(found, style_of(sys.stdout)._replace(folds=False)))
                except PlimsollError as error:
                    lines = (plain(error.message),)
                view = view._replace(explained=lines, scroll=0)
            else:
                view = view.press(
                    key, [] if isinstance(answer, DaemonUnreachable) else _shown(answer[0], view)
                )


_Answer = tuple["OverviewShape", list["EventShape"]]


def _try_read(client: Client) -> _Answer | DaemonUnreachable:
    try:
        return _read(client)
    except DaemonUnreachable as error:  # the agent may be restarting
        return error


def _read(client: Client) -> tuple[OverviewShape, list[EventShape]]:
    """The overview, and the newest events, the newest first."""
    return client.get("/v1/overview"), client.get(f"/v1/history?limit={EVENTS_SHOWN}")["events"]


def watching(lines: Callable[[Style | None], Sequence[str]], interval_s: float, *, live: bool) -> None:
    """Draw the lines at each interval, until q or Ctrl-C; PgUp and PgDn scroll. Not `live`: print them.

    `lines` prints by itself where it gets no style.
    """
    scroll = 0
    with _screen() if live else nullcontext(), suppress(KeyboardInterrupt):
        while True:
            if not live:
                lines(None)
                sys.stdout.flush()
                time.sleep(interval_s)
                continue
            style, (columns, rows) = style_of(sys.stdout)._replace(folds=False), _terminal_size()
            try:
                drawn = list(lines(style))
            except PlimsollError as error:  # the server may be restarting
                drawn = [style.paint("red", plain(error.message))]
            due = time.monotonic() + interval_s
            while time.monotonic() < due:
                scroll = first_line(len(drawn), rows, scroll, None)
                _put(fit(drawn[scroll:], columns, rows))
                for key in _pressed(max(0.0, due - time.monotonic())):
                    if key in ("q", "Q", ""):
                        return
                    scroll += {"page down": PAGE_LINES, "page up": -PAGE_LINES}.get(key, 0)
                    scroll = max(0, scroll)


@contextmanager
def _screen() -> Iterator[None]:
    """Use the terminal's alternate screen and read keys as they are pressed; restore both at the end."""
    keys = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = termios.tcgetattr(keys) if keys is not None else []
    sys.stdout.write(ENTER)
    try:
        if keys is not None:
            tty.setcbreak(keys)
        yield
    finally:
        if keys is not None:
            termios.tcsetattr(keys, termios.TCSADRAIN, before)
        sys.stdout.write(LEAVE)
        sys.stdout.flush()


def _pressed(within_s: float) -> tuple[str, ...]:
    """The keys that are pressed within the time, none where none is; "" at the end of the input."""
    if not sys.stdin.isatty():
        time.sleep(within_s)
        return ()
    keys = sys.stdin.fileno()
    if not select.select([keys], [], [], within_s)[0]:
        return ()
    return keys_of(os.read(keys, 256).decode(errors="replace")) or ("",)


def _draw(answer: _Answer | DaemonUnreachable, view: TopView) -> TopView:
    """Draw the screen; the view, scrolled no further than there are lines."""
    style = style_of(sys.stdout)._replace(folds=False)
    columns, rows = _terminal_size()
    if isinstance(answer, DaemonUnreachable):
        lines = [style.paint("red", plain(answer.message))]
    elif view.explained is not None:
        lines = list(view.explained)
    else:
        lines = list(frame(*answer, style, view))
    body = rows - 1 if rows >= PROMPT_ROWS_MIN else rows
    selected = next((number for number, line in enumerate(lines) if line.startswith(REVERSE)), None)
    first = first_line(len(lines), body, view.scroll, selected)
    fitted = fit(lines[first:], columns, body)
    if body < rows:
        fitted += [""] * (body - len(fitted)) + [_cut(style.paint("dim", plain(view.prompt)), columns)]
    _put(fitted)
    return view._replace(scroll=first if view.scroll > first else view.scroll)


def _terminal_size() -> tuple[int, int]:
    """Columns and rows."""
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        columns, rows = 0, 0
    return columns or WIDTH_DEFAULT, rows or HEIGHT_DEFAULT


def _put(lines: Sequence[str]) -> None:
    """Draw the lines from the top of the screen, and nothing below them."""
    sys.stdout.write(HOME + "\n".join(line + TO_END_OF_LINE for line in lines) + TO_END)
    sys.stdout.flush()


def frame(
    overview: OverviewShape, events: Sequence[EventShape], style: Style, view: TopView = EVERYTHING
) -> Iterator[str]:
    """All lines of the screen. `events` are the newest first."""
    from agent.api.shapes.host import TOP_EVENT_COLUMNS
    from agent.api.shapes.instance import TOP_INSTANCE_COLUMNS, TOP_MOVE_COLUMNS

    yield from _head(overview, style)
    yield ""
    yield from tree_lines(overview["resource_providers"], style)
    yield ""
    if overview["moves"]:
        yield from table_lines(TOP_MOVE_COLUMNS, overview["moves"], style)
        yield ""
    findings = [each for each in overview["findings"] if view.matches(f"{each['kind']} {each['reason']}")]
    for finding in findings:
        yield f"{style.paint('yellow', plain(finding['kind']))}: {plain(finding['reason'])}"
    if findings:
        yield ""
    instances = _shown(overview, view)
    if instances:
        titles, *rows = table_lines(TOP_INSTANCE_COLUMNS, instances, style)
        yield titles
        for instance, row in zip(instances, rows, strict=True):
            yield f"{REVERSE}{row}{NORMAL}" if instance["uuid"] == view.selected else row
    yield ""
    shown = [event for event in events[::-1] if view.matches(" ".join(map(str, event.values())))]
    yield from table_lines(TOP_EVENT_COLUMNS, shown, style) if shown else ["nothing happened"]


def first_line(lines: int, rows: int, scroll: int, selected: int | None) -> int:
    """The first of so many lines to show: `scroll`, no further than needed, so that `selected` is seen."""
    first = min(scroll, max(0, lines - rows))
    if selected is None:
        return first
    return max(min(first, selected), selected - rows + 2)


def fit(lines: Sequence[str], columns: int, rows: int) -> list[str]:
    """At most `rows` lines, each cut to the columns; the last line says how many are missing."""
    shown = [_cut(line, columns) for line in lines[:rows]]
    if len(lines) > rows and rows > 0:
        shown[-1] = _cut(f"... and {counted(len(lines) - rows + 1, 'more line')}", columns)
    return shown


def _head(overview: OverviewShape, style: Style) -> Iterator[str]:
    from agent.api.shapes.schema import local_time

    status = overview["status"]
    colour = STATE_COLOURS.get(status["state"], "red")
    claims = "open" if status["claims"]["open"] else "closed"
    numbers = [
        counted(sum(1 for instance in overview["instances"] if instance["guest"]), "guest"),
        f"{counted(status['claims']['count'], 'claim')}, {claims}",
        f"{len(overview['moves'])} moving",
        f"{overview['pending']} pending",
        counted(len(overview["findings"]), "finding") if status.get("audited") else "not audited yet",
    ]
    yield (
        f"{style.paint('bold', plain(status['host']))}  {style.paint(colour, plain(status['state']))} since "
        f"{local_time(status['since'])}  {'  '.join(numbers)}"
    )
    for reason in status["reasons"]:
        yield style.paint(colour, plain(reason))
    if overview["reshape_pending"] and overview["reshape_pending"] not in status["reasons"]:
        yield style.paint("yellow", plain(overview["reshape_pending"]))


def _shown(overview: OverviewShape, view: TopView) -> list[InstanceShape]:
    """The instances that the view shows, in its order; migrations are shown among the moves."""
    return view.choose([instance for instance in overview["instances"] if not instance["migration_of"]])


def _cut(line: str, columns: int) -> str:
    """The line, cut to `columns` characters; escape sequences of colours do not count."""
    left, parts = columns, []
    for number, part in enumerate(_ESCAPE.split(line)):
        if number % 2:
            parts.append(part)
        else:
            parts.append(part[:left])
            left -= len(part[:left])
    return "".join(parts)
