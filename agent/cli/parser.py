"""The command line's grammar and its help, which teaches by example."""

import argparse
import os
from collections.abc import Callable
from typing import Any, NoReturn

from agent.cli import commands
from agent.cli.audit import add_audit_command
from agent.cli.bundle import add_bundle_command
from agent.cli.client import SOCKET_DEFAULT
from agent.cli.doctor import add_doctor_command
from agent.cli.gate import add_gate_commands
from agent.cli.history import add_history_commands
from agent.cli.init import add_init_command
from agent.cli.moves import add_move_commands
from agent.cli.output import FORMATS
from agent.cli.placement import add_placement_commands
from agent.cli.reshape import add_reshape_command
from agent.cli.top import add_top_command
from agent.errors import ExitCode, UsageError

TIMEOUT_DEFAULT_S = 30.0

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
        f"  {READER_GONE:>3}  whoever read the output went away (a closed pipe)",
        "",
        "environment:",
        "  PLIMSOLL_SOCKET  the agent's socket, where --socket does not name one",
        "  NO_COLOR         if not empty: no colour",
        f"  {DEBUG}   if not empty: a failure that was not foreseen shows its traceback",
        "",
        "examples:",
        "  plimsoll status                              is the agent well, and if not, why",
        "  plimsoll tree                                what this host has and what is in use",
        "  plimsoll claim --resources VCPU=2,MEMORY_MB=2048 --name web1",
        "  plimsoll release 5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69",
        "",
        "`plimsoll COMMAND --help` tells more about each command.",
    )
)


