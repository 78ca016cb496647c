"""What the hook asks, what the gate answers, whether a claim covers a domain, and its CPUs' power. Pure.

The hook powers a guest's dedicated CPUs up before it starts, and down when it has ended: the agent may write
nothing below /sys; the hook runs as root. agent.carving.cpus has what comes up at a claim and goes down at a
boot. Source: nova 34, nova/virt/libvirt/cpu/api.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from agent.carving.cpus import PCPU, managed_cpus, state_of_down, state_of_up
from agent.claims.claim import Claim
from agent.claims.domain_demand import GATE_USER, MEMORY, DomainRequest
from agent.driver import Guest, HostSettings
from agent.moves.states import Move


@dataclass(frozen=True, slots=True)
class CpuOrder:
    """Put these CPUs into a state: `online`, `offline`, or a governor of the kernel's cpufreq."""

    cpus: tuple[int, ...]
    state: str


def power_up(guest: Guest, settings: HostSettings) -> CpuOrder | None:
    """What must be done before the guest starts; None: nothing."""
    return _order(_cpus(guest) & managed_cpus(settings), state_of_up(settings))


def power_down(
    guest: Guest, settings: HostSettings, others: Iterable[Guest], claims: Iterable[Claim] = ()
) -> CpuOrder | None:
    """What can be done when the guest has ended; None: nothing. CPUs that `others` or `claims` have stay up.

    A guest that starts has its CPUs powered up before the driver shows that it uses them.
    """
    claimed = (int(unit) for claim in claims for _, name, unit in claim.exact if name == PCPU)
    kept = frozenset(claimed).union(*(_cpus(other) for other in others))
    return _order((_cpus(guest) & managed_cpus(settings)) - kept, state_of_down(settings))


def _order(cpus: frozenset[int], state: str) -> CpuOrder | None:
    return CpuOrder(tuple(sorted(cpus)), state) if cpus else None


def _cpus(guest: Guest) -> frozenset[int]:
    """The dedicated CPUs of its vCPUs and of its emulator."""
    return frozenset(int(unit.unit) for unit in guest.units if unit.resource_class == PCPU)


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


def made_by_gate(claim: Claim) -> bool:
    """Whether the gate made the claim, and no other program wrote its allocation."""
    return claim.request.user_id == GATE_USER and not claim.adopted


def brought_in_by_gate(move: Move) -> bool:
    """Whether this host's gate began the move."""
    return move.new is not None and move.new.request.user_id == GATE_USER


def covers(claim: Claim, wanted: DomainRequest) -> bool:
    """Whether the claim has all amounts of the domain, and its named units where the claim has exact units.

    A claim of the gate must also have the memory on the domain's cells. Where another claim has its memory is
    decided by the program that made it.
    """
    amounts = claim.request.resources
    if any(amount > amounts.get(name, 0) for name, amount in wanted.request.resources.items()):
        return False
    if made_by_gate(claim) and any(
        amount > claim.allocations.get(uuid, {}).get(MEMORY, 0) for uuid, amount in wanted.memory.items()
    ):
        return False
    for uuid, classes in wanted.named.items():
        for name, units in classes.items():
            exact = claim.units.get(uuid, {}).get(name)
            if exact is not None and not set(units) <= set(exact):
                return False
            if len(units) > claim.allocations.get(uuid, {}).get(name, 0):
                return False
    return True
