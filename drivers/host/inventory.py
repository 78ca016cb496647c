"""Inventories of CPUs, memory and disk, from the host's amounts and the operator's settings. Pure.

The options ([compute] cpu_shared_set, cpu_dedicated_set; reserved_host_*; *_allocation_ratio) mean what they
mean to nova, so a host reports the same amounts under nova-compute and under this agent. A resource class
without units has no inventory.
Source: https://docs.openstack.org/nova/latest/admin/cpu-topologies.html and .../configuration/config.html
"""

from collections.abc import Iterable, Iterator, Mapping

from agent.cpuset import format_cpu_set
from agent.driver import Cell, DescribedInventory, HostSettings
from agent.errors import SettingsError

MIB_PER_GIB = 1024

InventoriesByClass = dict[str, DescribedInventory]
"""{resource class: inventory}"""


def check_cpu_sets(settings: HostSettings) -> None:
    """Raises SettingsError where a CPU is in both CPU sets."""
    both = (settings.cpu_shared_set or frozenset()) & (settings.cpu_dedicated_set or frozenset())
    if both:
        raise SettingsError(
            f"[compute] cpu_shared_set and cpu_dedicated_set both name CPU {format_cpu_set(both)}; "
            "a CPU is either shared or dedicated, take it out of one of them"
        )


def split_cpus(online: frozenset[int], settings: HostSettings) -> tuple[frozenset[int], frozenset[int]]:
    """(shared, dedicated) ids of online CPUs.

    Without either option all CPUs are shared; with cpu_dedicated_set alone none is. A configured CPU that is
    not online gives nothing; `absent_cpus` tells of it.
    """
    dedicated = settings.cpu_dedicated_set or frozenset()
    if settings.cpu_shared_set is not None:
        return settings.cpu_shared_set & online, dedicated & online
    return (frozenset() if dedicated else online), dedicated & online


def absent_cpus(cells: Iterable[Cell], settings: HostSettings) -> Iterator[str]:
    """A sentence for each option that names CPUs that are not in the cells: they are not online."""
    online = frozenset[int]().union(*(cell.cpus for cell in cells))
    for option, configured in (
        ("cpu_shared_set", settings.cpu_shared_set),
        ("cpu_dedicated_set", settings.cpu_dedicated_set),
    ):
        absent = (configured or frozenset()) - online
        if absent:
            where = f"/sys/devices/system/cpu/cpu{min(absent)}/online"
            yield (
                f"[compute] {option} names CPU {format_cpu_set(absent)}, not online on this host (CPU "
                f"{format_cpu_set(online)} are): such a CPU is not offered, and all else is. Bring it online "
                f"(echo 1 > {where}), or take it out of the option."
            )


def cpu_inventories(shared: int, dedicated: int, reserved: int, settings: HostSettings) -> InventoriesByClass:
    """VCPU and PCPU. The `reserved` CPUs are shared ones; dedicated CPUs are never overcommitted."""
    inventories = {}
    if shared:
        inventories["VCPU"] = DescribedInventory(
            total=shared,
            reserved=min(reserved, shared),
            allocation_ratio=settings.cpu_allocation_ratio,
            initial_allocation_ratio=settings.initial_cpu_allocation_ratio,
        )
    if dedicated:
        inventories["PCPU"] = DescribedInventory(total=dedicated, allocation_ratio=1.0)
    return inventories


def memory_inventory(memory_mb: int, reserved_mb: int, settings: HostSettings) -> InventoriesByClass:
    """MEMORY_MB, in MiB."""
    if memory_mb <= 0:
        return {}
    return {
        "MEMORY_MB": DescribedInventory(
            total=memory_mb,
            reserved=min(reserved_mb, memory_mb),
            allocation_ratio=settings.ram_allocation_ratio,
            initial_allocation_ratio=settings.initial_ram_allocation_ratio,
        )
    }


def disk_inventory(disk_gb: int, settings: HostSettings) -> InventoriesByClass:
    """DISK_GB, in GiB; the reserved MiB are rounded up to whole GiB."""
    if disk_gb <= 0:
        return {}
    return {
        "DISK_GB": DescribedInventory(
            total=disk_gb,
            reserved=min(-(-settings.reserved_host_disk_mb // MIB_PER_GIB), disk_gb),
            allocation_ratio=settings.disk_allocation_ratio,
            initial_allocation_ratio=settings.initial_disk_allocation_ratio,
        )
    }


def cpu_units(cpus: Iterable[int]) -> Mapping[str, tuple[str, ...]]:
    """`DescribedProvider.units` of the dedicated CPUs, lowest first."""
    ids = tuple(str(cpu) for cpu in sorted(cpus))
    return {"PCPU": ids} if ids else {}


def shares(amount: int, parts: int) -> tuple[int, ...]:
    """`amount` in `parts` whole shares that differ by at most one, the larger ones first."""
    smallest, rest = divmod(amount, parts)
    return tuple(smallest + (1 if part < rest else 0) for part in range(parts))
