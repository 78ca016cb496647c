"""A host's own inventories from what it has and what the operator said. Pure.

Semantics are nova's ([compute] cpu_shared_set, cpu_dedicated_set; reserved_host_*; *_allocation_ratio), so
that a host reports the same amounts whoever looks after it. A class of which there is nothing is left out.
Source: https://docs.openstack.org/nova/latest/admin/cpu-topologies.html and .../configuration/config.html
"""

import re
from collections.abc import Iterable, Mapping

from agent.cpuset import format_cpu_set
from agent.driver import DescribedInventory, HostSettings
from agent.errors import DriverDataError, SettingsError

MIB_PER_GIB = 1024

InventoriesByClass = dict[str, DescribedInventory]
"""{resource class: inventory}"""


def check_cpu_sets(settings: HostSettings) -> None:
    """Raises SettingsError where a CPU is given out both shared and dedicated."""
    both = (settings.cpu_shared_set or frozenset()) & (settings.cpu_dedicated_set or frozenset())
    if both:
        raise SettingsError(
            f"[compute] cpu_shared_set and cpu_dedicated_set both name CPU {format_cpu_set(both)}; "
            "a CPU is either shared or dedicated, take it out of one of them"
        )


def split_cpus(online: frozenset[int], settings: HostSettings) -> tuple[frozenset[int], frozenset[int]]:
    """(shared, dedicated) CPU ids.

    Nothing configured: all are shared. Only cpu_dedicated_set: none is shared. Raises DriverDataError where a
    configured CPU is not online on this host.
    """
    for option, wanted in (
        ("cpu_shared_set", settings.cpu_shared_set),
        ("cpu_dedicated_set", settings.cpu_dedicated_set),
    ):
        missing = (wanted or frozenset()) - online
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
    """VCPU and PCPU; `reserved` CPUs are taken from the shared, the dedicated are never overcommitted."""
    found = {}
    if shared:
        found["VCPU"] = DescribedInventory(
            total=shared,
            reserved=min(reserved, shared),
            allocation_ratio=settings.cpu_allocation_ratio,
            initial_allocation_ratio=settings.initial_cpu_allocation_ratio,
        )
    if dedicated:
        found["PCPU"] = DescribedInventory(total=dedicated, allocation_ratio=1.0)
    return found


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
    """`amount` in `parts` whole shares that differ by one at most, the larger ones first."""
    each, rest = divmod(amount, parts)
    return tuple(each + (1 if part < rest else 0) for part in range(parts))


def physical_network_trait(network: str | None) -> frozenset[str]:
    """{"CUSTOM_PHYSNET_<NAME>"}: upper case, "_" for what a trait cannot hold, as Neutron does."""
    if network is None:
        return frozenset()
    return frozenset({"CUSTOM_PHYSNET_" + re.sub(r"[^A-Z0-9]", "_", network.upper())})
