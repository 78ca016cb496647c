"""The command line's grammar as a whole: its commands, the exit codes, and the help of `plimsoll`."""

import argparse
import os
from collections.abc import Sequence

from agent.cli import daemon
from agent.cli.grammar import TIMEOUT_DEFAULT_S, CommandAdder, Parser, common_options
from agent.errors import ExitCode
from plimsoll.wire import SOCKET_DEFAULT

EXIT_CODES = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "failed; the message says what, why and what to do",
    ExitCode.USAGE: "wrong arguments, a malformed request, or settings that cannot be used",
    ExitCode.DRIFT_FOUND: "drift found: to change (plan, reshape) or to repair (audit, placement check)",
    ExitCode.DRIFT_HEALED: "drift found, and healed",
    ExitCode.REFUSED: "refused: a claim does not fit, conflicts, or claims are closed (claim, move, reshape)",
    ExitCode.UNREACHABLE: "no agent answered at the socket in time",
    ExitCode.NEVER: "no host could take it, even with nothing in use (where; not now is 5)",
}

INTERRUPTED = 130
READER_GONE = 141
DEBUG = "PLIMSOLL_DEBUG"

EPILOG = "\n".join(
    (
        "exit codes:",
        *(f"  {code.value:>3}  {meaning}" for code, meaning in EXIT_CODES.items()),
        f"  {INTERRUPTED:>3}  interrupted (Ctrl-C)",
        f"  {READER_GONE:>3}  the reader of the output closed the pipe",
        "",
        "environment:",
        "  PLIMSOLL_SOCKET  the agent's socket, if --socket is not given",
        "  NO_COLOR         if not empty: no colour",
        f"  {DEBUG}   if not empty: an unexpected failure shows its traceback",
        "",
        "examples:",
        "  plimsoll status                              show the state of the agent, and the reasons for it",
        "  plimsoll tree                                draw what this host has and what is in use",
        "  plimsoll claim --resources VCPU=2,MEMORY_MB=2048 --name web1",
        "  plimsoll release 5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69",
        "",
        "`plimsoll COMMAND --help` explains each command.",
    )
)


def build(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of `plimsoll` with all commands, or with `agent` alone where the words begin with it.

    The agent runs for months: it is not to keep in memory what the other commands import.
    """
    common = common_options()
    parser = Parser(
        prog="plimsoll",
        description="The load line for hypervisors: shows what this host has, and claims from it.",
        epilog=EPILOG,
        parents=[common],
    )
    parser.add_argument("--version", action="store_true", help="print the version and end")
    parser.set_defaults(run=None, missing=parser)
    add = CommandAdder(parser.add_subparsers(title="commands", metavar="COMMAND"), common)
    if words[:1] == [daemon.COMMAND]:
        daemon.add_agent_command(add)
    else:
        from agent.cli.commands import COMMANDS

        for add_command in COMMANDS:
            add_command(add)
    return parser


def defaults() -> argparse.Namespace:
    """The values of the common options that the command line does not give."""
    socket = os.environ.get("PLIMSOLL_SOCKET") or SOCKET_DEFAULT
    return argparse.Namespace(output="table", socket=socket, timeout=TIMEOUT_DEFAULT_S, has_table=False)
