"""`plimsoll tree`."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from agent.cli.client import client_of
from agent.cli.output import Output
from agent.cli.provider_tree import tree_lines
from agent.cli.terminal import plain
from agent.errors import ExitCode

if TYPE_CHECKING:
    from agent.api.shapes.providers import TreeShape
    from agent.cli.grammar import CommandAdder


def add_tree_command(add: CommandAdder) -> None:
    """Add `plimsoll tree`."""
    command = add(
        "tree",
        tree,
        "draw the host's resource providers, as Placement has them",
        "Draws a bar for each resource class: in use / capacity. The capacity is (total - reserved) *\n"
        "allocation ratio. What is in use counts all consumers, not only this agent's claims.",
        "  plimsoll tree\n  plimsoll tree --traits\n  plimsoll tree -o yaml",
    )
    command.add_argument("--traits", action="store_true", help="show the traits of each provider")


def tree(args: Namespace) -> ExitCode:
    """Draw the provider tree."""
    answer: TreeShape = client_of(args).get("/v1/tree")
    providers = answer["resource_providers"]
    if providers:
        warnings = [f"warning: {plain(text)}" for text in answer.get("warnings", ())]
        Output(args.output).show(
            answer, lambda style: [*tree_lines(providers, style, traits=args.traits), *warnings]
        )
    else:
        Output(args.output).show(answer, lambda _: ["no resource providers yet; `plimsoll status` says why"])
    return ExitCode.DONE
