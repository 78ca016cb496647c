"""`plimsoll support-bundle`: its grammar, and what it shows."""

import argparse
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from agent.cli.client import Client
from agent.cli.output import Output
from agent.errors import ExitCode


def add_bundle_command(
    add: Callable[..., argparse.ArgumentParser], files: Callable[[argparse.ArgumentParser], None]
) -> None:
    command = add(
        "support-bundle",
        bundle,
        "gather what is known of the agent in one file, secrets masked",
        "Status, tree, claims, moves, findings, settings, the doctor's checks and the end of the log, as\n"
        "a .tar.gz that only you can read. Whatever the settings call a secret is masked everywhere.\n"
        "What cannot be had is named in it. Look through it before you hand it on.",
        "  plimsoll support-bundle\n  plimsoll support-bundle --to /tmp/plimsoll.tar.gz",
    )
    command.add_argument("--to", metavar="FILE", help="where to (default: plimsoll-HOST-TIME.tar.gz here)")
    files(command)


def bundle(args: Namespace) -> ExitCode:
    from agent.cli.client import SOCKET_DEFAULT
    from agent.cli.commands import paths
    from agent.doctor.bundle import gather

    named = args.socket if args.socket != SOCKET_DEFAULT else ""

    def ask(socket: str, path: str) -> Any:
        return Client(named or socket or args.socket, args.timeout).get(path)

    path, members = gather(args.to, paths(args.config_file), paths(args.config_dir), ask)
    Output(args.output).show(
        {"file": str(path), "members": members},
        lambda _: [f"{path}: {', '.join(members)}", "look through it before you hand it on"],
    )
    return ExitCode.DONE
