"""The host's own providers: the host, its NUMA cells where they are reported, its large pages. Pure."""

from collections.abc import Iterator

from agent.device_names import page_class
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
"""No architecture's base page is as large, hardly a large one is smaller."""


def host_providers(
    name: str,
    cells: tuple[Cell, ...],
    disk_gb: int,
    traits: frozenset[str],
    settings: HostSettings,
    *,
    report_numa: bool = False,
) -> tuple[DescribedProvider, ...]:
    """The host, called `name`, with its disk and traits.

    CPUs and memory are the host's, or with `report_numa` those of its cells, which then follow it. Raises
    DriverDataError where a configured CPU is not there.
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
    """What the provider of a cell is called; it is never parsed."""
    return f"{host}_numa{cell}"


def page_providers(
    name: str, cells: tuple[Cell, ...], *, report_numa: bool = False
) -> Iterator[DescribedProvider]:
    """The large pages of each size that a cell has, by the page; they are part of its memory as well.

    A provider of their own, below their cell or else below the host, called `name`: so they stay what they
    are when cells are reported or not any more, and whatever becomes of CPUs and memory. There may be fewer
    than are held after a boot, and what is held may go on and be moved.
    """
    for cell in cells:
        below = cell_provider_name(name, cell.id)
        for size in _large(cell):
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


def _large(cell: Cell) -> list[int]:
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
    """What is reserved for the host is taken from its cells evenly."""
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
            traits=frozenset({"HW_NUMA_ROOT", *map(page_class, _large(cell))}),
            device=cell_device(cell.id),
            units=cpu_units(own_dedicated),
            cell=cell.id,
        )
