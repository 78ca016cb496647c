"""`plimsoll status`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from agent.cli.client import client_of, is_denied
from agent.cli.output import Output
from agent.cli.terminal import Style, plain
from agent.errors import DaemonUnreachable, ExitCode

if TYPE_CHECKING:
    from agent.api.shapes.host import (
        ClaimsStatusShape,
        DriverStatusShape,
        GateStatusShape,
        LastPassShape,
        PauseShape,
        PlacementStatusShape,
        StatusShape,
    )
    from agent.cli.grammar import CommandAdder

STATE_COLOURS = {"ready": "green", "degraded": "yellow"}
"""Any other state is red."""


def add_status_command(add: CommandAdder) -> None:
    """Add `plimsoll status`."""
    add(
        "status",
        status,
        "show the state of the agent, and the reasons for it",
        "Shows whether the agent is starting, ready, degraded or stopping, with the reasons; whether the\n"
        "driver and Placement answer; whether claims are open; and what the last pass did.",
        "  plimsoll status\n  plimsoll status -o json | jq -r .state",
    )


def status(args: Namespace) -> ExitCode:
    """Show the state of the agent."""
    try:
        answer: StatusShape = client_of(args).get("/v1/status")
    except DaemonUnreachable as error:
        told = None if is_denied(error) else _with_gate(error, args.socket)
        if told is None:
            raise
        raise told from error
    Output(args.output).show(answer, lambda style: status_lines(answer, style))
    return ExitCode.DONE


def _with_gate(error: DaemonUnreachable, socket: str) -> DaemonUnreachable | None:
    """The error, with what becomes of guests that start while no agent answers; None: as without an agent."""
    from agent.cli.gate import read_gate

    # An agent that was too slow for this command may answer the hook in time: ask as the hook does.
    was_slow = isinstance(error.__cause__, TimeoutError)
    try:
        _, effect = read_gate(silent=None if was_slow else socket)
    except DaemonUnreachable:  # the hook asks at another socket, which this user may not open
        return None
    if not effect.reasons:
        return None
    state = "in effect" if effect.in_effect else "NOT IN EFFECT"
    return DaemonUnreachable(
        f"{error.message.rstrip('.')}. The gate is {state}: {' '.join(effect.reasons)}",
        **error.details,
        gate={"in_effect": effect.in_effect, "reasons": list(effect.reasons)},
    )


def status_lines(status: StatusShape, style: Style) -> Iterator[str]:
    """The state of the agent, a line a field."""
    from agent.api.shapes.schema import local_time

    driver, placement, reasons = status["driver"], status["placement"], status["reasons"]
    yield from _fields(
        [
            ("host", f"{plain(status['host'])}  {plain(status['uuid'] or '(no provider yet)')}"),
            ("state", style.paint(STATE_COLOURS.get(status["state"], "red"), plain(status["state"]))),
            *(("", plain(reason)) for reason in reasons),
            ("since", local_time(status["since"])),
            ("agent", f"{plain(status['version'])}, pid {status['pid']}"),
            ("driver", f"{plain(driver['name'])}, {_health(driver, reasons, style)}"),
            ("placement", f"{plain(placement['kind'])}, {_health(placement, reasons, style)}"),
            ("claims", _claims(status["claims"], reasons, style)),
            *_pause(status.get("pause"), style),
            ("gate", _gate(status.get("gate"), style)),
            ("findings", _findings(status, style)),
            ("last pass", _last_pass(status["last_pass"], reasons)),
            *_next_try(status.get("next_try")),
        ]
    )


def _fields(fields: Sequence[tuple[str, str]]) -> Iterator[str]:
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        yield f"{name:<{width}}  {value}".rstrip()


def _health(part: DriverStatusShape | PlacementStatusShape, reasons: Sequence[str], style: Style) -> str:
    if part["ok"]:
        return style.paint("green", "ok")
    return f"{style.paint('red', 'not ok')}{_because(part['error'] or 'no reason given', reasons)}"


def _claims(claims: ClaimsStatusShape, reasons: Sequence[str], style: Style) -> str:
    told = "" if claims.get("schedulers", True) else "; schedulers pass the host over"
    if claims["open"]:
        return f"{claims['count']}, {style.paint('green', 'open')}{told}"
    because = _because(claims["reason"] or "", reasons)
    return f"{claims['count']}, {style.paint('red', 'closed')}{because}{told}"


def _because(sentence: str, reasons: Sequence[str]) -> str:
    """The reason after a state; nothing where the lines above have said it."""
    said = {reason.rstrip(".") for reason in reasons}
    return f": {plain(sentence)}" if sentence and sentence.rstrip(".") not in said else ""


def _pause(pause: PauseShape | None, style: Style) -> list[tuple[str, str]]:
    from agent.api.shapes.schema import local_time

    if pause is None:
        return []
    told = ", schedulers are told" if pause["schedulers"] else ""
    what = style.paint("yellow", "drained" if pause["drains"] else "paused")
    reason = f": {plain(pause['reason'])}" if pause["reason"] else ""
    return [("", f"{what} since {local_time(pause['since'])} by uid {pause['uid']}{told}{reason}")]


def _gate(gate: GateStatusShape | None, style: Style) -> str:
    if gate is None or gate["in_effect"] is None:
        return "unknown: `plimsoll gate status` tells" if gate and gate["hook"] == "unknown" else "disabled"
    return style.paint("green", "in effect") if gate["in_effect"] else style.paint("red", "NOT IN EFFECT")


def _findings(status: StatusShape, style: Style) -> str:
    from agent.api.shapes.schema import local_time

    audited, number = status.get("audited"), status.get("findings", 0)
    if audited is None:
        return style.paint("yellow", "not audited yet; `plimsoll look` audits now")
    if number:
        return style.paint("yellow", f"{number}, which `plimsoll audit` shows")
    return f"none, audited {local_time(audited)}"


def _next_try(at: str | None) -> list[tuple[str, str]]:
    from agent.api.shapes.schema import local_time

    return [] if at is None else [("next try", f"{local_time(at)}, or now by `plimsoll look`")]


def _last_pass(last_pass: LastPassShape | None, reasons: Sequence[str]) -> str:
    from agent.api.shapes.schema import local_time

    if not last_pass or not last_pass["sentence"]:
        return "none yet"
    failed = any(reason.rstrip(".") in last_pass["sentence"] for reason in reasons)
    sentence = "failed" if failed else plain(last_pass["sentence"])
    return f"{local_time(last_pass['at'])}  {sentence} ({last_pass['duration_ms']:.1f} ms)"
