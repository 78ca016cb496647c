"""`plimsoll reshape`: its grammar, and what it does: online through the agent, offline in its stead."""

import argparse
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from agent.cli import render
from agent.cli.client import Client
from agent.cli.output import Output
from agent.cli.terminal import Style, plain
from agent.cli.tree import tree_lines
from agent.cli.waiting import waiting
from agent.errors import ExitCode

Json = dict[str, Any]


def add_reshape_command(
    add: Callable[..., argparse.ArgumentParser], files: Callable[[argparse.ArgumentParser], None]
) -> None:
    """Add `reshape`; `files` adds the options that name settings."""
    command = add(
        "reshape",
        reshape,
        "move inventory and the allocations on it in one step, or undo that",
        "The agent does what its driver says by itself, at the start and later. This asks for it now, also\n"
        "for what was undone before; or shows it; or undoes what a receipt stands for. --offline does the\n"
        "same while the agent is not running. A dry run ends with 3 when there is something to move.",
        "  plimsoll reshape --dry-run\n"
        "  plimsoll reshape\n"
        "  plimsoll reshape --undo 3f0f7f0e-3c1b-4b6e-9d0a-6f1d2c3b4a59",
    )
    command.add_argument(
        "--dry-run", action="store_true", help="show the tree before and after, and each move; change nothing"
    )
    command.add_argument("--undo", metavar="RECEIPT", help="bring back what that reshape moved")
    command.add_argument(
        "--offline", action="store_true", help="read the settings and do it here: the agent is not running"
    )
    files(command)


def reshape(args: Namespace) -> ExitCode:
    if args.dry_run:
        answer = _previewed(args)
        Output(args.output).show(answer, lambda style: preview_lines(answer, style))
        if answer["refused"]:
            return ExitCode.REFUSED
        return ExitCode.DRIFT_FOUND if answer["due"] else ExitCode.DONE
    answer = _done(args)
    Output(args.output).show(answer, lambda _: _done_lines(answer["receipts"]))
    return ExitCode.DONE


def _previewed(args: Namespace) -> Json:
    if args.offline:
        from agent.api.views import preview_view
        from agent.daemon import offline_reshape

        with waiting("looking at the host and at placement"):
            return preview_view(offline_reshape.preview_reshape(_settings(args), args.undo))
    query = f"?{urlencode({'undo': args.undo})}" if args.undo is not None else ""
    answer: Json = Client(args.socket, args.timeout).get(f"/v1/reshape{query}")
    return answer


def _done(args: Namespace) -> Json:
    if args.offline:
        from agent.api.views import reshaped_view
        from agent.daemon import offline_reshape

        with waiting("looking at the host, and reshaping"):
            return reshaped_view(offline_reshape.reshape(_settings(args), args.undo))
    body = {} if args.undo is None else {"undo": args.undo}
    answer: Json = Client(args.socket, args.timeout).request("POST", "/v1/reshape", body)
    return answer


def _settings(args: Namespace) -> Any:
    from agent.config.settings import load

    return load(
        tuple(Path(name) for name in args.config_file or ()),
        tuple(Path(name) for name in args.config_dir or ()),
    )


def preview_lines(answer: Json, style: Style) -> Iterator[str]:
    if answer["refused"]:
        yield f"refused: {plain(answer['refused'])}"
    elif not answer["due"]:
        yield "nothing to move"
    if answer["due"] or answer["refused"]:
        for title in ("before", "after"):
            yield style.paint("bold", f"{title}:")
            yield from tree_lines(answer[title]["resource_providers"], style)
        yield style.paint("bold", "moves:")
        yield from _move_lines(answer["moves"])
    if answer["parked"]:
        yield style.paint("bold", "parked:")
        yield from map(plain, answer["parked"])
    if answer["receipts"]:
        yield style.paint("bold", "receipts:")
        yield from _receipt_lines(answer["receipts"])


def _move_lines(moves: Sequence[Json]) -> Iterator[str]:
    if not moves:
        yield "inventory only; no allocation is touched"
        return
    headings = ("class", "amount", "consumer", "from", "to")
    rows = [(_class_of(each), each["amount"], each["consumer"], each["from"], each["to"]) for each in moves]
    yield from render.table(headings, rows)


def _class_of(move: Json) -> str:
    before, after = move["resource_class"], move["becomes"]
    return str(before) if before == after else f"{before} -> {after}"


def _receipt_lines(receipts: Sequence[Json]) -> Iterator[str]:
    rows = [
        (
            each["id"],
            each["at"],
            each["allocations"],
            "; ".join(_moved(each["moves"])),
            "undone" if each["undone"] else f"undid {each['undoes']}" if each["undoes"] else "",
        )
        for each in receipts
    ]
    yield from render.table(("receipt", "at", "allocations", "moved", ""), rows)


def _moved(moves: Sequence[Json]) -> Iterator[str]:
    """What went from where to where, a clause for all that moved in the same way."""
    ways: dict[str, tuple[set[str], set[str]]] = {}
    for move in moves:
        becomes = move.get("becomes", {})
        names = [
            f"{name} as {becomes[name]}" if name in becomes else name for name in move["moved_resources"]
        ]
        sources, targets = ways.setdefault(", ".join(names), (set(), set()))
        sources.add(move["from_resource_provider"])
        targets.add(move["to_resource_provider"])
    for classes, (sources, targets) in ways.items():
        yield f"{classes}: {_one_or_many(sources)} -> {_one_or_many(targets)}"


def _one_or_many(names: set[str]) -> str:
    return next(iter(names)) if len(names) == 1 else f"{len(names)} providers"


def _done_lines(receipts: Sequence[Json]) -> Iterator[str]:
    if not receipts:
        yield "nothing to move"
        return
    yield "done"
    yield from _receipt_lines(receipts)
