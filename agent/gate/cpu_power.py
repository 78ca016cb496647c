"""Which dedicated CPUs libvirt's hook powers up before a guest starts, and down when it has ended. Pure.

The agent may write nothing below /sys; the hook runs as root. agent.carving.cpus has what comes up at a
claim and goes down at a boot. Source: nova 34, nova/virt/libvirt/cpu/api.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from agent.carving.cpus import PCPU, managed_cpus, state_of_down, state_of_up
from agent.claims.claim import Claim
from agent.driver import Guest, HostSettings


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
