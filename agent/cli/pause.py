"""`plimsoll pause`, `plimsoll resume` and `plimsoll drain`."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agent.cli.client import Client, client_of
from agent.cli.grammar import CommandAdder, parse_seconds
from agent.cli.output import Style, show, table_lines
from agent.errors import ExitCode, UsageError, counted, plain

if TYPE_CHECKING:
    import argparse

    from agent.api.shapes.host import ClaimsStatusShape, PauseShape
    from agent.api.shapes.instances import InstanceShape

POLL_S = 2.0
WAIT_MAX_S = 86400 * 100.0
ABSENT = frozenset({"shutoff", "crashed"})
"""The states of a guest that does not run, as GuestState has them."""


def add_pause_command(add: CommandAdder) -> None:
    """Add `plimsoll pause`."""
    command = add(
        "pause",
        pause,
        "take no new claims on this host, until `plimsoll resume`",
        "Refuses new claims and moves to this host, also after a restart of the agent. What is here stays:\n"
        "releases, and moves away from this host, go on. On a host that is paused already, the command\n"
        "changes what it names.",
        '  plimsoll pause --reason "new memory on Tuesday"\n  plimsoll pause --schedulers',
    )
    _add_options(command)


def add_resume_command(add: CommandAdder) -> None:
    """Add `plimsoll resume`."""
    add(
        "resume",
        resume,
        "end a pause or a drain: take claims again",
        "Also removes the trait by which schedulers were told. Without a pause it is no error.",
        "  plimsoll resume",
    )


def add_drain_command(add: CommandAdder) -> None:
    """Add `plimsoll drain`."""
    command = add(
        "drain",
        drain,
        "pause this host and list the instances that must leave it",
        "Pauses the host as `plimsoll pause` does, and lists what holds resources here. Ends with 0 when\n"
        "nothing is left, with 3 while something is. The command moves nothing itself: live migrations go\n"
        "through the gate, or begin with `plimsoll move begin` on the destination. With --follow it says\n"
        "who has left, and ends when nothing is left. The same command again keeps reason and --schedulers.",
        '  plimsoll drain --schedulers --reason "new firmware"\n  plimsoll drain --follow\n'
        "  plimsoll drain --wait 3600",
    )
    _add_options(command)
    command.add_argument(
        "--wait", metavar="SECONDS", default="0", help="follow the instances until all have left, so long"
    )
    command.add_argument("--follow", action="store_true", help="as --wait, until Ctrl-C")


def _add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--reason", help="why, for `plimsoll status` and for each refusal")
    command.add_argument(
        "--schedulers",
        action="store_const",
        const=True,
        help="also tell schedulers, by the trait COMPUTE_STATUS_DISABLED of the host",
    )


def pause(args: Namespace) -> ExitCode:
    """Pause the host."""
    answer = _pause(client_of(args), args)
    show(args, answer, lambda _: ["paused: new claims are refused until `plimsoll resume`"])
    return ExitCode.DONE


def resume(args: Namespace) -> ExitCode:
    """End the pause."""
    client = client_of(args)
    was_paused = client.get("/v1/status").get("pause") is not None
    answer = client.request("POST", "/v1/resume", {})

    def lines(_: Style) -> Iterator[str]:
        """What follows: other reasons may keep claims closed."""
        claims: ClaimsStatusShape = client.get("/v1/status")["claims"]
        done = "resumed" if was_paused else "the host was not paused"
        if claims["open"]:
            yield f"{done}: claims are taken{' again' if was_paused else ''}"
        else:
            yield f"{done}, but claims are closed: {plain(claims['reason'] or '')}"

    show(args, answer, lines)
    return ExitCode.DONE


def drain(args: Namespace) -> ExitCode:
    """Pause the host, and list what is left on it."""
    wait_s = parse_seconds(args.wait)
    if not 0 <= wait_s <= WAIT_MAX_S or (wait_s == 0 and args.wait != "0"):
        raise UsageError(f"--wait {args.wait!r} is not a number of seconds, at most {WAIT_MAX_S:g}")
    client = client_of(args)
    answer = _pause(client, args, drain=True)
    end = time.monotonic() + wait_s
    left = _left(client)
    while left and (args.follow or time.monotonic() < end):
        time.sleep(POLL_S if args.follow else min(POLL_S, wait_s))
        before, left = left, _left(client, look=True)
        here = {instance["uuid"] for instance in left}
        for instance in before:
            if instance["uuid"] not in here and args.output == "table":
                what = "the migration of " if instance["migration_of"] else ""
                name = f" ({plain(instance['name'])})" if instance["name"] else ""
                print(f"left: {what}{instance['uuid']}{name}; {len(left)} to go", flush=True)

    def lines(style: Style) -> Iterator[str]:
        from agent.api.shapes.instances import INSTANCE_COLUMNS

        if not left:
            yield "drained: nothing is left on this host"
            return
        yield f"{counted(len(left), 'instance is', 'instances are')} still here:"
        yield from table_lines(INSTANCE_COLUMNS, left, style)
        advice: dict[str, str] = {}
        for instance in left:
            advice.setdefault(*_what_to_do(instance))
        yield from (f"{kind}: {text}" for kind, text in advice.items())

    show(args, {"pause": answer, "left": left}, lines)
    return ExitCode.DRIFT_FOUND if left else ExitCode.DONE


def _pause(client: Client, args: Namespace, *, drain: bool | None = None) -> PauseShape:
    asked = {"reason": args.reason, "schedulers": args.schedulers, "drain": drain}
    body = {name: value for name, value in asked.items() if value is not None}
    answer: PauseShape = client.request("POST", "/v1/pause", body)
    return answer


def _left(client: Client, *, look: bool = False) -> list[InstanceShape]:
    """The instances that hold resources here, or whose guest is here; `look`: ask Placement about moves."""
    if look:
        client.get("/v1/moves?look=true")
    instances: list[InstanceShape] = client.get("/v1/instances")["instances"]
    return instances


def _what_to_do(instance: InstanceShape) -> tuple[str, str]:
    """What keeps the instance here, and what ends that, with the instance as the example."""
    example = plain(instance["name"] or instance["uuid"])
    if instance["moved_away"]:
        return "moved away", f"the instance is on another host; here: virsh undefine {example}"
    if instance["migration_of"]:
        return "a migration", "`plimsoll move list` says whose turn it is"
    if instance.get("migration"):
        return "moving", "`plimsoll move list` says whose turn it is"
    if instance["guest"] is None:
        return "no guest", f"plimsoll release {example}, unless its guest is about to start"
    to = f"--persistent --undefinesource {example} qemu+ssh://DESTINATION/system"
    if instance["guest"]["state"] in ABSENT:
        return "shut off", f"virsh undefine {example}, or virsh migrate --offline {to}"
    return "running", f"virsh migrate --live {to}"
