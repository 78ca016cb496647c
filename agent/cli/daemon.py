"""`plimsoll agent` runs the agent. It imports no other command: what it imports stays for months."""

from __future__ import annotations

from argparse import Namespace

from agent.cli import grammar
from agent.errors import ExitCode

COMMAND = "agent"


def add_agent_command(add: grammar.CommandAdder) -> None:
    """Add `plimsoll agent`."""
    command = add(
        COMMAND,
        agent,
        "run the agent, in the foreground",
        "The service runs this command. SIGTERM stops the agent, SIGHUP reads the settings again.",
        "  plimsoll agent\n  plimsoll agent --config-file ./plimsoll.conf",
    )
    grammar.add_settings_options(command)


def agent(args: Namespace) -> ExitCode:
    """Run the agent until a signal stops it."""
    from agent.daemon.service import run

    return ExitCode(run(*grammar.settings_paths(args)))
