"""Which dedicated CPUs libvirt's hook powers up before a guest starts, and down when it has ended. Pure.

The agent may write nothing below /sys; the hook runs as root. CPU 0 stays as it is, as in nova: most kernels
cannot take it offline. Source: nova 34, nova/virt/libvirt/cpu/api.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from agent.claims.claim import Claim
from agent.driver import Guest, HostSettings

ONLINE, OFFLINE = "online", "offline"
PCPU = "PCPU"


@dataclass(frozen=True, slots=True)
class CpuOrder:
    """Put these CPUs into a state: `online`, `offline`, or a governor of the kernel's cpufreq."""

    cpus: tuple[int, ...]
    state: str


def power_up(guest: Guest, settings: HostSettings) -> CpuOrder | None:
    """What must be done before the guest starts; None: nothing."""
    by_state = settings.cpu_power_management_strategy == "cpu_state"
    return _order(guest, settings, ONLINE if by_state else settings.cpu_power_governor_high)


def power_down(
    guest: Guest, settings: HostSettings, others: Iterable[Guest], claims: Iterable[Claim] = ()
) -> CpuOrder | None:
    """What can be done when the guest has ended; None: nothing. CPUs that `others` or `claims` have stay up.

    A guest that starts has its CPUs powered up before the driver shows that it uses them.
    """
    by_state = settings.cpu_power_management_strategy == "cpu_state"
    claimed = (int(unit) for claim in claims for _, name, unit in claim.exact if name == PCPU)
    kept = frozenset(claimed).union(*(_cpus(other) for other in others))
    return _order(guest, settings, OFFLINE if by_state else settings.cpu_power_governor_low, kept)


def _order(
    guest: Guest, settings: HostSettings, state: str, kept: frozenset[int] = frozenset()
) -> CpuOrder | None:
    managed = (settings.cpu_dedicated_set or frozenset()) - {0} - kept
    cpus = tuple(sorted(_cpus(guest) & managed)) if settings.cpu_power_management else ()
    return CpuOrder(cpus, state) if cpus else None


def _cpus(guest: Guest) -> frozenset[int]:
    """The dedicated CPUs of its vCPUs and of its emulator."""
    return frozenset(int(unit.unit) for unit in guest.units if unit.resource_class == PCPU)
