"""`plimsoll release`."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from agent.cli.client import claim_path, client_of
from agent.cli.consumers import INSTANCE_HELP, find_instance
from agent.cli.grammar import complete_instances
from agent.cli.output import Output
from agent.errors import ExitCode

if TYPE_CHECKING:
    from agent.api.shapes.claims import ReleasedShape
    from agent.cli.grammar import CommandAdder


def add_release_command(add: CommandAdder) -> None:
    """Add `plimsoll release`."""
    command = add(
        "release",
        release,
        "release the claim of an instance",
        "Refuses to release the claim of a guest that runs here, and says what would be offered to others.\n"
        "If Placement does not answer, the release is journaled, and the agent delivers it later.",
        "  plimsoll release web1\n  plimsoll release 5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69",
    )
    complete_instances(command.add_argument("consumer", metavar="CONSUMER", help=INSTANCE_HELP))
    command.add_argument("--force", action="store_true", help="also release the claim of a guest that runs")


def release(args: Namespace) -> ExitCode:
    """Release a claim."""
    client = client_of(args)
    consumer = find_instance(client, args.consumer)
    answer: ReleasedShape = client.request("DELETE", f"{claim_path(consumer)}{'?force=true' * args.force}")
    journaled = (
        "" if answer["released"] else "; journaled: the agent delivers it when it may write to Placement"
    )
    Output(args.output).show(answer, lambda _: [f"released {answer['consumer']}{journaled}"])
    return ExitCode.DONE
