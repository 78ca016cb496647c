"""A guest that would hang or fail with a device of its domain is refused before it starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kits.gate import GatedHost, claim_of, domain, guest, pci, vf
from kits.pci_tree import PciTree

from agent.claims.claim import ClaimState
from agent.driver import UsedUnit

GPU, VF, SOUND = "0000:83:00.0", "0000:41:02.0", "0000:83:00.1"


@pytest.fixture
def tree(host: GatedHost, tmp_path: Path) -> PciTree:
    tree = PciTree(tmp_path / "root")
    tree.add(GPU, "nouveau", 1, class_="0x030000", reset_method="bus")
    tree.add("0000:41:00.0", "igb", 2)
    tree.add(VF, "igbvf", 3, pf="0000:41:00.0")
    host.driver.change(root_path=str(tree.root))
    return tree


def managed(text: str) -> str:
    return text.replace("type='pci'", "type='pci' managed='yes'").replace(
        "type='hostdev'", "type='hostdev' managed='yes'"
    )


def test_a_guest_whose_devices_are_ready_starts(host: GatedHost, tree: PciTree) -> None:
    uuid = str(uuid4())
    host.allowed("prepare", "begin", domain(uuid, devices=managed(pci(GPU) + vf(VF))))
    assert claim_of(host, uuid) is ClaimState.CLAIMED
    tree.bind(GPU, "vfio-pci")
    host.allowed("prepare", "begin", domain(str(uuid4())))


def test_a_device_that_libvirt_may_not_bind_is_refused_with_the_remedy(
    host: GatedHost, tree: PciTree
) -> None:
    uuid = str(uuid4())
    reason = host.refused("prepare", "begin", domain(uuid, devices=pci(GPU)))
    assert GPU in reason and "nouveau" in reason and "managed='yes'" in reason
    assert claim_of(host, uuid) is None and host.held(uuid) == {}
    tree.bind(GPU, "vfio-pci")
    host.allowed("prepare", "begin", domain(uuid, devices=pci(GPU)))


def test_a_group_that_is_not_viable_is_refused(host: GatedHost, tree: PciTree) -> None:
    tree.add(SOUND, "snd_hda_intel", 1, class_="0x040300")
    xml = domain(str(uuid4()), devices=managed(pci(GPU)))
    reason = host.refused("prepare", "begin", xml)
    assert "not viable" in reason and SOUND in reason
    assert "not viable" in host.refused("migrate", "begin", xml)
    tree.bind(SOUND, "vfio-pci")
    host.allowed("prepare", "begin", xml)


def test_the_hosts_own_display_is_refused(host: GatedHost, tree: PciTree) -> None:
    (tree.devices / GPU / "boot_vga").write_text("1\n")
    reason = host.refused("prepare", "begin", domain(str(uuid4()), devices=managed(pci(GPU))))
    assert "display" in reason


def test_another_guest_in_the_group_is_named(host: GatedHost, tree: PciTree) -> None:
    """The other device is on no provider, so no claim guards it."""
    tree.add(SOUND, "vfio-pci", 1, class_="0x040300")
    other = replace(guest(str(uuid4())), units=(UsedUnit("PCI_DEVICE", SOUND, f"pci:{SOUND}"),))
    host.driver.add_guest(other)
    host.world.agent.reconcile("a guest that nobody asked about")
    reason = host.refused("prepare", "begin", domain(str(uuid4()), devices=managed(pci(GPU))))
    assert other.uuid in reason and SOUND in reason


def test_a_driver_that_reads_no_devices_refuses_nothing(host: GatedHost) -> None:
    host.allowed("prepare", "begin", domain(str(uuid4()), devices=pci(GPU)))
