"""Large pages that the operator keeps for the host: [DEFAULT] reserved_huge_pages, as in nova. Pure.

Source: https://docs.openstack.org/nova/latest/configuration/config.html#DEFAULT.reserved_huge_pages
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from agent.driver import Cell, ReservedPages
from agent.errors import counted

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
