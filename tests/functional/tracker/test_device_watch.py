"""The agent offers no device that is not well: agent.tracker.cordons, and the modules that use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.agent import request, told, world_of
from kits.pci_tree import PciTree
from kits.placements import Placement
from kits.restarted import Restarting

from agent.claims.claim import Claim
from agent.driver import DriverSettings
from agent.errors import DoesNotFit, DriverUnavailable, UsageError
from drivers.fake.host import Gpu, Nic, cell

GPUS = ("0000:83:00.0", "0000:84:00.0")
PF, VFS = "0000:41:00.0", ("0000:41:10.0", "0000:41:10.2")
PGPU, VF, PAGES = "PGPU", "SRIOV_NET_VF", "CUSTOM_HUGEPAGES_2048KIB"


class Host(Restarting):
    """An agent on a host with two whole GPUs and a network card, whose sysfs is `tree`."""

    def __init__(self, placement: Placement, directory: Path) -> None:
        self.settings = told(directory, placement)
        self.tree = PciTree(directory / "root")
        for address in GPUS:
            device = self.tree.add(address, "nvidia", class_="0x030000", aer_dev_fatal="TOTAL_ERR_FATAL 0")
            (device / "config").write_bytes(bytes(64))
        self.carrier = self.tree.interface("ens1f0", self.tree.add(PF, "igb")) / "carrier"
        self.carrier.write_text("1\n")
        for vf in VFS:
            self.tree.add(vf, "igbvf", pf=PF)
        self.tree.cells(node0="0-7")
        self.failures = self.tree.sys / "devices" / "system" / "node" / "node0" / "memory_failure"
        self.failures.mkdir()
        self.memory_fails(0)
        self.now = 1000.0
        self._open()

    def _open(self) -> None:
        self.world = world_of(
            self.settings,
            cells=(cell(0, frozenset(range(8)), 16384, pages={2048: 1024}),),
            disk_gb=100,
            gpus=tuple(Gpu(address, PGPU, 1, (address,)) for address in GPUS),
            nics=(Nic("ens1f0", PF, VFS),),
            flat_devices=False,
            root_path=str(self.tree.root),
        )

    def close(self) -> None:
        self.world.close()

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += 10
            self.world.agent.look_at_devices(self.now)
        self.world.agent.reconcile("a test")

    def offered(self, name: str) -> int:
        """What a scheduler can still be given, by Placement alone."""
        tree, usages = self.world.operations.tree()
        return sum(
            int(each.inventories[name].capacity) - usages[each.uuid].get(name, 0)
            for each in tree
            if name in each.inventories
        )

    def claim(self, name: str) -> Claim:
        return self.world.operations.claim(request(**{name: 1}))

    def given(self, name: str) -> str:
        (unit,) = (unit for classes in self.claim(name).units.values() for unit in classes.get(name, ()))
        return unit

    def dead(self, address: str) -> None:
        (self.tree.devices / address / "config").write_bytes(b"\xff" * 64)

    def alive(self, address: str) -> None:
        (self.tree.devices / address / "config").write_bytes(bytes(64))

    def memory_fails(self, pages: int) -> None:
        for name, count in (("total", pages), ("recovered", 0)):
            (self.failures / name).write_text(f"{count}\n")

    def withheld(self) -> dict[str, str]:
        """{unit: why} as `plimsoll devices list` has it."""
        return {
            device.unit: device.health.reason
            for device in self.world.operations.tracker.cordons.devices()
            if device.health is not None
        }

    def metric(self, symptom: str) -> int:
        text = self.world.agent.host_status.metrics().decode()
        (line,) = (
            each
            for each in text.splitlines()
            if each.startswith(f'plimsoll_unhealthy_devices{{symptom="{symptom}"')
        )
        return int(float(line.split()[-1]))


@pytest.fixture
def host(placement: Placement, tmp_path: Path) -> Iterator[Host]:
    host = Host(placement, tmp_path)
    yield host
    host.close()


def test_a_gpu_that_fell_off_the_bus_is_offered_to_nobody_and_comes_back_by_itself(host: Host) -> None:
    host.look()
    assert host.offered(PGPU) == 2 and host.withheld() == {}
    host.dead(GPUS[0])
    host.look()
    assert host.offered(PGPU) == 2, "one look may be a reset"
    host.look()
    assert host.offered(PGPU) == 1
    assert "reads as ones" in host.withheld()[GPUS[0]]
    assert host.metric("no answer") == 1
    assert any(GPUS[0] in reason for reason in host.world.agent.host_status.status().reasons)
    assert host.given(PGPU) == GPUS[1]
    with pytest.raises(DoesNotFit, match="1 more cordoned or unhealthy"):
        host.claim(PGPU)
    host.alive(GPUS[0])
    host.look(5)
    assert host.offered(PGPU) == 0, "it must answer for a while"
    host.look(1)
    assert host.offered(PGPU) == 1 and host.withheld() == {} and host.metric("no answer") == 0
    assert not any(GPUS[0] in reason for reason in host.world.agent.host_status.status().reasons)
    assert host.given(PGPU) == GPUS[0]
    (back, off) = (event.detail for event in host.world.journal.history() if event.event == "device health")
    assert off.startswith(f"{GPUS[0]} unhealthy: ") and back == f"{GPUS[0]} offered again"


def test_it_is_withheld_at_once_and_not_only_after_a_pass(host: Host) -> None:
    for address in GPUS:
        host.dead(address)
    for _ in range(2):
        host.world.agent.look_at_devices(host.now)
    with pytest.raises(DoesNotFit):
        host.claim(PGPU)
    assert host.world.retries, "a pass is requested, for Placement"


def test_it_is_never_taken_from_who_has_it_and_the_audit_names_them(host: Host) -> None:
    claim = host.claim(PGPU)
    (held,) = (unit for classes in claim.units.values() for unit in classes[PGPU])
    host.dead(held)
    host.look(2)
    assert host.offered(PGPU) == 1, "the other one"
    assert host.world.agent.host_status.overview().instances[0][1] == claim
    report = host.world.operations.audit(heal=False)
    (finding,) = report.findings
    assert (finding.kind, finding.subject, finding.repair) == ("unhealthy device", held, ())
    assert finding.evidence["consumers"] == [claim.consumer] and claim.consumer in finding.reason
    host.world.operations.release(claim.consumer)
    host.world.agent.reconcile("a release")
    assert host.offered(PGPU) == 1, "who comes next does not get it"
    assert host.given(PGPU) != held


def test_a_card_without_link_withholds_its_virtual_functions(host: Host) -> None:
    assert host.given(VF) in VFS
    host.carrier.write_text("0\n")
    host.look(2)
    assert host.offered(VF) == 1
    host.look()
    assert host.offered(VF) == 0 and host.withheld().keys() == set(VFS)
    assert host.offered(PGPU) == 2
    host.carrier.write_text("1\n")
    host.look(6)
    assert host.offered(VF) == 1 and host.withheld() == {}


def test_a_function_that_lost_its_driver_is_withheld_alone(host: Host) -> None:
    host.look()
    (host.tree.devices / VFS[0] / "driver").unlink()
    host.look(3)
    assert host.withheld().keys() == {VFS[0]} and host.given(VF) == VFS[1]
    host.tree.bind(VFS[0], "igbvf")
    host.look(2)
    assert host.given(VF) == VFS[0]


def test_a_card_that_dies_with_its_functions_is_one_reason_and_cleared_as_one(host: Host) -> None:
    host.look()
    claim = host.world.operations.claim(request(**{VF: 1}))
    (held,) = (unit for classes in claim.units.values() for unit in classes[VF])
    for address in (PF, *VFS):
        host.dead(address)
    host.look(2)
    (reason,) = host.world.agent.host_status.status().reasons
    assert reason.startswith(f"The card {PF} is unhealthy, with 2 of its 2 functions: it is not on the bus")
    assert f"{claim.consumer} has {held}" in reason or f"({claim.consumer}) has {held}" in reason
    assert host.withheld().keys() == set(VFS)
    host.world.operations.clear_cordon(PF)
    assert host.withheld() == {}


def test_a_fatal_error_withholds_at_once_and_for_a_while(host: Host) -> None:
    host.look()
    (host.tree.devices / GPUS[0] / "aer_dev_fatal").write_text("DLP 1\nTOTAL_ERR_FATAL 1\n")
    host.look()
    assert host.offered(PGPU) == 1
    host.look(59)
    assert host.offered(PGPU) == 1
    host.look()
    assert host.offered(PGPU) == 2


def test_large_pages_of_memory_that_fails_go_to_no_other_guest(host: Host) -> None:
    claim = host.world.operations.claim(request(**{PAGES: 100}))
    host.look()
    host.memory_fails(1)
    host.look()
    assert host.offered(PAGES) == 0
    with pytest.raises(DoesNotFit):
        host.claim(PAGES)
    (finding,) = host.world.operations.audit(heal=False).findings
    assert (finding.subject, finding.evidence["consumers"]) == ("numa:0", [claim.consumer])
    assert "The memory in large pages of NUMA cell 0 is unhealthy" in finding.reason
    host.world.operations.release(claim.consumer)
    host.world.agent.reconcile("a release")
    assert host.offered(PAGES) == 0
    host.world.operations.clear_cordon("numa:0")
    host.look()
    assert host.offered(PAGES) == 1024


def test_a_restart_does_not_offer_it_again(host: Host) -> None:
    host.look()
    host.dead(GPUS[0])
    host.look(2)
    host.restart()
    assert host.offered(PGPU) == 1 and host.given(PGPU) == GPUS[1]
    host.alive(GPUS[0])
    host.look(6)
    assert host.offered(PGPU) == 1


def test_an_operator_clears_it_also_over_a_restart(host: Host) -> None:
    host.carrier.write_text("0\n")
    host.look(3)
    host.world.operations.clear_cordon(PF)
    host.look(5)
    assert host.offered(VF) == 2 and host.withheld() == {}
    host.restart()
    host.look(5)
    assert host.offered(VF) == 2
    with pytest.raises(UsageError, match="neither cordoned nor unhealthy"):
        host.world.operations.clear_cordon(PF)
    host.carrier.write_text("1\n")
    host.look()
    host.carrier.write_text("0\n")
    host.look(3)
    assert host.offered(VF) == 0, "it had gone, so it counts again"


def test_a_card_that_was_removed_and_found_again_begins_anew(host: Host) -> None:
    host.dead(GPUS[0])
    host.look(2)
    gpus = host.world.driver.host.gpus
    host.world.driver.change(gpus=gpus[1:])
    host.look()
    assert host.offered(PGPU) == 1 and host.withheld() == {}
    host.alive(GPUS[0])
    host.world.driver.change(gpus=gpus)
    host.look()
    assert host.offered(PGPU) == 2


def test_a_driver_that_does_not_answer_changes_nothing(host: Host) -> None:
    host.dead(GPUS[0])
    host.look(2)
    host.world.driver.fail(3, DriverUnavailable("away"))
    for _ in range(3):
        host.world.agent.look_at_devices(host.now)
    assert host.withheld().keys() == {GPUS[0]}


def test_a_driver_without_sysfs_has_no_signs(tmp_path: Path) -> None:
    from drivers.fake.driver import FakeDriver

    assert FakeDriver(settings=DriverSettings(host="node1")).device_signs() == ()
