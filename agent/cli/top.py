"""`plimsoll top`: the host on one screen, drawn again every few seconds."""

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from agent.cli.client import Client, client_of
from agent.cli.grammar import parse_seconds
from agent.cli.output import Output
from agent.cli.provider_tree import tree_lines
from agent.cli.status import STATE_COLOURS
from agent.cli.tables import table_lines
from agent.cli.terminal import WIDTH_DEFAULT, Style, plain, style_of
from agent.cli.top_view import TopView, first_line, keys_of
from agent.errors import DaemonUnreachable, ExitCode, PlimsollError, counted

if TYPE_CHECKING:
    from agent.api.shapes.host import EventShape, FindingShape, OverviewShape
    from agent.api.shapes.instances import InstanceShape, MoveShape
    from agent.cli.grammar import CommandAdder

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
EVERYTHING = TopView()
_ESCAPE = re.compile(r"(\x1b\[[0-9;]*m)")


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
        type=_interval,
        default=INTERVAL_DEFAULT_S,
        help=f"how often (default {INTERVAL_DEFAULT_S:g})",
    )
    command.add_argument("--once", action="store_true", help="draw once")


def top(args: Namespace) -> ExitCode:
    """Draw the host, once or until the operator quits."""
    live = not args.once and args.output == "table" and sys.stdout.isatty()
    client = client_of(args, quiet=live)
    if not live:
        overview, events = _read(client)
        Output(args.output).show(overview, lambda style: frame(overview, events, style))
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
                view = view._replace(explained=_explanation(client, view.selected), scroll=0)
            else:
                view = view.press(
                    key, [] if isinstance(answer, DaemonUnreachable) else _shown(answer[0], view)
                )


def _explanation(client: Client, uuid: str) -> tuple[str, ...]:
    from agent.cli.explain import explain_lines

    try:
        answer = client.get(f"/v1/explain?what={uuid}")
    except PlimsollError as error:
        return (plain(error.message),)
    return tuple(explain_lines(answer["found"], style_of(sys.stdout)._replace(folds=False)))


_Answer = tuple["OverviewShape", list["EventShape"]]


def _try_read(client: Client) -> _Answer | DaemonUnreachable:
    try:
        return _read(client)
    except DaemonUnreachable as error:  # the agent may be restarting
        return error


def _read(client: Client) -> tuple[OverviewShape, list[EventShape]]:
    """The overview, and the newest events, the newest first."""
    return client.get("/v1/overview"), client.get(f"/v1/history?limit={EVENTS_SHOWN}")["events"]


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
    columns, rows = _size()
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
    sys.stdout.write(HOME + "\n".join(line + TO_END_OF_LINE for line in fitted) + TO_END)
    sys.stdout.flush()
    return view._replace(scroll=first if view.scroll > first else view.scroll)


def _size() -> tuple[int, int]:
    """(columns, lines) of the terminal, however small it is."""
    try:
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return WIDTH_DEFAULT, HEIGHT_DEFAULT
    return columns or WIDTH_DEFAULT, lines or HEIGHT_DEFAULT


def frame(
    overview: OverviewShape, events: Sequence[EventShape], style: Style, view: TopView = EVERYTHING
) -> Iterator[str]:
    """All lines of the screen. `events` are the newest first."""
    yield from _head(overview, style)
    yield ""
    yield from tree_lines(overview["resource_providers"], style)
    yield ""
    yield from _moves(overview["moves"], style)
    findings = [each for each in overview["findings"] if view.matches(f"{each['kind']} {each['reason']}")]
    yield from _findings(findings, style)
    yield from _instances(_shown(overview, view), view, style)
    yield ""
    yield from _events(
        [event for event in events[::-1] if view.matches(" ".join(map(str, event.values())))], style
    )


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


def _moves(moves: Sequence[MoveShape], style: Style) -> Iterator[str]:
    from agent.api.shapes.instances import TOP_MOVE_COLUMNS

    if moves:
        yield from table_lines(TOP_MOVE_COLUMNS, moves, style)
        yield ""


def _findings(findings: Sequence[FindingShape], style: Style) -> Iterator[str]:
    for finding in findings:
        yield f"{style.paint('yellow', plain(finding['kind']))}: {plain(finding['reason'])}"
    if findings:
        yield ""


def _shown(overview: OverviewShape, view: TopView) -> list[InstanceShape]:
    """The instances that the view shows, in its order; migrations are shown among the moves."""
    return view.choose([instance for instance in overview["instances"] if not instance["migration_of"]])


def _instances(instances: Sequence[InstanceShape], view: TopView, style: Style) -> Iterator[str]:
    from agent.api.shapes.instances import TOP_INSTANCE_COLUMNS

    if not instances:
        return
    titles, *rows = table_lines(TOP_INSTANCE_COLUMNS, instances, style)
    yield titles
    for instance, row in zip(instances, rows, strict=True):
        yield f"{REVERSE}{row}{NORMAL}" if instance["uuid"] == view.selected else row


def _events(events: Sequence[EventShape], style: Style) -> Iterator[str]:
    from agent.api.shapes.host import TOP_EVENT_COLUMNS

    if events:
        yield from table_lines(TOP_EVENT_COLUMNS, events, style)
    else:
        yield "nothing happened"


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


def _interval(text: str) -> float:
    seconds = parse_seconds(text)
    if not INTERVAL_MIN_S <= seconds <= INTERVAL_MAX_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds from {INTERVAL_MIN_S:g} to {INTERVAL_MAX_S:g}"
        )
    return seconds
