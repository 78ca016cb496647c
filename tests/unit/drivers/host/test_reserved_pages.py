"""Large pages that are kept for the host are not offered, nor is their memory."""

from __future__ import annotations

import pytest

from agent.driver import Cell, ReservedPages
from agent.errors import DriverDataError
from drivers.host.reserved_pages import without_reserved_pages

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
def test_pages_that_the_node_does_not_have_are_an_error(pages: ReservedPages) -> None:
    with pytest.raises(DriverDataError, match=rf"reserved_huge_pages keeps {pages.count} pages? of"):
        without_reserved_pages(CELLS, [pages])
