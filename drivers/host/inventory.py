"""Inventories of CPUs, memory and disk, from the host's amounts and the operator's settings. Pure.

The options ([compute] cpu_shared_set, cpu_dedicated_set; reserved_host_*; *_allocation_ratio) mean what they
mean to nova, so a host reports the same amounts under nova-compute and under this agent. A resource class
without units has no inventory.
Source: https://docs.openstack.org/nova/latest/admin/cpu-topologies.html and .../configuration/config.html
"""

from collections.abc import Iterable, Mapping

from agent.cpuset import format_cpu_set
from agent.driver import DescribedInventory, HostSettings
from agent.errors import DriverDataError, SettingsError

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
    """(shared, dedicated) CPU ids.

    Without either option all CPUs are shared; with cpu_dedicated_set alone none is. Raises DriverDataError
    where a configured CPU is not online on this host.
    """
    for option, configured in (
        ("cpu_shared_set", settings.cpu_shared_set),
        ("cpu_dedicated_set", settings.cpu_dedicated_set),
    ):
        missing = (configured or frozenset()) - online
        if missing:
            raise DriverDataError(
                f"[compute] {option} names CPU {format_cpu_set(missing)}, which is not online on this host "
                f"(CPU {format_cpu_set(online)} are); correct the option or bring the CPU online"
            )
    dedicated = settings.cpu_dedicated_set or frozenset()
    if settings.cpu_shared_set is not None:
        return settings.cpu_shared_set, dedicated
    return (frozenset() if dedicated else online), dedicated


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
