"""`plimsoll placement export`."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.cli.output import Output
from agent.cli.placement.source import (
    SOURCES_HELP,
    STANDARD_STREAM,
    add_source_options,
    counts_text,
    is_state_dir,
    naming_the_place,
    opened_with_progress,
    read_content,
)
from agent.errors import ExitCode, StateError

if TYPE_CHECKING:
    from agent.cli.grammar import CommandAdder
    from agent.placement.transfer.snapshot import PlacementSnapshot


def add_export(add: CommandAdder) -> None:
    """Add `plimsoll placement export`."""
    parser = add(
        "export",
        export,
        "write the content of a Placement as one JSON document",
        f"{SOURCES_HELP}The same content always makes the same document. Stop writing to the Placement\n"
        "meanwhile.",
        "  plimsoll placement export --state-dir /var/lib/plimsoll host1.json\n"
        "  plimsoll placement export --url unix:/run/plimsoll/placement.sock | jq .consumers",
    )
    add_source_options(parser)
    parser.add_argument(
        "--root",
        metavar="ROOT",
        action="append",
        help="only the tree of this root provider, by name or uuid, with its allocations; may be repeated",
    )
    parser.add_argument(
        "file", nargs="?", metavar="FILE", default=STANDARD_STREAM, help="- (default) is standard output"
    )


def export(args: Namespace) -> ExitCode:
    """Write the document. Raises StateError where the file cannot be written."""
    from agent.durable.files import write_atomically
    from agent.placement.transfer.snapshot import to_document, to_text

    content = _read_trees(args) if args.root else read_content(args)[0]
    if args.file == STANDARD_STREAM:
        Output(args.output).show(to_document(content), lambda _: [to_text(content).removesuffix("\n")])
        return ExitCode.DONE
    try:
        write_atomically(Path(args.file), to_text(content))
    except OSError as error:
        raise StateError(f"{args.file} cannot be written: {error.strerror}; choose another file.") from error
    answer = {"file": args.file, **content.counts()}
    Output(args.output).show(answer, lambda _: [f"exported {counts_text(answer)} to {args.file}"])
    return ExitCode.DONE


def _read_trees(args: Namespace) -> PlacementSnapshot:
    from agent.placement.transfer.read import SnapshotClient, read_state_dir, read_trees
    from agent.placement.transfer.snapshot import select_trees

    if is_state_dir(args):
        with naming_the_place(args):
            return select_trees(read_state_dir(args.state_dir)[0], args.root)
    with opened_with_progress(args) as transport:
        return select_trees(read_trees(SnapshotClient(transport), args.root), args.root)
