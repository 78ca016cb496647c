"""The verdicts of the gate: `/v1/gate`."""

from collections.abc import Iterable
from typing import Annotated, TypedDict

from agent.api.shapes.schema import Uuid, Values


def _outcomes() -> Iterable[str]:
    from agent.gate.decision import GateOutcome

    return GateOutcome


class CpuPowerShape(TypedDict):
    """What the hook does with CPUs of the host."""

    cpus: list[int]
    state: Annotated[str, "online, offline, or a governor of cpufreq"]


class VerdictShape(TypedDict):
    """The gate's verdict: the guest may go on."""

    outcome: Annotated[str, Values(_outcomes)]
    consumer: Annotated[Uuid | None, "the uuid of the guest"]
    sentence: str
    cpu_power: Annotated[CpuPowerShape | None, "for libvirt's hook, which may write it below /sys"]


class GuestVerdictShape(TypedDict):
    """The verdict on a running guest."""

    consumer: Uuid
    name: str
    sentence: str


class ClaimedRunningShape(TypedDict):
    """The guests that ran without a claim: those that have a claim now, and those that do not fit."""

    claimed: list[GuestVerdictShape]
    refused: list[GuestVerdictShape]
