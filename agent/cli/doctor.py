"""`plimsoll doctor`: its grammar, and what it shows."""

import argparse
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence

from agent.cli.client import Client
from agent.cli.output import Output
from agent.cli.terminal import Style, plain
from agent.cli.waiting import waiting
from agent.errors import ExitCode


def add_doctor_command(
    add: Callable[..., argparse.ArgumentParser], files: Callable[[argparse.ArgumentParser], None]
) -> None:
    command = add(
        "doctor",
        doctor,
        "what keeps the agent from working on this host, and the remedy",
        "Looks at versions, clock, settings, state directory, databases, identity, the running agent,\n"
        "placement and the hypervisor; changes nothing, and works without an agent. Run it as root, or as\n"
        "the agent's user. Ends with 1 when something is bad, with 0 when there are only warnings.",
        "  plimsoll doctor\n  plimsoll doctor -o json | jq '.checks[] | select(.verdict != \"good\")'",
    )
    files(command)


def doctor(args: Namespace) -> ExitCode:
    from agent.cli.client import SOCKET_DEFAULT
    from agent.cli.commands import paths
    from agent.doctor.check import CheckVerdict, worst
    from agent.doctor.examine import examine

    def ask(socket: str) -> object:
        return Client(socket, args.timeout, quiet=True).get("/v1/status")

    files, directories = paths(args.config_file), paths(args.config_dir)
    named = args.socket if args.socket != SOCKET_DEFAULT else None
    checks = []
    with waiting("looking at the host") as tell:
        for check in examine(files, directories, ask, named):
            checks.append(check)
            tell(f"looking at the host; {len(checks)} checks done, the last one: {check.name}")
    answer = {"checks": [each.to_json() for each in checks]}
    Output(args.output).show(answer, lambda style: _lines(answer["checks"], style))
    return ExitCode.FAILED if worst(checks) is CheckVerdict.BAD else ExitCode.DONE


def _lines(checks: Sequence[dict[str, str]], style: Style) -> Iterator[str]:
    colours = {"good": "green", "warning": "yellow", "bad": "red"}
    names = max(len(each["name"]) for each in checks)
    for each in checks:
        verdict = style.paint(colours[each["verdict"]], f"{each['verdict']:<7}")
        yield f"{verdict}  {each['name']:<{names}}  {plain(each['sentence'])}"
        if each["verdict"] != "good":
            yield f"{'':7}  {'':<{names}}  -> {plain(each['remedy'])}"
