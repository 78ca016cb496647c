"""`plimsoll history` and `plimsoll explain`: what the agent did, and who owns what and why."""

import argparse
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from agent.cli.client import Client
from agent.cli.output import Output
from agent.cli.render import moment, table
from agent.cli.terminal import Style, plain
from agent.errors import ExitCode, UsageError

Json = dict[str, Any]

LIMIT_DEFAULT = 50
LIMIT_MAX = 10_000
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGO = re.compile(r"(\d{1,6})([smhd])")


def add_history_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    command = add(
        "history",
        history,
        "what the agent did and why, the newest last",
        "Steps of claims and moves, refusals with their reasons, passes that changed placement, reshapes,\n"
        "what was healed, and when the agent was degraded. The agent keeps the last 10000 events.",
        "  plimsoll history --since 1h\n"
        "  plimsoll history --consumer 5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69\n"
        "  plimsoll history -o json | jq '.events[] | select(.event == \"refused\") | .detail'",
    )
    command.add_argument("--consumer", metavar="UUID", help="only what concerns this instance or migration")
    command.add_argument(
        "--since", metavar="WHEN", help="only what came later: 30m, 2h, 7d, or 2026-11-21T10:00 (local time)"
    )
    command.add_argument(
        "--limit",
        metavar="N",
        type=_limit,
        default=LIMIT_DEFAULT,
        help=f"at most so many, the newest (default {LIMIT_DEFAULT})",
    )
    command = add(
        "explain",
        explain,
        "who owns this, and why, since when",
        "WHAT is a consumer or provider by its uuid or name, a device by its address, an exact unit (a\n"
        "virtual function, a mediated device, PCPU:3), or the receipt of a reshape.",
        "  plimsoll explain web1\n"
        "  plimsoll explain 0000:84:00.0\n"
        "  plimsoll explain 4b20d080-1b54-4048-85b3-a6a62d165c01",
    )
    command.add_argument("what", metavar="WHAT", help="a uuid, a name, an address, a unit, a receipt")


def history(args: Namespace) -> ExitCode:
    asked = {"limit": str(args.limit)}
    if args.consumer:
        asked["consumer"] = args.consumer
    if args.since:
        asked["since"] = _since(args.since)
    answer = _client(args).get(f"/v1/history?{urlencode(asked)}")
    Output(args.output).show(answer, lambda _: event_lines(answer["events"][::-1]))
    return ExitCode.DONE


def explain(args: Namespace) -> ExitCode:
    answer = _client(args).get(f"/v1/explain?what={quote(args.what, safe='')}")
    Output(args.output).show(answer, lambda style: _explained(answer["found"], style))
    return ExitCode.DONE


def event_lines(events: Sequence[Json], *, askers: bool = True) -> Iterator[str]:
    """`askers` False leaves out who asked, where there is little room."""
    if not events:
        yield "nothing happened"
        return
    headings = ["WHEN", "WHAT", "WHO", "WHY"]
    rows = [[moment(each["at"]), each["event"], _who(each), each["detail"] or "-"] for each in events]
    if askers:
        headings.insert(3, "ASKED BY")
        for row, each in zip(rows, events, strict=True):
            row.insert(3, _asker(each))
    yield from table(headings, rows)


def _who(event: Json) -> str:
    if not event["consumer"]:
        return "-"
    return f"{event['consumer']} ({event['name']})" if event["name"] else event["consumer"]


def _asker(event: Json) -> str:
    return "-" if event["uid"] is None else f"uid {event['uid']} (pid {event['pid']})"


def _explained(found: Sequence[Json], style: Style) -> Iterator[str]:
    for number, each in enumerate(found):
        if number:
            yield ""
        called = f"{plain(each['name'])}  " if each["name"] not in ("", each["id"]) else ""
        yield f"{each['kind']} {style.paint('bold', called)}{style.paint('dim', plain(each['id']))}"
        for line in each["lines"]:
            yield f"  {plain(line)}"
        if each["events"]:
            yield "  lately"
        for event in reversed(each["events"]):
            detail = f"  {plain(event['detail'])}" if event["detail"] else ""
            asker = "" if event["uid"] is None else f"  asked for by {_asker(event)}"
            yield f"    {moment(event['at'])}  {plain(event['event'])}{detail}{asker}"


def _since(word: str) -> str:
    """RFC 3339. Raises UsageError."""
    from datetime import datetime, timedelta

    ago = _AGO.fullmatch(word)
    if ago:
        seconds = int(ago[1]) * SECONDS[ago[2]]
        return (datetime.now().astimezone() - timedelta(seconds=seconds)).isoformat()
    try:
        return datetime.fromisoformat(word).astimezone().isoformat()
    except (ValueError, OverflowError):
        raise UsageError(
            f"--since {word!r} is no time; give how long ago, such as 30m, 2h or 7d, or a moment, such as "
            "2026-11-21T10:00"
        ) from None


def _limit(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= LIMIT_MAX:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {LIMIT_MAX}")


def _client(args: Namespace) -> Client:
    return Client(args.socket, args.timeout)
