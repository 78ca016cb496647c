"""The command line's grammar as a whole: every command, the exit codes, and the help of `plimsoll`."""

import argparse
import os

from agent.cli.claim import (
    add_claim_command,
    add_drain_command,
    add_pause_command,
    add_release_command,
    add_resume_command,
)
from agent.cli.client import SOCKET_DEFAULT
from agent.cli.config import add_config_command, add_init_command
from agent.cli.devices import add_cpus_command, add_devices_command
from agent.cli.domain import add_domain_command
from agent.cli.gate import add_gate_command
from agent.cli.grammar import TIMEOUT_DEFAULT_S, CommandAdder, Parser, common_options
from agent.cli.move import add_move_command
from agent.cli.placement import add_placement_command
from agent.cli.service import (
    add_adopt_command,
    add_agent_command,
    add_doctor_command,
    add_install_service_command,
    add_support_bundle_command,
)
from agent.cli.status import (
    add_audit_command,
    add_history_command,
    add_look_command,
    add_plan_command,
    add_reshape_command,
    add_status_command,
)
from agent.cli.top import add_top_command
from agent.cli.tree import add_defrag_command, add_explain_command, add_instances_command, add_tree_command
from agent.errors import ExitCode

COMMANDS = (
    add_status_command,
    add_tree_command,
    add_instances_command,
    add_plan_command,
    add_look_command,
    add_top_command,
    add_history_command,
    add_explain_command,
    add_claim_command,
    add_domain_command,
    add_release_command,
    add_pause_command,
    add_resume_command,
    add_drain_command,
    add_devices_command,
    add_cpus_command,
    add_defrag_command,
    add_config_command,
    add_agent_command,
    add_adopt_command,
    add_move_command,
    add_reshape_command,
    add_audit_command,
    add_placement_command,
    add_gate_command,
    add_init_command,
    add_install_service_command,
    add_doctor_command,
    add_support_bundle_command,
)
"""What adds each command, in the order of the help."""

EXIT_CODES = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "failed; the message says what, why and what to do",
    ExitCode.USAGE: "wrong arguments, a malformed request, or settings that cannot be used",
    ExitCode.DRIFT_FOUND: "drift found: to change (plan, reshape) or to repair (audit, placement check)",
    ExitCode.DRIFT_HEALED: "drift found, and healed",
    ExitCode.REFUSED: "refused: a claim does not fit, conflicts, or claims are closed (claim, move, reshape)",
    ExitCode.UNREACHABLE: "no agent answered at the socket in time",
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


def build() -> argparse.ArgumentParser:
    """The parser of `plimsoll`, with all commands."""
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
    for add_command in COMMANDS:
        add_command(add)
    return parser


def defaults() -> argparse.Namespace:
    """The values of the common options that the command line does not give."""
    socket = os.environ.get("PLIMSOLL_SOCKET") or SOCKET_DEFAULT
    return argparse.Namespace(output="table", socket=socket, timeout=TIMEOUT_DEFAULT_S, has_table=False)
