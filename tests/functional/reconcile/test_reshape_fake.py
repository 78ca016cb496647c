"""The fake driver's host changes its model, there and back, with guests on its devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kits.placements import Placement
from kits.reshape import HOST, World, uuid_of
from kits.tracker import request

from agent.driver import DriverSettings, Guest, GuestState, HostSettings, UsedUnit
from drivers.fake.driver import FakeDriver
from drivers.fake.host import FakeHost, Gpu, Nic, cell

GPUS = tuple(
    Gpu(f"0000:4{n}:00.0", "VGPU", 4, tuple(f"mdev-{n}-{i}" for i in range(4)), numa=n) for n in (0, 1)
)
NICS = tuple(
    Nic(
        f"ens{n}",
        f"0000:5{n}:00.0",
        tuple(f"0000:5{n}:01.{i}" for i in range(4)),
        f"net{n}",
        1000,
        2000,
        numa=n,
    )
    for n in (0, 1)
)
CELLS = tuple(cell(n, frozenset(range(8 * n, 8 * n + 8)), 8192) for n in (0, 1))
FLAT = FakeHost(CELLS, 100, gpus=GPUS, nics=NICS, flat_devices=True)
NESTED = replace(FLAT, flat_devices=False)
NUMA = replace(NESTED, report_numa=True)

GPU1, NIC0, NIC1 = f"{HOST}_pci_0000:41:00.0", f"{HOST}_net_ens0", f"{HOST}_net_ens1"
CELL0, CELL1 = f"{HOST}_numa0", f"{HOST}_numa1"
SHARED = HostSettings(reserved_host_memory_mb=0)
DEDICATED = replace(
    SHARED,
    cpu_shared_set=frozenset({0, 1, 8, 9}),
    cpu_dedicated_set=frozenset({*range(2, 8), *range(10, 16)}),
)


class Stage:
    """A world whose driver is the fake one."""

    def __init__(self, world: World) -> None:
        self.world = world

    def show(self, host: FakeHost, settings: HostSettings = SHARED) -> None:
        self.world.reconciler.replace_driver(FakeDriver(host, DriverSettings(HOST, settings)))
        report = self.world.again()
        assert (report.error, report.pending) == (None, None), (report.error, report.pending)
        self.world.check()
        assert self.world.again().operations == 0, "the second pass does nothing"


@pytest.fixture
def stage(placement: Placement, tmp_path: Path) -> Iterator[Stage]:
    with World(tmp_path, placement) as world:
        yield Stage(world)


def guest(name: str, *units: UsedUnit, **resources: int) -> Guest:
    counted: dict[str, int] = {}
    for unit in units:
        counted[unit.resource_class] = counted.get(unit.resource_class, 0) + 1
    return Guest(uuid_of(name), name, GuestState.RUNNING, counted | resources, units)


def test_vgpus_to_their_cards_and_back(stage: Stage) -> None:
    """Scenario 86: claims of the agent's own keep the very mediated devices that their guests hold."""
    stage.show(FLAT)
    claim = stage.world.tracker.claim(request(uuid_of("a"), VGPU=2)).claim
    assert [len(units["VGPU"]) for units in claim.units.values()] == [2]
    mine = guest("a", *(UsedUnit("VGPU", f"mdev-1-{n}", "pci:0000:41:00.0") for n in (2, 3)))
    stage.show(replace(NESTED, guests=(mine,)))
    assert stage.world.placed("a") == {GPU1: {"VGPU": 2}}
    after = stage.world.tracker.claim_of(uuid_of("a"))
    assert after is not None
    assert after.units == {stage.world.uuid(GPU1): {"VGPU": ("mdev-1-2", "mdev-1-3")}}
    stage.show(replace(FLAT, guests=(mine,)))
    assert stage.world.placed("a") == {HOST: {"VGPU": 2}}
    assert set(stage.world.totals()) == {HOST}
    back = stage.world.tracker.claim_of(uuid_of("a"))
    assert back is not None and [*back.units.values()] == [{"VGPU": ("mdev-1-2", "mdev-1-3")}]


