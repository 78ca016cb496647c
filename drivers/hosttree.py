"""The host's own providers: one for the host, or with one below it for each NUMA cell. Pure."""

from collections import Counter
from collections.abc import Iterator

from agent.driver import Cell, DescribedProvider, HostSettings
from drivers.inventory import (
    cpu_inventories,
    cpu_units,
    disk_inventory,
    memory_inventory,
    page_inventories,
    shares,
    split_cpus,
)


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

    CPUs, memory and large pages are the host's, or with `report_numa` those of its cells, which then follow
    it. Raises DriverDataError where a configured CPU is not there.
    """
    shared, dedicated = split_cpus(frozenset().union(*(cell.cpus for cell in cells)), settings)
    disk = disk_inventory(disk_gb, settings)
    if report_numa:
        root = DescribedProvider(name=name, inventories=disk, traits=traits)
        return (root, *_cell_providers(name, cells, shared, dedicated, settings))
    memory_mb = sum(cell.memory_mb for cell in cells)
    pages: Counter[int] = Counter()
    for cell in cells:
        pages.update(cell.pages)
    root = DescribedProvider(
        name=name,
        inventories={
            **cpu_inventories(len(shared), len(dedicated), settings.reserved_host_cpus, settings),
            **memory_inventory(memory_mb, settings.reserved_host_memory_mb, settings),
            **page_inventories(pages),
            **disk,
        },
        traits=traits,
        units=cpu_units(dedicated),
    )
    return (root,)


def cell_provider_name(host: str, cell: int) -> str:
    """What the provider of a cell is called; it is never parsed."""
    return f"{host}_numa{cell}"


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
        pages = page_inventories(cell.pages)
        yield DescribedProvider(
            name=cell_provider_name(name, cell.id),
            parent=name,
            inventories={
                **cpu_inventories(len(own_shared), len(own_dedicated), reserved_cpus[index], settings),
                **memory_inventory(cell.memory_mb, reserved_mb[index], settings),
                **pages,
            },
            traits=frozenset({"HW_NUMA_ROOT", *pages}),
            device=cell_device(cell.id),
            units=cpu_units(own_dedicated),
            cell=cell.id,
        )
