"""The doctor's check of `[compute] cpu_power_management`: what the kernel lets root change."""

from collections.abc import Iterator
from pathlib import Path

from agent.config.settings import Settings
from agent.cpuset import format_cpu_set
from agent.doctor.check import DoctorCheck, bad, good, warning

CPUS = Path("/sys/devices/system/cpu")
NAME = "cpus"
REMEDY = "Load the processor's cpufreq driver, or set [compute] cpu_power_management_strategy = cpu_state."


def cpu_power(settings: Settings, cpus: Path = CPUS) -> Iterator[DoctorCheck]:
    """Whether dedicated CPUs can be powered up and down; nothing where that is not configured."""
    host = settings.driver.host_settings
    managed = sorted((host.cpu_dedicated_set or frozenset()) - {0})
    if not host.cpu_power_management or not managed:
        return
    offline = frozenset(cpu for cpu in managed if _text(cpus / f"cpu{cpu}" / "online") == "0")
    if host.cpu_power_management_strategy == "cpu_state":
        fixed = frozenset(cpu for cpu in managed if not (cpus / f"cpu{cpu}" / "online").exists())
        yield from _by_state(offline, fixed)
        return
    if offline:
        yield bad(
            NAME,
            f"CPU {format_cpu_set(offline)} in [compute] cpu_dedicated_set is offline, and the strategy "
            "`governor` needs all of them online.",
            "; ".join(f"echo 1 > {cpus}/cpu{cpu}/online" for cpu in sorted(offline)),
        )
    words = {cpu: (_text(_governors(cpus, cpu)) or "").split() for cpu in managed if cpu not in offline}
    wanted = (host.cpu_power_governor_low, host.cpu_power_governor_high)
    lacking = frozenset(cpu for cpu, governors in words.items() if not {*wanted} <= {*governors})
    if lacking:
        yield bad(
            NAME,
            f"CPU {format_cpu_set(lacking)} in [compute] cpu_dedicated_set cannot have the governors "
            f"{' and '.join(wanted)}.",
            REMEDY,
        )
    elif not offline:
        yield good(NAME, f"The dedicated CPUs can have the governors {' and '.join(wanted)}.")


def _by_state(offline: frozenset[int], fixed: frozenset[int]) -> Iterator[DoctorCheck]:
    if fixed:
        yield warning(
            NAME,
            f"The kernel cannot take CPU {format_cpu_set(fixed)} offline: it is always online.",
            "Nothing needs to be done, unless the kernel was built without CPU hotplug.",
        )
    down = f"CPU {format_cpu_set(offline)} is offline" if offline else "No dedicated CPU is offline"
    yield good(
        NAME,
        f"{down}; plimsoll-cpus.path brings a claim's CPUs online, and libvirt's hook a guest's, where "
        "`plimsoll gate status` says that it is in effect.",
    )


def _governors(cpus: Path, cpu: int) -> Path:
    return cpus / f"cpu{cpu}" / "cpufreq" / "scaling_available_governors"


def _text(path: Path) -> str | None:
    try:
        return path.read_text("ascii").strip()
    except (OSError, ValueError):
        return None
