"""`plimsoll adopt`: say which host this is."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from agent.cli.output import Output
from agent.cli.settings_files import add_settings_options, load_settings
from agent.errors import ExitCode

if TYPE_CHECKING:
    from agent.cli.grammar import CommandAdder


def add_adopt_command(add: CommandAdder) -> None:
    """Add `plimsoll adopt`."""
    command = add(
        "adopt",
        adopt,
        "say which host this is, while the agent is not running",
        "For a host whose uuid file is lost, that was renamed, or whose name belongs to another provider in\n"
        "Placement: the agent's error names this command and the uuid. From then on the agent is the host\n"
        "of that uuid, under the name in its settings.",
        "  plimsoll adopt 0c1f7a52-8f0e-4f2b-9d4b-3a5f0a7c6e21",
    )
    command.add_argument("uuid", metavar="UUID", help="the uuid of the host's root provider")
    add_settings_options(command)


def adopt(args: Namespace) -> ExitCode:
    """Write the identity of the host into the state directory."""
    from agent.daemon.adopt import adopt as write_identity

    identity = write_identity(load_settings(args), args.uuid)
    line = f"this host, {identity.name}, is {identity.uuid} from now on; start the agent"
    Output(args.output).show({"uuid": identity.uuid, "name": identity.name}, lambda _: [line])
    return ExitCode.DONE
