"""Large pages that are kept for the host are not offered, nor is their memory."""

from __future__ import annotations

import pytest

from agent.driver import Cell, ReservedPages
from drivers.host.reserved_pages import lacking_pages, without_reserved_pages

CELLS = (
    Cell(0, frozenset({0}), 8192, pages={4: 1000, 2048: 1024, 1 << 20: 2}),
    Cell(1, frozenset({1}), 8192, pages={4: 1000, 2048: 1024}),
)


def test_the_pages_and_their_memory_are_taken_from_the_node() -> None:
    first, second = without_reserved_pages(
        CELLS, [ReservedPages(0, 2048, 64), ReservedPages(0, 1 << 20, 1), ReservedPages(1, 2048, 1024)]
    )
    assert first.pages == {4: 1000, 2048: 960, 1 << 20: 1} and first.memory_mb == 8192 - 128 - 1024
    assert second.pages == {4: 1000, 2048: 0} and second.memory_mb == 8192 - 2048
    assert without_reserved_pages(CELLS, ()) == CELLS


@pytest.mark.parametrize(
    "pages", [ReservedPages(0, 2048, 1025), ReservedPages(1, 1 << 20, 1), ReservedPages(2, 2048, 1)]
)
def test_where_the_node_has_fewer_none_is_left_and_all_else_is_as_it_was(pages: ReservedPages) -> None:
    (sentence,) = lacking_pages(CELLS, [pages, ReservedPages(0, 2048, 1)])
    assert f"reserved_huge_pages keeps {pages.count} page" in sentence and "nr_hugepages" in sentence
    cells = without_reserved_pages(CELLS, [pages])
    short = [cell for cell in cells if cell.id == pages.node]
    assert not any(cell.pages.get(pages.size_kib) for cell in short)
    assert [cell for cell in cells if cell not in short] == [cell for cell in CELLS if cell.id != pages.node]
    assert all(cell.memory_mb >= 0 for cell in cells)
