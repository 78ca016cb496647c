"""The inventories and providers of a host, its cells and its huge pages, and where units are described."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from agent.driver import Cell, DescribedProvider, Guest, GuestState, HostSettings, ReservedPages, UsedUnit
from agent.errors import SettingsError
from drivers.host.providers import (
    UnitLocation,
    absent_cpus,
    check_file_backed_memory,
    cpu_inventories,
    described_locations,
    disk_inventory,
    host_providers,
    lacking_pages,
    locate_units,
    memory_inventory,
    page_providers,
    split_cpus,
    with_file_backed_memory,
    without_reserved_pages,
)

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


ONLINE = frozenset(range(8))


@pytest.mark.parametrize(
    ("shared_set", "dedicated_set", "shared", "dedicated"),
    [
        (None, None, range(8), []),
        (None, {4, 5}, [], [4, 5]),
        ({0, 1}, {4, 5}, [0, 1], [4, 5]),
        ({0, 1}, None, [0, 1], []),
    ],
)
def test_cpu_sets_mean_what_they_mean_in_nova(
    shared_set: set[int] | None, dedicated_set: set[int] | None, shared: list[int], dedicated: list[int]
) -> None:
    settings = HostSettings(
        cpu_shared_set=None if shared_set is None else frozenset(shared_set),
        cpu_dedicated_set=None if dedicated_set is None else frozenset(dedicated_set),
    )
    assert split_cpus(ONLINE, settings) == (frozenset(shared), frozenset(dedicated))


def test_a_configured_cpu_that_is_not_online_is_named_and_takes_nothing_else_away() -> None:
    settings = HostSettings(cpu_shared_set=frozenset({0, 10}), cpu_dedicated_set=frozenset({7, 8, 9}))
    assert split_cpus(ONLINE, settings) == ({0}, {7})
    assert split_cpus(ONLINE, HostSettings(cpu_dedicated_set=frozenset({9}))) == (set(), set())
    cells = (Cell(0, frozenset(ONLINE), 64, ()),)
    shared, dedicated = absent_cpus(cells, settings)
    assert "cpu_shared_set names CPU 10, not online" in shared
    assert "cpu_dedicated_set names CPU 8-9, not" in dedicated and "echo 1 > /sys" in dedicated
    assert list(absent_cpus(cells, HostSettings(cpu_dedicated_set=frozenset({7})))) == []


def test_dedicated_cpus_are_never_overcommitted_at_any_ratio() -> None:
    settings = HostSettings(cpu_allocation_ratio=16.0)
    found = cpu_inventories(4, 2, 1, settings)
    assert (found["VCPU"].allocation_ratio, found["VCPU"].reserved) == (16.0, 1)
    assert (found["PCPU"].allocation_ratio, found["PCPU"].reserved) == (1.0, 0)


def test_an_unset_ratio_leaves_placements_alone_and_names_the_first_one() -> None:
    settings = HostSettings()
    assert cpu_inventories(4, 0, 0, settings)["VCPU"].allocation_ratio is None
    assert cpu_inventories(4, 0, 0, settings)["VCPU"].initial_allocation_ratio == 4.0
    assert memory_inventory(4096, 512, settings)["MEMORY_MB"].allocation_ratio is None
    assert disk_inventory(100, settings)["DISK_GB"].allocation_ratio is None


@pytest.mark.parametrize(("reserved_mb", "reserved_gb"), [(0, 0), (1, 1), (1024, 1), (1025, 2)])
def test_reserved_disk_is_rounded_up_to_whole_gib(reserved_mb: int, reserved_gb: int) -> None:
    assert (
        disk_inventory(100, HostSettings(reserved_host_disk_mb=reserved_mb))["DISK_GB"].reserved
        == reserved_gb
    )


def test_what_there_is_none_of_is_left_out() -> None:
    assert cpu_inventories(0, 0, 0, HostSettings()) == {}
    assert memory_inventory(0, 512, HostSettings()) == {}
    assert disk_inventory(0, HostSettings()) == {}


def test_no_more_is_reserved_than_there_is() -> None:
    assert memory_inventory(256, 512, HostSettings())["MEMORY_MB"].reserved == 256


PAGED_CELLS = (
    Cell(0, frozenset({0}), 8192, pages={4: 1000, 2048: 1024, 1 << 20: 2}),
    Cell(1, frozenset({1}), 8192, pages={4: 1000, 2048: 1024}),
)


def test_the_pages_and_their_memory_are_taken_from_the_node() -> None:
    first, second = without_reserved_pages(
        PAGED_CELLS, [ReservedPages(0, 2048, 64), ReservedPages(0, 1 << 20, 1), ReservedPages(1, 2048, 1024)]
    )
    assert first.pages == {4: 1000, 2048: 960, 1 << 20: 1} and first.memory_mb == 8192 - 128 - 1024
    assert second.pages == {4: 1000, 2048: 0} and second.memory_mb == 8192 - 2048
    assert without_reserved_pages(PAGED_CELLS, ()) == PAGED_CELLS


@pytest.mark.parametrize(
    "pages", [ReservedPages(0, 2048, 1025), ReservedPages(1, 1 << 20, 1), ReservedPages(2, 2048, 1)]
)
def test_where_the_node_has_fewer_none_is_left_and_all_else_is_as_it_was(pages: ReservedPages) -> None:
    (sentence,) = lacking_pages(PAGED_CELLS, [pages, ReservedPages(0, 2048, 1)])
    assert f"reserved_huge_pages keeps {pages.count} page" in sentence and "nr_hugepages" in sentence
    cells = without_reserved_pages(PAGED_CELLS, [pages])
    short = [cell for cell in cells if cell.id == pages.node]
    assert not any(cell.pages.get(pages.size_kib) for cell in short)
    assert [cell for cell in cells if cell not in short] == [
        cell for cell in PAGED_CELLS if cell.id != pages.node
    ]
    assert all(cell.memory_mb >= 0 for cell in cells)


EQUAL_CELLS = tuple(
    Cell(n, frozenset({n}), 1024, pages={4: 200_000, 2048: 100, 1048576: 1}) for n in range(3)
)
SETTINGS = HostSettings(reserved_host_memory_mb=0)


def test_the_cells_share_the_amount_and_have_no_large_pages() -> None:
    cells = with_file_backed_memory(EQUAL_CELLS, 1_000_000)
    assert [cell.memory_mb for cell in cells] == [333_334, 333_333, 333_333]
    assert [set(cell.pages) for cell in cells] == [{4}] * 3
    assert cells[0].pages[4] == 333_334 * 256
    assert with_file_backed_memory(EQUAL_CELLS, 0) == EQUAL_CELLS
    assert with_file_backed_memory((), 5) == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ram_allocation_ratio", 1.5),
        ("initial_ram_allocation_ratio", 1.5),
        ("reserved_host_memory_mb", 512),
        ("reserved_huge_pages", (ReservedPages(0, 2048, 1),)),
    ],
)
def test_overcommit_reserved_memory_and_large_pages_are_refused_as_nova_says(
    name: str, value: object
) -> None:
    check_file_backed_memory(1024, replace(SETTINGS, ram_allocation_ratio=1.0))
    with pytest.raises(SettingsError, match=f"file_backed_memory = 1024 needs .*{name}"):
        check_file_backed_memory(1024, replace(SETTINGS, **{name: value}))
    check_file_backed_memory(0, replace(SETTINGS, **{name: value}))


CARD = DescribedProvider("card", "n", device="pci:0000:41:00.0", units={"CUSTOM_VF": ("0000:41:02.0",)})
HOST = DescribedProvider("n", units={"PCPU": ("2",)})
LOCATIONS = described_locations((HOST, CARD))


def guest(*units: UsedUnit) -> Guest:
    uuid = "a0000000-0000-4000-8000-000000000001"
    return Guest(uuid, "one", GuestState.RUNNING, {"PCPU": 1}, units)


def test_each_described_unit_has_its_class_and_device() -> None:
    assert dict(LOCATIONS) == {
        "2": UnitLocation("PCPU", "host"),
        "0000:41:02.0": UnitLocation("CUSTOM_VF", "pci:0000:41:00.0"),
    }


def test_a_unit_gets_the_class_of_its_provider_and_devices_are_counted() -> None:
    located = locate_units(
        guest(UsedUnit("PCPU", "2", "host"), UsedUnit("SRIOV_NET_VF", "0000:41:02.0", "pci:0000:41:02.0")),
        LOCATIONS,
    )
    assert located.units[1] == UsedUnit("CUSTOM_VF", "0000:41:02.0", "pci:0000:41:00.0")
    assert located.resources == {"PCPU": 1, "CUSTOM_VF": 1}, "pinned CPUs were counted before"


def test_a_function_has_the_port_of_its_card_beside_the_one_that_its_guest_asks_for() -> None:
    used = UsedUnit("SRIOV_NET_VF", "0000:41:02.0", "pci:0000:41:02.0", asked_port="52:54:00:00:00:01")
    other = UsedUnit("SRIOV_NET_VF", "0000:42:02.0", "pci:0000:42:02.0")
    with_port = partial(replace, port="00:00:00:00:00:00")
    unit, undescribed = locate_units(guest(used, other), LOCATIONS, with_port).units
    assert (unit.asked_port, unit.port) == ("52:54:00:00:00:01", "00:00:00:00:00:00")
    assert undescribed is other, "its card is none that the agent offers"


def test_a_unit_that_no_provider_has_stays_and_counts_nothing() -> None:
    unknown = UsedUnit("VGPU", "u1", "mdev:u1")
    located = locate_units(guest(unknown), LOCATIONS)
    assert (located.units, located.resources) == ((unknown,), {"PCPU": 1})


def test_a_guest_without_units_is_the_same_object() -> None:
    plain = guest()
    assert locate_units(plain, LOCATIONS) is plain
