"""`plimsoll support-bundle`."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from agent.cli.client import SOCKET_DEFAULT, Client
from agent.cli.output import Output
from agent.cli.settings_files import add_settings_options, settings_paths
from agent.errors import ExitCode

if TYPE_CHECKING:
    from agent.cli.grammar import CommandAdder


def add_support_bundle_command(add: CommandAdder) -> None:
    """Add `plimsoll support-bundle`."""
    command = add(
        "support-bundle",
        support_bundle,
        "gather what is known about the agent in one file, with secrets masked",
        "Contains status, tree, claims, moves, findings, settings, the doctor's checks and the end of the\n"
        "log, as a .tar.gz that only you can read. The values of secret options are masked everywhere. The\n"
        "bundle names what could not be gathered. Look through it before you hand it on.",
        "  plimsoll support-bundle\n  plimsoll support-bundle --to /tmp/plimsoll.tar.gz",
    )
    command.add_argument(
        "--to", metavar="FILE", help="the file to write (default: plimsoll-HOST-TIME.tar.gz here)"
    )
    add_settings_options(command)


def support_bundle(args: Namespace) -> ExitCode:
    """Write the bundle."""
    from agent.doctor.bundle import gather

    given = args.socket if args.socket != SOCKET_DEFAULT else ""

    def ask(socket: str, path: str) -> Any:
        return Client(given or socket or args.socket, args.timeout).get(path)

    path, members = gather(args.to, *settings_paths(args), ask)
    Output(args.output).show(
        {"file": str(path), "members": members},
        lambda _: [f"{path}: {', '.join(members)}", "look through it before you hand it on"],
    )
    return ExitCode.DONE
