"""NUMA fitting: exact CPUs, cells and pages, nothing twice, and a reason for each cell that cannot."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.examples import examples

from agent.claims.choice import CellCost, Order, Strategy
from agent.claims.guest_cells import (
    SMALL_PAGE_KIB,
    CellPairs,
    FreeCell,
    GuestCell,
    Misfit,
    PlacedCell,
    ThreadPolicy,
    guest_cells,
    nova_affinity,
    page_sizes,
    thread_policy,
    wants_cells,
)
from agent.claims.request import ClaimRequest, RequestGroup, TopologyRequest
from agent.errors import UsageError


@dataclass(frozen=True, slots=True)
class NumaFit:
    """Host cells in the guest's order, or none; then `misfits` has the reason for each pair."""

    cells: tuple[PlacedCell, ...]
    misfits: tuple[Misfit, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the guest fits."""
        return bool(self.cells)


def fit_cells(
    guest: Sequence[GuestCell],
    host: Sequence[FreeCell],
    *,
    thread_policy: ThreadPolicy = ThreadPolicy.PREFER,
    page_sizes_kib: Sequence[int] | None = (SMALL_PAGE_KIB,),
    near: frozenset[int] = frozenset(),
) -> NumaFit:
    """Place each guest cell on its own host cell; the parameters are those of `CellPairs.of`."""
    pairs = CellPairs.of(guest, host, thread_policy=thread_policy, page_sizes_kib=page_sizes_kib, near=near)
    chosen = next(pairs.placements(), None)
    return NumaFit(chosen) if chosen is not None else NumaFit((), pairs.misfits())


def cell(number: int, cores: int = 4, threads: int = 2, memory_mb: int = 8192, **more: object) -> FreeCell:
    first = number * cores * threads
    siblings = tuple(
        frozenset(first + core + thread * cores for thread in range(threads)) for core in range(cores)
    )
    free = frozenset().union(*siblings)
    return FreeCell(
        **{
            "id": number,
            "cores": siblings,
            "free_cpus": free,
            "shared_cpus": 8,
            "memory_mb": memory_mb,
            **more,
        }
    )


def pinned(number: int, cpus: int, memory_mb: int = 1024) -> GuestCell:
    return GuestCell(number, pinned=frozenset(range(number * cpus, (number + 1) * cpus)), memory_mb=memory_mb)


def test_siblings_are_kept_together_and_whole_cores_left_whole() -> None:
    (placed,) = fit_cells([pinned(0, 2)], [cell(0, free_cpus=frozenset({0, 1, 5, 2, 6}))]).cells
    assert set(placed.pinning.values()) == {1, 5}
    (placed,) = fit_cells([pinned(0, 1)], [cell(0, free_cpus=frozenset({0, 1, 5}))]).cells
    assert set(placed.pinning.values()) == {0}


def test_require_takes_only_siblings() -> None:
    host = cell(0, free_cpus=frozenset({0, 1, 5, 2, 3}))
    (placed,) = fit_cells([pinned(0, 2)], [host], thread_policy=ThreadPolicy.REQUIRE).cells
    assert set(placed.pinning.values()) == {1, 5}
    for cpus in (3, 4):
        fit = fit_cells([pinned(0, cpus)], [host], thread_policy=ThreadPolicy.REQUIRE)
        assert "5 free dedicated CPUs" in fit.misfits[0].reason
    assert not fit_cells([pinned(0, 2)], [cell(0, threads=1)], thread_policy=ThreadPolicy.REQUIRE).fits


@pytest.mark.parametrize(
    ("policy", "free", "pins", "emulator", "withheld"),
    [
        (ThreadPolicy.PREFER, {0, 1, 2, 5, 6}, {1, 5}, {0}, set()),
        (ThreadPolicy.REQUIRE, {0, 1, 5}, {1, 5}, {0}, set()),
        (ThreadPolicy.ISOLATE, {0, 4, 1, 5, 2, 6}, {0, 1}, {2}, {4, 5, 6}),
    ],
)
def test_the_emulators_threads_get_a_cpu_that_no_guest_cpu_has(
    policy: ThreadPolicy, free: set[int], pins: set[int], emulator: set[int], withheld: set[int]
) -> None:
    guest = replace(pinned(0, 2), emulator=1)
    host = cell(0, free_cpus=frozenset(free))
    (placed,) = fit_cells([guest], [host], thread_policy=policy).cells
    assert (set(placed.pinning.values()), placed.emulator, placed.withheld) == (pins, emulator, withheld)
    assert placed.cpus == pins | emulator | withheld
    fit = fit_cells([guest], [replace(host, free_cpus=frozenset(free - emulator))], thread_policy=policy)
    if policy is not ThreadPolicy.PREFER:
        assert "3 asked, one of them for the emulator's threads, with" in fit.misfits[0].reason


@pytest.mark.parametrize(
    ("policy", "named", "withheld"),
    [
        (ThreadPolicy.PREFER, 1, set()),
        (ThreadPolicy.REQUIRE, 1, set()),
        (ThreadPolicy.ISOLATE, 6, {2, 4, 5}),
    ],
)
def test_the_emulators_threads_get_the_cpu_that_the_domain_names(
    policy: ThreadPolicy, named: int, withheld: set[int]
) -> None:
    guest, free = replace(pinned(0, 2), emulator=1), frozenset({0, 4, 1, 5, 2, 6})
    host = cell(0, free_cpus=free, emulator=named)
    (placed,) = fit_cells([guest], [host], thread_policy=policy).cells
    assert (placed.emulator, placed.withheld) == ({named}, withheld)
    assert set(placed.pinning.values()) < free - {named}
    taken = replace(host, free_cpus=free - {named})
    fit = fit_cells([guest], [taken], thread_policy=policy)
    assert fit.misfits[0].reason == (
        f"does not have CPU {named} free, on which the domain has the emulator's threads"
    )
    assert (fit.misfits[0].asked, fit.misfits[0].free) == (1, 0)
    many = fit_cells([replace(pinned(0, 8), emulator=1)], [host], thread_policy=policy)
    assert many.misfits[0].reason == (
        "has 6 free dedicated CPUs, 9 asked, one of them for the emulator's threads, "
        f"with thread policy {policy}"
    )
    sibling = replace(host, free_cpus=free - {named ^ 4})
    assert fit_cells([guest], [sibling], thread_policy=policy).fits is (policy is not ThreadPolicy.ISOLATE)


def test_a_guest_is_not_overcommitted_against_itself() -> None:
    guest = GuestCell(0, floating=frozenset(range(9)), memory_mb=1)
    assert "8 shared CPUs, 9 asked" in fit_cells([guest], [cell(0)]).misfits[0].reason


def test_the_best_page_size_that_there_is_enough_of_is_taken() -> None:
    host = cell(0, pages={2048: 512, 1048576: 1})
    for memory_mb, page in ((1024, 1048576), (512, 2048), (2048, 4)):
        (placed,) = fit_cells(
            [GuestCell(0, memory_mb=memory_mb)], [host], page_sizes_kib=(1048576, 2048, 4)
        ).cells
        assert placed.page_kib == page
    fit = fit_cells([GuestCell(0, memory_mb=2048)], [host], page_sizes_kib=(2048,))
    assert fit.misfits[0].reason == "has 512 pages of 2048 KiB free, 2048 MiB asked"
    fit = fit_cells([GuestCell(0, memory_mb=9001)], [host], page_sizes_kib=(2048, 4))
    assert (fit.misfits[0].reason, fit.misfits[0].free) == (
        "has 512 pages of 2048 KiB (which do not divide it) or 8192 MiB free, 9001 MiB asked",
        8192,
    )


def test_cells_near_the_devices_come_first() -> None:
    fit = fit_cells([pinned(0, 1)], [cell(0, memory_mb=9000), cell(1)], near=frozenset({1}))
    assert fit.cells[0].host_cell == 1


@pytest.mark.parametrize(
    ("needs", "packed", "spread"),
    [
        ((1.0, 5.0), 1, 0),
        ((3.0, 7.0), 0, 0),  # beside the guest's two CPUs the devices of cell 1 have too few
        ((0.0, 0.5), 1, 0),
    ],
)
def test_a_cell_is_ranked_by_the_cpus_that_guests_with_its_idle_devices_leave(
    needs: tuple[float, float], packed: int, spread: int
) -> None:
    costs = {n: CellCost(True, 0.0, {"PCPU": amount} if amount else {}) for n, amount in enumerate(needs)}
    guest = replace(pinned(0, 1, 100), emulator=1)
    for order, first in ((Order.PACK, packed), (Order.SPREAD, spread)):
        pairs = CellPairs.of([guest], [cell(0), cell(1)], costs=costs, strategy=Strategy(order))
        assert pairs.options[0][0].host_cell == first


@pytest.mark.parametrize(
    ("small_mb", "pages", "packed"),
    [((1000, 600), (0, 100), 1), ((600, 1000), (300, 0), 1), ((1000, 999), (0, 1), 0)],
)
def test_a_cell_is_ranked_by_its_memory_in_pages_that_the_guest_accepts(
    small_mb: tuple[int, int], pages: tuple[int, int], packed: int
) -> None:
    host = [
        cell(n, memory_mb=mb, pages={2048: count} if count else {})
        for n, (mb, count) in enumerate(zip(small_mb, pages, strict=True))
    ]
    for order, first in ((Order.PACK, packed), (Order.SPREAD, 1 - packed)):
        pairs = CellPairs.of([pinned(0, 1, 100)], host, page_sizes_kib=(2048, 4), strategy=Strategy(order))
        assert pairs.options[0][0].host_cell == first


def test_more_guest_cells_than_host_cells_says_so() -> None:
    fit = fit_cells([pinned(0, 1), pinned(1, 1)], [cell(0)])
    assert "wants 2 cells of their own, the host has 1" in fit.misfits[0].reason


@pytest.mark.parametrize("policy", ThreadPolicy)
def test_a_large_host_is_fitted_in_milliseconds(policy: ThreadPolicy) -> None:
    host = [cell(number, cores=32, threads=2) for number in range(8)]
    guest = [pinned(number, 16) for number in range(4)]
    started = time.thread_time()
    assert fit_cells(guest, host, thread_policy=policy).fits
    assert time.thread_time() - started < 0.1  # a benchmark holds the tighter figure


# Against brute force


def feasible(wanted: GuestCell, there: FreeCell, policy: ThreadPolicy, sizes: tuple[int, ...] | None) -> bool:
    """By the definitions alone, trying every set of CPUs."""
    if len(wanted.floating) > there.shared_cpus:
        return False
    backed = wanted.memory_mb <= there.memory_mb and (sizes is None or 4 in sizes)
    for size in sizes or ():
        pages, rest = divmod(wanted.memory_mb * 1024, size)
        backed |= size != 4 and not rest and pages <= there.pages.get(size, 0)
    return backed and any(
        good(frozenset(cpus), there, policy)
        for cpus in combinations(sorted(there.free_cpus), len(wanted.pinned))
    )


def good(cpus: frozenset[int], there: FreeCell, policy: ThreadPolicy) -> bool:
    used = {len(core & cpus) for core in there.cores if core & cpus}
    if policy is ThreadPolicy.ISOLATE:
        whole = all(core <= there.free_cpus for core in there.cores if core & cpus)
        return used <= {1} and whole
    if policy is ThreadPolicy.REQUIRE:
        return len(used) <= 1 and 1 not in used
    return True


small_cells = st.builds(
    lambda cores, threads, taken, memory, pages, shared: (cores, threads, taken, memory, pages, shared),
    st.integers(1, 3),
    st.integers(1, 3),
    st.frozensets(st.integers(0, 8), max_size=5),
    st.sampled_from([0, 1024, 2048]),
    st.sampled_from([{}, {2048: 512}, {2048: 1024, 1048576: 1}]),
    st.integers(0, 2),
)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 5), st.sampled_from([0, 512, 1024, 2048])),
        min_size=1,
        max_size=3,
    ),
    st.lists(small_cells, min_size=1, max_size=3),
    st.sampled_from(ThreadPolicy),
    st.sampled_from([None, (4,), (2048,), (1048576, 2048), (1048576, 2048, 4)]),
)
def test_a_guest_fits_exactly_if_brute_force_finds_a_way(
    wants: list[tuple[int, int, int]],
    cells: list[tuple[int, int, frozenset[int], int, dict[int, int], int]],
    policy: ThreadPolicy,
    sizes: tuple[int, ...] | None,
) -> None:
    host = []
    for number, (cores, threads, taken, memory_mb, pages, shared) in enumerate(cells):
        full = cell(number, cores, threads, memory_mb, pages=pages, shared_cpus=shared)
        free = full.free_cpus - {min(full.free_cpus) + cpu for cpu in taken}
        host.append(replace(full, free_cpus=free))
    guest = [
        GuestCell(n, frozenset(range(f)), frozenset(range(10, 10 + p)), memory)
        for n, (f, p, memory) in enumerate(wants)
    ]
    able = {
        (wanted.id, there.id): feasible(wanted, there, policy, sizes) for wanted in guest for there in host
    }
    ways = [
        order
        for order in permutations(host, len(guest))
        if all(able[wanted.id, there.id] for wanted, there in zip(guest, order, strict=True))
    ]
    fit = fit_cells(guest, host, thread_policy=policy, page_sizes_kib=sizes)
    assert fit.fits is bool(ways)
    if not fit.fits:
        told = {(each.guest_cell, each.host_cell) for each in fit.misfits}
        assert {pair for pair, fits in able.items() if not fits} <= told, "each pair that cannot be says why"
        return
    assert all(able[placed.guest_cell, placed.host_cell] for placed in fit.cells)
    assert len({placed.host_cell for placed in fit.cells}) == len(guest)
    for wanted, placed in zip(guest, fit.cells, strict=True):
        there = host[placed.host_cell]
        given_cpus = frozenset(placed.pinning.values())
        assert placed.pinning.keys() == wanted.pinned and len(given_cpus) == len(wanted.pinned)
        assert given_cpus | placed.withheld <= there.free_cpus, "what is given was free"
        assert good(given_cpus, there, policy)
        if policy is ThreadPolicy.PREFER and given_cpus:
            touched = sum(1 for core in there.cores if core & given_cpus)
            fewest = min(
                sum(1 for core in there.cores if core & set(cpus))
                for cpus in combinations(sorted(there.free_cpus), len(given_cpus))
            )
            assert touched == fewest, "siblings are kept together"


def test_each_set_of_host_cells_is_offered_once_the_first_choice_first() -> None:
    host = [cell(number, memory_mb=8192 + number) for number in range(4)]
    guest = [pinned(0, 2), pinned(1, 2)]
    ways = list(CellPairs.of(guest, host).placements())
    assert [{placed.host_cell for placed in way} for way in ways] == [
        {0, 1},
        {0, 2},
        {0, 3},
        {1, 2},
        {1, 3},
        {2, 3},
    ]
    assert fit_cells(guest, host).cells == ways[0]


def test_cpus_that_the_guest_is_on_already_go_first() -> None:
    on = frozenset({3, 7})
    (placed,) = fit_cells([pinned(0, 2)], [cell(0, favoured=on)]).cells
    assert set(placed.pinning.values()) == on
    (placed,) = fit_cells([pinned(0, 1)], [cell(0, favoured=frozenset({7}))]).cells
    assert set(placed.pinning.values()) == {7}
    (placed,) = fit_cells(
        [pinned(0, 2)], [cell(0, favoured=frozenset({6, 7}))], thread_policy=ThreadPolicy.ISOLATE
    ).cells
    assert (set(placed.pinning.values()), placed.withheld) == ({6, 7}, {2, 3})


def ask(topology: TopologyRequest, **resources: int) -> ClaimRequest:
    return ClaimRequest(
        "consumer", (RequestGroup("", resources), RequestGroup("1", {"VGPU": 1})), topology=topology
    )


@given(st.integers(1, 8), st.integers(1, 64), st.integers(1, 10**6))
def test_an_even_split_has_each_cpu_once_and_differs_by_one_at_most(
    count: int, vcpus: int, memory_mb: int
) -> None:
    request = ask(TopologyRequest(cells=count), VCPU=vcpus, MEMORY_MB=memory_mb)
    if vcpus < count:
        with pytest.raises(UsageError, match="each cell needs one"):
            guest_cells(request)
        return
    cells = guest_cells(request)
    assert [cell.id for cell in cells] == list(range(count))
    assert [cpu for cell in cells for cpu in sorted(cell.floating)] == list(range(vcpus))
    for shares, total in (
        ([len(c.floating) for c in cells], vcpus),
        ([c.memory_mb for c in cells], memory_mb),
    ):
        assert sum(shares) == total and max(shares) - min(shares) <= 1
        assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize(
    ("topology", "resources", "pinned"),
    [
        (TopologyRequest("dedicated"), {"PCPU": 4}, {0, 1, 2, 3}),
        (TopologyRequest(cells=1), {"PCPU": 4}, {0, 1, 2, 3}),
        (TopologyRequest(cells=1), {"VCPU": 4}, set()),
        (TopologyRequest("mixed", dedicated_cpus=frozenset({1, 3})), {"VCPU": 2, "PCPU": 2}, {1, 3}),
    ],
)
def test_the_pinned_cpus_follow_the_policy(
    topology: TopologyRequest, resources: dict[str, int], pinned: set[int]
) -> None:
    (cell,) = guest_cells(ask(topology, MEMORY_MB=1024, **resources))
    assert cell.pinned == pinned and cell.floating == set(range(4)) - pinned


@pytest.mark.parametrize(
    ("topology", "resources"),
    [
        (TopologyRequest("dedicated", cells=2, isolate_emulator=True), {"PCPU": 5}),
        (
            TopologyRequest("mixed", cells=2, dedicated_cpus=frozenset({1, 2}), isolate_emulator=True),
            {"VCPU": 2, "PCPU": 3},
        ),
        (TopologyRequest("mixed", cells=2, isolate_emulator=True), {"VCPU": 4, "PCPU": 1}),
    ],
)
def test_the_emulators_cpu_is_no_cpu_of_the_guest_and_goes_to_its_first_cell(
    topology: TopologyRequest, resources: dict[str, int]
) -> None:
    cells = guest_cells(ask(topology, MEMORY_MB=1024, **resources))
    assert [len(cell.floating | cell.pinned) for cell in cells] == [2, 2]
    assert [cell.emulator for cell in cells] == [1, 0]


@pytest.mark.parametrize(
    "topology",
    [
        TopologyRequest(isolate_emulator=True),
        TopologyRequest("mixed", dedicated_cpus=frozenset({0}), isolate_emulator=True),
    ],
)
def test_an_emulator_without_a_cpu_for_it_is_refused(topology: TopologyRequest) -> None:
    with pytest.raises(UsageError, match="isolate_emulator needs a PCPU for it and one for the guest"):
        guest_cells(ask(topology, VCPU=2, PCPU=1, MEMORY_MB=1024))
    (least,) = guest_cells(ask(TopologyRequest("dedicated", isolate_emulator=True), PCPU=2, MEMORY_MB=1))
    assert (least.pinned, least.emulator) == ({0}, 1)


@pytest.mark.parametrize(
    ("topology", "sentence"),
    [
        (TopologyRequest(cells=2, cell_cpus=(frozenset({0, 1, 2, 3}),)), "with CPUs for 1"),
        (TopologyRequest(cells=2, cell_cpus=(frozenset({0, 1}), frozenset({1, 2}))), "each of them once"),
        (TopologyRequest(cells=2, cell_memory_mb=(512, 256)), "768 MiB together, and 1024 MEMORY_MB"),
        (TopologyRequest("dedicated"), "use the policy mixed"),
    ],
)
def test_a_topology_that_contradicts_the_amounts_is_refused(topology: TopologyRequest, sentence: str) -> None:
    resources = {"VCPU": 4} if topology.cpu_policy == "shared" else {"VCPU": 2, "PCPU": 2}
    with pytest.raises(UsageError) as refused:
        guest_cells(ask(topology, MEMORY_MB=1024, **resources))
    assert sentence in refused.value.message


def test_only_a_guest_that_asks_for_cells_pinning_or_a_page_size_has_cells() -> None:
    assert not wants_cells(TopologyRequest())
    for topology in (
        TopologyRequest(cells=1),
        TopologyRequest("mixed"),
        TopologyRequest(mem_page_size="any"),
    ):
        assert wants_cells(topology)
    assert thread_policy(TopologyRequest()) is ThreadPolicy.PREFER
    assert thread_policy(TopologyRequest("dedicated", "isolate")) is ThreadPolicy.ISOLATE


@pytest.mark.parametrize(
    ("wanted", "sizes"),
    [
        (None, None),
        (2048, (2048,)),
        (64, (64,)),
        ("small", (4,)),
        ("large", (1048576, 2048)),
        ("any", (1048576, 2048, 4)),
    ],
)
def test_the_best_page_size_comes_first(wanted: int | str | None, sizes: tuple[int, ...] | None) -> None:
    assert page_sizes(TopologyRequest(mem_page_size=wanted), (1048576, 2048, 4)) == sizes


SOCKETS = {0: 0, 1: 0, 2: 1, 3: 1}


@pytest.mark.parametrize(
    ("policy", "same", "none", "same_socket", "other_socket"),
    [
        (None, 0, 0, 1, 1),
        ("preferred", 0, 1, 2, 2),
        ("legacy", 0, 1, "is on NUMA cell 1", "is on NUMA cell 2"),
        ("required", 0, "has no NUMA affinity", "is on NUMA cell 1", "is on NUMA cell 2"),
        ("socket", 0, "has no NUMA affinity", 1, "is on NUMA cell 2"),
    ],
)
def test_where_a_device_may_be(
    policy: str | None, same: int, none: int | str, same_socket: int | str, other_socket: int | str
) -> None:
    affinity, group = nova_affinity(SOCKETS), RequestGroup("1", {"PGPU": 1}, numa_policy=policy)
    ranks = {0: same, None: none, 1: same_socket, 2: other_socket}
    for cell, rank in ranks.items():
        found = affinity(group, cell, {0})
        if isinstance(rank, str):
            assert found == f"{rank}, the guest would be on 0 (policy {policy})"
        else:
            assert found == rank


def test_the_socket_of_a_cell_that_nobody_knows_is_no_ones() -> None:
    group = RequestGroup("1", {"PGPU": 1}, numa_policy="socket")
    assert isinstance(nova_affinity({})(group, 1, {0}), str)


def test_a_cell_of_which_nothing_is_said_has_nothing() -> None:
    assert FreeCell(0).room == {"PCPU": 0, "VCPU": 0, "MEMORY_MB": 0}
    cell = FreeCell(0, free_cpus=frozenset({1, 2}), shared_cpus=4, memory_mb=8, pages={2048: 3})
    large = {"CUSTOM_HUGEPAGES_2048KIB": 3}
    assert cell.room == {"PCPU": 2, "VCPU": 4, "MEMORY_MB": 8, **large}
    assert replace(cell, floating=1).room == {"PCPU": 2, "VCPU": 1, "MEMORY_MB": 8, **large}


def test_the_cell_on_which_a_guest_cell_is_already_comes_before_all_others() -> None:
    guest, host = [pinned(0, 1), pinned(1, 1)], [cell(0), cell(1), cell(2)]
    pairs = CellPairs.of(guest, host, near=frozenset({1}), at={0: 2, 1: 0})
    assert [[one.host_cell for one in options] for options in pairs.options] == [[2, 1, 0], [0, 1, 2]]
