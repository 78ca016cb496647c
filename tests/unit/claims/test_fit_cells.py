"""Guests with cells over a whole host: what they get is on their cells, sums agree, and refusals say why."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.host_cells import CORES, host_cells, provider_tree, topology, uuid_of

from agent.claims.claim import Fit
from agent.claims.fit import (
    CELLS_UNKNOWN,
    cell_amounts,
    fit_in_sum,
    fit_with_cells,
    nova_affinity,
    without_cell_resources,
)
from agent.claims.fit_search import HostStock, ProviderIndex
from agent.claims.host_cells import CellStock
from agent.claims.request import ClaimRequest, RequestGroup, TopologyRequest
from agent.tree import Inventory, Provider

LAYOUT = topology(2)
TREE = provider_tree(LAYOUT).with_provider(
    Provider(uuid_of("card"), "card", uuid_of("cell1"), {"VF": Inventory(1)})
)
CELLS, STOCK = host_cells(LAYOUT, TREE)


def ask(cells: int, vcpus: int, memory_mb: int, *groups: RequestGroup, **topology_: str) -> ClaimRequest:
    resources = {"PCPU": vcpus, "MEMORY_MB": memory_mb, "DISK_GB": 1}
    return ClaimRequest(
        "consumer",
        (RequestGroup("", resources), *groups),
        topology=TopologyRequest("dedicated", cells=cells, **topology_),
    )


def fitted(request: ClaimRequest, stock: HostStock = STOCK, cells: CellStock | None = None) -> Fit:
    return fit_with_cells(request, stock, cells or CellStock(CELLS), nova_affinity(CELLS.sockets))


@given(st.integers(1, 3), st.integers(1, 20), st.integers(1, 20_000), st.sampled_from([None, "isolate"]))
def test_the_allocations_are_those_of_the_cells(
    count: int, vcpus: int, memory_mb: int, policy: str | None
) -> None:
    vcpus = max(vcpus, count)
    request = ask(count, vcpus, memory_mb, cpu_thread_policy=policy)
    result = fitted(request)
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
    (cell,) = fitted(ask(1, 2, 1024, device)).cells
    assert cell.host_cell == 1
    busy = CellStock(CELLS, busy=frozenset(range(2 * CORES, 4 * CORES)))
    refusal = fitted(ask(1, 2, 1024, device), cells=busy)
    assert not refusal.fits
    assert "is on NUMA cell 1, the guest would be on 0" in refusal.shortfalls[0].reason
    near = RequestGroup("1", {"VF": 1}, numa_policy="preferred")
    assert fitted(ask(1, 2, 1024, near), cells=busy).cells[0].host_cell == 0


def test_a_refusal_names_each_cell() -> None:
    refusal = fitted(ask(1, 2 * CORES + 1, 1024))
    assert [(short.provider, short.resource_class, short.free) for short in refusal.shortfalls] == [
        ("cell0", "PCPU", 2 * CORES),
        ("cell1", "PCPU", 2 * CORES),
    ]
    assert all(f"guest cell 0: host cell {n} has" in s.reason for n, s in enumerate(refusal.shortfalls))
    (unknown,) = fitted(ask(1, 1, 1), cells=CellStock()).shortfalls
    assert unknown.reason == CELLS_UNKNOWN


def test_the_rest_of_a_request_has_no_cpus_and_no_memory() -> None:
    rest = without_cell_resources(ask(1, 2, 1024, RequestGroup("1", {"PCPU": 1})))
    assert [dict(group.resources) for group in rest.groups] == [{"DISK_GB": 1}, {"PCPU": 1}]


@given(st.integers(0, 4), st.integers(0, 4), st.integers(1, 8))
def test_amounts_on_any_cells_add_up(first: int, second: int, wanted: int) -> None:
    held = {"cell0": first, "cell1": second}
    tree = TREE
    for name, amount in held.items():
        inventories = {"PCPU": Inventory(amount), "MEMORY_MB": Inventory(1024)} if amount else {}
        tree = tree.with_provider(Provider(uuid_of(name), name, uuid_of("host"), inventories))
    stock = HostStock(ProviderIndex.of(tree, uuid_of("host")), {}, {})
    assert fit_in_sum(ask(1, wanted, 1), stock).fits is (first + second >= wanted)


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
