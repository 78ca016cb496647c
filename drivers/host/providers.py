"""What a host itself has: inventories of CPUs, memory and disk, and their providers; where units are. Pure.

The host has a provider, and so have its NUMA cells (if they are reported) and its huge pages. The options
([compute] cpu_shared_set, cpu_dedicated_set; reserved_host_*; *_allocation_ratio; reserved_huge_pages) mean
what they mean to nova, so a host reports the same amounts under nova-compute and under this agent. A resource
class without units has no inventory.

Source: https://docs.openstack.org/nova/latest/admin/cpu-topologies.html and .../configuration/config.html
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from agent.cpuset import format_cpu_set
from agent.device_names import LIVE_MIGRATABLE, ONE_TIME_USE, page_class
from agent.driver import (
    Cell,
    DescribedInventory,
    DescribedProvider,
    Guest,
    HostSettings,
    ReservedPages,
    UsedUnit,
)
from agent.errors import SettingsError, counted
from agent.shapes import shares
from agent.tree import MAX_UNIT

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


# Large pages that the operator keeps for the host: [DEFAULT] reserved_huge_pages

KIB_PER_MIB = 1024


def without_reserved_pages(cells: tuple[Cell, ...], reserved: Collection[ReservedPages]) -> tuple[Cell, ...]:
    """The cells without these pages and their memory; of a cell that has fewer, none of them is left."""
    by_cell = {cell.id: cell for cell in cells}
    for pages in reserved:
        cell = by_cell.get(pages.node)
        has = cell.pages.get(pages.size_kib, 0) if cell is not None else 0
        if cell is None or not has:
            continue
        kept = min(has, pages.count)
        by_cell[pages.node] = replace(
            cell,
            memory_mb=cell.memory_mb - kept * pages.size_kib // KIB_PER_MIB,
            pages={**cell.pages, pages.size_kib: has - kept},
        )
    return tuple(by_cell[cell.id] for cell in cells)


def lacking_pages(cells: Iterable[Cell], reserved: Iterable[ReservedPages]) -> Iterator[str]:
    """A sentence for each option that keeps more pages than its cell, of all of the host's, has."""
    by_cell = {cell.id: cell for cell in cells}
    for pages in reserved:
        cell = by_cell.get(pages.node)
        has = cell.pages.get(pages.size_kib, 0) if cell is not None else 0
        if has < pages.count:
            size = f"hugepages-{pages.size_kib}kB"
            path = f"/sys/devices/system/node/node{pages.node}/hugepages/{size}/nr_hugepages"
            yield (
                f"[DEFAULT] reserved_huge_pages keeps {counted(pages.count, 'page')} of {pages.size_kib} KiB "
                f"of NUMA node {pages.node}, which has {has}: no page of that size is offered there, and all "
                f"else is. Allocate the pages ({path}), or correct the option."
            )


# Memory of guests that is in files: [libvirt] file_backed_memory
#
# The amount is the operator's. The host's own memory is a cache of the files, so the cells have equal shares,
# and no large pages are for guests. Source: nova 34, nova/conf/libvirt.py.

MEMORY_FILES = "COMPUTE_MEM_BACKING_FILE"
OPTION = "[libvirt] file_backed_memory"

SMALL_KIB = 4


def check_file_backed_memory(memory_mb: int, settings: HostSettings) -> None:
    """Raises SettingsError where other settings contradict it, as nova's documentation says."""
    if not memory_mb:
        return
    for name, wrong, right in (
        ("ram_allocation_ratio", settings.ram_allocation_ratio not in (None, 1.0), "1.0"),
        ("initial_ram_allocation_ratio", settings.initial_ram_allocation_ratio != 1.0, "1.0"),
        ("reserved_host_memory_mb", settings.reserved_host_memory_mb != 0, "0"),
        ("reserved_huge_pages", bool(settings.reserved_huge_pages), "unset"),
    ):
        if wrong:
            raise SettingsError(
                f"{OPTION} = {memory_mb} needs [DEFAULT] {name} = {right}: the memory of guests is in files, "
                "and the host's own memory is only their cache",
                option="file_backed_memory",
                group="libvirt",
            )


