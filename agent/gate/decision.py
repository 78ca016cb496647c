"""What libvirt's hook asks the gate, and what the gate answers."""

from dataclasses import dataclass
from enum import StrEnum

from agent.gate.cpu_power import CpuOrder


@dataclass(frozen=True, slots=True)
class HookCall:
    """A call of the hook: libvirt's second and third argument, and the domain's XML from standard input."""

    operation: str
    sub_operation: str
    xml: str


class GateOutcome(StrEnum):
    """What the gate did. With each of them, the guest may go on."""

    CLAIMED = "claimed"
    HELD = "held"
    """A claim of the guest covers the domain."""
    MOVING = "moving"
    """The guest comes in by a live migration; the move has begun."""
    NOTED = "noted"
    """The guest has ended. Its claim is released once the host has neither the guest nor its definition."""
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """`consumer` is the guest's uuid; `sentence` explains the outcome to the operator.

    `cpu_power` is what the hook does with the guest's CPUs before it lets libvirt go on.
    """

    outcome: GateOutcome
    consumer: str | None
    sentence: str
    cpu_power: CpuOrder | None = None
