"""`plimsoll agent`: run the agent in the foreground."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from agent.cli.settings_files import add_settings_options, settings_paths
from agent.errors import ExitCode

if TYPE_CHECKING:
    from agent.cli.grammar import CommandAdder


def add_agent_command(add: CommandAdder) -> None:
    """Add `plimsoll agent`."""
    command = add(
        "agent",
        agent,
        "run the agent, in the foreground",
        "The service runs this command. SIGTERM stops the agent, SIGHUP reads the settings again.",
        "  plimsoll agent\n  plimsoll agent --config-file ./plimsoll.conf",
    )
    add_settings_options(command)


def agent(args: Namespace) -> ExitCode:
    """Run the agent until a signal stops it."""
    from agent.daemon.service import run

    return ExitCode(run(*settings_paths(args)))
