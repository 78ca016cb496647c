"""`plimsoll adopt`: say which host this is."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from agent.cli.output import Output
from agent.cli.settings_files import add_settings_options, load_settings
from agent.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from agent.cli.grammar import CommandAdder
    from agent.config.settings import Settings


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
    command.add_argument("--yes", action="store_true", help="do not ask, also without a configuration file")
    add_settings_options(command)


def adopt(args: Namespace) -> ExitCode:
    """Write the identity of the host into the state directory."""
    from agent.daemon.adopt import adopt as write_identity
    from agent.state.identity import canonical_uuid

    host_uuid, settings = canonical_uuid(args.uuid), load_settings(args)
    if not settings.files and not args.yes:
        _ask(settings, host_uuid)
    identity = write_identity(settings, host_uuid)
    line = f"this host, {identity.name}, is {identity.uuid} from now on; start the agent"
    Output(args.output).show({"uuid": identity.uuid, "name": identity.name}, lambda _: [line])
    return ExitCode.DONE


def _ask(settings: Settings, host_uuid: str) -> None:
    """Raises UsageError unless a person at a terminal agrees."""
    without = f"there is no configuration file, so this host would be {settings.host}, {host_uuid}"
    if not sys.stdin.isatty():
        raise UsageError(
            f"{without}: nothing was written. Write a configuration first (`plimsoll init`), name one with "
            "--config-file, or use --yes."
        )
    print(
        f"{without}; its state is in {settings.state_path}. Go on? [y/N] ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was written")
