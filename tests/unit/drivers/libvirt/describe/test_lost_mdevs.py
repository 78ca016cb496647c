from __future__ import annotations

from dataclasses import replace

from kits.libvirt_model import FACTS

from drivers.libvirt.describe.cards import UnitRecord
from drivers.libvirt.describe.devices import DeviceFacts
from drivers.libvirt.describe.unit_records import LostMdev, lost_mdevs
from drivers.libvirt.xml import MediatedDevice

M60 = "0000:42:00.0"


PARENT = "pci_0000_42_00_0"


UUID = "11111111-1111-4111-8111-111111111111"


NAME = f"mdev_{UUID.replace('-', '_')}_0000_42_00_0"


UNIT = UnitRecord(UUID, M60, "VGPU", M60, "nvidia-11", "boot-1")


def after_a_reboot(*mdevs: MediatedDevice) -> DeviceFacts:
    cards = FACTS["boot"].cards
    return DeviceFacts(
        tuple(replace(card, mdevs=mdevs) if card.device.address == M60 else card for card in cards)
    )


def mdev(parent: str = PARENT, *, active: bool) -> MediatedDevice:
    return MediatedDevice(NAME, UUID, parent, "nvidia-11", active)


def lost(facts: DeviceFacts, missing: tuple[UnitRecord, ...] = (UNIT,)) -> list[LostMdev]:
    return lost_mdevs(missing, facts, "boot-2")


def test_a_transient_one_is_made_anew() -> None:
    assert lost(after_a_reboot()) == [LostMdev(UNIT, PARENT, None)]


def test_a_persistent_one_is_started_as_it_is_defined() -> None:
    assert lost(after_a_reboot(mdev(active=False))) == [LostMdev(UNIT, PARENT, NAME)]
    elsewhere = mdev("pci_0000_82_00_0", active=False)
    assert lost(after_a_reboot(elsewhere)) == [LostMdev(UNIT, PARENT, None)], (
        "that definition is of another card"
    )


def test_one_with_autostart_is_there_and_left_alone() -> None:
    """The host started it; where it did not (a broken udev rule), it is as any persistent one."""
    assert lost(after_a_reboot(mdev(active=True)), missing=()) == []
