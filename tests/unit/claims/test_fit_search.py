"""The search for providers: its order, its bound, and exact units."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.fit import HOST, NUMA, RACK, SHARING, ask, fitted, group, provider, reasons, uuid_of
from kits.host_cells import CORES, host_cells, provider_tree, topology

from agent.claims.choice import Choice, Order, Strategy
from agent.claims.claim import Fit, Shortfall
from agent.claims.fit import cell_amounts, check_placeable, fit_in_sum, fit_with_cells, without_cell_resources
from agent.claims.fit_search import (
    STEPS_MAX,
    HostStock,
    ProviderIndex,
    first_units,
    fit_slots,
)
from agent.claims.guest_cells import PlacedCell, nova_affinity
from agent.claims.host_cells import CellStock, HostCell, HostCells
from agent.claims.refusal import CELLS_UNKNOWN
from agent.claims.request import ClaimRequest, RequestGroup, TopologyRequest
from agent.errors import UsageError
from agent.tree import Inventory, Provider, ProviderTree


def test_own_providers_come_from_the_root_down_and_sharing_ones_last() -> None:
    pool = provider("a_pool", traits=(SHARING,), aggregates=(RACK,), DISK_GB=9)
    index = ProviderIndex.of(ProviderTree([pool, provider("host", DISK_GB=9, aggregates=(RACK,)), *NUMA[1:]]))
    assert [each.name for each in index.providers] == ["host", "numa0", "gpu0", "numa1", "gpu1", "a_pool"]
    assert [each.name for each in index.by_class["DISK_GB"]] == ["host", "a_pool"]
    assert [each.name for each in index.without({"DISK_GB"}).by_class["DISK_GB"]] == ["a_pool"]
    assert index.is_own(uuid_of("gpu0")) and not index.is_own(pool.uuid) and not index.is_own("nowhere")


@pytest.mark.parametrize(
    ("wanted", "bound", "obstacle"),
    [
        (group("1", VGPU=1), {}, None),
        (group("1", VGPU=1), {"1": frozenset({"other"})}, ("VGPU", "the guest is bound to another one")),
        (group("1", VGPU=5), {}, ("VGPU", "only 3 of 4 are free")),
        (group("1", VCPU=1), {}, ("VCPU", "has no VCPU")),
        (group("1", "CUSTOM_M60", VGPU=1), {}, ("VGPU", "lacks trait CUSTOM_M60")),
        (group("1", forbidden="CUSTOM_T4", VGPU=1), {}, ("VGPU", "has the forbidden trait CUSTOM_T4")),
    ],
)
def test_an_obstacle_names_the_class_and_the_reason(
    wanted: RequestGroup, bound: dict[str, frozenset[str]], obstacle: tuple[str, str] | None
) -> None:
    gpu = provider("gpu0", traits=("CUSTOM_T4",), VGPU=Inventory(4, max_unit=9))
    index = ProviderIndex.of(ProviderTree([gpu]))
    index = ProviderIndex(index.tree, index.root, index.providers, index.by_class, bound=bound)
    stock = HostStock(index, {gpu.uuid: {"VGPU": 1}}, {})
    assert list(stock.obstacles(wanted, wanted.resources, gpu)) == ([obstacle] if obstacle else [])


@given(st.permutations("abcdef"), st.integers(0, 3), st.integers(0, 3))
def test_classes_that_share_units_get_different_ones_in_order(
    units: list[str], first: int, second: int
) -> None:
    offered = {"card": {"A": tuple(units), "B": tuple(reversed(units))}}
    chosen = first_units({"card": {"A": first, "B": second, "VCPU": 1}}, offered)["card"]
    assert chosen["A"] == tuple(units[:first])
    assert chosen["B"] == tuple(unit for unit in reversed(units) if unit not in units[:first])[:second]
    assert "VCPU" not in chosen


def test_units_that_are_not_free_bound_what_can_be_given() -> None:
    host = provider("host", PCPU=4)
    found = fitted(ask(group(PCPU=3)), host, units={"host": {"PCPU": ("0", "1")}})
    assert reasons(found) == [("PCPU", 3, 2, "host", "only 2 of its exact units are free")]


def test_the_search_gives_up_after_a_bounded_number_of_steps() -> None:
    gpus = [provider(f"gpu{n:02}", "host", VGPU=4) for n in range(24)]
    groups = [group(str(n), VGPU=1) for n in range(25)]
    found = fitted(ask(*groups, policy="isolate"), HOST, *gpus)
    assert f"no arrangement was found within {STEPS_MAX} steps" in reasons(found)[0][4]
    assert fitted(ask(*groups[1:], policy="isolate"), HOST, *gpus).fits


@pytest.mark.parametrize(
    ("inventory", "used", "asked", "free", "reason"),
    [
        (Inventory(16), 13, 4, 3, "only 3 of 16 are free"),
        (Inventory(16, reserved=4), 0, 13, 12, "only 12 of 12 are free"),
        (Inventory(16, allocation_ratio=1.5), 23, 2, 1, "only 1 of 24 is free"),
        (Inventory(16), 20, 1, 0, "only 0 of 16 are free"),
        (Inventory(16, max_unit=4), 0, 5, 16, "max_unit is 4"),
        (Inventory(16, min_unit=4), 0, 2, 16, "min_unit is 4"),
        (Inventory(16, step_size=4), 0, 6, 16, "step_size is 4"),
    ],
)
def test_a_refusal_names_asked_free_and_provider(
    inventory: Inventory, used: int, asked: int, free: int, reason: str
) -> None:
    """Scenario 31: what is short is told with its numbers."""
    found = fitted(ask(group(VCPU=asked)), provider("host", VCPU=inventory), used={"host": {"VCPU": used}})
    assert found.shortfalls == (Shortfall("VCPU", asked, free, "host", uuid_of("host"), reason),)


@pytest.mark.parametrize(
    ("cordoned", "reason"),
    [
        (0, "all of it is reserved"),
        (2, "only 0 of 0 are free, 2 more cordoned or unhealthy (`plimsoll devices list`)"),
    ],
)
def test_a_class_of_which_all_is_cordoned_is_not_told_as_reserved(cordoned: int, reason: str) -> None:
    """What is cordoned is reserved as well, and can be given back by the operator."""
    card = provider("card", VF=Inventory(2, reserved=2))
    index = replace(
        ProviderIndex.of(ProviderTree([card])), cordoned={card.uuid: {"VF": cordoned}} if cordoned else {}
    )
    wanted = group("1", VF=1)
    assert list(HostStock(index, {}, {}).obstacles(wanted, wanted.resources, card)) == [("VF", reason)]


@pytest.mark.parametrize("order", Order)
def test_a_providers_rank_is_what_it_has_left_beyond_the_needs_of_its_cells_devices(order: Order) -> None:
    """Each cell has an idle GPU; guests have 1 CPU beside one, and on the second cell there are 3 of them."""
    cells = [provider(f"cell{n}", "host", PCPU=8) for n in range(2)]
    gpus = [provider(f"gpu{n}", f"cell{n}", VGPU=amount) for n, amount in ((0, 1), (1, 3))]
    index = ProviderIndex.of(ProviderTree([provider("host"), *cells, *gpus]))
    choice = Choice(
        Strategy(order),
        {n: [(gpus[n].uuid, "VGPU")] for n in range(2)},
        {cells[n].uuid: n for n in range(2)},
        {"VGPU": {"PCPU": 1.0}},
    )
    (slot,) = fit_slots(ask(group(PCPU=1)), HostStock(index, {}, {}, choice))
    expected = ["cell1", "cell0"] if order is Order.PACK else ["cell0", "cell1"]
    assert [each.name for each in slot.options] == expected


def test_every_class_that_falls_short_is_named() -> None:
    found = fitted(ask(group(VCPU=99, MEMORY_MB=99999, DISK_GB=1, VGPU=1)), HOST)
    assert [(each[0], each[3]) for each in reasons(found)] == [
        ("VCPU", "host"),
        ("MEMORY_MB", "host"),
        ("VGPU", "host"),
    ]


def test_an_empty_tree_says_so() -> None:
    assert reasons(fitted(ask(group(VCPU=1)))) == [("VCPU", 1, 0, "", "the host has no inventory yet")]


LAYOUT = topology(2)
TREE = provider_tree(LAYOUT).with_provider(
    Provider(uuid_of("card"), "card", uuid_of("cell1"), {"VF": Inventory(1)})
)
CELLS, STOCK = host_cells(LAYOUT, TREE)


def ask_cells(
    cells: int, vcpus: int, memory_mb: int, *groups: RequestGroup, **topology_: str
) -> ClaimRequest:
    resources = {"PCPU": vcpus, "MEMORY_MB": memory_mb, "DISK_GB": 1}
    return ClaimRequest(
        "consumer",
        (RequestGroup("", resources), *groups),
        topology=TopologyRequest("dedicated", cells=cells, **topology_),
    )


def fitted_cells(request: ClaimRequest, stock: HostStock = STOCK, cells: CellStock | None = None) -> Fit:
    return fit_with_cells(request, stock, cells or CellStock(CELLS), nova_affinity(CELLS.sockets))


@given(st.integers(1, 3), st.integers(1, 20), st.integers(1, 20_000), st.sampled_from([None, "isolate"]))
def test_the_allocations_are_those_of_the_cells(
    count: int, vcpus: int, memory_mb: int, policy: str | None
) -> None:
    vcpus = max(vcpus, count)
    request = ask_cells(count, vcpus, memory_mb, cpu_thread_policy=policy)
    result = fitted_cells(request)
    most = -(-vcpus // count)
    room = CORES if policy else 2 * CORES
    assert result.fits is (count <= 2 and most <= room and -(-memory_mb // count) <= 8192)
    if not result.fits:
        assert result.shortfalls and not result.allocations
        return
    total: Counter[str] = Counter()
    for uuid, amounts in result.allocations.items():
        total.update(amounts)
        if uuid != uuid_of("host"):
            assert len(result.units[uuid]["PCPU"]) == amounts["PCPU"]
    assert total == {"PCPU": 2 * vcpus if policy else vcpus, "MEMORY_MB": memory_mb, "DISK_GB": 1}
    by_cell = cell_amounts(result.cells, CELLS, TREE)
    assert by_cell == {uuid: dict(a) for uuid, a in result.allocations.items() if uuid != uuid_of("host")}
    pins = [cpu for cell in result.cells for cpu in cell.cpus]
    assert sorted(map(str, pins)) == sorted(
        u for units in result.units.values() for u in units.get("PCPU", ())
    )


def test_a_guest_is_placed_near_its_device() -> None:
    device = RequestGroup("1", {"VF": 1}, numa_policy="required")
    (cell,) = fitted_cells(ask_cells(1, 2, 1024, device)).cells
    assert cell.host_cell == 1
    busy = CellStock(CELLS, busy=frozenset(range(2 * CORES, 4 * CORES)))
    refusal = fitted_cells(ask_cells(1, 2, 1024, device), cells=busy)
    assert not refusal.fits
    assert "is on NUMA cell 1, the guest would be on 0" in refusal.shortfalls[0].reason
    near = RequestGroup("1", {"VF": 1}, numa_policy="preferred")
    assert fitted_cells(ask_cells(1, 2, 1024, near), cells=busy).cells[0].host_cell == 0


def test_a_refusal_names_each_cell() -> None:
    refusal = fitted_cells(ask_cells(1, 2 * CORES + 1, 1024))
    assert [(short.provider, short.resource_class, short.free) for short in refusal.shortfalls] == [
        ("cell0", "PCPU", 2 * CORES),
        ("cell1", "PCPU", 2 * CORES),
    ]
    assert all(f"guest cell 0: host cell {n} has" in s.reason for n, s in enumerate(refusal.shortfalls))
    (unknown,) = fitted_cells(ask_cells(1, 1, 1), cells=CellStock()).shortfalls
    assert unknown.reason == CELLS_UNKNOWN


def test_the_rest_of_a_request_has_no_cpus_and_no_memory() -> None:
    rest = without_cell_resources(ask_cells(1, 2, 1024, RequestGroup("1", {"PCPU": 1})))
    assert [dict(group.resources) for group in rest.groups] == [{"DISK_GB": 1}, {"PCPU": 1}]


@given(st.integers(0, 4), st.integers(0, 4), st.integers(1, 8))
def test_amounts_on_any_cells_add_up(first: int, second: int, wanted: int) -> None:
    held = {"cell0": first, "cell1": second}
    tree = TREE
    for name, amount in held.items():
        inventories = {"PCPU": Inventory(amount), "MEMORY_MB": Inventory(1024)} if amount else {}
        tree = tree.with_provider(Provider(uuid_of(name), name, uuid_of("host"), inventories))
    stock = HostStock(ProviderIndex.of(tree, uuid_of("host")), {}, {})
    assert fit_in_sum(ask_cells(1, wanted, 1), stock).fits is (first + second >= wanted)


@pytest.mark.parametrize(
    ("cpus", "vfs", "reasons_"),
    [
        (4, 1, []),
        (5, 1, [("PCPU", 5, 4, "host", "only 4 of it are held")]),
        (4, 2, [("VF", 2, 1, "card", "group '1': only 1 of 1 is free")]),
    ],
)
def test_allocations_cover_the_amounts_on_any_cells_and_the_other_groups(
    cpus: int, vfs: int, reasons_: list[tuple[str, int, int, str, str]]
) -> None:
    tree = TREE
    for name, amount in (("cell0", 1), ("cell1", 3)):
        inventories = {"PCPU": Inventory(amount), "MEMORY_MB": Inventory(1024)}
        tree = tree.with_provider(Provider(uuid_of(name), name, uuid_of("host"), inventories))
    stock = HostStock(ProviderIndex.of(tree, uuid_of("host")), {}, {})
    found = fit_in_sum(ask_cells(1, cpus, 1, RequestGroup("1", {"VF": vfs})), stock)
    assert found.fits if not reasons_ else reasons(found) == reasons_


def test_a_contradictory_request_is_refused_before_any_host_is_looked_at() -> None:
    topology_ = TopologyRequest("dedicated")
    asked = ClaimRequest(
        "consumer", (RequestGroup("", {"VCPU": 2, "PCPU": 2, "MEMORY_MB": 1}),), topology=topology_
    )
    with pytest.raises(UsageError, match="use the policy mixed"):
        check_placeable(asked)


@pytest.mark.parametrize(
    ("used", "reason"), [("PF", "nothing of it can be given while its PF is in use"), ("VF", "")]
)
def test_a_class_whose_card_is_in_use_otherwise_says_so(used: str, reason: str) -> None:
    card = provider("card", VF=2, PF=1)
    index = ProviderIndex.of(ProviderTree([card]), ways={card.uuid: (frozenset({"VF"}), frozenset({"PF"}))})
    stock = HostStock(index, {card.uuid: {used: 1}}, {card.uuid: {"VF": () if reason else ("1",), "PF": ()}})
    wanted = group("1", VF=1)
    assert list(stock.obstacles(wanted, wanted.resources, card)) == ([("VF", reason)] if reason else [])
    assert stock.can_give_together(card, {"VF": 1, "PF": 1}) is False
    assert stock.can_give_together(card, {"VF": 1}) is not bool(reason)
    reserved = provider("card", VF=Inventory(2, reserved=1), PF=1)
    assert HostStock(index, {}, {}).can_give_together(reserved, {"VF": 2}) is False


def test_a_guest_goes_where_its_device_is_near_also_from_a_cell_that_it_is_on() -> None:
    """A group without a policy gets a device as near as possible, and any where none is near a free cell."""
    asked = ask_cells(1, 2, 1024, RequestGroup("1", {"VF": 1}))
    on_first = CellStock(CELLS, near=frozenset({0}))
    assert fitted_cells(asked, cells=on_first).cells[0].host_cell == 1
    full = replace(on_first, busy=frozenset(range(2 * CORES, 4 * CORES)))
    assert fitted_cells(asked, cells=full).cells[0].host_cell == 0


def test_of_devices_that_are_not_near_the_guest_one_without_a_cell_comes_before_one_on_another_cell() -> None:
    tree = TREE.with_provider(Provider(uuid_of("zcard"), "zcard", uuid_of("host"), {"VF": Inventory(1)}))
    stock = HostStock(ProviderIndex.of(tree, uuid_of("host")), {}, STOCK.units)
    on_first = CellStock(CELLS, busy=frozenset(range(2 * CORES, 4 * CORES)))
    device = RequestGroup("1", {"VF": 1}, numa_policy="preferred")
    found = fitted_cells(ask_cells(1, 2, 1024, device), stock, on_first)
    assert found.cells[0].host_cell == 0 and found.allocations[uuid_of("zcard")] == {"VF": 1}


@pytest.mark.parametrize("counted", [False, True])
def test_the_large_pages_of_a_cell_are_allocated_where_placement_counts_them(counted: bool) -> None:
    host = provider("host", VCPU=8, MEMORY_MB=8192)
    pages = provider("pages", "host", **({"CUSTOM_HUGEPAGES_2048KIB": 999} if counted else {"VF": 1}))
    cell = HostCell(0, host.uuid, (), frozenset(), frozenset(), 8, 0, 0, {2048: 999}, {2048: pages.uuid})
    placed = PlacedCell(0, 0, {0: 4, 1: 5}, frozenset({6}), 2048, 1024, frozenset({2}), frozenset({7}))
    amounts = cell_amounts([placed], HostCells((cell,)), ProviderTree([host, pages]))
    of_host = {"VCPU": 1, "PCPU": 4, "MEMORY_MB": 1024}
    expected = {pages.uuid: {"CUSTOM_HUGEPAGES_2048KIB": 512}} if counted else {}
    assert amounts == {host.uuid: of_host, **expected}
