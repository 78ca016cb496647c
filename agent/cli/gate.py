"""`plimsoll gate`: install libvirt's hook, and claim for guests that run without a claim."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agent.cli.client import Client, client_of
from agent.cli.grammar import add_verbs
from agent.cli.output import Output
from agent.cli.terminal import plain
from agent.cli.waiting import waiting
from agent.errors import ClaimsClosed, DriverUnavailable, ExitCode
from agent.gate import install
from agent.gate.hook import HookConfig

if TYPE_CHECKING:
    from agent.api.shapes.gate import ClaimedRunningShape
    from agent.cli.grammar import CommandAdder

PAUSE_S = 1.0


def add_gate_command(add: CommandAdder) -> None:
    """Add `plimsoll gate`."""
    command = add(
        "gate",
        None,
        "install libvirt's hook, which claims for each guest that starts or comes in, or refuses it",
        "The hook refuses a guest that does not fit, and says why. The file\n"
        f"{install.CONFIG} says what the hook does while the agent does not answer.",
        "  plimsoll gate enable\n  plimsoll gate status\n  plimsoll gate claim-running",
    )
    add_verb = add_verbs(command)
    add_verb(
        "enable",
        enable,
        "put the hook into libvirt's folder",
        f"Writes {install.HOOK}. libvirtd looks for hooks when it starts; a\n"
        "restart of libvirtd leaves guests running.",
        "  plimsoll gate enable && systemctl restart libvirtd",
    )
    add_verb(
        "disable",
        disable,
        "remove the hook",
        "From then on guests start without the agent's consent. Claims stay as they are.",
        "  plimsoll gate disable",
    )
    add_verb(
        "status",
        status,
        "show whether the hook is installed, and its settings",
        "Ends with 3 if the hook or its settings are faulty.",
        "  plimsoll gate status",
    )
    add_verb(
        "claim-running",
        claim_running,
        "claim for the guests that run without a claim, as if each started now",
        "For guests that started before the gate was enabled, or while the agent did not answer. Waits\n"
        "while claims are closed. Ends with 5 if a guest does not fit; that guest continues to run.",
        "  plimsoll gate claim-running",
    )


def enable(args: Namespace) -> ExitCode:
    """Install the hook."""
    before = install.hook_state()
    install.enable()
    answer = {"hook": str(install.HOOK), "state": install.hook_state().value, "before": before.value}
    Output(args.output).show(answer, lambda _: _enabled(before))
    return ExitCode.DONE


def _enabled(before: install.HookState) -> Iterator[str]:
    yield f"the gate is enabled: {install.HOOK}"
    if before is install.HookState.DISABLED:
        yield "libvirtd looks for hooks when it starts: systemctl restart libvirtd (guests go on running)"


def disable(args: Namespace) -> ExitCode:
    """Remove the hook."""
    install.disable()
    Output(args.output).show({"state": install.hook_state().value}, lambda _: ["the gate is disabled"])
    return ExitCode.DONE


def status(args: Namespace) -> ExitCode:
    """Show whether the hook is installed, and its settings."""
    state, config = install.hook_state(), HookConfig(str(install.CONFIG))
    answer = {
        "hook": str(install.HOOK),
        "state": state.value,
        "socket": config.socket,
        "deadline": config.deadline_s,
        "unanswered": config.unanswered,
        "problems": config.problems,
    }
    Output(args.output).show(answer, lambda _: _status_lines(answer, config.problems))
    good = state in (install.HookState.ENABLED, install.HookState.DISABLED) and not config.problems
    return ExitCode.DONE if good else ExitCode.DRIFT_FOUND


def _status_lines(answer: dict[str, Any], problems: list[str]) -> Iterator[str]:
    for key, value in answer.items():
        if key != "problems":
            yield f"{key:<10}  {value}"
    yield from map(plain, problems)


def claim_running(args: Namespace) -> ExitCode:
    """Claim for the guests that run without a claim."""
    with waiting("waiting until claims are open, and claiming"):
        answer = _claim_when_open(client_of(args, quiet=True), time.monotonic() + args.timeout)
    Output(args.output).show(answer, lambda _: _claimed(answer))
    return ExitCode.REFUSED if answer["refused"] else ExitCode.DONE


def _claim_when_open(client: Client, deadline: float) -> ClaimedRunningShape:
    """Retry while claims are closed, as they are for a moment after a restart of libvirtd.

    `deadline` is a time of `time.monotonic`. Raises ClaimsClosed or DriverUnavailable after it.
    """
    while True:
        try:
            answer: ClaimedRunningShape = client.request("POST", "/v1/gate/running", {})
            return answer
        except (ClaimsClosed, DriverUnavailable):
            if time.monotonic() + PAUSE_S > deadline:
                raise
            time.sleep(PAUSE_S)


def _claimed(answer: ClaimedRunningShape) -> Iterator[str]:
    for verdict in answer["claimed"]:
        yield f"claimed: {plain(verdict['sentence'])}"
    for verdict in answer["refused"]:
        yield f"refused: {plain(verdict['sentence'])}"
    if not answer["claimed"] and not answer["refused"]:
        yield "every guest that runs has a claim"
