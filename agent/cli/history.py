"""`plimsoll history`."""

from __future__ import annotations

import argparse
import re
from argparse import Namespace
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from agent.cli.client import client_of
from agent.cli.grammar import add_column_option, complete_instances
from agent.cli.output import Output
from agent.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from agent.api.shapes.host import HistoryShape
    from agent.cli.grammar import CommandAdder

LIMIT_DEFAULT = 50
LIMIT_MAX = 10_000
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGO = re.compile(r"(\d{1,6})([smhd])")


def add_history_command(add: CommandAdder) -> None:
    """Add `plimsoll history`."""
    command = add(
        "history",
        history,
        "list what the agent did and why, the newest last",
        "Shows steps of claims and moves, refusals with their reasons, passes that changed Placement,\n"
        "reshapes, repairs, and when the agent was degraded. The agent keeps the last 10000 events.",
        "  plimsoll history --since 1h\n"
        "  plimsoll history --consumer web1\n"
        "  plimsoll history -o json | jq '.events[] | select(.event == \"refused\") | .detail'",
    )
    consumer = command.add_argument(
        "--consumer",
        metavar="CONSUMER",
        help="only events of this instance or migration: its name, its uuid, or the beginning of its uuid; "
        "also of one that was released",
    )
    complete_instances(consumer)
    command.add_argument(
        "--since", metavar="WHEN", help="only later events: 30m, 2h, 7d, or 2026-11-21T10:00 (local time)"
    )
    command.add_argument(
        "--limit",
        metavar="N",
        type=_limit,
        default=LIMIT_DEFAULT,
        help=f"at most so many events, the newest (default {LIMIT_DEFAULT})",
    )
    add_column_option(command)


def history(args: Namespace) -> ExitCode:
    """List events of the history."""
    from agent.api.shapes.host import EVENT_COLUMNS

    query = {"limit": str(args.limit)}
    client = client_of(args)
    if args.consumer is not None:
        query["consumer"] = args.consumer
    if args.since:
        query["since"] = _since(args.since)
    answer: HistoryShape = client.get(f"/v1/history?{urlencode(query)}")
    output = Output(args.output, args.column)
    output.show_table(answer, EVENT_COLUMNS, answer["events"][::-1], "nothing happened")
    return ExitCode.DONE


def _since(word: str) -> str:
    """A moment, RFC 3339. Raises UsageError where the word is neither a moment nor a duration."""
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
