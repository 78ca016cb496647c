"""`plimsoll gate`: its grammar, and what it does."""

import argparse
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

from agent.cli.client import Client
from agent.cli.output import Output
from agent.cli.terminal import plain
from agent.cli.waiting import waiting
from agent.errors import ClaimsClosed, DriverUnavailable, ExitCode
from agent.gate import install
from agent.gate.hook import HookConfig

Adder = Callable[..., argparse.ArgumentParser]
Json = dict[str, Any]

PAUSE_S = 1.0


def add_gate_commands(add: Adder, verbs_of: Callable[[argparse.ArgumentParser], Adder]) -> None:
    group = add(
        "gate",
        None,
        "libvirt's hook: claim when a guest starts or comes in, whoever starts it",
        "The hook refuses a guest that does not fit, and tells why. What it does while the agent does not\n"
        f"answer stands in {install.CONFIG}.",
        "  plimsoll gate enable\n  plimsoll gate status\n  plimsoll gate claim-running",
    )
    verbs = verbs_of(group)
    verbs(
        "enable",
        enable,
        "put the hook into libvirt's folder",
        f"Writes {install.HOOK}. libvirtd looks for hooks when it starts; a\n"
        "restart of it leaves guests running.",
        "  plimsoll gate enable && systemctl restart libvirtd",
    )
    verbs(
        "disable",
        disable,
        "take the hook away",
        "From the next start of a guest on nobody is asked. Claims stay as they are.",
        "  plimsoll gate disable",
    )
    verbs(
        "status",
        status,
        "is the hook there, and what do its settings say",
        "Ends with 3 where the hook or its settings are not as they should be.",
        "  plimsoll gate status",
    )
    verbs(
        "claim-running",
        claim_running,
        "claim for the guests that run and have no claim, as if each started now",
        "For those that were started before the gate, or while the agent did not answer. Waits while claims\n"
        "are closed. Ends with 5 where one could not be claimed for: it goes on running.",
        "  plimsoll gate claim-running",
    )


def enable(args: Namespace) -> ExitCode:
    before = install.hook_state()
    install.enable()
    told = {"hook": str(install.HOOK), "state": install.hook_state().value, "before": before.value}
    Output(args.output).show(told, lambda _: _enabled(before))
    return ExitCode.DONE


def _enabled(before: install.HookState) -> Iterator[str]:
    yield f"the gate is enabled: {install.HOOK}"
    if before is install.HookState.DISABLED:
        yield "libvirtd looks for hooks when it starts: systemctl restart libvirtd (guests go on running)"


def disable(args: Namespace) -> ExitCode:
    install.disable()
    Output(args.output).show({"state": install.hook_state().value}, lambda _: ["the gate is disabled"])
    return ExitCode.DONE


def status(args: Namespace) -> ExitCode:
    state, config = install.hook_state(), HookConfig(str(install.CONFIG))
    told = {
        "hook": str(install.HOOK),
        "state": state.value,
        "socket": config.socket,
        "deadline": config.deadline_s,
        "unanswered": config.unanswered,
        "problems": config.problems,
    }
    Output(args.output).show(told, lambda _: [*_pairs(told), *map(plain, config.problems)])
    good = state in (install.HookState.ENABLED, install.HookState.DISABLED) and not config.problems
    return ExitCode.DONE if good else ExitCode.DRIFT_FOUND


def _pairs(told: Json) -> Iterator[str]:
    for key, value in told.items():
        if key != "problems":
            yield f"{key:<10}  {value}"


def claim_running(args: Namespace) -> ExitCode:
    with waiting("waiting for the agent to let claims in, and claiming"):
        client = Client(args.socket, args.timeout, quiet=True)
        answer = _until_open(client, time.monotonic() + args.timeout)
    Output(args.output).show(answer, lambda _: _claimed(answer))
    return ExitCode.REFUSED if answer["refused"] else ExitCode.DONE


def _until_open(client: Client, ends: float) -> Json:
    """Claims are closed for a moment after libvirtd was restarted, which is when this is asked for."""
    while True:
        try:
            answer: Json = client.request("POST", "/v1/gate/running", {})
            return answer
        except (ClaimsClosed, DriverUnavailable):
            if time.monotonic() + PAUSE_S > ends:
                raise
            time.sleep(PAUSE_S)


def _claimed(answer: Json) -> Iterator[str]:
    for each in answer["claimed"]:
        yield f"claimed: {plain(each['sentence'])}"
    for each in answer["refused"]:
        yield f"refused: {plain(each['sentence'])}"
    if not answer["claimed"] and not answer["refused"]:
        yield "every guest that runs has a claim"
