"""`plimsoll placement remove`."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from agent.cli.output import Output
from agent.cli.placement.source import (
    SOURCES_HELP,
    add_source_options,
    counts_text,
    opened_with_progress,
    read_text_file,
)
from agent.errors import ExitCode

if TYPE_CHECKING:
    from agent.cli.grammar import CommandAdder


def add_remove(add: CommandAdder) -> None:
    """Add `plimsoll placement remove`."""
    parser = add(
        "remove",
        remove,
        "remove from a Placement what was carried elsewhere",
        f"{SOURCES_HELP}The last step of a move from one Placement to another, after the import was\n"
        "verified. If the Placement differs from the document by now, nothing is removed (exit code 5).",
        "  plimsoll placement remove host1.json --state-dir /var/lib/plimsoll --dry-run\n"
        "  plimsoll placement remove host1.json --url http://placement.example/placement",
    )
    add_source_options(parser)
    parser.add_argument("file", metavar="FILE", help="the document; - is standard input")
    parser.add_argument("--dry-run", action="store_true", help="print what would go; change nothing")


def remove(args: Namespace) -> ExitCode:
    """Remove the content of a document from a Placement."""
    from agent.placement.transfer.read import SnapshotClient, read_counterpart
    from agent.placement.transfer.snapshot import from_text
    from agent.placement.transfer.write import apply_removal, plan_removal

    unwanted = from_text(read_text_file(args.file))
    with opened_with_progress(args) as transport:
        client = SnapshotClient(transport)
        plan = plan_removal(unwanted, read_counterpart(client, unwanted)[0])
        if not args.dry_run:
            apply_removal(client, plan)
    answer = {
        "resource_providers": len(plan.providers),
        "consumers": len(plan.consumers),
        "removed": not args.dry_run,
    }
    outcome = "to be removed" if args.dry_run else "removed"
    lines = [*(plan.lines() if args.dry_run else ()), f"{outcome}: {counts_text(answer)}"]
    Output(args.output).show(answer, lambda _: lines)
    return ExitCode.DRIFT_FOUND if args.dry_run and not plan.empty else ExitCode.DONE
