"""The `hw:` extra specs one by one: which are known, and what each of them asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.claims.flavor_hw import CELLS_MAX, read_whole_spec, topology_of
from agent.claims.request import TopologyRequest
from agent.errors import UsageError


@pytest.mark.parametrize(
    ("specs", "cpus"),
    [
        ({"hw:cpu_realtime": "yes", "hw:cpu_realtime_mask": "^0"}, {1, 2, 3}),
        ({"hw:cpu_realtime": "true", "hw:cpu_realtime_mask": "2-3"}, {2, 3}),
        ({"hw:cpu_dedicated_mask": "0", "hw:cpu_realtime": "no", "hw:cpu_realtime_mask": "2-3"}, {0}),
    ],
)
def test_a_realtime_mask_alone_says_which_cpus_of_a_mixed_guest_are_pinned(
    specs: dict[str, str], cpus: set[int]
) -> None:
    topology = topology_of(4, 4096, {"hw:cpu_policy": "mixed", **specs})
    assert topology.dedicated_cpus == cpus


@pytest.mark.parametrize(
    ("policy", "specs", "why"),
    [
        ("mixed", {"hw:cpu_realtime_mask": "^0"}, "hw:cpu_dedicated_mask: .* needs it"),
        (
            "mixed",
            {"hw:cpu_realtime": "yes", "hw:cpu_realtime_mask": "0", "hw:cpu_dedicated_mask": "0"},
            "not both",
        ),
        ("mixed", {"hw:cpu_realtime": "yes"}, "hw:cpu_realtime_mask: it must leave a CPU"),
        (
            "mixed",
            {"hw:cpu_realtime": "yes", "hw:emulator_threads_policy": "isolate"},
            "hw:cpu_realtime_mask: .* leave at least one",
        ),
        ("shared", {"hw:cpu_realtime": "yes", "hw:cpu_realtime_mask": "0"}, "hw:cpu_realtime: it needs"),
        ("dedicated", {"hw:cpu_realtime": "maybe"}, "hw:cpu_realtime: 'maybe' is not a truth value"),
        ("dedicated", {"hw:cpu_realtime": "yes", "hw:cpu_realtime_mask": "9"}, "CPUs 0-3"),
        ("shared", {"hw:emulator_threads_policy": "isolate"}, "emulator_threads_policy=isolate: it needs"),
        ("dedicated", {"hw:emulator_threads_policy": "none"}, "one of share, isolate"),
    ],
)
def test_a_realtime_mask_or_an_emulator_policy_that_nova_refuses_is_refused(
    policy: str, specs: dict[str, str], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        topology_of(4, 4096, {"hw:cpu_policy": policy, **specs})


def test_a_guest_with_persistent_memory_has_a_cell_of_its_own() -> None:
    assert topology_of(4, 4096, {"hw:pmem": "6GB, 6GB"}).cells == 1
    assert topology_of(4, 4096, {"hw:pmem": "6GB", "hw:numa_nodes": "2"}).cells == 2


@pytest.mark.parametrize(
    ("trait", "policy"), [("required", "require"), ("forbidden", "isolate"), (None, None)]
)
def test_the_trait_of_threads_is_a_thread_policy_of_pinned_cpus(
    trait: str | None, policy: str | None
) -> None:
    specs = {"hw:cpu_policy": "dedicated"} | ({"trait:HW_CPU_HYPERTHREADING": trait} if trait else {})
    assert topology_of(4, 4096, specs).cpu_thread_policy == policy
    if trait:
        with pytest.raises(UsageError, match="remove one of the two"):
            topology_of(4, 4096, {**specs, "hw:cpu_thread_policy": "prefer"})


@given(st.integers(1, CELLS_MAX), st.integers(1, 8), st.integers(1, 4096))
def test_cells_given_one_by_one_are_those_of_the_guest(count: int, cpus_each: int, mb_each: int) -> None:
    specs = {"hw:numa_nodes": str(count)}
    for cell in range(count):
        specs[f"hw:numa_cpus.{cell}"] = f"{cell * cpus_each}-{(cell + 1) * cpus_each - 1}"
        specs[f"hw:numa_mem.{cell}"] = str(mb_each)
    topology = topology_of(count * cpus_each, count * mb_each, specs)
    assert topology.cells == count and topology.cell_memory_mb == (mb_each,) * count
    assert frozenset().union(*topology.cell_cpus) == frozenset(range(count * cpus_each))
    assert [len(cpus) for cpus in topology.cell_cpus] == [cpus_each] * count
    with pytest.raises(UsageError, match=r"hw:numa_mem\.N"):
        topology_of(count * cpus_each, count * mb_each + 1, specs)


def test_a_guest_without_specs_has_no_topology() -> None:
    assert topology_of(4, 4096, {"quota:cpu_shares": "1"}) == TopologyRequest()


@given(st.integers(-(10**11), 10**11), st.integers(0, 99), st.integers(0, 10**9))
def test_a_whole_number_is_read_within_its_bounds(number: int, least: int, most: int) -> None:
    text = f" {number} "
    if least <= number <= most:
        assert read_whole_spec("hw:x", text, least, most) == number
    else:
        with pytest.raises(UsageError):
            read_whole_spec("hw:x", text, least, most)


@pytest.mark.parametrize("text", ["+1", "1_0", "\u0661", "1.0", "", "0x1"])
def test_what_only_python_takes_for_a_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_whole_spec("hw:x", text, 0, 99)
