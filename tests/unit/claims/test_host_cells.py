"""The host's cells: what each has for guests, and what is left of it."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.host_cells import CORES, LARGE_KIB, MEMORY_MB, host_cells, provider_tree, topology, uuid_of

from agent.claims.claim import Claim, ClaimState
from agent.claims.fit_search import HostStock
from agent.claims.guest_cells import PlacedCell
from agent.claims.host_cells import CellStock, HostCells, beside_devices, cell_use, memory_use
from agent.claims.request import ClaimRequest, RequestGroup
from agent.tree import Provider


def placed(host_cell: int, cpus: int, floating: int, memory_mb: int, page_kib: int) -> PlacedCell:
    pinning = {cpu: 2 * CORES * host_cell + cpu for cpu in range(cpus)}
    return PlacedCell(0, host_cell, pinning, frozenset(), page_kib, memory_mb, frozenset(range(floating)))


@pytest.mark.parametrize("large_pages", [0, 1024])
@pytest.mark.parametrize("reserved_mb", [0, 512])
def test_a_cell_has_its_memory_without_large_pages_and_reserve(large_pages: int, reserved_mb: int) -> None:
    layout = topology(2, large_pages=large_pages, shared=2)
    cells, _ = host_cells(layout, provider_tree(layout, reserved_mb=reserved_mb, ratio=1.5))
    for number, cell in enumerate(cells.cells):
        small_mb = MEMORY_MB - large_pages * LARGE_KIB // 1024 - reserved_mb
        assert (cell.memory_mb, cell.loose_mb) == (small_mb, int(small_mb * 1.5))
        assert cell.pages == ({LARGE_KIB: large_pages} if large_pages else {})
        assert (len(cell.shared), len(cell.dedicated), cell.vcpus) == (2, 2 * CORES - 2, 2)
        assert cell.provider == uuid_of(f"cell{number}")
    assert cells.page_sizes_kib == ((LARGE_KIB, 4) if large_pages else (4,))
    assert cells.sockets == {0: 0, 1: 0}


def test_a_provider_is_on_the_cell_of_the_nearest_one_above_it() -> None:
    layout = topology(2)
    card = Provider(uuid_of("card"), "card", uuid_of("cell1"))
    tree = provider_tree(layout).with_provider(card)
    cells, _ = host_cells(layout, tree)
    assert cells.cell_of(card.uuid, tree) == cells.cell_of(uuid_of("cell1"), tree) == 1
    assert cells.cell_of(uuid_of("host"), tree) is None and cells.cell_of("nowhere", tree) is None


def test_a_host_that_is_not_described_has_no_cells() -> None:
    _, stock = host_cells(topology(1), provider_tree(topology(1)))
    assert HostCells.of(None, stock.host) == HostCells()


guests = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 1), st.integers(0, 64), st.booleans()),
    max_size=6,
)


@given(guests)
def test_what_is_left_and_what_is_used_are_what_there_is(
    placements: list[tuple[int, int, int, int, bool]],
) -> None:
    """Against sums made by hand: floating CPUs, MiB of small pages, and pages of 2 MiB (even amounts)."""
    layout = topology(2, large_pages=512, shared=4)
    cells, stock = host_cells(layout, provider_tree(layout))
    use: Counter[tuple[int, str]] = Counter()
    floating, small, large = Counter[int](), Counter[int](), Counter[int]()
    for number, cpus, loose, memory_mb, is_large in placements:
        size = LARGE_KIB if is_large else 4
        use += cell_use([placed(number, cpus, loose, 2 * memory_mb, size)])
        floating[number] += loose
        (large if is_large else small)[number] += memory_mb if is_large else 2 * memory_mb
    before = CellStock(cells).free(stock)
    for free, all_of_it in zip(CellStock(cells, use).free(stock), before, strict=True):
        assert free.floating is not None and all_of_it.floating is not None
        assert free.floating == max(0, all_of_it.floating - floating[free.id])
        assert free.memory_mb == all_of_it.memory_mb - small[free.id]
        assert free.pages[LARGE_KIB] == 512 - large[free.id]


def test_busy_cpus_and_units_that_are_not_offered_are_not_free() -> None:
    layout = topology(1)
    cells, stock = host_cells(layout, provider_tree(layout))
    cell = uuid_of("cell0")
    units = {cell: {"PCPU": tuple(unit for unit in stock.units[cell]["PCPU"] if unit != "1")}}
    (free,) = CellStock(cells, busy=frozenset({0})).free(
        HostStock(stock.host, {cell: {"MEMORY_MB": 8000}}, units)
    )
    assert free.free_cpus == frozenset(range(2 * CORES)) - {0, 1}
    assert free.memory_mb == MEMORY_MB - 8000, "Placement's usages limit the cell, too"


@pytest.mark.parametrize(
    ("memory_mb", "page_kib", "use"),
    [
        (3, None, ("memory_mb", 3)),
        (3, 4, ("memory_mb", 3)),
        (3, 2048, ("pages:2048", 2)),
        (4, 2048, ("pages:2048", 2)),
    ],
)
def test_large_pages_are_counted_in_whole_pages(
    memory_mb: int, page_kib: int | None, use: tuple[str, int]
) -> None:
    assert memory_use(memory_mb, page_kib, 4) == use


CONSUMER = str(UUID(int=1))


def claim(*cells: PlacedCell, **resources: int) -> Claim:
    request = ClaimRequest(CONSUMER, (RequestGroup(resources=resources),))
    return Claim(CONSUMER, ClaimState.CLAIMED, request, {}, cells=cells)


def cell(page_kib: int) -> PlacedCell:
    return PlacedCell(0, 0, {}, frozenset(), page_kib, 4096)


def test_the_cpus_and_the_memory_are_shared_out_to_the_devices() -> None:
    found = beside_devices(claim(PCPU=8, MEMORY_MB=4096, VGPU=2, VF=1, DISK_GB=10))
    assert found == {"VGPU": {"PCPU": 4, "MEMORY_MB": 2048}, "VF": {"PCPU": 8, "MEMORY_MB": 4096}}


def test_a_guest_of_two_cells_has_half_of_them_beside_its_device() -> None:
    assert beside_devices(claim(cell(4), cell(4), PCPU=8, VGPU=1)) == {"VGPU": {"PCPU": 4}}


def test_memory_in_large_pages_counts_as_pages() -> None:
    found = beside_devices(claim(cell(2048), PCPU=2, MEMORY_MB=4096, VGPU=1))
    assert found == {"VGPU": {"PCPU": 2, "CUSTOM_HUGEPAGES_2048KIB": 2048}}


def test_guests_without_devices_or_without_cpus_say_nothing() -> None:
    assert beside_devices(claim(PCPU=2, MEMORY_MB=4096)) == {}
    assert beside_devices(claim(VGPU=1)) == {}
