"""The `hw:` extra specs one by one: which are known, and what each of them asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.claims.flavor_hw import CELLS_MAX, check_hw, read_whole_spec, topology_of
from agent.claims.request import TopologyRequest
from agent.errors import UsageError


@pytest.mark.parametrize("spec", ["cpu_policy", "numa_mem.7", "watchdog_action", "mem_page_size"])
def test_a_known_spec_is_accepted(spec: str) -> None:
    check_hw(f"hw:{spec}", spec, "anything")


@pytest.mark.parametrize(
    ("spec", "value", "refused"),
    [
        ("mem_encryption", "False", False),
        ("mem_encryption", "true", True),
        ("emulator_threads_policy", "share", False),
        ("emulator_threads_policy", "isolate", True),
        ("pmem", "6GB", True),
    ],
)
def test_a_spec_that_cannot_be_placed_is_refused_unless_it_asks_for_nothing(
    spec: str, value: str, refused: bool
) -> None:
    if not refused:
        return check_hw(f"hw:{spec}", spec, value)
    with pytest.raises(UsageError, match="cannot place it yet"):
        check_hw(f"hw:{spec}", spec, value)


def test_an_unknown_spec_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(UsageError, match="did you mean hw:numa_nodes"):
        check_hw("hw:numa_node", "numa_node", "2")


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
