"""`plimsoll placement check`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agent.cli.output import Output
from agent.cli.placement.source import (
    SOURCES_HELP,
    add_source_options,
    counts_text,
    read_content,
    read_text_file,
)
from agent.errors import ExitCode, UsageError, counted

if TYPE_CHECKING:
    from agent.cli.grammar import CommandAdder
    from agent.placement.transfer.invariants import ServiceEvidence
    from agent.placement.transfer.snapshot import PlacementSnapshot


def add_check(add: CommandAdder) -> None:
    """Add `plimsoll placement check`."""
    parser = add(
        "check",
        check,
        "find broken invariants, and what to do about each",
        f"{SOURCES_HELP}Or an exported FILE. Ends with 3 if something is broken: allocations without\n"
        "provider or inventory, more in use than the capacity, usages that do not add up, missing parents,\n"
        "rings, wrong roots, unknown classes and traits.",
        "  plimsoll placement check --state-dir /var/lib/plimsoll\n"
        "  plimsoll placement check host1.json -o json | jq '.findings[].name'",
    )
    add_source_options(parser)
    parser.add_argument("file", nargs="?", metavar="FILE", help="an exported document; - is standard input")


def check(args: Namespace) -> ExitCode:
    """Check the invariants of a Placement, or of a document."""
    from agent.placement.transfer.invariants import broken_invariants

    content, evidence = _read(args)
    broken = broken_invariants(content, evidence)
    answer = {**content.counts(), "findings": [invariant.to_json() for invariant in broken]}
    Output(args.output).show(answer, lambda _: _lines(answer))
    return ExitCode.DRIFT_FOUND if broken else ExitCode.DONE


def _read(args: Namespace) -> tuple[PlacementSnapshot, ServiceEvidence | None]:
    if args.file is None:
        return read_content(args, with_usages=True)
    if args.state_dir or args.url or args.config_file:
        raise UsageError("Check either a file or a Placement, not both.")
    from agent.placement.transfer.snapshot import from_text

    return from_text(read_text_file(args.file)), None


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    for finding in answer["findings"]:
        yield f"{finding['name']}: {finding['sentence']}"
        yield f"  {finding['remedy']}"
    if answer["findings"]:
        yield f"{counted(len(answer['findings']), 'broken invariant')} in {counts_text(answer)}"
    else:
        yield f"all is well with {counts_text(answer)}"
