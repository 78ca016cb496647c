"""The providers of the host itself, its NUMA cells (if they are reported) and its huge pages. Pure."""

from collections.abc import Iterator

from agent.device_names import LIVE_MIGRATABLE, ONE_TIME_USE, page_class
from agent.driver import Cell, DescribedInventory, DescribedProvider, HostSettings
from agent.tree import MAX_UNIT
from drivers.host.inventory import (
    cpu_inventories,
    cpu_units,
    disk_inventory,
    memory_inventory,
    shares,
    split_cpus,
)

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
        root = DescribedProvider(name=name, inventories=disk, traits=traits)
        return (root, *_cell_providers(name, cells, shared, dedicated, settings))
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


def _cell_providers(
    name: str,
    cells: tuple[Cell, ...],
    shared: frozenset[int],
    dedicated: frozenset[int],
    settings: HostSettings,
) -> Iterator[DescribedProvider]:
    """The cells share evenly what is reserved for the host."""
    reserved_cpus = shares(settings.reserved_host_cpus, len(cells))
    reserved_mb = shares(settings.reserved_host_memory_mb, len(cells))
    for index, cell in enumerate(cells):
        own_shared, own_dedicated = shared & cell.cpus, dedicated & cell.cpus
        yield DescribedProvider(
            name=cell_provider_name(name, cell.id),
            parent=name,
            inventories={
                **cpu_inventories(len(own_shared), len(own_dedicated), reserved_cpus[index], settings),
                **memory_inventory(cell.memory_mb, reserved_mb[index], settings),
            },
            traits=frozenset({NUMA_ROOT, *map(page_class, _huge_page_sizes(cell))}),
            device=cell_device(cell.id),
            units=cpu_units(own_dedicated),
            cell=cell.id,
        )
