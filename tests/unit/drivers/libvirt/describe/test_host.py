from dataclasses import replace

import pytest
from kits.libvirt_node import DATA

from agent.driver import HostSettings
from agent.errors import DriverDataError
from drivers.libvirt.describe.host import HostFacts, describe_host, describe_topology, with_managed_cpus
from drivers.libvirt.xml import (
    parse_capabilities,
    parse_domain_capabilities,
)

RECORDED = parse_capabilities((DATA / "host" / "capabilities.xml").read_text())


KVM = parse_domain_capabilities((DATA / "host" / "domcapabilities-kvm.xml").read_text())


FACTS = HostFacts(
    capabilities=RECORDED,
    guests=KVM,
    cpu_flags=frozenset({"avx2", "svm"}),
    online=frozenset(range(4)),
    memory_mb=2916,
    disk_gb=20,
)


def test_the_hosts_inventories() -> None:
    settings = HostSettings(
        reserved_host_cpus=1,
        reserved_host_disk_mb=1500,
        cpu_shared_set=frozenset({0, 1}),
        cpu_dedicated_set=frozenset({3, 2}),
    )
    (root,) = describe_host(FACTS, settings, "node1")
    assert {name: (each.total, each.reserved) for name, each in root.inventories.items()} == {
        "VCPU": (2, 1),
        "PCPU": (2, 0),
        "MEMORY_MB": (2916, 512),
        "DISK_GB": (20, 2),
    }
    assert root.units == {"PCPU": ("2", "3")}
    assert (root.name, root.parent, root.device) == ("node1", None, "host")


def test_only_online_cpus_count() -> None:
    facts = replace(FACTS, online=frozenset({0, 1, 2}))
    topology = describe_topology(facts, HostSettings())
    assert [cell.cpus for cell in topology.cells] == [{0, 1}, {2}]
    assert topology.cells[1].siblings == (frozenset({2}),)
    assert topology.shared_cpus == {0, 1, 2}
    (root,) = describe_host(facts, HostSettings(cpu_dedicated_set=frozenset({2, 3})), "node1")
    assert root.units == {"PCPU": ("2",)}


def test_dedicated_cpus_that_a_power_manager_took_offline_are_offered() -> None:
    facts = replace(FACTS, online=frozenset({0, 1}))
    settings = HostSettings(
        cpu_shared_set=frozenset({0}), cpu_dedicated_set=frozenset({1, 3}), cpu_power_management=True
    )
    managed = with_managed_cpus(facts, settings)
    (root,) = describe_host(managed, settings, "node1")
    assert root.units == {"PCPU": ("1", "3")} and root.inventories["VCPU"].total == 1
    assert describe_topology(managed, settings).dedicated_cpus == {1, 3}
    assert with_managed_cpus(facts, replace(settings, cpu_power_management=False)) == facts
    governor = replace(settings, cpu_power_management_strategy="governor")
    assert with_managed_cpus(facts, governor) == facts, "CPUs that are down are online"
    nowhere = replace(settings, cpu_dedicated_set=frozenset({1, 64}))
    assert describe_topology(with_managed_cpus(facts, nowhere), nowhere).dedicated_cpus == {1}


def test_a_managed_cpu_that_libvirt_leaves_out_is_on_its_cell_by_sysfs() -> None:
    """libvirt's capabilities have no CPU that was offline when libvirtd started."""
    (first, *others) = RECORDED.cells
    assert 1 in first.cpus
    without = replace(
        first, cpus=first.cpus - {1}, siblings=tuple(core - {1} for core in first.siblings if core - {1})
    )
    capabilities = replace(RECORDED, cells=(without, *others))
    facts = replace(FACTS, capabilities=capabilities, online=frozenset({0, 2, 3}), offline={1: first.id})
    settings = HostSettings(
        cpu_shared_set=frozenset({0}), cpu_dedicated_set=frozenset({1, 3}), cpu_power_management=True
    )
    topology = describe_topology(with_managed_cpus(facts, settings), settings)
    assert topology.dedicated_cpus == {1, 3}
    assert topology.cells[0].cpus == first.cpus and frozenset({1}) in topology.cells[0].siblings
    unknown = replace(facts, offline={})
    assert describe_topology(with_managed_cpus(unknown, settings), settings).dedicated_cpus == {3}
    off = replace(settings, cpu_power_management=False)
    assert with_managed_cpus(facts, off) == facts
    alone = replace(facts, capabilities=replace(RECORDED, cells=(without,)), offline={1: None})
    only_first = replace(settings, cpu_dedicated_set=frozenset({1}))
    (cell,) = describe_topology(with_managed_cpus(alone, only_first), only_first).cells
    assert 1 in cell.cpus, "a host of one cell needs nothing of sysfs"


def test_a_host_without_cells_is_one_cell() -> None:
    facts = replace(FACTS, capabilities=replace(RECORDED, cells=()))
    topology = describe_topology(facts, HostSettings())
    assert [(cell.id, cell.cpus, cell.memory_mb) for cell in topology.cells] == [(0, {0, 1, 2, 3}, 2916)]


def test_memory_that_is_in_no_cell_is_in_all() -> None:
    cells = tuple(replace(cell, memory_mb=0) for cell in RECORDED.cells)
    facts = replace(FACTS, capabilities=replace(RECORDED, cells=cells), memory_mb=4097)
    assert [cell.memory_mb for cell in describe_topology(facts, HostSettings()).cells] == [2049, 2048]
    (root,) = describe_host(facts, HostSettings(), "node1")
    assert root.inventories["MEMORY_MB"].total == 4097


def test_a_cpu_in_two_cells_makes_no_sense() -> None:
    cells = (RECORDED.cells[0], replace(RECORDED.cells[0], id=1))
    facts = replace(FACTS, capabilities=replace(RECORDED, cells=cells))
    with pytest.raises(DriverDataError, match="a CPU is in two NUMA cells"):
        describe_topology(facts, HostSettings())
