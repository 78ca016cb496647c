"""`plimsoll plan`."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from agent.cli.client import client_of
from agent.cli.output import Output
from agent.cli.terminal import plain
from agent.errors import ExitCode

if TYPE_CHECKING:
    from agent.api.shapes.providers import PlanShape
    from agent.cli.grammar import CommandAdder


def add_plan_command(add: CommandAdder) -> None:
    """Add `plimsoll plan`."""
    add(
        "plan",
        plan,
        "list what the next pass would change in Placement",
        "Prints the operations in their order and changes nothing. Ends with 3 if there is something to\n"
        "change and with 0 if there is not.",
        "  plimsoll plan\n  plimsoll plan -o json | jq '.operations | length'",
    )


def plan(args: Namespace) -> ExitCode:
    """List the operations of the next pass."""
    answer: PlanShape = client_of(args).get("/v1/plan")
    lines = answer["lines"] or ["nothing to change"]
    Output(args.output).show(answer, lambda _: map(plain, lines))
    return ExitCode.DRIFT_FOUND if answer["operations"] else ExitCode.DONE
