"""A guest's cells: the sums of its request, divided evenly or as the flavor says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.claims.numa.cell_fit import ThreadPolicy
from agent.claims.numa.guest_cells import guest_cells, page_sizes, thread_policy, wants_cells
from agent.claims.request import ClaimRequest, RequestGroup, TopologyRequest
from agent.errors import UsageError


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
    ],
)
def test_the_emulators_cpu_is_no_cpu_of_the_guest_and_goes_to_its_first_cell(
    topology: TopologyRequest, resources: dict[str, int]
) -> None:
    cells = guest_cells(ask(topology, MEMORY_MB=1024, **resources))
    assert [len(cell.floating | cell.pinned) for cell in cells] == [2, 2]
    assert [cell.emulator for cell in cells] == [1, 0]


@pytest.mark.parametrize(
    ("topology", "sentence"),
    [
        (TopologyRequest(isolate_emulator=True), "isolate_emulator needs a PCPU"),
    ],
)
def test_an_emulator_without_a_cpu_for_it_is_refused(topology: TopologyRequest, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        guest_cells(ask(topology, VCPU=2, PCPU=1, MEMORY_MB=1024))


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