def test_virtual_functions_go_with_their_bandwidth_and_back(stage: Stage) -> None:
    """Scenario 94."""
    bandwidth = {"NET_BW_EGR_KILOBIT_PER_SEC": 100, "NET_BW_IGR_KILOBIT_PER_SEC": 200}
    stage.show(FLAT)
    stage.world.hold("told", node1={"SRIOV_NET_VF": 1, "VCPU": 1, **bandwidth})
    stage.world.hold("untold", node1={"SRIOV_NET_VF": 1, **bandwidth})
    mine = guest("told", UsedUnit("SRIOV_NET_VF", "0000:51:01.2", "pci:0000:51:00.0"), **bandwidth)
    stage.show(replace(NESTED, guests=(mine,)))
    assert stage.world.placed("told") == {HOST: {"VCPU": 1}, NIC1: {"SRIOV_NET_VF": 1, **bandwidth}}
    assert stage.world.placed("untold") == {NIC0: {"SRIOV_NET_VF": 1, **bandwidth}}
    stage.show(FLAT)
    assert stage.world.placed("told") == {HOST: {"VCPU": 1, "SRIOV_NET_VF": 1, **bandwidth}}


def test_pinned_guests_get_pcpus_and_vcpus_again(stage: Stage) -> None:
    stage.show(NESTED)
    stage.world.hold("pinned", node1={"VCPU": 4, "MEMORY_MB": 512})
    stage.world.hold("shared", node1={"VCPU": 4})
    pinned = guest("pinned", *(UsedUnit("PCPU", str(n), "host") for n in range(4, 8)))
    stage.show(replace(NESTED, guests=(pinned,)), DEDICATED)
    assert stage.world.placed("pinned") == {HOST: {"PCPU": 4, "MEMORY_MB": 512}}
    assert stage.world.placed("shared") == {HOST: {"VCPU": 4}}
    fewer = replace(DEDICATED, cpu_dedicated_set=frozenset(range(2, 8)), cpu_shared_set=frozenset({0, 1}))
    stage.show(replace(NESTED, guests=(pinned,)), fewer)
    stage.show(replace(NESTED, guests=(pinned,)), DEDICATED)
    stage.show(NESTED, SHARED)
    assert stage.world.placed("pinned") == {HOST: {"VCPU": 4, "MEMORY_MB": 512}}


def test_numa_on_and_off_again(stage: Stage) -> None:
    stage.show(NESTED, DEDICATED)
    stage.world.hold("pinned", node1={"PCPU": 4, "MEMORY_MB": 512})
    stage.world.hold("shared", node1={"VCPU": 2, "MEMORY_MB": 512}, **{})
    pinned = guest("pinned", *(UsedUnit("PCPU", str(n), "host") for n in range(10, 14)), MEMORY_MB=512)
    stage.show(replace(NUMA, guests=(pinned,)), DEDICATED)
    assert stage.world.placed("pinned") == {CELL1: {"PCPU": 4, "MEMORY_MB": 512}}
    assert stage.world.placed("shared") == {CELL0: {"VCPU": 2, "MEMORY_MB": 512}}
    tree = stage.world.tree()
    gpu1 = tree.by_name(GPU1)
    assert gpu1 is not None and gpu1.parent == stage.world.uuid(CELL1)
    stage.show(replace(NESTED, guests=(pinned,)), DEDICATED)
    assert stage.world.placed("pinned") == {HOST: {"PCPU": 4, "MEMORY_MB": 512}}
    assert CELL0 not in stage.world.totals()


def test_everything_at_once(stage: Stage) -> None:
    """Flat devices and shared CPUs become cards under cells, and dedicated CPUs."""
    stage.show(FLAT)
    stage.world.hold("a", node1={"VCPU": 4, "MEMORY_MB": 512, "VGPU": 1, "SRIOV_NET_VF": 1})
    units = (
        *(UsedUnit("PCPU", str(n), "numa:1") for n in range(10, 14)),
        UsedUnit("VGPU", "mdev-1-0", "pci:0000:41:00.0"),
        UsedUnit("SRIOV_NET_VF", "0000:50:01.0", "pci:0000:50:00.0"),
    )
    mine = guest("a", *units, MEMORY_MB=512)
    stage.world.reconciler.replace_driver(
        FakeDriver(replace(NUMA, guests=(mine,)), DriverSettings(HOST, DEDICATED))
    )
    for _ in range(3):
        report = stage.world.again()
        assert (report.error, report.pending) == (None, None)
    assert stage.world.placed("a") == {
        CELL1: {"PCPU": 4, "MEMORY_MB": 512},
        GPU1: {"VGPU": 1},
        NIC0: {"SRIOV_NET_VF": 1},
    }
    stage.show(FLAT, SHARED)
    assert stage.world.placed("a") == {HOST: {"VCPU": 4, "MEMORY_MB": 512, "VGPU": 1, "SRIOV_NET_VF": 1}}
