"""Dedicated CPUs that are down: up before their guest starts, down when it has ended, on a whole host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kits.agent import World, opened, told
from kits.placements import Placement

from agent.carving.cpus import CpuHold
from agent.carving.files import read_cpu_file
from agent.claims.parse_request import parse_claim
from agent.driver import Guest, GuestState, UsedUnit
from agent.gate.decision import CpuOrder, HookCall
from drivers.fake import cell

OPTIONS = """[compute]
cpu_shared_set = 0-3
cpu_dedicated_set = 4-7
cpu_power_management = true
"""


@pytest.fixture
def world(tmp_path: Path, placement: Placement) -> Iterator[World]:
    found = opened(told(tmp_path, placement, OPTIONS))
    found.driver.change(cells=(cell(0, frozenset(range(8)), 16384),), disk_gb=100, guests=())
    found.agent.reconcile("start")
    yield found
    found.close()


def call(world: World, operation: str, uuid: str, *cpus: int) -> CpuOrder | None:
    pins = "".join(f"<vcpupin vcpu='{vcpu}' cpuset='{cpu}'/>" for vcpu, cpu in enumerate(cpus))
    xml = (
        f"<domain type='kvm'><name>vm</name><uuid>{uuid}</uuid><memory unit='MiB'>512</memory>"
        f"<vcpu>{len(cpus) or 1}</vcpu><cputune>{pins}</cputune></domain>"
    )
    where = "begin" if operation == "prepare" else "end"
    return world.operations.gate(HookCall(operation, where, xml)).cpu_power


def test_the_gate_has_the_cpus_of_a_guest_powered_up_and_down(world: World) -> None:
    one, other = str(uuid4()), str(uuid4())
    assert call(world, "prepare", one, 4, 5) == CpuOrder((4, 5), "online")
    assert call(world, "prepare", other) is None, "it has shared CPUs"
    assert call(world, "release", one, 4, 5) == CpuOrder((4, 5), "offline")


def test_a_late_end_of_a_guest_leaves_the_cpus_up_that_another_has_claimed(world: World) -> None:
    """The driver shows the other guest only once it runs; its CPUs are powered up already."""
    one, other = str(uuid4()), str(uuid4())
    assert call(world, "prepare", other, 4, 5) == CpuOrder((4, 5), "online")
    assert call(world, "release", one, 5, 6) == CpuOrder((6,), "offline")


def test_a_claim_asks_for_its_cpus_until_its_guest_runs(world: World, tmp_path: Path) -> None:
    """What a process of root reads: it brings up what is awaited."""
    world.agent.write_needs()
    assert read_cpu_file(tmp_path) == {}
    flavor = {"vcpus": 2, "memory_mb": 512, "extra_specs": {"hw:cpu_policy": "dedicated"}}
    claimed = world.operations.claim(parse_claim({"consumer": (one := str(uuid4())), "flavor": flavor}))
    assert world.carvings_requested, "the agent writes soon"
    world.agent.write_needs()
    cpus = frozenset(int(unit) for _, name, unit in claimed.exact if name == "PCPU")
    assert len(cpus) == 2 and read_cpu_file(tmp_path) == {one: CpuHold(cpus, awaited=True)}
    used = tuple(UsedUnit("PCPU", str(cpu), "node1") for cpu in sorted(cpus))
    world.driver.change(guests=(Guest(one, "vm1", GuestState.RUNNING, {"PCPU": 2, "MEMORY_MB": 512}, used),))
    world.agent.reconcile("the guest runs")
    world.agent.write_needs()
    assert read_cpu_file(tmp_path) == {one: CpuHold(cpus)}


def test_a_reload_changes_how(world: World) -> None:
    settings = world.agent.settings
    host = replace(settings.driver.host_settings, cpu_power_management_strategy="governor")
    world.agent.apply_settings(replace(settings, driver=replace(settings.driver, host_settings=host)), None)
    assert call(world, "prepare", str(uuid4()), 6) == CpuOrder((6,), "performance")
