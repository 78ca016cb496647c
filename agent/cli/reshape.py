"""`plimsoll reshape`: online through the agent, or offline in its place."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from agent.cli.client import client_of
from agent.cli.grammar import CommandAdder, add_settings_options, load_settings
from agent.cli.output import Style, show, table_lines, waiting
from agent.cli.tree import tree_lines
from agent.errors import ExitCode, plain

if TYPE_CHECKING:
    from agent.api.shapes.providers import PreviewShape


def add_reshape_command(add: CommandAdder) -> None:
    """Add `plimsoll reshape`."""
    command = add(
        "reshape",
        reshape,
        "move inventory and the allocations on it in one step, or undo that",
        "The agent does the reshapes of its driver by itself, at the start and later. This command asks for\n"
        "one now, also for one that was undone; or shows it; or undoes the one of a receipt. --offline does\n"
        "the same while the agent is not running. A dry run ends with 3 if there is something to move.",
        "  plimsoll reshape --dry-run\n"
        "  plimsoll reshape\n"
        "  plimsoll reshape --undo 3f0f7f0e-3c1b-4b6e-9d0a-6f1d2c3b4a59",
    )
    command.add_argument(
        "--dry-run", action="store_true", help="show the tree before and after, and each move; change nothing"
    )
    command.add_argument("--undo", metavar="RECEIPT", help="move back what that reshape moved")
    command.add_argument(
        "--offline", action="store_true", help="read the settings and do it here; the agent must not run"
    )
    add_settings_options(command)


def reshape(args: Namespace) -> ExitCode:
    """Do, undo or preview a reshape."""
    if args.dry_run:
        return _preview(args)
    if args.offline:
        from agent.api.views import reshaped_view
        from agent.daemon import offline_reshape

        with waiting("looking at the host, and reshaping"):
            answer = reshaped_view(offline_reshape.reshape(load_settings(args), args.undo))
    else:
        body = {} if args.undo is None else {"undo": args.undo}
        answer = client_of(args).request("POST", "/v1/reshape", body)
    receipts = answer["receipts"]

    def lines(style: Style) -> Iterator[str]:
        from agent.api.shapes.providers import RECEIPT_COLUMNS

        yield "done" if receipts else "nothing to move"
        if receipts:
            yield from table_lines(RECEIPT_COLUMNS, receipts, style)

    show(args, answer, lines)
    return ExitCode.DONE


def _preview(args: Namespace) -> ExitCode:
    if args.offline:
        from agent.api.views import preview_view
        from agent.daemon import offline_reshape

        with waiting("looking at the host and at Placement"):
            preview = preview_view(offline_reshape.preview_reshape(load_settings(args), args.undo))
    else:
        query = f"?{urlencode({'undo': args.undo})}" if args.undo is not None else ""
        preview = client_of(args).get(f"/v1/reshape{query}")
    show(args, preview, lambda style: preview_lines(preview, style))
    if preview["refused"]:
        return ExitCode.REFUSED
    return ExitCode.DRIFT_FOUND if preview["due"] else ExitCode.DONE


def preview_lines(preview: PreviewShape, style: Style) -> Iterator[str]:
    """The trees before and after, the moves, the parked units and the receipts."""
    from agent.api.shapes.providers import RECEIPT_COLUMNS, RELOCATION_COLUMNS

    if preview["refused"]:
        yield f"refused: {plain(preview['refused'])}"
    elif not preview["due"]:
        yield "nothing to move"
    if preview["due"] or preview["refused"]:
        for title, tree in (("before", preview["before"]), ("after", preview["after"])):
            yield style.paint("bold", f"{title}:")
            yield from tree_lines(tree["resource_providers"], style)
        yield style.paint("bold", "moves:")
        if preview["moves"]:
            yield from table_lines(RELOCATION_COLUMNS, preview["moves"], style)
        else:
            yield "inventory only; no allocation is touched"
    if preview["parked"]:
        yield style.paint("bold", "parked:")
        yield from map(plain, preview["parked"])
    if preview["receipts"]:
        yield style.paint("bold", "receipts:")
        yield from table_lines(RECEIPT_COLUMNS, preview["receipts"], style)
