"""What the memory of guests uses of the host's cells, and what is lacking of it, over random hosts."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from agent.claims.fit_search import HostStock, ProviderIndex
from agent.claims.host_cells import CellStock, HostCell, HostCells, cell_use_of_guests, memory_shortfalls
from agent.driver import Guest, GuestState, UsedMemory
from agent.tree import Inventory, Provider, ProviderTree

ROOT = "11111111-1111-4111-8111-111111111111"
LARGE_KIB, LARGE_MB = 2048, 2
STOCK = HostStock(
    ProviderIndex.of(ProviderTree([Provider(ROOT, "node1", None, {"MEMORY_MB": Inventory(10**6)})])), {}, {}
)
COUNTS = st.integers(0, 20)


def host(pages: list[int], memory_mb: int = 64) -> HostCells:
    return HostCells(
        tuple(
            HostCell(number, ROOT, (), frozenset(), frozenset(), 0, memory_mb, memory_mb, {LARGE_KIB: count})
            for number, count in enumerate(pages)
        )
    )


def guest(*memory: UsedMemory) -> Guest:
    return Guest("22222222-2222-4222-8222-222222222222", "vm", GuestState.STARTING, {}, memory=memory)


def fits(cells: HostCells, used: Counter[tuple[int, str]], *memory: UsedMemory) -> bool:
    return not memory_shortfalls(memory, None, CellStock(cells, used), STOCK)


@given(st.lists(COUNTS, min_size=1, max_size=4), st.data())
def test_pages_of_any_cells_are_taken_where_there_are_some(pages: list[int], data: st.DataObject) -> None:
    cells, what = host(pages), f"pages:{LARGE_KIB}"
    beside = Counter({(number, what): data.draw(st.integers(0, count)) for number, count in enumerate(pages)})
    left = {number: count - beside[number, what] for number, count in enumerate(pages)}
    asked = data.draw(st.integers(1, 60))
    memory = UsedMemory(None, asked * LARGE_MB, LARGE_KIB)
    assert fits(cells, beside, memory) is (asked <= sum(left.values()))
    used = cell_use_of_guests([guest(memory)], cells, beside)
    assert sum(used.values()) == min(asked, sum(left.values()))
    assert all(used[number, what] <= left[number] for number in left)


@given(
    st.lists(COUNTS, min_size=2, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12)), max_size=5),
)
def test_what_is_bound_must_be_on_its_cell_and_leaves_the_rest(
    pages: list[int], asked: list[tuple[int, int]]
) -> None:
    cells = host(pages)
    bound = [
        UsedMemory(cell, count * LARGE_MB, LARGE_KIB, number) for number, (cell, count) in enumerate(asked)
    ]
    wanted = Counter[int]()
    for cell, count in asked:
        wanted[cell] += count
    well = all(count <= dict(enumerate(pages)).get(cell, 0) for cell, count in wanted.items())
    assert fits(cells, Counter(), *bound) is well
    if well:
        rest = sum(pages) - wanted.total()
        assert fits(cells, Counter(), *bound, UsedMemory(None, (rest + 1) * LARGE_MB, LARGE_KIB)) is False
        assert not rest or fits(cells, Counter(), *bound, UsedMemory(None, rest * LARGE_MB, LARGE_KIB))


def test_small_memory_that_is_bound_to_several_cells_may_lie_on_either() -> None:
    cells = host([0, 0], memory_mb=64)
    used = Counter({(0, "memory_mb"): 60})
    assert fits(cells, used, UsedMemory(0, 30), UsedMemory(1, 30))
    assert not fits(cells, used, UsedMemory(0, 35), UsedMemory(1, 34))
    assert fits(HostCells(), used, UsedMemory(0, 1000)), "a host that has not told its cells"