class Parser(argparse.ArgumentParser):
    """Wrong arguments are an error like any other: one line, exit code 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; `{self.prog} --help` shows how")


def build() -> argparse.ArgumentParser:
    common = _common()
    parser = Parser(
        prog="plimsoll",
        description="The load line for hypervisors: shows what this host has, and claims from it.",
        epilog=EPILOG,
        parents=[common],
    )
    parser.add_argument("--version", action="store_true", help="print the version and end")
    parser.set_defaults(run=None, missing=parser)
    add = _Adder(parser.add_subparsers(title="commands", metavar="COMMAND"), common)
    _queries(add)
    add_top_command(add)
    add_history_commands(add)
    _claim(add)
    _release(add)
    _config(add)
    _agent(add)
    add_move_commands(add, _verbs_of, _claim_options)
    add_reshape_command(add, _files)
    add_audit_command(add)
    add_placement_commands(add, _verbs_of)
    add_gate_commands(add, _verbs_of)
    add_init_command(add)
    add_doctor_command(add, _files)
    add_bundle_command(add, _files)
    return parser


def defaults() -> argparse.Namespace:
    """What holds where the command line says nothing; parsing goes on top of it."""
    socket = os.environ.get("PLIMSOLL_SOCKET") or SOCKET_DEFAULT
    return argparse.Namespace(output="table", socket=socket, timeout=TIMEOUT_DEFAULT_S)


def _common() -> argparse.ArgumentParser:
    """Options that stand before or after the command: only what is given is set, `defaults` has the rest."""
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS, allow_abbrev=False)
    group = common.add_argument_group("options of every command")
    group.add_argument("-o", "--output", choices=FORMATS, help="table (default), json or yaml")
    group.add_argument("--socket", metavar="PATH", help=f"the agent's socket (default {SOCKET_DEFAULT})")
    group.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        help=f"give up when a request takes longer (default {TIMEOUT_DEFAULT_S:g})",
    )
    return common


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= 86400.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0, at most 86400")
    return seconds


class _Adder:
    """Adds a command; its docstring-like help has one line, a text, and examples."""

    def __init__(self, subparsers: Any, common: argparse.ArgumentParser) -> None:
        self._subparsers = subparsers
        self._common = common

    def __call__(
        self, name: str, run: Callable[..., ExitCode] | None, short: str, text: str, examples: str
    ) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = self._subparsers.add_parser(
            name,
            help=short,
            description=f"{short[0].upper()}{short[1:]}.\n\n{text}",
            epilog=f"examples:\n{examples}",
            parents=[self._common],
        )
        command.set_defaults(**({"run": run} if run else {"missing": command}))
        return command


def _verbs_of(command: argparse.ArgumentParser) -> _Adder:
    return _Adder(command.add_subparsers(title="verbs", metavar="VERB"), _common())


def _queries(add: _Adder) -> None:
    add(
        "status",
        commands.status,
        "how the agent is, and why",
        "Says whether the agent is starting, ready, degraded or stopping, with the reasons; whether the\n"
        "driver and placement answer; whether claims are open; and what the last pass did.",
        "  plimsoll status\n  plimsoll status -o json | jq -r .state",
    )
    tree = add(
        "tree",
        commands.tree,
        "the host's resource providers, as placement holds them",
        "One bar a resource class: in use / what may be used, which is (total - reserved) * allocation\n"
        "ratio. Who uses it, this agent or somebody else, makes no difference.",
        "  plimsoll tree\n  plimsoll tree --traits\n  plimsoll tree -o yaml",
    )
    tree.add_argument("--traits", action="store_true", help="show each provider's traits")
    add(
        "instances",
        commands.instances,
        "guests and claims side by side",
        "A guest without a claim is UNCLAIMED; a claim whose guest is not there has the guest `none`.",
        "  plimsoll instances\n"
        "  plimsoll instances -o json | jq '.instances[] | select(.claim == null) | .uuid'",
    )
    add(
        "plan",
        commands.plan,
        "what the next pass would change in placement",
        "Prints the operations in their order and changes nothing. Ends with 3 when there is something to\n"
        "change and with 0 when there is not.",
        "  plimsoll plan\n  plimsoll plan -o json | jq '.operations | length'",
    )


def _claim(add: _Adder) -> None:
    claim = add(
        "claim",
        commands.claim,
        "claim resources for an instance, or ask whether they would fit",
        "Without CONSUMER, or with `new`, a new uuid is made and printed. The same claim again is no error\n"
        "and claims nothing more. A refusal (exit code 5) says of each resource what was asked, what is\n"
        "free and on which provider. Give either resources and groups, or a flavor with\n"
        "extra specs, or a file.",
        "  plimsoll claim --resources VCPU=2,MEMORY_MB=2048,DISK_GB=20 --name web1\n"
        "  plimsoll claim --resources VCPU=8 --required HW_CPU_X86_AVX2 --dry-run\n"
        "  plimsoll claim --resources VCPU=2 --group 1:VGPU=1\n"
        "  plimsoll claim --flavor vcpus=4,memory_mb=8192,disk_gb=40 --spec hw:cpu_policy=dedicated\n"
        "  plimsoll claim 5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69 --file body.json",
    )
    claim.add_argument("consumer", nargs="?", metavar="CONSUMER", help="the instance's uuid, or `new`")
    _claim_options(claim)
    claim.add_argument("--dry-run", action="store_true", help="explain, resource by resource; claim nothing")


def _claim_options(claim: argparse.ArgumentParser) -> None:
    claim.add_argument("--resources", metavar="CLASS=N,...", help="what is wanted, from any of the providers")
    claim.add_argument(
        "--group",
        metavar="SUFFIX:CLASS=N,...",
        action="append",
        help="what is wanted from one provider together; may be repeated",
    )
    claim.add_argument(
        "--required",
        metavar="[SUFFIX:]TRAIT",
        action="append",
        help="a trait that the provider must have, !TRAIT must not, in:TRAIT,TRAIT one of; may be repeated",
    )
    claim.add_argument(
        "--group-policy",
        choices=("none", "isolate"),
        help="whether the groups may share a provider (none) or not (isolate)",
    )
    claim.add_argument("--flavor", metavar="vcpus=N,memory_mb=N,disk_gb=N", help="a flavor instead")
    claim.add_argument(
        "--spec", metavar="KEY=VALUE", action="append", help="an extra spec of the flavor; may be repeated"
    )
    claim.add_argument("--file", metavar="FILE", help="the whole request as JSON; - is standard input")
    claim.add_argument("--name", help="the instance's name, for people")


def _release(add: _Adder) -> None:
    release = add(
        "release",
        commands.release,
        "give back what an instance holds",
        "When placement is away the release is journaled, and delivered when it is back.",
        "  plimsoll release 5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69",
    )
    release.add_argument("consumer", metavar="CONSUMER", help="the instance's uuid")


def _config(add: _Adder) -> None:
    config = add(
        "config",
        None,
        "the agent's settings: show, check, or print a sample",
        "Without files, `show` asks the running agent; `validate` reads what the agent would read.",
        "  plimsoll config show\n"
        "  plimsoll config validate --config-file /etc/plimsoll/plimsoll.conf\n"
        "  plimsoll config sample > plimsoll.conf",
    )
    verbs = _verbs_of(config)
    show = verbs(
        "show",
        commands.config_show,
        "each option's value and where it comes from",
        "Asks the running agent; with --config-file or --config-dir, reads those instead. Secrets are\n"
        "masked.",
        "  plimsoll config show\n  plimsoll config show --config-file plimsoll.conf",
    )
    _files(show)
    validate = verbs(
        "validate",
        commands.config_validate,
        "check settings without using them",
        "Ends with 2 and one line for the first thing that is wrong: an unknown option, a value out of\n"
        "range, options that do not go together.",
        "  plimsoll config validate\n  plimsoll config validate --config-file plimsoll.conf",
    )
    _files(validate)
    verbs(
        "sample",
        commands.config_sample,
        "a file with every option at its default",
        "Every option is commented out, with what it means and what it may be.",
        "  plimsoll config sample > /etc/plimsoll/plimsoll.conf",
    )


def _agent(add: _Adder) -> None:
    agent = add(
        "agent",
        commands.agent,
        "run the agent, in the foreground",
        "This is what the service runs. SIGTERM stops it, SIGHUP reads the settings again.",
        "  plimsoll agent\n  plimsoll agent --config-file ./plimsoll.conf",
    )
    _files(agent)
    adopt = add(
        "adopt",
        commands.adopt,
        "say which host this is, while the agent is not running",
        "For a host whose uuid file was lost, that was renamed, or whose name placement gives to another\n"
        "provider: the agent names this command, and the uuid, when it needs it. From then on the agent is\n"
        "the host of that uuid, under the name that the settings say.",
        "  plimsoll adopt 0c1f7a52-8f0e-4f2b-9d4b-3a5f0a7c6e21",
    )
    adopt.add_argument("uuid", metavar="UUID", help="the uuid of the host's root provider")
    _files(adopt)


def _files(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config-file", metavar="FILE", action="append", help="settings; may be repeated")
    command.add_argument(
        "--config-dir", metavar="DIR", action="append", help="a directory of *.conf files; may be repeated"
    )
