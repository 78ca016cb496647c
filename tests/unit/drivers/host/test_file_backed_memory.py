"""Memory in files: what the operator's amount becomes, and what contradicts it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.driver import Cell, HostSettings, ReservedPages
from agent.errors import SettingsError
from drivers.host.file_backed_memory import check_file_backed_memory, with_file_backed_memory

CELLS = tuple(Cell(n, frozenset({n}), 1024, pages={4: 200_000, 2048: 100, 1048576: 1}) for n in range(3))
SETTINGS = HostSettings(reserved_host_memory_mb=0)


def test_the_cells_share_the_amount_and_have_no_large_pages() -> None:
    cells = with_file_backed_memory(CELLS, 1_000_000)
    assert [cell.memory_mb for cell in cells] == [333_334, 333_333, 333_333]
    assert [set(cell.pages) for cell in cells] == [{4}] * 3
    assert cells[0].pages[4] == 333_334 * 256
    assert with_file_backed_memory(CELLS, 0) == CELLS
    assert with_file_backed_memory((), 5) == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ram_allocation_ratio", 1.5),
        ("initial_ram_allocation_ratio", 1.5),
        ("reserved_host_memory_mb", 512),
        ("reserved_huge_pages", (ReservedPages(0, 2048, 1),)),
    ],
)
def test_overcommit_reserved_memory_and_large_pages_are_refused_as_nova_says(
    name: str, value: object
) -> None:
    check_file_backed_memory(1024, replace(SETTINGS, ram_allocation_ratio=1.0))
    with pytest.raises(SettingsError, match=f"file_backed_memory = 1024 needs .*{name}"):
        check_file_backed_memory(1024, replace(SETTINGS, **{name: value}))
    check_file_backed_memory(0, replace(SETTINGS, **{name: value}))
