import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.driver import Cell, HostSettings
from agent.errors import SettingsError
from drivers.host.inventory import (
    absent_cpus,
    check_cpu_sets,
    cpu_inventories,
    disk_inventory,
    memory_inventory,
    shares,
    split_cpus,
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


def test_a_cpu_both_shared_and_dedicated_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"both name CPU 3"):
        check_cpu_sets(HostSettings(cpu_shared_set=frozenset({1, 3}), cpu_dedicated_set=frozenset({3})))


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


@given(st.integers(0, 10**6), st.integers(1, 64))
def test_shares_are_whole_fair_and_lose_nothing(amount: int, parts: int) -> None:
    found = shares(amount, parts)
    assert (sum(found), len(found)) == (amount, parts)
    assert max(found) - min(found) <= 1
