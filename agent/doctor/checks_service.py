"""What the doctor sees of the running agent, and of the placement it is to use."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent.config.settings import Settings
from agent.doctor.check import DoctorCheck, bad, good, warning
from agent.errors import DaemonUnreachable, PlimsollError
from agent.placement.connect import open_transport
from agent.placement.ping import ping

UNIT = "plimsoll-agent"


def agent(socket: Path, ask: Any) -> Iterator[DoctorCheck]:
    """`ask(socket path)` is GET /v1/status; see the local API."""
    try:
        status = ask(str(socket))
    except DaemonUnreachable as error:
        if _closed_to_us(socket):
            yield warning("agent", error.message, "Run the doctor as root, or join the group plimsoll.")
        else:
            yield warning(
                "agent", f"No agent answers at {socket}.", f"systemctl start {UNIT}; journalctl -u {UNIT}"
            )
        return
    except PlimsollError as error:
        yield warning("agent", error.message, "[api] readers, claimers and admins say who may ask.")
        return
    told = f"The agent (pid {status['pid']}, {status['version']}) is {status['state']}"
    if status["state"] == "ready":
        yield good("agent", f"{told}, with {status['claims']['count']} claims.")
        return
    reasons = " ".join(status["reasons"]) or "it does not say why"
    yield bad("agent", f"{told}: {reasons}", "The reasons say what to do; the agent tries again by itself.")


def _closed_to_us(socket: Path) -> bool:
    try:
        return socket.exists() and not os.access(socket, os.R_OK | os.W_OK)
    except PermissionError:  # its directory is
        return True


def placement(settings: Settings) -> Iterator[DoctorCheck]:
    """A remote one is asked what it is and whether the agent may do its work there; nothing is written."""
    if settings.placement.kind != "remote":
        yield good("placement", "It is the embedded one, in the state directory.")
        return
    try:
        transport = open_transport("remote", options=asdict(settings.placement))
        try:
            report = ping(transport, "the remote placement")
        finally:
            transport.close()
    except PlimsollError as error:
        yield bad("placement", error.message, "`plimsoll placement ping` asks again; see [placement].")
        return
    yield good(
        "placement",
        f"{report.address} answers {report.identity} in {report.median_ms:g} ms, microversion {report.used}.",
    )
    for lack in report.lacking:
        yield warning("placement", f"{lack}.", "See the documentation of the remote placement.")
