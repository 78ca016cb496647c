"""`plimsoll reshape`: its grammar, and what it does: online through the agent, offline in its stead."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from agent.cli import render
from agent.cli.client import Client
from agent.cli.output import Output
from agent.cli.terminal import Style, plain
from agent.cli.tree import tree_lines
from agent.cli.waiting import waiting
from agent.errors import ExitCode

if TYPE_CHECKING:
    from agent.api.shapes.reshape import PreviewShape, ReceiptShape, RelocationShape, ReshapedShape


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
        preview = _previewed(args)
        Output(args.output).show(preview, lambda style: preview_lines(preview, style))
        if preview["refused"]:
            return ExitCode.REFUSED
        return ExitCode.DRIFT_FOUND if preview["due"] else ExitCode.DONE
    answer = _done(args)
    Output(args.output).show(answer, lambda _: _done_lines(answer["receipts"]))
    return ExitCode.DONE


def _previewed(args: Namespace) -> PreviewShape:
    if args.offline:
        from agent.api.views import preview_view
        from agent.daemon import offline_reshape

        with waiting("looking at the host and at placement"):
            return preview_view(offline_reshape.preview_reshape(_settings(args), args.undo))
    query = f"?{urlencode({'undo': args.undo})}" if args.undo is not None else ""
    answer: PreviewShape = Client(args.socket, args.timeout).get(f"/v1/reshape{query}")
    return answer


def _done(args: Namespace) -> ReshapedShape:
    if args.offline:
        from agent.api.views import reshaped_view
        from agent.daemon import offline_reshape

        with waiting("looking at the host, and reshaping"):
            return reshaped_view(offline_reshape.reshape(_settings(args), args.undo))
    body = {} if args.undo is None else {"undo": args.undo}
    answer: ReshapedShape = Client(args.socket, args.timeout).request("POST", "/v1/reshape", body)
    return answer


def _settings(args: Namespace) -> Any:
    from agent.config.settings import load

    return load(
        tuple(Path(name) for name in args.config_file or ()),
        tuple(Path(name) for name in args.config_dir or ()),
    )


def preview_lines(answer: PreviewShape, style: Style) -> Iterator[str]:
    if answer["refused"]:
        yield f"refused: {plain(answer['refused'])}"
    elif not answer["due"]:
        yield "nothing to move"
    if answer["due"] or answer["refused"]:
        for title, tree in (("before", answer["before"]), ("after", answer["after"])):
            yield style.paint("bold", f"{title}:")
            yield from tree_lines(tree["resource_providers"], style)
        yield style.paint("bold", "moves:")
        yield from _move_lines(answer["moves"])
    if answer["parked"]:
        yield style.paint("bold", "parked:")
        yield from map(plain, answer["parked"])
    if answer["receipts"]:
        yield style.paint("bold", "receipts:")
        yield from _receipt_lines(answer["receipts"])


def _move_lines(relocations: Sequence[RelocationShape]) -> Iterator[str]:
    if relocations:
        from agent.api.shapes.reshape import RELOCATION_COLUMNS

        yield from render.table_lines(RELOCATION_COLUMNS, relocations)
    else:
        yield "inventory only; no allocation is touched"


def _done_lines(receipts: Sequence[ReceiptShape]) -> Iterator[str]:
    if not receipts:
        yield "nothing to move"
        return
    yield "done"
    yield from _receipt_lines(receipts)


def _receipt_lines(receipts: Sequence[ReceiptShape]) -> Iterator[str]:
    from agent.api.shapes.reshape import RECEIPT_COLUMNS

    return render.table_lines(RECEIPT_COLUMNS, receipts)
