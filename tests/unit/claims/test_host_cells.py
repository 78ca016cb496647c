"""The host's cells: what each has for guests, memory included, and what guests and claims leave of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.host_cells import CORES, LARGE_KIB, MEMORY_MB, host_cells, provider_tree, topology, uuid_of

from agent.claims.claim import Claim, ClaimState
from agent.claims.fit_search import HostStock, ProviderIndex
from agent.claims.guest_cells import PlacedCell
from agent.claims.host_cells import (
    CellStock,
    CellUsage,
    HostCell,
    HostCells,
    HostLayout,
    beside_devices,
    cell_use,
    cell_use_of_guests,
    memory_use,
)
from agent.claims.refusal import memory_shortfalls
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import Guest, GuestState, UsedMemory, UsedUnit
from agent.tree import Inventory, Provider, ProviderTree


def placed(host_cell: int, cpus: int, floating: int, memory_mb: int, page_kib: int) -> PlacedCell:
    pinning = {cpu: 2 * CORES * host_cell + cpu for cpu in range(cpus)}
    return PlacedCell(0, host_cell, pinning, frozenset(), page_kib, memory_mb, frozenset(range(floating)))


@pytest.mark.parametrize("large_pages", [0, 1024, 4096])
@pytest.mark.parametrize("reserved_mb", [0, 512])
def test_a_cell_has_its_memory_without_large_pages_and_reserve(large_pages: int, reserved_mb: int) -> None:
    layout = topology(2, large_pages=large_pages, shared=2)
    cells, _ = host_cells(layout, provider_tree(layout, reserved_mb=reserved_mb, ratio=1.5))
    for number, cell in enumerate(cells.cells):
        small_mb = max(0, MEMORY_MB - large_pages * LARGE_KIB // 1024 - reserved_mb)
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
    assert beside_devices(claim(PCPU=2, CUSTOM_HUGEPAGES_2048KIB=4)) == {}, "pages are memory"
    assert beside_devices(claim(cell(2048), PCPU=8, VGPU=1)) == {"VGPU": {"PCPU": 8}}


ROOT = "11111111-1111-4111-8111-111111111111"
LARGE_MB = 2
MEMORY_STOCK = HostStock(
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


def starting(*memory: UsedMemory) -> Guest:
    return Guest("22222222-2222-4222-8222-222222222222", "vm", GuestState.STARTING, {}, memory=memory)


def fits(cells: HostCells, used: Counter[tuple[int, str]], *memory: UsedMemory) -> bool:
    return not memory_shortfalls(memory, None, CellStock(cells, used), MEMORY_STOCK)


@given(st.lists(COUNTS, min_size=1, max_size=4), st.data())
def test_pages_of_any_cells_are_taken_where_there_are_some(pages: list[int], data: st.DataObject) -> None:
    cells, what = host(pages), f"pages:{LARGE_KIB}"
    beside = Counter({(number, what): data.draw(st.integers(0, count)) for number, count in enumerate(pages)})
    left = {number: count - beside[number, what] for number, count in enumerate(pages)}
    asked = data.draw(st.integers(1, 60))
    memory = UsedMemory(None, asked * LARGE_MB, LARGE_KIB)
    assert fits(cells, beside, memory) is (asked <= sum(left.values()))
    used = cell_use_of_guests([starting(memory)], cells, beside)
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
    pages = [UsedMemory(cell, 5 * LARGE_MB, LARGE_KIB) for cell in (0, 1)]
    assert fits(host([10, 10, 10]), Counter(), *pages, UsedMemory(None, 20 * LARGE_MB, LARGE_KIB))
    assert not fits(host([10, 10, 10]), Counter(), *pages, UsedMemory(None, 21 * LARGE_MB, LARGE_KIB))
    assert fits(HostCells(), used, UsedMemory(0, 1000)), "a host that has not told its cells"


OF_CELLS = ProviderIndex.of(
    ProviderTree(
        [
            Provider(ROOT, "node1", None, {"VCPU": Inventory(8)}),
            *(Provider(f"p{n}", f"cell{n}", ROOT, {"MEMORY_MB": Inventory(10**6)}) for n in range(3)),
        ]
    )
)


@pytest.mark.parametrize(
    ("memory", "where", "asked", "free", "reason"),
    [
        ([UsedMemory(1, 100)], "cell1", 100, 64, "64 MiB free on host cell 1, 100 asked"),
        (
            [UsedMemory(0, 90), UsedMemory(2, 90)],
            "node1",
            180,
            128,
            "128 MiB free on host cells 0, 2, 180 asked",
        ),
        (
            [UsedMemory(2, 40, LARGE_KIB, 0)],
            "cell2",
            40,
            20,
            "10 pages of 2048 KiB free on host cell 2, 20 asked",
        ),
        (
            [UsedMemory(None, 80, LARGE_KIB)],
            "node1",
            80,
            60,
            "30 pages of 2048 KiB free on host cells 0, 1, 2, 40 asked",
        ),
    ],
)
def test_a_shortfall_of_memory_is_told_in_mib_at_the_cell_that_alone_may_have_it(
    memory: list[UsedMemory], where: str, asked: int, free: int, reason: str
) -> None:
    cells = HostCells(
        tuple(
            HostCell(n, f"p{n}", (), frozenset(), frozenset(), 0, 64, 64, {LARGE_KIB: 10}) for n in range(3)
        )
    )
    (told,) = memory_shortfalls(memory, None, CellStock(cells), HostStock(OF_CELLS, {}, {}))
    assert (told.provider, told.resource_class) == (where, "MEMORY_MB")
    assert (told.asked, told.free, told.reason) == (asked, free, f"there are {reason}")


CONSUMERS = ("a", "b", "c")
LAYOUT = topology(2)
CELLS, STOCK = host_cells(LAYOUT, provider_tree(LAYOUT))


def claim_on(consumer: str, host_cell: int, cpu: int, memory_mb: int) -> Claim:
    cell = PlacedCell(0, host_cell, {0: cpu}, frozenset(), 4, memory_mb)
    return Claim(consumer, ClaimState.CLAIMED, ClaimRequest(consumer, (RequestGroup(),)), {}, cells=(cell,))


def guest(
    uuid: str, memory_mb: int, *, state: GuestState = GuestState.RUNNING, cpu: int | None = None
) -> Guest:
    units = () if cpu is None else (UsedUnit("PCPU", str(cpu), "host"),)
    return Guest(uuid, uuid, state, {}, units, memory=(UsedMemory(0, memory_mb),))


def memory_left(usage: CellUsage, consumer: str = "other", **moving: str) -> int:
    return usage.stock(consumer, moving, {}).free(STOCK)[0].memory_mb


def opened() -> CellUsage:
    usage = CellUsage()
    usage.refresh(CELLS)
    return usage


steps = st.lists(
    st.tuples(
        st.sampled_from(CONSUMERS),
        st.none() | st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(1, 99)),
    ),
    max_size=12,
)


@given(steps)
def test_the_running_sums_are_those_of_the_claims_that_are_left(
    changes: list[tuple[str, tuple[int, int, int] | None]],
) -> None:
    usage, claims = opened(), dict[str, Claim]()
    for consumer, change in changes:
        if change is None:
            usage.remove(consumer)
            claims.pop(consumer, None)
        else:
            host_cell, thread, memory_mb = change  # no two consumers have a CPU in common
            cpu = 2 * CORES * host_cell + 2 * CONSUMERS.index(consumer) + thread
            claims[consumer] = claim_on(consumer, host_cell, cpu, memory_mb)
            usage.put(claims[consumer])
    for consumer in ("other", *CONSUMERS):
        others = [each for each in claims.values() if each.consumer != consumer]
        expected = sum((cell_use(each.cells) for each in others), Counter[tuple[int, str]]())
        stock = usage.stock(consumer, {}, {})
        assert +Counter(stock.use) == +expected
        assert stock.busy >= {cpu for each in others for cell in each.cells for cpu in cell.cpus}


def test_a_guest_counts_until_its_claim_counts_it() -> None:
    usage = opened()
    whole = memory_left(usage)
    usage.observe_guests([guest("a", 100)])
    assert memory_left(usage) == whole - 100
    assert memory_left(usage, "a") == whole, "its own memory is not in its way"
    usage.put(claim_on("a", 0, 0, 300))
    assert memory_left(usage) == whole - 300
    usage.observe_guests([])
    assert memory_left(usage) == whole - 300
    usage.remove("a")
    assert memory_left(usage) == whole


def test_a_moving_guest_is_counted_by_the_claim_of_its_migration() -> None:
    usage = opened()
    whole = memory_left(usage)
    usage.put(claim_on("migration", 0, 0, 300))
    usage.observe_guests([guest("a", 100)])
    assert memory_left(usage) == whole - 400
    assert memory_left(usage, a="migration") == whole - 300


def test_a_guest_that_is_shut_off_keeps_its_cpus_and_frees_its_memory() -> None:
    usage = opened()
    whole = memory_left(usage)
    usage.observe_guests([guest("a", 100, state=GuestState.SHUTOFF, cpu=3)])
    assert memory_left(usage) == whole
    assert usage.stock("other", {}, {}).busy == {3}
    own = usage.stock("a", {}, {})
    assert own.busy == set() and own.favoured == {3}


def test_a_cpu_that_two_guests_use_is_given_to_neither_and_stays_with_a_claim_of_it() -> None:
    usage = opened()
    shared = {("PCPU", "3"): frozenset("ab")}
    usage.observe_guests([guest("a", 100, cpu=3), guest("b", 100, cpu=3)], shared)
    assert usage.stock("a", {}, {}).busy == usage.stock("b", {}, {}).busy == {3}
    usage.put(claim_on("a", 0, 3, 100))
    assert usage.stock("a", {}, {}).busy == set() and usage.stock("b", {}, {}).busy == {3}


def test_a_guest_that_will_start_counts_until_it_is_seen_or_given_up() -> None:
    usage = opened()
    whole = memory_left(usage)
    usage.expect_guest("a", guest("a", 100, state=GuestState.STARTING))
    assert memory_left(usage) == whole - 100
    usage.observe_guests([guest("a", 200)])
    assert memory_left(usage) == whole - 200, "counted once"
    usage.observe_guests([])
    assert memory_left(usage) == whole
    usage.expect_guest("b", guest("b", 100))
    usage.expect_guest("b", None)
    assert memory_left(usage) == whole


PAGES = "CUSTOM_HUGEPAGES_2048KIB"


@given(
    st.dictionaries(st.sampled_from(CONSUMERS), st.tuples(st.integers(0, 40), st.integers(0, 40))),
    st.dictionaries(st.sampled_from(CONSUMERS), st.tuples(st.integers(0, 40), st.integers(0, 40))),
    st.sampled_from(("other", *CONSUMERS)),
)
def test_pages_that_placement_counts_for_others_too_are_the_less_of_both(
    claims: dict[str, tuple[int, int]], guests_: dict[str, tuple[int, int]], consumer: str
) -> None:
    """{consumer: (pages in use, pages that it holds)}; a guest whose claim has cells is counted by that."""
    one = HostCell(0, ROOT, (), frozenset(), frozenset(), 0, 0, 0, {LARGE_KIB: 99}, {LARGE_KIB: "pages"})
    usage = CellUsage()
    usage.refresh(HostCells((one,)))
    for who, (uses, holds) in claims.items():
        placed_ = (PlacedCell(0, 0, {}, frozenset(), LARGE_KIB, uses * LARGE_MB),)
        held = {"pages": {PAGES: holds}}
        for _ in range(2):
            usage.put(Claim(who, ClaimState.CLAIMED, ClaimRequest(who, ()), held, cells=placed_))
    usage.observe_guests(
        [
            Guest(who, who, GuestState.RUNNING, {}, memory=(UsedMemory(0, uses * LARGE_MB, LARGE_KIB),))
            for who, (uses, _) in guests_.items()
        ]
    )
    needs = {who: {"pages": {PAGES: holds}} for who, (_, holds) in guests_.items()}
    stock = usage.stock(consumer, {}, needs)
    counted = {**guests_, **claims}
    assert stock.charged.get("pages", 0) == sum(min(pair) for who, pair in counted.items() if who != consumer)
    in_use = sum(uses for who, (uses, _) in counted.items() if who != consumer)
    assert stock.use.get((0, f"pages:{LARGE_KIB}"), 0) == in_use


@pytest.mark.parametrize(
    ("inventory", "used", "free"), [(None, 0, 99), (10, 0, 10), (99, 95, 4), (99, 0, 99)]
)
def test_the_pages_of_a_cell_are_bounded_by_placement_where_that_counts_pages(
    inventory: int | None, used: int, free: int
) -> None:
    """What a consumer holds of a host without such inventories says nothing of pages."""
    one = HostCell(0, ROOT, (), frozenset(), frozenset(), 0, 0, 0, {LARGE_KIB: 99}, {LARGE_KIB: "pages"})
    has = {PAGES: Inventory(inventory)} if inventory is not None else {"VF": Inventory(1)}
    tree = ProviderTree([Provider(ROOT, "node1"), Provider("pages", "pages", ROOT, has)])
    stock = HostStock(ProviderIndex.of(tree, ROOT), {"pages": {PAGES: used}} if used else {}, {})
    (left,) = CellStock(HostCells((one,))).free(stock)
    assert left.pages == {LARGE_KIB: free}


@pytest.mark.parametrize(("cells", "reserved"), [(1, None), (1, 100), (2, 100), (3, 100)])
def test_what_is_reserved_on_a_host_without_providers_of_cells_is_split_over_its_cells(
    cells: int, reserved: int | None
) -> None:
    layout = topology(cells)
    inventories = {"MEMORY_MB": Inventory(10**6, reserved)} if reserved is not None else {}
    tree = ProviderTree([Provider(ROOT, "node1", None, inventories)])
    found = HostCells.of(HostLayout(layout), ProviderIndex.of(tree, ROOT)).cells
    kept = [MEMORY_MB - cell.memory_mb for cell in found]
    assert sum(kept) == (reserved or 0) and max(kept) - min(kept) <= 1
    some = HostCells.of(
        HostLayout(replace(layout, shared_cpus=frozenset({1}), dedicated_cpus=frozenset({0}))),
        ProviderIndex.of(tree, ROOT),
    )
    assert some.cells[0].cores == (frozenset({0}), frozenset({1})), "guests have no others"


def test_a_consumer_is_placed_near_what_its_guest_is_on_already() -> None:
    memory = (UsedMemory(1, 10, None, 0), UsedMemory(0, 10), UsedMemory(None, 10, LARGE_KIB, 1))
    usage = opened()
    for units, bound, near, at in (
        ((), memory, {0, 1}, {0: 1}),
        ((), memory[:1], {1}, {0: 1}),
        ((), memory[2:], set(), {}),
        ((UsedUnit("PCPU", str(2 * CORES), "host"),), memory[2:], {1}, {}),
    ):
        usage.observe_guests([Guest("a", "a", GuestState.RUNNING, {}, units, memory=bound)])
        stock = usage.stock("a", {}, {})
        assert (stock.near, stock.at) == (near, at)
        assert usage.stock("other", {}, {}).near == set()
