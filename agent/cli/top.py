"""`plimsoll top`: the host on one screen, drawn anew every few seconds."""

import argparse
import os
import re
import select
import sys
import termios
import time
import tty
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from agent.cli.client import Client
from agent.cli.history import event_lines
from agent.cli.output import Output
from agent.cli.render import moment, resources_text, summed, table
from agent.cli.terminal import WIDTH_DEFAULT, Style, plain, style_of
from agent.cli.tree import tree_lines
from agent.errors import DaemonUnreachable, ExitCode

Json = dict[str, Any]

INTERVAL_DEFAULT_S = 2.0
INTERVAL_MIN_S = 0.5
EVENTS_SHOWN = 5
HEIGHT_DEFAULT = 24
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, TO_END_OF_LINE, TO_END = "\x1b[H", "\x1b[K", "\x1b[J"
_ESCAPE = re.compile(r"(\x1b\[[0-9;]*m)")


def add_top_command(add: Callable[..., argparse.ArgumentParser]) -> None:
    command = add(
        "top",
        top,
        "the host on one screen, live: what is in use, guests, moves, findings",
        "Drawn anew every two seconds until q or Ctrl-C; shown once with --once, or without a terminal.\n"
        "What it shows the agent has in memory: nobody else is asked.",
        "  plimsoll top\n  plimsoll top --interval 10\n  plimsoll top --once",
    )
    command.add_argument(
        "--interval",
        metavar="SECONDS",
        type=_interval,
        default=INTERVAL_DEFAULT_S,
        help=f"how often (default {INTERVAL_DEFAULT_S:g})",
    )
    command.add_argument("--once", action="store_true", help="show it once")


def top(args: Namespace) -> ExitCode:
    live = not args.once and args.output == "table" and sys.stdout.isatty()
    client = Client(args.socket, args.timeout, quiet=live)
    if not live:
        answer = client.get("/v1/overview")
        events = client.get(f"/v1/history?limit={EVENTS_SHOWN}")["events"]
        Output(args.output).show(answer, lambda style: frame(answer, events, style))
        return ExitCode.DONE
    with _screen():
        try:
            _draw(client)
            while not _quits(args.interval):
                _draw(client)
        except KeyboardInterrupt:
            pass
    return ExitCode.DONE


@contextmanager
def _screen() -> Iterator[None]:
    """A screen of its own, and keys as they are pressed; the terminal is afterwards what it was before."""
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


def _quits(within_s: float) -> bool:
    """Wait so long; whether q was pressed meanwhile. Any other key only draws at once."""
    if not sys.stdin.isatty():
        time.sleep(within_s)
        return False
    keys = sys.stdin.fileno()
    return bool(select.select([keys], [], [], within_s)[0]) and os.read(keys, 64)[:1] in (b"q", b"Q", b"")


def _draw(client: Client) -> None:
    style = style_of(sys.stdout)
    try:
        answer = client.get("/v1/overview")
        lines: Iterable[str] = frame(answer, client.get(f"/v1/history?limit={EVENTS_SHOWN}")["events"], style)
    except DaemonUnreachable as error:  # it may be restarting: go on looking
        lines = [style.paint("red", plain(error.message))]
    fitted = fit(list(lines), *_size())
    sys.stdout.write(HOME + "\n".join(line + TO_END_OF_LINE for line in fitted) + TO_END)
    sys.stdout.flush()


def _size() -> tuple[int, int]:
    """(columns, lines) of the terminal, however small it is."""
    try:
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return WIDTH_DEFAULT, HEIGHT_DEFAULT
    return columns or WIDTH_DEFAULT, lines or HEIGHT_DEFAULT


def frame(seen: Json, events: Sequence[Json], style: Style) -> Iterator[str]:
    """The screen's lines, as long as they are; `seen` as GET /v1/overview gives it."""
    yield from _head(seen, style)
    yield ""
    yield from tree_lines(seen["resource_providers"], style)
    yield ""
    yield from _moves(seen["moves"])
    yield from _findings(seen["findings"], style)
    migrations = {each["migration"] for each in seen["moves"]}
    yield from _instances([each for each in seen["instances"] if each["uuid"] not in migrations])
    yield ""
    yield from event_lines(events[::-1], askers=False)


def fit(lines: Sequence[str], columns: int, rows: int) -> list[str]:
    """So many lines, each cut to the columns; the last one says what is not shown."""
    shown = [_cut(line, columns) for line in lines[:rows]]
    if len(lines) > rows and rows > 0:
        shown[-1] = _cut(f"... and {len(lines) - rows + 1} lines more", columns)
    return shown


def _head(seen: Json, style: Style) -> Iterator[str]:
    status = seen["status"]
    colour = {"ready": "green", "degraded": "yellow"}.get(status["state"], "red")
    claims = "open" if status["claims"]["open"] else "closed"
    numbers = [
        f"{sum(1 for each in seen['instances'] if each['guest'])} guests",
        f"{status['claims']['count']} claims, {claims}",
        f"{len(seen['moves'])} moving",
        f"{seen['pending']} pending",
        f"{len(seen['findings'])} findings",
    ]
    yield (
        f"{style.paint('bold', plain(status['host']))}  {style.paint(colour, plain(status['state']))} since "
        f"{moment(status['since'])}  {'  '.join(numbers)}"
    )
    for reason in status["reasons"]:
        yield style.paint(colour, plain(reason))
    if seen["reshape_pending"] and seen["reshape_pending"] not in status["reasons"]:
        yield style.paint("yellow", plain(seen["reshape_pending"]))


def _moves(moves: Sequence[Json]) -> Iterator[str]:
    if not moves:
        return
    rows = [
        (
            each["name"] or each["instance"],
            each["kind"],
            each["role"],
            each["state"],
            moment(each["since"]),
            resources_text(summed(each["handed"]["allocations"])),
        )
        for each in moves
    ]
    yield from table(("MOVING", "KIND", "THIS HOST IS", "STATE", "SINCE", "THE MIGRATION HOLDS"), rows)
    yield ""


def _findings(findings: Sequence[Json], style: Style) -> Iterator[str]:
    for each in findings:
        yield f"{style.paint('yellow', plain(each['kind']))}: {plain(each['reason'])}"
    if findings:
        yield ""


def _instances(instances: Sequence[Json]) -> Iterator[str]:
    rows = []
    for each in sorted(instances, key=lambda each: (each["name"], each["uuid"])):
        guest, claim = each["guest"], each["claim"]
        held = summed(claim["allocations"]) if claim else guest["resources"]
        state = claim["state"] if claim else "UNCLAIMED"
        rows.append(
            (each["name"] or each["uuid"], guest["state"] if guest else "none", state, resources_text(held))
        )
    if rows:
        yield from table(("INSTANCE", "GUEST", "CLAIM", "RESOURCES"), rows)


def _cut(line: str, columns: int) -> str:
    """At most so many characters on the screen; colours take none."""
    left, parts = columns, []
    for number, part in enumerate(_ESCAPE.split(line)):
        if number % 2:
            parts.append(part)
        else:
            parts.append(part[:left])
            left -= len(part[:left])
    return "".join(parts)


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not INTERVAL_MIN_S <= seconds <= 3600.0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds from {INTERVAL_MIN_S:g} to 3600"
        )
    return seconds
