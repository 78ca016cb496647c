"""Large pages that the operator keeps for the host: [DEFAULT] reserved_huge_pages, as in nova. Pure.

Source: https://docs.openstack.org/nova/latest/configuration/config.html#DEFAULT.reserved_huge_pages
"""

from collections.abc import Collection
from dataclasses import replace

from agent.driver import Cell, ReservedPages
from agent.errors import DriverDataError, counted

KIB_PER_MIB = 1024


def without_reserved_pages(cells: tuple[Cell, ...], reserved: Collection[ReservedPages]) -> tuple[Cell, ...]:
    """The cells without these pages and their memory.

    Raises DriverDataError where a cell has fewer, because guests would then get what is kept for others.
    """
    if not reserved:
        return cells
    by_cell = {cell.id: cell for cell in cells}
    for pages in reserved:
        cell = by_cell.get(pages.node)
        has = cell.pages.get(pages.size_kib, 0) if cell is not None else 0
        if cell is None or has < pages.count:
            raise DriverDataError(
                f"[DEFAULT] reserved_huge_pages keeps {counted(pages.count, 'page')} of "
                f"{pages.size_kib} KiB of NUMA node {pages.node}, which has {has}; "
                "correct the option, or allocate the pages"
            )
        by_cell[pages.node] = replace(
            cell,
            memory_mb=cell.memory_mb - pages.count * pages.size_kib // KIB_PER_MIB,
            pages={**cell.pages, pages.size_kib: has - pages.count},
        )
    return tuple(by_cell[cell.id] for cell in cells)
