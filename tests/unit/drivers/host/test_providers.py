"""The providers of a host, its cells and its huge pages."""

import pytest

from agent.driver import Cell, HostSettings
from drivers.host.providers import host_providers, page_providers

CELLS = (
    Cell(0, frozenset({0, 1}), 1024, pages={4: 100, 2048: 8}),
    Cell(1, frozenset({2, 3}), 512, pages={2048: 0, 1048576: 2}),
)


def test_a_flat_host_has_everything_on_one_provider() -> None:
    (host,) = host_providers("n", CELLS, 10, frozenset({"T"}), HostSettings(reserved_host_memory_mb=0))
    assert {name: inventory.total for name, inventory in host.inventories.items()} == {
        "VCPU": 4,
        "MEMORY_MB": 1536,
        "DISK_GB": 10,
    }
    assert (host.traits, host.device) == ({"T"}, "host")


def test_cells_share_evenly_what_is_reserved_for_the_host() -> None:
    settings = HostSettings(reserved_host_cpus=2, reserved_host_memory_mb=3)
    host, *cells = host_providers("n", CELLS, 10, frozenset(), settings, report_numa=True)
    assert set(host.inventories) == {"DISK_GB"}
    assert [(cell.name, cell.parent, cell.device) for cell in cells] == [
        ("n_numa0", "n", "numa:0"),
        ("n_numa1", "n", "numa:1"),
    ]
    assert [cell.inventories["MEMORY_MB"].reserved for cell in cells] == [2, 1]
    assert [cell.inventories["VCPU"].reserved for cell in cells] == [1, 1]


def test_a_cell_has_traits_for_the_sizes_of_its_huge_pages() -> None:
    _, *cells = host_providers("n", CELLS, 0, frozenset(), HostSettings(), report_numa=True)
    assert [cell.traits for cell in cells] == [
        {"HW_NUMA_ROOT", "CUSTOM_HUGEPAGES_2048KIB"},
        {"HW_NUMA_ROOT", "CUSTOM_HUGEPAGES_1048576KIB"},
    ]


@pytest.mark.parametrize("report_numa", [False, True])
def test_huge_pages_are_below_their_cell_or_else_below_the_host(report_numa: bool) -> None:
    pages = tuple(page_providers("n", CELLS, report_numa=report_numa))
    assert [(provider.name, provider.parent) for provider in pages] == [
        ("n_numa0_pages_2048", "n_numa0" if report_numa else "n"),
        ("n_numa1_pages_1048576", "n_numa1" if report_numa else "n"),
    ]
    assert pages[0].inventories["CUSTOM_HUGEPAGES_2048KIB"].total == 8


def test_a_cpu_that_is_not_online_is_not_offered_and_all_else_is() -> None:
    there, absent = (HostSettings(cpu_dedicated_set=frozenset(cpus)) for cpus in ({3}, {3, 9}))
    assert host_providers("n", CELLS, 9, frozenset(), absent) == host_providers(
        "n", CELLS, 9, frozenset(), there
    )
