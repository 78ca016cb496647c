"""`plimsoll instances`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from agent.cli.client import client_of
from agent.cli.output import Output
from agent.cli.tables import table_lines
from agent.cli.terminal import Style
from agent.errors import ExitCode

if TYPE_CHECKING:
    from agent.api.shapes.instances import InstanceShape, InstancesShape
    from agent.cli.grammar import CommandAdder


def add_instances_command(add: CommandAdder) -> None:
    """Add `plimsoll instances`."""
    add(
        "instances",
        instances,
        "list guests and claims side by side",
        "A guest without a claim is UNCLAIMED; a claim without a guest has the guest `none`.",
        "  plimsoll instances\n"
        "  plimsoll instances -o json | jq '.instances[] | select(.claim == null) | .uuid'",
    )


def instances(args: Namespace) -> ExitCode:
    """List the instances of the host."""
    answer: InstancesShape = client_of(args).get("/v1/instances")
    Output(args.output).show(answer, lambda style: instances_lines(answer["instances"], style))
    return ExitCode.DONE


def instances_lines(instances: Sequence[InstanceShape], style: Style) -> Iterable[str]:
    """The table of instances."""
    from agent.api.shapes.instances import INSTANCE_COLUMNS

    return table_lines(INSTANCE_COLUMNS, instances, style) if instances else ["no guests, no claims"]
