"""`plimsoll doctor`, and `plimsoll support-bundle`, which has the doctor's checks among much else."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from agent.cli.client import SOCKET_DEFAULT, Client
from agent.cli.grammar import CommandAdder, add_settings_options, not_empty, settings_paths
from agent.cli.output import Style, show, waiting
from agent.errors import ExitCode, counted, plain

VERDICT_COLOURS = {"good": "green", "warning": "yellow", "bad": "red"}


def add_doctor_command(add: CommandAdder) -> None:
    """Add `plimsoll doctor`."""
    command = add(
        "doctor",
        doctor,
        "find what prevents the agent from working on this host, and the remedy",
        "Checks versions, clock, settings, state directory, databases, identity, the running agent,\n"
        "Placement and the hypervisor; changes nothing, and works without an agent. Run it as root, or as\n"
        "the agent's user. Ends with 1 if something is bad, with 0 if there are only warnings.\n"
        "With --device: whether a guest can be given that PCI device now.",
        "  plimsoll doctor\n  plimsoll doctor --device 0000:41:00.0\n"
        "  plimsoll doctor -o json | jq '.checks[] | select(.verdict != \"good\")'",
    )
    command.add_argument(
        "--device",
        metavar="ADDRESS",
        type=not_empty,
        help="check a PCI device: its driver, who holds it, its IOMMU group",
    )
    add_settings_options(command)


def doctor(args: Namespace) -> ExitCode:
    """Check the host and the agent."""
    from agent.doctor.check import CheckVerdict, worst
    from agent.doctor.examine import examine, examine_device

    def ask(socket: str) -> object:
        return Client(socket, args.timeout, quiet=True).get("/v1/status")

    socket = args.socket if args.socket != SOCKET_DEFAULT else None
    checks = []
    with waiting("looking at the host") as show_activity:
        settings = settings_paths(args)
        device = args.device
        for check in examine_device(*settings, device) if device else examine(*settings, ask, socket):
            checks.append(check)
            show_activity(
                f"looking at the host; {counted(len(checks), 'check')} done, the last one: {check.name}"
            )

    def lines(style: Style) -> Iterator[str]:
        width = max(len(check.name) for check in checks)
        for check in checks:
            verdict = style.paint(VERDICT_COLOURS[check.verdict], f"{check.verdict:<7}")
            yield f"{verdict}  {check.name:<{width}}  {plain(check.sentence)}"
            if check.verdict is not CheckVerdict.GOOD:
                yield f"{'':7}  {'':<{width}}  -> {plain(check.remedy)}"

    show(args, {"checks": [check.to_json() for check in checks]}, lines)
    return ExitCode.FAILED if worst(checks) is CheckVerdict.BAD else ExitCode.DONE


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
    from agent.doctor.examine import gather

    given = args.socket if args.socket != SOCKET_DEFAULT else ""

    def ask(socket: str, path: str) -> Any:
        return Client(given or socket or args.socket, args.timeout).get(path)

    path, members = gather(args.to, *settings_paths(args), ask)
    show(
        args,
        {"file": str(path), "members": members},
        lambda _: [f"{path}: {', '.join(members)}", "look through it before you hand it on"],
    )
    return ExitCode.DONE
