"""The doctor's checks of the running agent and of its Placement."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent.config.settings import Settings
from agent.doctor.check import DoctorCheck, bad, good, warning
from agent.durable.files import is_there
from agent.errors import DaemonUnreachable, PlimsollError, counted
from agent.placement.connect import open_transport
from agent.placement.ping import ping

UNIT = "plimsoll-agent"
NEW_DIRECTORY = "The state directory is new"
"""So begins the reason of a running agent whose state directory is younger than the guests."""


def agent(socket: Path, ask: Any) -> Iterator[DoctorCheck]:
    """The running agent's state; `ask(socket path)` is GET /v1/status of the local API."""
    try:
        status = ask(str(socket))
    except DaemonUnreachable as error:
        if _is_inaccessible(socket):
            yield warning("agent", error.message, "Run the doctor as root, or join the group plimsoll.")
        else:
            yield warning(
                "agent", f"No agent answers at {socket}.", f"systemctl start {UNIT}; journalctl -u {UNIT}"
            )
        return
    except PlimsollError as error:
        yield warning(
            "agent",
            error.message,
            "[api] readers, claimers and admins list the users who may call the agent.",
        )
        return
    sentence = f"The agent (pid {status['pid']}, {status['version']}) is {status['state']}"
    if status["state"] == "ready":
        yield good("agent", f"{sentence}, with {counted(status['claims']['count'], 'claim')}.")
        for reason in status["reasons"]:
            if reason.startswith(NEW_DIRECTORY):
                yield warning("agent", reason, "Check `state_path`; then `plimsoll gate claim-running`.")
        return
    reasons = " ".join(status["reasons"]) or "it gives no reason"
    yield bad("agent", f"{sentence}: {reasons}", "Follow the reasons; the agent tries again by itself.")


def _is_inaccessible(socket: Path) -> bool:
    try:
        return is_there(socket) and not os.access(socket, os.R_OK | os.W_OK)
    except PermissionError:  # the directory is inaccessible
        return True


def placement(settings: Settings) -> Iterator[DoctorCheck]:
    """Placement: ask a remote one for its identity and for the agent's rights there. Writes nothing."""
    if settings.placement.kind != "remote":
        yield good("placement", "Placement is embedded; its database is in the state directory.")
        return
    try:
        transport = open_transport("remote", options=asdict(settings.placement))
        try:
            report = ping(transport, "the remote Placement")
        finally:
            transport.close()
    except PlimsollError as error:
        yield bad(
            "placement", error.message, "Check [placement]; `plimsoll placement ping` makes the same request."
        )
        return
    yield good(
        "placement",
        f"{report.address} answers {report.identity} in {report.median_ms:g} ms, microversion {report.used}.",
    )
    for lack in report.lacking:
        yield warning("placement", f"{lack}.", "See the documentation page on a remote Placement.")
