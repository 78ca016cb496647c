"""`plimsoll placement import`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from agent.cli.output import Output
from agent.cli.placement.source import (
    SOURCES_HELP,
    add_source_options,
    counts_text,
    opened_with_progress,
    read_text_file,
)
from agent.errors import ExitCode, counted

if TYPE_CHECKING:
    from agent.cli.grammar import CommandAdder


def add_import(add: CommandAdder) -> None:
    """Add `plimsoll placement import`."""
    parser = add(
        "import",
        import_,
        "bring an exported document into a Placement, and verify it",
        f"{SOURCES_HELP}Other content of the target stays. Where the target differs from the document, the\n"
        "command writes nothing (exit code 5), unless --overwrite is given. Afterwards it reads the target\n"
        "again; differences end with 3. An import that was interrupted can be run again.",
        "  plimsoll placement import host1.json --url http://placement.example/placement --dry-run\n"
        "  plimsoll placement import host1.json --state-dir /var/lib/plimsoll",
    )
    add_source_options(parser)
    parser.add_argument("file", metavar="FILE", help="the document; - is standard input")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="change the target to what the document says, where they differ",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be written; write nothing")


def import_(args: Namespace) -> ExitCode:
    """Import a document, then read the target again and compare."""
    from agent.placement.transfer.read import SnapshotClient, read_counterpart
    from agent.placement.transfer.snapshot import differences, foreign_consumers, from_text
    from agent.placement.transfer.write import UNTYPED_MICROVERSION, apply_import, plan_import

    wanted = from_text(read_text_file(args.file))
    with opened_with_progress(args) as transport:
        client = SnapshotClient(transport)
        present, evidence = read_counterpart(client, wanted)
        if not client.has_consumer_types():
            wanted = wanted.without_types()
        plan = plan_import(wanted, present, evidence.names, overwrite=args.overwrite)
        if not args.dry_run:
            apply_import(client, SnapshotClient(transport, microversion=UNTYPED_MICROVERSION), plan)
            present, _ = read_counterpart(client, wanted)
    if args.dry_run:
        lines = list(plan.lines()) or ["nothing to write: the target has all of it already"]
        Output(args.output).show(plan.to_json(), lambda _: lines)
        return ExitCode.DONE if plan.empty else ExitCode.DRIFT_FOUND
    left = differences(wanted, present)
    answer = {
        **wanted.counts(),
        "written": {"operations": plan.operations, "consumers": len(plan.consumers)},
        "differences": [difference.to_json() for difference in left],
        "other_consumers": list(foreign_consumers(wanted, present)),
    }
    Output(args.output).show(answer, lambda _: _lines(answer, [difference.line() for difference in left]))
    return ExitCode.DRIFT_FOUND if left else ExitCode.DONE


def _lines(answer: dict[str, Any], differences: Sequence[str]) -> Iterator[str]:
    written = answer["written"]
    yield (
        f"imported {counts_text(answer)}: {counted(written['operations'], 'operation')} and "
        f"{counted(written['consumers'], 'consumer was', 'consumers were')} written"
    )
    if differences:
        yield f"read again, the target differs in {counted(len(differences), 'place')}:"
        yield from (f"  {line}" for line in differences)
    else:
        yield "read again, the target says what the document says; generations are its own"
    others = len(answer["other_consumers"])
    if others:
        yield (
            f"{counted(others, 'consumer')} not in the document {'uses' if others == 1 else 'use'} these "
            "providers too"
        )
