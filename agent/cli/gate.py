"""`plimsoll gate`: install libvirt's hook, and claim for guests that run without a claim."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agent import errors
from agent.cli.client import Client, client_of, is_denied
from agent.cli.grammar import CommandAdder, add_verbs
from agent.cli.output import Style, show, waiting
from agent.errors import ExitCode, plain
from agent.gate import install
from agent.gate.hook import HookConfig

if TYPE_CHECKING:
    from agent.api.shapes.host import StatusShape
    from agent.api.shapes.instance import ClaimedRunningShape
    from agent.gate.effect import GateEffect

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
        "show whether the gate is in effect, and its settings",
        "The gate is in effect if the hook is installed, libvirtd has started since, and the agent answers.\n"
        "If not, the command says what to do, and ends with 3.",
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
    from agent.gate import effect
    from agent.gate.effect import RUN, GatePaths, read_effect

    before = install.hook_state()
    effect.enable(GatePaths(install.HOOK, install.CONFIG, RUN))
    answer = {"hook": str(install.HOOK), "state": install.hook_state().value, "before": before.value}
    lacking = read_effect(GatePaths(install.HOOK, install.CONFIG, RUN), None).lacking
    lines = [f"the gate is enabled: {install.HOOK}", *(f"NOT IN EFFECT yet: {why}" for why in lacking)]
    show(args, answer, lambda _: lines)
    return ExitCode.DONE


def disable(args: Namespace) -> ExitCode:
    """Remove the hook."""
    install.disable()
    show(args, {"state": install.hook_state().value}, lambda _: ["the gate is disabled"])
    return ExitCode.DONE


def status(args: Namespace) -> ExitCode:
    """Show whether the gate is in effect, and its settings."""
    config, effect = read_gate()
    answer = {
        "hook": str(install.HOOK),
        "state": "unknown" if effect.state is None else effect.state.value,
        "in_effect": effect.in_effect,
        "reasons": list(effect.reasons),
        "socket": config.socket,
        "deadline": config.deadline_s,
        "unanswered": config.unanswered,
        "problems": config.problems,
    }

    def lines(style: Style) -> Iterator[str]:
        if effect.in_effect is None:
            state = "disabled: guests start without a claim; `plimsoll gate enable`"
        else:
            state = (
                style.paint("green", "in effect") if effect.in_effect else style.paint("red", "NOT IN EFFECT")
            )
        yield f"{'gate':<10}  {state}"
        for reason in effect.reasons:
            yield f"{'':10}  {plain(reason)}"
        for key in ("hook", "state", "socket", "deadline", "unanswered"):
            yield f"{key:<10}  {plain(str(answer[key]))}"

    show(args, answer, lines)
    if effect.state is None:
        raise errors.StateError(f"{install.HOOK} cannot be read; run this as root.")
    return ExitCode.DRIFT_FOUND if effect.reasons else ExitCode.DONE


def read_gate(silent: str | None = None) -> tuple[HookConfig, GateEffect]:
    """The hook's settings, and whether the gate is in effect: asks the agent at the hook's socket.

    `silent` is a socket at which no agent answered just now; it is not asked again. Raises DaemonUnreachable
    where this user may not open the hook's socket, and therefore cannot tell.
    """
    from agent.gate.effect import RUN, GatePaths, read_effect

    config = HookConfig(str(install.CONFIG))
    # Why the agent would not decide about a guest that starts now, as a clause; None: it would.
    undecided: str | None = "it does not answer"
    if config.socket != silent:
        try:
            agent: StatusShape = Client(config.socket, config.deadline_s, quiet=True).get("/v1/status")
        except errors.Forbidden:  # it answers; this user may not ask
            undecided = None
        except errors.PlimsollError as error:
            if is_denied(error):
                raise
            undecided = error.message.rstrip(".")
        else:
            paused = agent["pause"] is not None and agent["state"] == "ready"  # then the gate refuses guests
            is_open = agent["claims"]["open"] or paused
            undecided = None if is_open else f"claims are closed: {agent['claims']['reason']}"
    return config, read_effect(GatePaths(install.HOOK, install.CONFIG, RUN), undecided)


def claim_running(args: Namespace) -> ExitCode:
    """Claim for the guests that run without a claim."""
    client, deadline = client_of(args, quiet=True), time.monotonic() + args.timeout
    answer: ClaimedRunningShape | None = None
    with waiting("waiting until claims are open, and claiming"):
        while answer is None:
            try:
                answer = client.request("POST", "/v1/gate/running", {})
            except (
                errors.ClaimsClosed,
                errors.DriverUnavailable,
            ):  # as for a moment after a restart of libvirtd
                if time.monotonic() + PAUSE_S > deadline:
                    raise
                time.sleep(PAUSE_S)
    lines = [
        *(f"claimed: {plain(verdict['sentence'])}" for verdict in answer["claimed"]),
        *(f"refused: {plain(verdict['sentence'])}" for verdict in answer["refused"]),
    ]
    show(args, answer, lambda _: lines or ["every guest that runs has a claim"])
    return ExitCode.REFUSED if answer["refused"] else ExitCode.DONE
