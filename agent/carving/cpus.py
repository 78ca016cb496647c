"""Dedicated CPUs that come up at a claim, and go down at a boot, with `[compute] cpu_power_management`. Pure.

The agent may write nothing below /sys. It writes which instance has which CPUs to a file, and a process of
root changes the CPUs. The hook of libvirt does the same at the start and at the end of a guest, see
agent.gate.decision. CPU 0 stays as it is, as in nova: most kernels cannot take it offline.
Source: nova 34, nova/virt/libvirt/cpu/api.py.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agent.claims.rows import Row
from agent.cpuset import format_cpu_set, parse_cpu_set
from agent.driver import HostSettings
from agent.errors import UsageError
from agent.json_checks import fault, read_object, read_text, read_truth, read_uuid

PCPU = "PCPU"
ONLINE, OFFLINE = "online", "offline"
VERSION = 1
INSTANCES_MAX = 65536
_TEXT_MAX = 65536


@dataclass(frozen=True, slots=True)
class CpuHold:
    """The dedicated CPUs that an instance has, by its claims or by its guest's domain.

    `awaited`: its guest has not run here since the claim; the CPUs are to come up for it.
    """

    cpus: frozenset[int]
    awaited: bool = False


CpuHolds = Mapping[str, CpuHold]
"""{uuid of an instance: its dedicated CPUs}"""


@dataclass(frozen=True, slots=True)
class CpuStep:
    """Put a CPU into a state: `online`, `offline`, or a governor of the kernel's cpufreq."""

    cpu: int
    state: str

    @property
    def text(self) -> str:
        """What it does, in words."""
        if self.state == ONLINE:
            return f"bring CPU {self.cpu} online"
        if self.state == OFFLINE:
            return f"take CPU {self.cpu} offline"
        return f"give CPU {self.cpu} the governor {self.state}"


def managed_cpus(settings: HostSettings) -> frozenset[int]:
    """The CPUs whose power is managed; none where that is not configured."""
    return (settings.cpu_dedicated_set or frozenset()) - {0} if settings.cpu_power_management else frozenset()


def state_of_up(settings: HostSettings) -> str:
    """The state of a CPU that a guest uses."""
    by_state = settings.cpu_power_management_strategy == "cpu_state"
    return ONLINE if by_state else settings.cpu_power_governor_high


def state_of_down(settings: HostSettings) -> str:
    """The state of a CPU without a guest."""
    by_state = settings.cpu_power_management_strategy == "cpu_state"
    return OFFLINE if by_state else settings.cpu_power_governor_low


def cpu_holds(rows: Iterable[Row], former: CpuHolds) -> dict[str, CpuHold]:
    """Which instance has which dedicated CPUs; `former` is what this said before.

    CPUs are awaited from the claim on until the guest runs or the claim ends. What an instance keeps after
    its guest has ended is not awaited again: libvirt's hook brings it up with the guest.
    """
    holds = {}
    for row in rows:
        claimed = [unit for claim in row.claimed.values() for _, name, unit in claim.exact if name == PCPU]
        units = row.guest.units if row.guest else ()
        used = [unit.unit for unit in units if unit.resource_class == PCPU]
        cpus = frozenset(map(int, (*claimed, *used)))
        if cpus:
            before = former.get(row.instance)
            is_new = before is None or before.awaited or not cpus <= before.cpus
            runs = row.guest is not None and not row.guest.is_off
            holds[row.instance] = CpuHold(cpus, bool(row.claimed) and is_new and not runs)
    return holds


def awaited_cpus(holds: CpuHolds) -> frozenset[int]:
    """The CPUs that are to come up."""
    return frozenset[int]().union(*(hold.cpus for hold in holds.values() if hold.awaited))


def cpu_steps(
    settings: HostSettings, holds: CpuHolds | None, seen: Mapping[int, str], *, guests_may_start: bool
) -> tuple[CpuStep, ...]:
    """What is to be done now. `seen` {CPU: its state} has the CPUs whose state the kernel can change.

    What an instance awaits comes up. What no instance has goes down, but only while no guest can start: a
    guest that starts now may have been claimed after `holds` was written. None: it is not known who has
    what, so nothing goes down.
    """
    managed = managed_cpus(settings)
    up = awaited_cpus(holds or {}) & managed
    down = frozenset[int]()
    if holds is not None and not guests_may_start:
        down = managed.difference(*(hold.cpus for hold in holds.values()))
    wanted = dict.fromkeys(up, state_of_up(settings)) | dict.fromkeys(down, state_of_down(settings))
    return tuple(
        CpuStep(cpu, wanted[cpu]) for cpu in sorted(wanted) if seen.get(cpu, wanted[cpu]) != wanted[cpu]
    )


def holds_to_json(holds: CpuHolds) -> dict[str, Any]:
    """The content of the agent's file, as `read_holds` reads it."""
    return {
        "version": VERSION,
        "instances": {
            instance: {"cpus": format_cpu_set(hold.cpus), "awaited": hold.awaited}
            for instance, hold in sorted(holds.items())
        },
    }


def read_holds(data: object) -> dict[str, CpuHold]:
    """The inverse of `holds_to_json`. Raises UsageError for anything else."""
    content = read_object(data, "", ("version", "instances"))
    if content.get("version") != VERSION:
        raise UsageError(f"version: this Plimsoll knows version {VERSION} of the file.")
    instances = read_object(content.get("instances"), "instances")
    if len(instances) > INSTANCES_MAX:
        raise UsageError(f"instances: there are {len(instances)}, and {INSTANCES_MAX} are allowed.")
    holds = {}
    for instance, value in instances.items():
        path = f"instances.{instance}"
        uuid = read_uuid(instance, "instances")
        record = read_object(value, path, ("cpus", "awaited"))
        text = read_text(record.get("cpus"), f"{path}.cpus", longest=_TEXT_MAX)
        try:
            cpus = parse_cpu_set(text)
        except ValueError as error:
            raise fault(f"{path}.cpus", "CPU ids and ranges", text) from error
        holds[uuid] = CpuHold(cpus, read_truth(record.get("awaited"), f"{path}.awaited"))
    return holds