def with_file_backed_memory(cells: Sequence[Cell], memory_mb: int) -> tuple[Cell, ...]:
    """The cells with an equal share each of `memory_mb` and without large pages; 0: as they are."""
    if not memory_mb or not cells:
        return tuple(cells)
    small = min((size for cell in cells for size in cell.pages), default=SMALL_KIB)
    parts = shares(memory_mb, len(cells))
    return tuple(
        replace(cell, memory_mb=part, pages={small: part * KIB_PER_MIB // small})
        for cell, part in zip(cells, parts, strict=True)
    )


# The providers

HUGE_KIB = 1024
"""The smallest page size in KiB that is reported. Base pages are smaller on every architecture."""

NUMA_ROOT = "HW_NUMA_ROOT"
REPORTABLE = frozenset({NUMA_ROOT, LIVE_MIGRATABLE, ONE_TIME_USE})
"""The standard traits that drivers report of cells and of PCI devices (`Description.reportable`)."""


def host_providers(
    name: str,
    cells: tuple[Cell, ...],
    disk_gb: int,
    traits: frozenset[str],
    settings: HostSettings,
    *,
    report_numa: bool = False,
) -> tuple[DescribedProvider, ...]:
    """The provider of the host, called `name`, then with `report_numa` those of its cells.

    The host has the disk and the traits. It has CPUs and memory as well, unless its cells report them.
    """
    shared, dedicated = split_cpus(frozenset().union(*(cell.cpus for cell in cells)), settings)
    disk = disk_inventory(disk_gb, settings)
    if report_numa:
        providers = [DescribedProvider(name=name, inventories=disk, traits=traits)]
        # The cells share evenly what is reserved for the host.
        reserved_cpus = shares(settings.reserved_host_cpus, len(cells))
        reserved_mb = shares(settings.reserved_host_memory_mb, len(cells))
        for index, cell in enumerate(cells):
            own_shared, own_dedicated = shared & cell.cpus, dedicated & cell.cpus
            providers.append(
                DescribedProvider(
                    name=cell_provider_name(name, cell.id),
                    parent=name,
                    inventories={
                        **cpu_inventories(
                            len(own_shared), len(own_dedicated), reserved_cpus[index], settings
                        ),
                        **memory_inventory(cell.memory_mb, reserved_mb[index], settings),
                    },
                    traits=frozenset({NUMA_ROOT, *map(page_class, _huge_page_sizes(cell))}),
                    device=cell_device(cell.id),
                    units=cpu_units(own_dedicated),
                    cell=cell.id,
                )
            )
        return tuple(providers)
    memory_mb = sum(cell.memory_mb for cell in cells)
    root = DescribedProvider(
        name=name,
        inventories={
            **cpu_inventories(len(shared), len(dedicated), settings.reserved_host_cpus, settings),
            **memory_inventory(memory_mb, settings.reserved_host_memory_mb, settings),
            **disk,
        },
        traits=traits,
        units=cpu_units(dedicated),
    )
    return (root,)


def cell_provider_name(host: str, cell: int) -> str:
    """The name of a cell's provider. Names are never parsed."""
    return f"{host}_numa{cell}"


def page_providers(
    name: str, cells: tuple[Cell, ...], *, report_numa: bool = False
) -> Iterator[DescribedProvider]:
    """A provider for each size of huge page on each cell, counted in pages, below the cell or the host.

    The pages are part of the cell's MEMORY_MB as well. They have a provider of their own so that their
    allocations stay in place when `report_numa` or the CPU sets change. After a boot a cell may have fewer
    pages than are allocated; such allocations stay and can be moved.
    """
    for cell in cells:
        below = cell_provider_name(name, cell.id)
        for size in _huge_page_sizes(cell):
            yield DescribedProvider(
                name=f"{below}_pages_{size}",
                parent=below if report_numa else name,
                inventories={
                    page_class(size): DescribedInventory(
                        total=cell.pages[size], max_unit=MAX_UNIT, allocation_ratio=1.0
                    )
                },
                device=f"pages:{cell.id}:{size}",
                cell=cell.id,
            )


def _huge_page_sizes(cell: Cell) -> list[int]:
    return sorted(size for size, count in cell.pages.items() if count and size >= HUGE_KIB)


def cell_device(cell: int | str) -> str:
    """`DescribedProvider.device` of a cell."""
    return f"numa:{cell}"


# Where the units that guests use are described: under which resource class, on which device


class UnitLocation(NamedTuple):
    """The resource class of a unit, and the `DescribedProvider.device` that has it."""

    resource_class: str
    device: str


def described_locations(providers: Iterable[DescribedProvider]) -> dict[str, UnitLocation]:
    """{unit: location} of all units of these providers: CPU ids, PCI addresses, uuids of mediated devices."""
    return {
        unit: UnitLocation(resource_class, provider.device)
        for provider in providers
        for resource_class, units in provider.units.items()
        for unit in units
    }


def locate_units(
    guest: Guest,
    locations: Mapping[str, UnitLocation],
    with_facts: Callable[[UsedUnit], UsedUnit] = lambda unit: unit,
) -> Guest:
    """The guest with its units as the providers describe them, and with the amounts of its devices.

    A unit that no provider describes stays as the domain's XML names it, and adds no amount. `with_facts`
    adds to the others what the kernel says of them.
    """
    if not guest.units:
        return guest
    units = []
    device_amounts: dict[str, int] = {}
    for unit in guest.units:
        location = locations.get(unit.unit)
        if location is None:
            units.append(unit)
            continue
        located = replace(unit, resource_class=location.resource_class, device=location.device)
        units.append(with_facts(located))
        if location.resource_class != "PCPU":  # the domain's pins count as PCPU already
            device_amounts[location.resource_class] = device_amounts.get(location.resource_class, 0) + 1
    return replace(guest, resources={**guest.resources, **device_amounts}, units=tuple(units))
