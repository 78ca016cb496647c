"""`plimsoll instances`."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from agent.cli.client import client_of
from agent.cli.grammar import add_column_option
from agent.cli.output import Output
from agent.cli.terminal import plain
from agent.errors import ExitCode

if TYPE_CHECKING:
    from agent.api.shapes.instances import InstancesShape
    from agent.cli.grammar import CommandAdder


def add_instances_command(add: CommandAdder) -> None:
    """Add `plimsoll instances`."""
    command = add(
        "instances",
        instances,
        "list guests and claims side by side",
        "A guest without a claim is UNCLAIMED, and `moving` at the source of a move; a claim without a\n"
        "guest has the guest `none`.",
        "  plimsoll instances\n"
        "  plimsoll instances -o csv -c uuid -c name\n"
        "  plimsoll instances -o json | jq '.instances[] | select(.claim == null) | .uuid'",
    )
    add_column_option(command)


def instances(args: Namespace) -> ExitCode:
    """List the instances of the host."""
    from agent.api.shapes.instances import INSTANCE_COLUMNS

    answer: InstancesShape = client_of(args).get("/v1/instances")
    output = Output(args.output, args.column)
    rows = answer["instances"]
    advice = [plain(row["advice"]) for row in rows if row.get("advice")]
    output.show_table(answer, INSTANCE_COLUMNS, rows, "no guests, no claims", advice)
    return ExitCode.DONE
