"""What must hold of the NUMA cells of all claims on a host together, whatever happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from agent.claims.claim import Claim
from agent.driver import Cell


def check_cells(claims: Iterable[Claim], cells: Iterable[Cell], dedicated: frozenset[int]) -> None:
    """No CPU is pinned twice, no silent sibling given away, no page given twice, no cell over its memory."""
    there = {each.id: each for each in cells}
    owners: dict[int, str] = {}
    used: Counter[tuple[int, int]] = Counter()
    for claim in claims:
        exact = {int(unit) for classes in claim.units.values() for unit in classes.get("PCPU", ())}
        chosen = {cpu for placed in claim.cells for cpu in placed.cpus}
        assert chosen <= exact <= dedicated
        for cpu in exact:
            assert owners.setdefault(cpu, claim.consumer) == claim.consumer, f"CPU {cpu} is pinned twice"
        assert len({placed.host_cell for placed in claim.cells}) == len(claim.cells)
        for placed in claim.cells:
            assert placed.cpus <= there[placed.host_cell].cpus
            assert len(set(placed.pinning.values())) == len(placed.pinning)
            assert not placed.withheld & set(placed.pinning.values())
            used[placed.host_cell, placed.page_kib] += placed.memory_mb
    for (number, page_kib), memory_mb in used.items():
        pages = there[number].pages
        if page_kib in pages:
            assert memory_mb * 1024 <= pages[page_kib] * page_kib, "no page is given twice"
        else:
            huge_mb = sum(size * count for size, count in pages.items()) // 1024
            assert memory_mb <= there[number].memory_mb - huge_mb, "no cell is over its memory"
